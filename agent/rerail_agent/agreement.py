"""Make all ranks act at the same step: each rank raises flags, and the flags travel in an all-reduce.

A rank raises flags on its own. A flag takes effect once a collective has returned it, and then on every rank. One
number is added to the loss: how many ranks have raised any flag. Only if it is above zero is a second reduction made,
which says which flags. (gloo on loopback, two ranks: 2 numbers took 1.15 times as long as the loss alone, 5 took 1.5
times.)

Everything uses the default process group, because SMDDP has no others. The error of a failed collective is raised: the
job has lost a rank, and a rank that continued alone would only hang the others.
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from rerail_agent.deferred_torch import find_process_group, is_tensor, to_number

if TYPE_CHECKING:
    import torch

COMMAND, SIGTERM, WARNING, INTERVAL, FENCED, COMPARE = range(6)  # those that want a checkpoint come first
FLAGS = 6
# Without reduce(): often enough that a SIGTERM, 120 s before the kill, leaves time for the save.
MAX_INTERVAL_S = 10.0
CALL_TIMEOUT = timedelta(seconds=120)
CPU_BACKENDS = ("gloo", "mpi")  # a backend registered from outside, such as SMDDP, claims the CPU but cannot use it
PLACE = "rerail/place/"
CALLED, ALL_CALLED = "rerail/called", "rerail/all_called"

Raised = tuple[bool, ...]
NONE: Raised = (False,) * FLAGS


class Agreement:
    """The flags raised by this rank, and the flags that all ranks agreed on since the last step."""

    def __init__(self, *, every: int, log: Callable[[str], None]) -> None:
        self.rank, self.size, self.expected = 0, 1, 1
        # Host and GPU, known from the first step on.
        self.place = ""
        self._every = self._next = max(1, every)
        self._log = log
        self._raised = [0.0] * FLAGS
        self._agreed: set[int] = set()
        self._has_reduced = False  # whether reduce() was called since the last step
        self._steps = 0
        self._all_ranks_call: bool | None = None
        self._pending: Callable[[], list[float]] | None = None
        self._pair, self._flags = SharedArray(2), SharedArray(FLAGS)
        self._flag_tensors: dict[bool, torch.Tensor] = {}
        self._joined = False
        self._backends: dict[str, str] = {}

    def join(self) -> None:
        """Detect whether the process group exists by now; without one, this is the only rank."""
        if not self._joined and (dist := find_process_group()):
            self._joined = True
            self.rank, self.size = dist.get_rank(), dist.get_world_size()
            self._backends = _backends()

    @property
    def lacks_process_group(self) -> bool:
        """Return whether the launcher started several ranks that no process group connects."""
        return self.size == 1 and self.expected > 1

    def raise_flag(self, flag: int) -> None:
        """Raise a flag; may be called from any thread and from a signal handler."""
        self._raised[flag] = 1.0

    def reduce(self, loss: Any) -> float:
        """Return the mean of the loss over the ranks, and learn whether any rank has raised a flag. Collective."""
        self.join()
        if self.size == 1:
            return to_number(loss)
        device = self._choose_device(loss.device if is_tensor(loss) else None)
        mean, raised = self._average_on_cpu(loss) if device.type == "cpu" else self._average_on_device(device, loss)
        if raised:
            self._reduce_flags()
        self._has_reduced = True
        return mean

    def agree(self, step_s: float) -> Raised:
        """Return the flags that all ranks agreed on since the last step.

        Reduces the flags itself when reduce() was not called for a while. Collective, unless reduce() is called in each
        step.
        """
        self.join()
        if self.size > 1:
            self._reduce_periodically(step_s)
        elif any(self._raised):
            self._accept(list(self._raised))
        self._has_reduced = False
        if not self._agreed:
            return NONE
        agreed, self._agreed = self._agreed, set()
        return tuple(flag in agreed for flag in range(FLAGS))

    def publish_place(self, place: str) -> None:
        """Tell the other ranks where this one runs."""
        self.place = place
        if (store := get_store()) is not None:
            store.set(f"{PLACE}{self.rank}", place)

    def gather(self, numbers: list[float]) -> list[list[float]]:
        """Return the numbers of every rank, by rank, in single precision. Collective.

        The table is a sum of vectors that are zero elsewhere, because every backend can do that.
        """
        import torch
        from torch import distributed as dist

        count = len(numbers)
        table = torch.zeros(self.size * count, dtype=torch.float32)
        table[self.rank * count : (self.rank + 1) * count] = torch.tensor(numbers, dtype=torch.float32)
        table = table.to(self._choose_device())
        dist.all_reduce(table)
        return [list(row) for row in table.reshape(self.size, count).tolist()]

    def find_place(self, rank: int) -> str:
        """Return where a rank runs, if it has published that."""
        store = get_store()
        key = f"{PLACE}{rank}"
        return str(store.get(key), errors="replace") if store is not None and store.check([key]) else "an unknown host"

    def _accept(self, raised_here: list[float], sums: list[float] | None = None) -> None:
        """Mark flags as agreed on, and lower those that this rank had raised."""
        for flag, count in enumerate(raised_here if sums is None else sums):
            if count:
                self._agreed.add(flag)
                if raised_here[flag]:
                    self._raised[flag] = 0.0

    def _average_on_cpu(self, loss: Any) -> tuple[float, bool]:
        """Average in Python's double precision, rounded once, which has the bits of a division in float32."""
        pair = self._pair
        pair.numbers[0] = to_number(loss.mean() if is_tensor(loss) and loss.numel() != 1 else loss)
        mean, raised = pair.all_reduce([pair.numbers[0] / self.size, float(any(self._raised))])
        return mean, raised > 0

    def _average_on_device(self, device: torch.device, loss: Any) -> tuple[float, bool]:
        """Average on a device; reading the sums is the only moment at which the host waits for it."""
        import torch
        from torch import distributed as dist

        loss = torch.as_tensor(loss).detach().to(device)
        share = (loss if loss.numel() == 1 else loss.mean()).float() / self.size
        pair = torch.cat([share.reshape(1), self._get_flag_tensor(device, any(self._raised))])
        dist.all_reduce(pair)
        mean, raised = pair.tolist()
        return float(mean), raised > 0

    def _get_flag_tensor(self, device: torch.device, raised: bool) -> torch.Tensor:
        """Return a zero or a one that is already on the device, so that no step copies one there."""
        import torch

        bit = self._flag_tensors.get(raised)
        if bit is None or bit.device != device:
            bit = self._flag_tensors[raised] = torch.full((1,), float(raised), dtype=torch.float32, device=device)
        return bit

    def _choose_device(self, device: torch.device | None = None) -> torch.device:
        """Return the device of the collective: the loss's, if the process group supports it."""
        import torch

        at_cpu = self._backends.get("cpu") in CPU_BACKENDS
        if device is not None and device.type in self._backends and (device.type != "cpu" or at_cpu):
            return device
        if at_cpu or not torch.cuda.is_available():
            return torch.device("cpu")
        return torch.device("cuda", torch.cuda.current_device())

    def _reduce_flags(self) -> None:
        """Learn which flags are raised, after all ranks have learned that some are."""
        raised_here, device = list(self._raised), self._choose_device()
        if device.type == "cpu":
            sums = self._flags.all_reduce(raised_here)
        else:
            import torch
            from torch import distributed as dist

            flags = torch.tensor(raised_here, dtype=torch.float32, device=device)
            dist.all_reduce(flags)
            sums = list(flags.tolist())
        self._accept(raised_here, sums)

    def _reduce_periodically(self, step_s: float) -> None:
        if self._pending is not None:
            answer, self._pending = self._pending, None
            self._apply_sums(answer())
        self._steps = 0 if self._has_reduced else self._steps + 1
        if self._steps < self._next:
            return
        self._steps = 0
        if self._all_ranks_call is None:
            self._all_ranks_call = _check_all_ranks_call(self.size, self._log)
        if self._all_ranks_call:
            self._start_reduction(step_s)

    def _start_reduction(self, step_s: float) -> None:
        """Reduce whether any rank has raised a flag, and after how many steps to ask again."""
        wait = (
            max(1, min(self._every, int(MAX_INTERVAL_S / step_s) if step_s > 0 else self._every))
            if self.rank == 0
            else 0
        )
        question, device = [float(any(self._raised)), float(wait)], self._choose_device()
        if device.type == "cpu":
            self._apply_sums(self._pair.all_reduce(question))
            return
        import torch
        from torch import distributed as dist

        pair = torch.tensor(question, dtype=torch.float32, device=device)
        dist.all_reduce(pair)
        # Read one step late: the host must not wait here for all that the device has yet to do.
        answer = torch.empty(2, dtype=torch.float32, pin_memory=True)
        answer.copy_(pair, non_blocking=True)
        copied = torch.cuda.Event()
        copied.record()

        def read() -> list[float]:
            copied.synchronize()
            return list(answer.tolist())

        self._pending = read

    def _apply_sums(self, sums: list[float]) -> None:
        raised, wait = sums
        self._next = max(1, int(wait))
        if raised:
            self._reduce_flags()


