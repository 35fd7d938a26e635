"""How all ranks come to do the same at the same step: flags that ride on an all-reduce.

Each rank raises flags on its own; a flag counts once it came back from a collective, and then it counts on every rank.
What rides along is one number, how many ranks have raised any; only when there are some is it asked which. (gloo on
loopback, two ranks: 2 numbers took 1.15 times as long as the loss alone, 5 took 1.5 times.)

Everything goes through the default process group, for SMDDP has no others. A collective that fails is not the agent's
fault but the end of the job, so its error is let through; a rank that went on alone would only hang the others.
"""

import contextlib
from array import array
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist

COMMAND, SIGTERM, WARNING, FENCED = range(4)
FLAGS = 4
# Without reduce(): often enough that a SIGTERM, 120 s before the kill, leaves its time to the save.
WITHIN_S = 10.0
ROLL_CALL = timedelta(seconds=120)
CPU = torch.device("cpu")
ON_CPU = ("gloo", "mpi")  # a backend registered from outside, as SMDDP is, claims the CPU and cannot serve it
CALLED, ALL_CALLED = "rerail/called", "rerail/all_called"

Raised = tuple[bool, ...]
NONE: Raised = (False,) * FLAGS


class Agreement:
    """This rank's raised flags, and those that all ranks have agreed on since the last step."""

    def __init__(self, *, every: int, tell: Callable[[str], None]) -> None:
        self.rank, self.size, self.expected = 0, 1, 1
        self._every = self._next = max(1, every)
        self._tell = tell
        self._mine = [0.0] * FLAGS
        self._agreed: set[int] = set()
        self._settled = False  # whether reduce() brought an answer since the last step
        self._steps = 0
        self._called: bool | None = None
        self._under_way: Callable[[], list[float]] | None = None
        self._pair, self._flags = Cells(2), Cells(FLAGS)
        self._bits: dict[bool, torch.Tensor] = {}
        self._joined = False
        self._backends: dict[str, str] = {}

    def join(self) -> None:
        """Looks whether the process group is there by now; without one, this is the only rank."""
        if not self._joined and dist.is_available() and dist.is_initialized():
            self._joined = True
            self.rank, self.size = dist.get_rank(), dist.get_world_size()
            self._backends = _backends()

    @property
    def is_mute(self) -> bool:
        """The launcher started several ranks, and no process group joins them: they cannot agree on anything."""
        return self.size == 1 and self.expected > 1

    def hoist(self, flag: int) -> None:
        """Raise a flag: from any thread, or from a signal handler."""
        self._mine[flag] = 1.0

    def reduce(self, loss: Any) -> float:
        """The mean of the loss over the ranks; whether any has raised a flag comes along. Collective."""
        self.join()
        if self.size == 1:
            return float(loss)
        device = self._home(loss.device if isinstance(loss, torch.Tensor) else None)
        mean, raised = self._mean_here(loss) if device.type == "cpu" else self._mean_on(device, loss)
        if raised:
            self._ask_which()
        self._settled = True
        return mean

    def settle(self, step_s: float) -> Raised:
        """The flags that all ranks agreed on since the last step; asks them now where nobody reduced for long.

        Collective, unless reduce() is called in each step."""
        self.join()
        if self.size > 1:
            self._ask_at_times(step_s)
        elif any(self._mine):
            self._take(list(self._mine))
        self._settled = False
        if not self._agreed:
            return NONE
        agreed, self._agreed = self._agreed, set()
        return tuple(flag in agreed for flag in range(FLAGS))

    def _take(self, mine: list[float], sums: list[float] | None = None) -> None:
        """These flags were raised here, and by so many ranks: they are agreed on, and ours are lowered again."""
        for flag, count in enumerate(mine if sums is None else sums):
            if count:
                self._agreed.add(flag)
                if mine[flag]:
                    self._mine[flag] = 0.0

    def _mean_here(self, loss: Any) -> tuple[float, bool]:
        """Division in Python's double precision, rounded once, has the bits of a division in float32."""
        pair = self._pair
        pair.numbers[0] = float(loss.mean() if isinstance(loss, torch.Tensor) and loss.numel() != 1 else loss)
        mean, raised = pair.added_up([pair.numbers[0] / self.size, float(any(self._mine))])
        return mean, raised > 0

    def _mean_on(self, device: torch.device, loss: Any) -> tuple[float, bool]:
        """The same on a device; reading the sums is the one moment at which the host waits for it."""
        loss = torch.as_tensor(loss).detach().to(device)
        share = (loss if loss.numel() == 1 else loss.mean()).float() / self.size
        pair = torch.cat([share.reshape(1), self._bit_on(device, any(self._mine))])
        dist.all_reduce(pair)
        mean, raised = pair.tolist()
        return float(mean), raised > 0

    def _bit_on(self, device: torch.device, raised: bool) -> torch.Tensor:
        """A zero or a one that lies on the device already: nothing has to be copied there in a step."""
        bit = self._bits.get(raised)
        if bit is None or bit.device != device:
            bit = self._bits[raised] = torch.full((1,), float(raised), dtype=torch.float32, device=device)
        return bit

    def _home(self, device: torch.device | None = None) -> torch.device:
        """Where the collective takes place: where the loss is, if the process group reaches there."""
        at_cpu = self._backends.get("cpu") in ON_CPU
        if device is not None and device.type in self._backends and (device.type != "cpu" or at_cpu):
            return device
        if at_cpu or not torch.cuda.is_available():
            return CPU
        return torch.device("cuda", torch.cuda.current_device())

    def _ask_which(self) -> None:
        """Some rank has raised a flag, as all know by now: which ones?"""
        mine, device = list(self._mine), self._home()
        if device.type == "cpu":
            sums = self._flags.added_up(mine)
        else:
            flags = torch.tensor(mine, dtype=torch.float32, device=device)
            dist.all_reduce(flags)
            sums = list(flags.tolist())
        self._take(mine, sums)

    def _ask_at_times(self, step_s: float) -> None:
        if self._under_way is not None:
            answer, self._under_way = self._under_way, None
            self._answered(answer())
        self._steps = 0 if self._settled else self._steps + 1
        if self._steps < self._next:
            return
        self._steps = 0
        if self._called is None:
            self._called = _all_call(self.size, self._tell)
        if self._called:
            self._ask(step_s)

    def _ask(self, step_s: float) -> None:
        """Has any rank raised a flag? And how many steps would the first one wait before this is asked again?"""
        wait = max(1, min(self._every, int(WITHIN_S / step_s) if step_s > 0 else self._every)) if self.rank == 0 else 0
        question, device = [float(any(self._mine)), float(wait)], self._home()
        if device.type == "cpu":
            self._answered(self._pair.added_up(question))
            return
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

        self._under_way = read

    def _answered(self, sums: list[float]) -> None:
        raised, wait = sums
        self._next = max(1, int(wait))
        if raised:
            self._ask_which()


