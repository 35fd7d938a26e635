"""Drills: real faults at a chosen step, so that a recovery can be watched before it is needed.

`RERAIL_DRILL` holds drills joined by `;`, each `kind:step=S` with its settings: `kill:step=60:attempt=1;slow:step=90`.
Every kind takes `attempt=N` (only in that attempt) and `restart=N` (only after that restart in place; 0 is the job's
own start). Those marked * hit rank 0 alone, a hang the last rank (so that rank 0 is left waiting), and take `rank=N`;
the others hit all ranks alike. A fault fires as its step begins.

bug *    numpy raises, and the rank fails
oom *    torch's allocator refuses four pebibytes; with `over=8`, from step S on, as if a GPU's memory did not hold
         more than eight samples at a time
kill *   SIGKILL to the rank and its launcher
exit *   the process ends with `code=1`
hang *   the rank does not join the next collective and does not handle SIGTERM
spike    the last layer's weights change their sign, and Adam's second moments are so large from then on that it cannot
         recover them for hundreds of steps: the loss jumps and stays up
heal     `for=8` batches have wrong labels, fewer from each to the next, and their updates are skipped, as a script with
         a guard does: the loss jumps and comes back to its level
toxic    `sample=N` in place of a step: what a spike does, whenever the sample of that id is trained on
unstable what a spike does, if the learning rate is above `percent=95` of the one that the schedule has for that step
nan      a weight becomes NaN, and so do loss and gradients from then on; the script trains on
slow *   from step S on, each step takes `factor=4` times as long
stall    from step S on, no step completes, as with a hung data loader; SIGTERM ends the process without a save
wait     step S does not begin before SIGTERM arrives, so that a fault caused from outside always hits that step; a
         process that has resumed from a checkpoint does not wait, since that fault has happened. With `damaged=1`, a
         process waits only if a spike, toxic, unstable or nan has occurred in it: on a busy machine it would end
         before it could be stopped
blind    from step S on, no metric line is printed

A spike and a NaN are in the weights, and so in every checkpoint from step S on: only an older one is free of them.
"""

import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import FrameType
from typing import NoReturn

import numpy as np
import torch
from torch import nn

from model import VOCABULARY


class FaultKind(StrEnum):
    """The kind of a fault."""

    BUG = "bug"
    OOM = "oom"
    KILL = "kill"
    EXIT = "exit"
    HANG = "hang"
    SPIKE = "spike"
    TOXIC = "toxic"
    UNSTABLE = "unstable"
    HEAL = "heal"
    NAN = "nan"
    SLOW = "slow"
    STALL = "stall"
    BLIND = "blind"
    WAIT = "wait"


ON_ONE_RANK = (FaultKind.BUG, FaultKind.OOM, FaultKind.KILL, FaultKind.EXIT, FaultKind.HANG, FaultKind.SLOW)
LASTING = (
    FaultKind.HEAL,
    FaultKind.SLOW,
    FaultKind.STALL,
    FaultKind.BLIND,
)  # they affect steps, not the weights, and so a resumed run too
# They change the weights, and so every later step of the process.
DAMAGING = (FaultKind.SPIKE, FaultKind.TOXIC, FaultKind.UNSTABLE, FaultKind.NAN)
OWN_SETTINGS = {
    FaultKind.OOM: "over",
    FaultKind.EXIT: "code",
    FaultKind.HEAL: "for",
    FaultKind.SLOW: "factor",
    FaultKind.UNSTABLE: "percent",
    FaultKind.WAIT: "damaged",
}
FIELDS = {"for": "length"}  # settings whose names are keywords of Python


