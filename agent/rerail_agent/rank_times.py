"""Measure on each rank the time until it arrives at the collective of `reduce()`, and compare the ranks once a minute.

The time from the end of a step to the next call of `reduce()` is the rank's own as far as nothing between them waits
for other ranks. With CUDA, events on the current stream measure it on the device, because the host runs ahead.
"""

import socket
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from statistics import median
from types import TracebackType
from typing import Any

from rerail.detection.stragglers import Straggler, StragglerState, follow_scores, list_stragglers, score_ranks
from rerail.model.finding import Finding, Kind, Level
from rerail.model.formatting import format_duration
from rerail_agent.deferred_torch import find_cuda

# The steps of a round whose times are kept; of more the newest count.
STEPS_KEPT = 256
ROUND_S = 60.0
ROUNDS_KEPT = 60
LOCAL_RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")


class RankTimer:
    """The times of this rank since the last round, in seconds."""

    def __init__(self) -> None:
        self._own_times, self._waits = array("d"), array("d")
        self._began: float | None = None
        self._data_s = 0.0
        self._own_s: float | None = None
        # Events at the begin of the step and at the arrival; each pair is used again in every step.
        self._events: tuple[Any, Any] | None = None
        self._has_begun = self._has_arrived = False

    @property
    def has_times(self) -> bool:
        return len(self._own_times) > 0

    def track_data(self) -> AbstractContextManager[None]:
        """Count the time within the context as waiting for data."""
        return _DataTimer(self)

    def on_arrival(self) -> None:
        """Record that this rank enters the collective."""
        if self._events is not None and self._has_begun:
            self._events[1].record()
            self._has_arrived = True
        elif self._events is None and self._began is not None:
            self._own_s = time.monotonic() - self._began

    def on_release(self) -> None:
        """Record that the collective is over: its result was read, so the device has done everything before it."""
        if self._events is not None and self._has_arrived:
            self._own_s = self._events[0].elapsed_time(self._events[1]) / 1000.0
        self._has_arrived = False

    def on_step(self) -> None:
        """Record that the step is done, and that the next one begins."""
        if self._own_s is not None:
            self._own_times.append(self._own_s)
            self._waits.append(min(self._data_s, self._own_s))
            if len(self._own_times) > STEPS_KEPT:
                del self._own_times[0], self._waits[0]
        self._own_s, self._data_s = None, 0.0
        if self._events is None and (cuda := find_cuda()):
            self._events = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        if self._events is not None:
            self._events[0].record()
            self._has_begun = True
        self._began = time.monotonic()

    def leave_out(self) -> None:
        """Leave out the step in progress: it contains a save or an evaluation."""
        self._began = self._own_s = None
        self._has_begun = self._has_arrived = False

    def take_round(self) -> list[float]:
        """Return the median seconds of computing and of waiting for data, and begin a new round; zeros if unknown."""
        if not self._own_times:
            return [0.0, 0.0]
        own_s, wait_s = median(self._own_times), median(self._waits)
        self._own_times, self._waits = array("d"), array("d")
        return [max(0.0, own_s - wait_s), wait_s]


class _DataTimer(AbstractContextManager[None]):
    def __init__(self, timer: RankTimer) -> None:
        self._timer, self._began = timer, 0.0

    def __enter__(self) -> None:
        self._began = time.monotonic()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._timer._data_s += time.monotonic() - self._began


class RankComparison:
    """The times of all ranks on rank 0, compared once in a round, and what is reported about them."""

    def __init__(self, *, round_s: float = ROUND_S) -> None:
        self.round_s = round_s
        self._state = StragglerState()
        self._asked: float | None = None
        # The step of each of the last rounds, so that a finding has the step at which it began.
        self._steps: list[int] = []

    def is_due(self) -> bool:
        """Return whether a round is over; called after each step."""
        now = time.monotonic()
        if self._asked is None:
            self._asked = now
        if now - self._asked < self.round_s:
            return False
        self._asked = now
        return True

    def compare(
        self, times: Sequence[Sequence[float]], step: int, *, at: datetime, find_place: Callable[[int], str]
    ) -> list[Finding]:
        """Return findings about ranks that are slow, or that are no longer; `times` are those of take_round()."""
        before = self._state
        self._steps = [*self._steps[-ROUNDS_KEPT:], step]
        scores = score_ranks([own for own, _ in times], [wait for _, wait in times], before)
        self._state, new, recovered = follow_scores(before, scores)
        findings = [self._make_finding(straggler, step, at, find_place(straggler.rank)) for straggler in new]
        for rank in recovered:
            text = f"rank {rank} on {find_place(rank)} is as fast as its peers again"
            findings.append(Finding(Kind.STRAGGLER, Level.RECOVERED, step, None, text, at))
        return findings

    def describe(self, find_place: Callable[[int], str]) -> str:
        """Return the slowest rank whose result is open as a sentence; empty if there is none."""
        slowest = next(iter(list_stragglers(self._state)), None)
        return format_straggler(slowest, find_place(slowest.rank), round_s=self.round_s) if slowest else ""

    def _make_finding(self, straggler: Straggler, step: int, at: datetime, place: str) -> Finding:
        text = format_straggler(straggler, place, round_s=self.round_s)
        onset = self._steps[-1 - straggler.rounds] if len(self._steps) > straggler.rounds else None
        began = at - timedelta(seconds=straggler.rounds * self.round_s)
        return Finding(Kind.STRAGGLER, Level.WARN, step, onset, text, at, began)


def describe_place(environment: Mapping[str, str]) -> str:
    """Return where this rank runs: host and GPU with its UUID, or host and local rank."""
    host = environment.get("SM_CURRENT_HOST") or socket.gethostname()
    if cuda := find_cuda():
        device = cuda.current_device()
        # torch leaves out the prefix that the driver writes.
        uuid = getattr(cuda.get_device_properties(device), "uuid", "unknown")
        return f"{host} GPU {device} (GPU-{uuid})"
    local_rank = next((environment[name] for name in LOCAL_RANKS if environment.get(name)), "0")
    return f"{host} local rank {local_rank}"


def format_straggler(straggler: Straggler, place: str, *, round_s: float = ROUND_S) -> str:
    """Return the result as a sentence for people."""
    duration = format_duration(timedelta(seconds=straggler.rounds * round_s))
    cause = "most of the excess is waiting for data" if straggler.waits_for_data else "data wait normal"
    return f"rank {straggler.rank} on {place}: {straggler.ratio:.2g}x its peers for {duration}, {cause}"