class Cells:
    """A few numbers that Python and a tensor share: making a tensor in each step would cost more than all the rest."""

    def __init__(self, count: int) -> None:
        self.numbers = array("f", bytes(4 * count))
        self._tensor = torch.frombuffer(self.numbers, dtype=torch.float32)

    def added_up(self, numbers: list[float]) -> list[float]:
        """Their sums over the ranks. Collective."""
        self.numbers[:] = array("f", numbers)
        dist.all_reduce(self._tensor)
        return self.numbers.tolist()


def _backends() -> dict[str, str]:
    """Which backend serves which kind of device, such as {"cpu": "gloo", "cuda": "nccl"}."""
    try:
        return dict(part.split(":", 1) for part in str(dist.get_backend_config()).split(",") if ":" in part)
    except (AttributeError, RuntimeError, ValueError):
        return {"cuda" if torch.cuda.is_available() else "cpu": str(dist.get_backend())}


def _all_call(size: int, tell: Callable[[str], None]) -> bool:
    """Whether every rank calls step(): one that does so alone would wait for the others for ever.

    Asked once, through the group's store; the first to know the answer writes it down for all.
    """
    store = _store()
    if store is None:
        return True
    if store.add(CALLED, 1) == size:
        store.compare_set(ALL_CALLED, "", "yes")
    else:
        with contextlib.suppress(RuntimeError):  # nobody came in time
            store.wait([ALL_CALLED], ROLL_CALL)
    if bytes(store.compare_set(ALL_CALLED, "", "no")) == b"yes":
        return True
    tell(
        f"step() was called by {store.add(CALLED, 0)} of {size} ranks within {ROLL_CALL.total_seconds():.0f} s, so they"
        " cannot agree: no checkpoint will be saved on request; call it on every rank"
    )
    return False


def _store() -> Any:
    with contextlib.suppress(ImportError, AttributeError, ValueError, RuntimeError):
        return dist.distributed_c10d._get_default_store()
    return None