@dataclass(frozen=True)
class FaultDrill:
    """One fault; without a rank it hits those that the module documentation names for its kind."""

    kind: FaultKind
    step: int = 0
    attempt: int | None = None
    restart: int | None = None
    rank: int | None = None
    code: int = 1
    length: int = 8
    factor: int = 4
    sample: int | None = None
    percent: int = 95
    damaged: int = 0
    over: int = 0

    def applies_to(self, *, attempt: int, rank: int, world_size: int, restart: int = 0) -> bool:
        default = world_size - 1 if self.kind is FaultKind.HANG else 0
        here = self.kind not in ON_ONE_RANK or rank == (default if self.rank is None else self.rank)
        return here and self.attempt in (None, attempt) and self.restart in (None, restart)

    def is_active(self, step: int, *, batch: Sequence[int] = (), rate: float = 1.0, size: int = 0) -> bool:
        """Return whether the fault occurs in this step.

        `batch` are its samples, `rate` is its share of the scheduled learning rate, `size` its samples at a time.
        """
        if self.over:
            return self.step <= step and size > self.over
        if self.kind is FaultKind.TOXIC:
            return self.sample in batch
        if self.kind is FaultKind.UNSTABLE:
            return step == self.step and 100 * rate > self.percent
        if self.kind not in LASTING:
            return step == self.step
        return self.step <= step and (self.kind is not FaultKind.HEAL or step < self.step + self.length)


def parse(text: str) -> tuple[FaultDrill, ...]:
    """Return the drills in RERAIL_DRILL; raise ValueError that says what is wrong and what is allowed."""
    return tuple(_parse_one(part.strip()) for part in text.split(";") if part.strip())


def _parse_one(text: str) -> FaultDrill:
    name, *settings = text.split(":")
    try:
        kind = FaultKind(name)
        numbers = {key: int(value) for key, value in (setting.split("=") for setting in settings)}
        if numbers.keys() - _settings(kind) or _place(kind) not in numbers:
            raise ValueError(f"not the settings of {kind}")
        return FaultDrill(kind=kind, **{FIELDS.get(key, key): number for key, number in numbers.items()})
    except (TypeError, ValueError) as error:
        kinds = ", ".join(FaultKind)
        remedy = f"write kind:step=N, with a kind of {kinds}; faults.py has the settings of each"
        raise ValueError(f"RERAIL_DRILL: cannot read {text!r}; {remedy}") from error


def _settings(kind: FaultKind) -> set[str]:
    place = _place(kind)
    return {place, "attempt", "restart", OWN_SETTINGS.get(kind, place), "rank" if kind in ON_ONE_RANK else place}


def _place(kind: FaultKind) -> str:
    return "sample" if kind is FaultKind.TOXIC else "step"


@dataclass
class FaultPlan:
    """The drills of one rank in one attempt; the training loop calls its methods where faults take effect."""

    drills: tuple[FaultDrill, ...]
    # The last step before this process began.
    resumed_step: int = 0
    # Whether a drill has changed the weights in this process.
    is_damaged: bool = False

    @classmethod
    def of(
        cls,
        drills: tuple[FaultDrill, ...],
        *,
        attempt: int,
        rank: int,
        world_size: int,
        restart: int = 0,
        resumed_step: int = 0,
    ) -> "FaultPlan":
        here = {"attempt": attempt, "restart": restart, "rank": rank, "world_size": world_size}
        return cls(tuple(drill for drill in drills if drill.applies_to(**here)), resumed_step)

    def apply(
        self,
        step: int,
        *,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        batch: Sequence[int] = (),
        rate: float = 1.0,
        size: int = 0,
    ) -> None:
        """Cause the faults that are due as a step begins (see FaultDrill.is_active).

        A bug and exhausted memory raise, an exit and a stall do not return.
        """
        for drill in self.drills:
            if drill.kind is FaultKind.WAIT and not (self.is_damaged if drill.damaged else self.resumed_step == 0):
                continue
            if drill.is_active(step, batch=batch, rate=rate, size=size):
                inject(drill, model=model, optimizer=optimizer)
                self.is_damaged |= drill.kind in DAMAGING

    def wrong_labels(self, step: int) -> float:
        """Return the share of labels that is wrong in this step's batch, 0 for a good one."""
        healing = (drill for drill in self.drills if drill.kind is FaultKind.HEAL and drill.is_active(step))
        return max((1 - (step - drill.step) / drill.length for drill in healing), default=0.0)

    def slowdown(self, step: int) -> int:
        """Return how many times as long this step takes."""
        return max(
            (drill.factor for drill in self.drills if drill.kind is FaultKind.SLOW and drill.is_active(step)), default=1
        )

    def is_blind(self, step: int) -> bool:
        return any(drill.kind is FaultKind.BLIND and drill.is_active(step) for drill in self.drills)


