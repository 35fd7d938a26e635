"""Detect steps that have become slower and stay slow."""

from dataclasses import dataclass, field

from rerail.detection.window import Window
from rerail.model.finding import Finding, Kind, Level
from rerail.model.sample import Sample
from rerail.model.thresholds import Thresholds

# Medians of 50 rows against the 500 before them found every drop of 5 % and more in synthetic runs, without a false
# alarm. Evaluations and checkpoints are rarer than every second row, so they do not affect a median.
NOW_ROWS = 50
BEFORE_ROWS = 500
BEST_NEEDS = 200
DIGITS = 9  # of seconds: steps may take milliseconds


@dataclass(slots=True)
class ThroughputDrop:
    """Current, earlier and best step times, and the drop in progress."""

    recent: Window = field(default_factory=lambda: Window(NOW_ROWS, digits=DIGITS))
    before: Window = field(default_factory=lambda: Window(BEFORE_ROWS, digits=DIGITS))
    best: float | None = None
    usual: float = 0.0
    slow: int = 0
    lasting: int = 0
    onset: int | None = None
    # The levels that this drop has been reported at: 1 after the warning, 2 after the call to intervene.
    reported: int = 0

    def __post_init__(self) -> None:
        self.recent, self.before = self.recent.copy(), self.before.copy()

    def see(self, sample: Sample, detection: Thresholds) -> Finding | None:
        """Warn if steps have been slow for some rows, and intervene if they are very slow for long."""
        seconds = read_step_seconds(sample)
        if seconds is None:
            return None
        if self.recent.size != detection.throughput_window_rows:
            self.recent = Window(detection.throughput_window_rows, digits=DIGITS)
        if len(self.recent) == self.recent.size:
            self._learn(self.recent.values[0], detection)
        self.recent.push(seconds)
        if len(self.before) < self.recent.size:
            return None
        if self.slow:
            return self._follow_drop(sample, detection)
        usual = self._find_earlier_step_time(detection)
        if usual is not None:
            self.slow, self.lasting, self.usual, self.onset, self.reported = 1, 0, usual, sample.step, 0
        return None

    def _learn(self, seconds: float, detection: Thresholds) -> None:
        if self.slow > detection.throughput_cap_rows:
            self.before.clear()
            self.best, self.slow = None, 0
        if not self.slow:
            self.before.push(seconds)
            if len(self.before) >= BEST_NEEDS:
                self.best = min(self.best or self.before.median(), self.before.median())

    def _find_earlier_step_time(self, detection: Thresholds) -> float | None:
        """Return the earlier step time if the last rows are slower, suddenly or gradually; otherwise None."""
        usual, now = self.before.median(), self.recent.median()
        if now > usual * (1 + detection.throughput_drop) and self.recent.quantile(0.25) > self.before.quantile(0.75):
            return usual
        if self.best is not None and now > self.best * (1 + detection.throughput_creep):
            return self.best
        return None

    def _follow_drop(self, sample: Sample, detection: Thresholds) -> Finding | None:
        self.slow += 1
        share = self.recent.median() / self.usual - 1
        if share < detection.throughput_drop / 2:
            self.slow = 0
            return None
        self.lasting = self.lasting + 1 if share > detection.throughput_grave else 0
        if not self._costs_enough(sample, detection):
            return None
        if self.lasting >= detection.throughput_patience_rows and self.reported < 2:
            self.reported = 2
            return self._finding(Level.INTERVENE, sample, share)
        if self.slow >= detection.throughput_rows and self.reported < 1:
            self.reported = 1
            return self._finding(Level.WARN, sample, share)
        return None

    def _costs_enough(self, sample: Sample, detection: Thresholds) -> bool:
        """Return whether the slow steps have lost more time than the floor; True if only tokens a second are known."""
        if sample.step_time_s is None or self.onset is None or sample.step is None:
            return True
        lost_s = (sample.step - self.onset + 1) * (self.recent.median() - self.usual)
        return lost_s >= detection.throughput_floor.total_seconds()

    def _finding(self, level: Level, sample: Sample, share: float) -> Finding:
        text = (
            f"steps take {self.recent.median():.3g} s, {share:.0%} longer than the usual {self.usual:.3g} s, "
            f"for {self.slow} rows"
        )
        return Finding(Kind.THROUGHPUT_DROP, level, sample.step, self.onset, text, sample.at)


def read_step_seconds(sample: Sample) -> float | None:
    """Return the seconds per step, or the reciprocal of the tokens per second; None if neither is valid."""
    if sample.step_time_s is not None:
        seconds = sample.step_time_s
    elif sample.tokens_per_s:
        seconds = 1 / sample.tokens_per_s
    else:
        return None
    return seconds if 0 < seconds < float("inf") else None