class SharedArray:
    """A few numbers shared by Python and a tensor; creating a tensor in each step would cost more than the rest."""

    def __init__(self, count: int) -> None:
        self.numbers = array("f", bytes(4 * count))
        self._tensor: torch.Tensor | None = None

    def all_reduce(self, numbers: list[float]) -> list[float]:
        """Return the sums of the numbers over the ranks. Collective."""
        import torch
        from torch import distributed as dist

        if self._tensor is None:
            self._tensor = torch.frombuffer(self.numbers, dtype=torch.float32)
        self.numbers[:] = array("f", numbers)
        dist.all_reduce(self._tensor)
        return self.numbers.tolist()


def _backends() -> dict[str, str]:
    """Return the backend of each kind of device, such as {"cpu": "gloo", "cuda": "nccl"}."""
    import torch
    from torch import distributed as dist

    try:
        return dict(part.split(":", 1) for part in str(dist.get_backend_config()).split(",") if ":" in part)
    except (AttributeError, RuntimeError, ValueError):
        return {"cuda" if torch.cuda.is_available() else "cpu": str(dist.get_backend())}


def _check_all_ranks_call(size: int, log: Callable[[str], None]) -> bool:
    """Return whether every rank calls step(): a rank that calls it alone would wait for ever.

    Asked once, through the group's store. The first rank that knows the answer stores it for all.
    """
    store = get_store()
    if store is None:
        return True
    if store.add(CALLED, 1) == size:
        store.compare_set(ALL_CALLED, "", "yes")
    else:
        with contextlib.suppress(RuntimeError):  # not all ranks called in time
            store.wait([ALL_CALLED], CALL_TIMEOUT)
    if bytes(store.compare_set(ALL_CALLED, "", "no")) == b"yes":
        return True
    log(
        f"step() was called by {store.add(CALLED, 0)} of {size} ranks within {CALL_TIMEOUT.total_seconds():.0f} s, so"
        " they cannot agree: no checkpoint will be saved on request; call it on every rank"
    )
    return False


def get_store() -> Any:
    """Return the default process group's store, or None."""
    with contextlib.suppress(ImportError, AttributeError, ValueError, RuntimeError):
        from torch import distributed as dist

        return dist.distributed_c10d._get_default_store()
    return None
