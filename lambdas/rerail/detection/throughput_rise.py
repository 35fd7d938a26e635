"""Detect steps that have suddenly become much faster, as if work were skipped."""

from dataclasses import dataclass, field

from rerail.detection.row import Row
from rerail.detection.window import Window
from rerail.model.finding import Finding, Kind, Level
from rerail.model.thresholds import Thresholds

RECENT_ROWS = 16
BEFORE_ROWS = 64
# The first steps of a run are slower, because they compile and fill caches.
NEEDS_ROWS = 200
DIGITS = 9  # of seconds: steps may take milliseconds


@dataclass(slots=True)
class ThroughputRise:
    """The recent and the earlier step times, and the least median that was reported or learned."""

    recent: Window = field(default_factory=lambda: Window(RECENT_ROWS, digits=DIGITS))
    before: Window = field(default_factory=lambda: Window(BEFORE_ROWS, digits=DIGITS))
    least: float | None = None
    rows: int = 0

    def __post_init__(self) -> None:
        self.recent, self.before = self.recent.copy(), self.before.copy()

    def see(self, row: Row, detection: Thresholds) -> Finding | None:
        """Warn once if almost all of the last steps took far less than almost all of those before."""
        if row.is_new_launch:
            self.forget()
        seconds = row.step_seconds
        if seconds is None:
            return None
        if len(self.recent) == RECENT_ROWS:
            self.before.push(self.recent.values[0])
        self.recent.push(seconds)
        self.rows += 1
        if self.rows < NEEDS_ROWS or len(self.before) < BEFORE_ROWS:
            return None
        now, usual = self.recent.median(), self.before.median()
        limit = usual * (1 - detection.throughput_rise)
        known = self.least is not None and now >= self.least * (1 - detection.throughput_rise)
        if now >= limit or known or self.recent.quantile(0.9) >= self.before.quantile(0.1):
            # Every level that lasted is known: a run that was slow for a while gets back to it without a warning.
            self.least = usual if self.least is None else min(self.least, usual)
            return None
        self.least = now
        sample = row.sample
        text = f"steps take {now:.3g} s, {1 - now / usual:.0%} less than the usual {usual:.3g} s"
        return Finding(Kind.THROUGHPUT_RISE, Level.WARN, sample.step, sample.step, text, sample.at)

    def forget(self) -> None:
        """Forget the step times, as at the start of a run: another launch may have other machines or settings."""
        self.recent.clear()
        self.before.clear()
        self.least, self.rows = None, 0
