"""Decide on rank 0 when the next periodic checkpoint is due, from the measured stall of the script's own saves.

The clock starts again with every save, whoever asked for it: a script that saves often enough by itself is not asked.
The time from a step to the next that a save made longer counts as its stall, so that a save outside `guard.phase` is
measured too, and one that another rank waits for.
"""

from collections import deque
from collections.abc import Mapping
from math import ceil, inf
from statistics import median
from typing import Any

from rerail.model.checkpoint_intervals import GPUS_A_MACHINE, MACHINE_MTBF, SaveInterval, choose_interval
from rerail_agent.progress import Progress

# Stalls and times until a checkpoint is durable that are remembered: the newest, because states and disks change.
REMEMBERED = 5
# The first save measures what one costs: until then all is lost, and an assumed cost may mean an hour.
FIRST_SAVE_S = 300.0


def expect_mtbf_s(ranks: int) -> float:
    """Return the mean time between failures in seconds of so many ranks, from published rates."""
    return MACHINE_MTBF.total_seconds() / max(1, ceil(ranks / GPUS_A_MACHINE))


class SaveSchedule:
    """The periodic checkpoints of one run; all times are monotonic, in seconds."""

    def __init__(self, bounds: SaveInterval, progress: Progress, *, mtbf_s: float | None) -> None:
        self._bounds, self._progress, self._mtbf_s = bounds, progress, mtbf_s
        self._new_bounds: tuple[SaveInterval, float | None] | None = None
        self._stalls: deque[float] = deque(maxlen=REMEMBERED)
        self._durables: deque[float] = deque(maxlen=REMEMBERED)
        # When training went on after the newest save, or began.
        self._resumed: float | None = None
        self._has_saved = False  # within the current step
        self._is_asked = False  # and no save has begun since
        self._pending: float | None = None  # when a save that is not durable yet began
        self.interval_s: float | None = None

    def set_bounds(self, bounds: SaveInterval, *, mtbf_s: float | None) -> None:
        """Take other bounds and another mean time between failures from the next step on; any thread may call."""
        self._new_bounds = bounds, mtbf_s

    def on_save(self, at: float) -> None:
        """Record that a save begins."""
        if not self._has_saved:
            self._has_saved, self._resumed, self._pending = True, at, at
            self._is_asked = False

    def on_durable(self, at: float) -> None:
        """Record that the newest save is complete."""
        if self._pending is not None:
            self._durables.append(at - self._pending)
            self._pending = None

    def on_failure(self) -> None:
        """Record that the newest save has failed."""
        self._pending = None

    def is_due(self, *, ranks: int) -> bool:
        """Return whether to ask for a checkpoint now, once until a save begins; called after each step."""
        progress = self._progress
        if self._new_bounds is not None:
            (self._bounds, self._mtbf_s), self._new_bounds = self._new_bounds, None
            self.interval_s = None
        if self._resumed is None:
            self._resumed = progress.moved
        if self._has_saved:
            self._has_saved = False
            stall_s = progress.saved_s + max(0.0, (progress.step_s or 0.0) - progress.usual_s)
            self._stalls.append(stall_s)
            self._resumed += stall_s
            self.interval_s = None
        if self.interval_s is None:
            self.interval_s = self._choose(ranks)
        passed_s = progress.moved - self._resumed
        # A script need not report that a save is complete, so a pending one delays the next for a limited time.
        is_writing = self._pending is not None and passed_s < self._bounds.longest.total_seconds()
        if not self._bounds.automatic or self._is_asked or is_writing or passed_s < self.interval_s:
            return False
        self._is_asked = True
        return True

    def dump_state(self) -> dict[str, Any]:
        """Return what was measured, for the checkpoint."""
        return {"stalls": list(self._stalls), "durables": list(self._durables)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue with what an earlier process has measured; raise ValueError or TypeError if it is malformed."""
        stalls, durables = ([float(seconds) for seconds in state[name]] for name in ("stalls", "durables"))
        if not all(0 <= seconds < inf for seconds in (*stalls, *durables)):
            raise ValueError("a time in seconds is not a finite number above 0")
        self._stalls.extend(stalls)
        self._durables.extend(durables)
        self.interval_s = None

    def _choose(self, ranks: int) -> float:
        mtbf_s = expect_mtbf_s(ranks) if self._mtbf_s is None else self._mtbf_s
        if not self._stalls:
            earliest = max(FIRST_SAVE_S, self._bounds.shortest.total_seconds())
            return min(earliest, choose_interval(self._bounds, mtbf_s=mtbf_s))
        durable_s = max(self._durables, default=0.0)
        return choose_interval(self._bounds, mtbf_s=mtbf_s, stall_s=median(self._stalls), durable_s=durable_s)