def inject(drill: FaultDrill, *, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Cause the fault now, if its kind takes effect at one moment."""
    match drill.kind:
        case FaultKind.BUG:
            np.zeros((2, 3)) @ np.zeros((2, 3))
        case FaultKind.OOM if drill.over:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. (a drill)")
        case FaultKind.OOM:
            torch.empty(1 << 50)  # 4 PiB: more than any address space, so the allocator itself refuses
        case FaultKind.KILL:
            kill_this_node()
        case FaultKind.EXIT:
            sys.exit(drill.code)
        case FaultKind.HANG:
            hang()
        case FaultKind.SPIKE | FaultKind.TOXIC | FaultKind.UNSTABLE:
            damage(model, optimizer)
        case FaultKind.NAN:
            poison(model)
        case FaultKind.STALL:
            stall()
        case FaultKind.WAIT:
            wait_for_sigterm()
        case FaultKind.HEAL | FaultKind.SLOW | FaultKind.BLIND:
            pass  # the loop calls their own methods


def kill_this_node() -> NoReturn:
    """Kill the launcher and this rank; the launcher's other ranks end with it (see parallel.py).

    In a container the launcher is PID 1, which the kernel protects even from its own SIGKILL. Then the process exits
    with the code that Docker would report.
    """
    for pid in (int(os.environ.get("RERAIL_LAUNCHER_PID", os.getpid())), os.getpid()):
        os.kill(pid, signal.SIGKILL)
    os._exit(128 + signal.SIGKILL)


def hang() -> NoReturn:
    """Sleep for ever: this rank never joins the next collective, and the others wait until their timeout."""
    while True:
        time.sleep(60)


def stall() -> NoReturn:
    """Sleep until SIGTERM. All ranks stall, so none waits in a collective until its timeout, and no step completes."""
    before = signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(0))
    try:
        while True:
            time.sleep(3600)
    finally:
        signal.signal(signal.SIGTERM, before)


def wait_for_sigterm() -> None:
    """Return once SIGTERM has arrived; the former handler handles it too."""
    arrived = False

    def note(signum: int, frame: FrameType | None) -> None:
        nonlocal arrived
        arrived = True
        if callable(before):
            before(signum, frame)

    before = signal.signal(signal.SIGTERM, note)
    try:
        while not arrived:
            time.sleep(0.05)
    finally:
        signal.signal(signal.SIGTERM, before)


def damage(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Negate the last layer's weights, and enlarge the moments: Adam alone would recover within 50 steps.

    In a pipeline only the ranks of the last stage have it; negating one of another stage too may change nothing.
    """
    if getattr(model, "head", model) is not None:
        *_, last_layer = model.parameters()
        with torch.no_grad():
            get_local_part(last_layer).neg_()
    for moments in optimizer.state.values():
        # Updates become a million times smaller; with beta2=0.95 this lasts 540 steps.
        get_local_part(moments["exp_avg_sq"]).mul_(1e12)


def poison(model: nn.Module) -> None:
    """Set one weight of each rank's part to NaN; a part without any (more ranks than rows) stays."""
    *_, last_layer = model.parameters()
    with torch.no_grad():
        part = get_local_part(last_layer)
        part[:1, :1] = torch.nan


def get_local_part(tensor: torch.Tensor) -> torch.Tensor:
    """Return what this rank holds of a tensor that may be a DTensor; changes in it change the tensor."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def mislabel(targets: torch.Tensor, share: float, *, step: int) -> torch.Tensor:
    """Replace a random share of the targets, drawn by a generator of its own: the run's are not changed."""
    draw = np.random.default_rng(step)
    wrong = torch.from_numpy(draw.random(targets.shape) < share)
    return torch.where(wrong, torch.from_numpy(draw.integers(0, VOCABULARY, targets.shape)), targets)
