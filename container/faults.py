"""Drills: real faults at a chosen step, so that a recovery can be watched before it is needed.

`RERAIL_DRILL` holds drills joined by `;`, each `kind:step=N` with optional `attempt=N` (only in that attempt), `rank=N`
and, for exit, `code=N`. Example: `kill:step=60:attempt=1;bug:step=90`. A drill fires as its step begins.
"""

import os
import signal
import sys
import time
from dataclasses import dataclass
from enum import StrEnum
from typing import NoReturn

import numpy as np
import torch


class Kind(StrEnum):
    """What breaks."""

    BUG = "bug"
    OOM = "oom"
    KILL = "kill"
    EXIT = "exit"
    HANG = "hang"


@dataclass(frozen=True)
class Drill:
    """One fault. Without a rank it hits rank 0, a hang the last rank (so that rank 0 is left waiting)."""

    kind: Kind
    step: int
    attempt: int | None = None
    rank: int | None = None
    code: int = 1

    def is_due(self, *, step: int, attempt: int, rank: int, world_size: int) -> bool:
        default = world_size - 1 if self.kind is Kind.HANG else 0
        here = rank == (default if self.rank is None else self.rank)
        return here and step == self.step and self.attempt in (None, attempt)


def parse(text: str) -> tuple[Drill, ...]:
    """The drills in RERAIL_DRILL; raises ValueError saying what is wrong and what is allowed."""
    return tuple(_parse_one(part.strip()) for part in text.split(";") if part.strip())


def _parse_one(text: str) -> Drill:
    kind, *settings = text.split(":")
    try:
        numbers = {name: int(value) for name, value in (setting.split("=") for setting in settings)}
        return Drill(kind=Kind(kind), **numbers)
    except (TypeError, ValueError) as error:
        kinds = ", ".join(Kind)
        raise ValueError(f"RERAIL_DRILL: cannot read {text!r}; write kind:step=N, with a kind of {kinds}") from error


def break_down(drill: Drill) -> None:
    """Has the fault happen here and now. Only a bug and an exhausted memory come back, as exceptions."""
    match drill.kind:
        case Kind.BUG:
            np.zeros((2, 3)) @ np.zeros((2, 3))
        case Kind.OOM:
            torch.empty(1 << 50)  # 4 PiB: more than any address space, so the allocator itself refuses
        case Kind.KILL:
            kill_this_node()
        case Kind.EXIT:
            sys.exit(drill.code)
        case Kind.HANG:
            hang()


def kill_this_node() -> NoReturn:
    """SIGKILL to the launcher and to this rank; the launcher's other ranks die with it (see parallel.py).

    In a container the launcher is PID 1, which the kernel shields even from its own SIGKILL: then the exit code that
    Docker would report has to do.
    """
    for pid in (int(os.environ.get("RERAIL_LAUNCHER_PID", os.getpid())), os.getpid()):
        os.kill(pid, signal.SIGKILL)
    os._exit(128 + signal.SIGKILL)


def hang() -> NoReturn:
    """This rank never comes to the next collective; the others wait for it until their timeout."""
    while True:
        time.sleep(60)
