"""Detect a training that stands still, or that just did."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from rerail.detection.row import Row
from rerail.detection.window import Window
from rerail.model.finding import Finding, Kind, Level
from rerail.model.liveness import Liveness, Phase
from rerail.model.sample import Sample
from rerail.model.thresholds import Thresholds

STEP_ROWS = 200
STEP_NEEDS = 50
DIGITS = 9  # of seconds: steps may take milliseconds
WARM_UP_ROWS = 6  # the first steps compile, allocate and fill caches
PAUSE = 1.25
# Checkpoints and evaluations come at intervals. Until two equal intervals, or many pauses, were seen, a long step may
# be the first pause of its kind.
REGULAR_WITHIN = 2
MANY_PAUSES = 10
# Before so many rows a long step may be the first evaluation, even if the run has saved before.
SETTLED_ROWS = 500


@dataclass(slots=True)
class Stall:
    """The duration of steps, and the longest known pause of the run, in seconds."""

    steps: Window = field(default_factory=lambda: Window(STEP_ROWS, digits=DIGITS))
    rows: int = 0
    pauses: int = 0
    last_pause: int = 0
    interval: int = 0
    known: bool = False
    longest: float = 0.0

    def __post_init__(self) -> None:
        self.steps = self.steps.copy()

    def see(self, row: Row, detection: Thresholds) -> Finding | None:
        """Warn after a step that took far longer than any pause before."""
        sample = row.sample
        seconds = row.step_seconds
        if seconds is None:
            return None
        self.rows += 1
        finding = self._evaluate(seconds, sample, detection)
        if len(self.steps) and self.rows > WARM_UP_ROWS:
            if seconds > PAUSE * self.steps.median():
                self._paused()
            self.longest = max(self.longest, seconds)
        self.steps.push(seconds)
        return finding

    def _paused(self) -> None:
        interval, self.last_pause = self.rows - self.last_pause, self.rows
        self.pauses += 1
        regular = interval > REGULAR_WITHIN and abs(interval - self.interval) <= REGULAR_WITHIN
        self.known = self.known or regular or self.pauses >= MANY_PAUSES
        self.interval = interval

    def _evaluate(self, seconds: float, sample: Sample, detection: Thresholds) -> Finding | None:
        if len(self.steps) < STEP_NEEDS or not self.known:
            return None
        usual = self.steps.median()
        if not usual or seconds <= max(detection.stall_factor * usual, 2 * self.longest):
            return None
        if self.rows < SETTLED_ROWS and seconds < detection.stall_floor.total_seconds():
            return None
        text = f"one step took {seconds:.3g} s, {seconds / usual:.1f} times the usual {usual:.3g} s"
        return Finding(Kind.STALL, Level.WARN, sample.step, sample.step, text, sample.at)


def find_overdue(liveness: Liveness, now: datetime, detection: Thresholds) -> Finding | None:
    """Return a finding if no step was made for far longer than any pause of the run.

    Intervene if the machines are idle, or at twice the limit.
    """
    if liveness.phase not in (Phase.STEP, Phase.EVALUATION) or liveness.moved_at is None:
        return None
    still = now - liveness.moved_at
    limit = max(detection.stall_floor, detection.stall_factor * timedelta(seconds=liveness.longest(liveness.phase)))
    if still <= limit:
        return None
    level = Level.INTERVENE if liveness.idle or still > 2 * limit else Level.WARN
    during = "" if liveness.phase is Phase.STEP else f" in phase {liveness.phase}"
    text = f"no step for {still.total_seconds():.0f} s{during}, limit {limit.total_seconds():.0f} s"
    return Finding(Kind.STALL, level, liveness.step, liveness.step, text, now, liveness.moved_at)
