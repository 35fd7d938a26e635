"""Detect steps that have become slower and stay slow."""

import math
from dataclasses import dataclass, field
from datetime import timedelta

from rerail.detection.row import LEAST_ROWS, Row
from rerail.detection.window import Window
from rerail.model.finding import Finding, Kind, Level
from rerail.model.formatting import format_duration
from rerail.model.sample import Sample
from rerail.model.thresholds import Thresholds

# Medians of 50 rows against the 500 before them found every drop of 5 % and more in synthetic runs, without a false
# alarm. Evaluations and checkpoints are rarer than every second row, so they do not affect a median.
BEFORE_ROWS = 500
NOW_ROWS = 50
BEST_NEEDS = 200
DIGITS = 9  # of seconds: steps may take milliseconds
# A drop must exceed those that the run has recovered from by this factor, or last this many times longer.
TOLERATED = 1.2
LONGER = 2.0
# A drop lasts if it is within these shares of what it was half the patience before. Below the first it recovers. Above
# the second the steps become slower and slower: the work may grow, as that of a model that grows on purpose.
STAYS_AT = 0.9
GROWS_AT = 1.1
# Sequence length, batch size, resolution and unfrozen layers change the step time for good. Unless a slow rank or an
# idle machine shows a fault, a drop is acted on only if the steps take this much longer.
GRAVE_ALONE = 1.5
# In a window of fewer rows, because they are far apart, only a larger drop, and one far above the noise, is clear.
SHORT_WINDOW, SHORT_WINDOW_DROP, SHORT_WINDOW_NOISE = 12, 0.2, 8.0
# The drop must exceed what the steps had slowed down before it, without being reported, by this factor.
EARLIER_GROWTH = 3.0


@dataclass(slots=True)
class ThroughputDrop:
    """Current, earlier and best step times, and the drop in progress."""

    recent: Window = field(default_factory=lambda: Window(NOW_ROWS, digits=DIGITS))
    before: Window = field(default_factory=lambda: Window(BEFORE_ROWS, digits=DIGITS))
    # The least median of the earlier step times; None: not known yet.
    best: float | None = None
    # The highest median of as many of them: steps that become as slow as they once were for long are no drop.
    highest: float = 0.0
    # The step time with which the drop in progress is compared, and its mean, which includes pauses.
    usual: float = 0.0
    usual_mean: float = 0.0
    # Rows of the drop in progress, 0: none; the weight of those in which it was grave; its last sizes, oldest first.
    slow: int = 0
    lasting: int = 0
    sizes: list[float] = field(default_factory=list)
    # The sum of the step times of the drop in progress.
    total: float = 0.0
    # The rows since the earlier step times began to be learnt.
    rows: int = 0
    # Before the drop in progress: those rows, and how much the steps had already become slower.
    rows_before: int = 0
    growth_before: float = 0.0
    onset: int | None = None
    # The levels that this drop has been reported at: 1 after the warning, 2 after the call to intervene.
    reported: int = 0
    # The largest drop that the run has recovered from, and the most rows that one took.
    known_size: float = 0.0
    known_rows: int = 0
    # Rows until the step times are those of a launch that has just begun, and their median before.
    settling: int = 0
    pace_before: float = 0.0

    def __post_init__(self) -> None:
        self.recent, self.before, self.sizes = self.recent.copy(), self.before.copy(), list(self.sizes)

    def see(self, row: Row, detection: Thresholds) -> Finding | None:
        """Warn if steps have been slow for some rows, and intervene if they are very slow for long."""
        if row.is_new_series and row.is_new_launch:
            self.forget()
        elif row.is_new_launch and not self.settling:
            self.settling, self.pace_before = self.recent.size, self.recent.median() if len(self.recent) else 0.0
        seconds = row.step_seconds
        if seconds is None:
            return None
        fewer = row.find_patience_factor(detection.throughput_patience_rows)
        size = max(LEAST_ROWS, detection.throughput_window_rows // fewer)
        if self.recent.size != size:
            self._resize(size)
        if len(self.recent) == self.recent.size:
            self._learn(self.recent.values[0], detection)
        self.recent.push(seconds)
        self.rows += 1
        if self.settling:
            self._settle(detection)
            return None
        if len(self.before) < self.recent.size:
            return None
        if self.slow:
            self.total += seconds
            return self._follow_drop(row.sample, detection, fewer=fewer)
        usual = self._find_earlier_step_time(detection)
        is_short = self.recent.size < SHORT_WINDOW
        if usual is not None and not (is_short and self.recent.median() < usual * (1 + self._find_clear_drop(usual))):
            self._start(usual, row.sample)
        return None

    def forget(self) -> None:
        """Forget the step times, as at the start of a run: another launch may have other machines or settings."""
        self.recent.clear()
        self.before.clear()
        self.best, self.slow, self.lasting, self.reported, self.rows, self.settling = None, 0, 0, 0, 0, 0
        self.highest, self.sizes = 0.0, []

    def _resize(self, size: int) -> None:
        kept, self.recent = self.recent.values[-size:], Window(size, digits=DIGITS)
        for seconds in kept:
            self.recent.push(seconds)

    def _settle(self, detection: Thresholds) -> None:
        """Wait until the last rows are all of a launch that went on from a checkpoint; forget another pace than its."""
        self.settling -= 1
        if (
            not self.settling
            and abs(self.recent.median() - self.pace_before) > detection.throughput_drop / 2 * self.pace_before
        ):
            recent = self.recent.copy()
            self.forget()
            self.recent = recent

    def _start(self, usual: float, sample: Sample) -> None:
        self.slow, self.lasting, self.usual, self.onset, self.reported = 1, 0, usual, sample.step, 0
        self.usual_mean = sum(self.before.values) / len(self.before)
        self.total = self.recent.values[-1]
        self.rows_before, self.growth_before = self.rows, _measure_growth(self.before.values)
        self.sizes = []

    def _learn(self, seconds: float, detection: Thresholds) -> None:
        if self.slow > detection.throughput_cap_rows:
            self.before.clear()
            self.best, self.slow, self.rows = None, 0, 0
        if not self.slow:
            self.before.push(seconds)
            if len(self.before) >= BEST_NEEDS:
                usual = self.before.median()
                self.best, self.highest = min(self.best or usual, usual), max(self.highest, usual)

    def _find_clear_drop(self, usual: float) -> float:
        """Return the drop that a few rows can show: they are a short window because they are far apart."""
        return max(SHORT_WINDOW_DROP, SHORT_WINDOW_NOISE * self.before.deviation() / usual)

    def _find_earlier_step_time(self, detection: Thresholds) -> float | None:
        """Return the earlier step time if the last rows are slower, suddenly or gradually; otherwise None."""
        usual, now = self.before.median(), self.recent.median()
        if now < self.highest * (1 + detection.throughput_drop / 2):
            return None
        if now > usual * (1 + detection.throughput_drop) and self.recent.quantile(0.25) > self.before.quantile(0.75):
            return usual
        if self.best is not None and now > self.best * (1 + detection.throughput_creep):
            return self.best
        return None

    def _follow_drop(self, sample: Sample, detection: Thresholds, *, fewer: int) -> Finding | None:
        self.slow += 1
        size = self.recent.median() / self.usual - 1
        self.sizes = [*self.sizes[1 - detection.throughput_patience_rows // (2 * fewer) :], size]
        if size < detection.throughput_drop / 2:
            self.known_size = max(self.known_size, max(self.sizes))
            self.known_rows, self.slow = max(self.known_rows, self.slow), 0
            return None
        grave = detection.throughput_grave if sample.suspect else max(GRAVE_ALONE, detection.throughput_grave)
        # Each row counts for as many as it stands for; one that is only far from the next does so with a suspect alone.
        weight = fewer if sample.suspect else sample.patience_factor
        self.lasting = self.lasting + weight if size > grave else 0
        if not self._is_news(size) or not self._costs_enough(sample, detection):
            return None
        if (
            self.lasting >= detection.throughput_patience_rows
            and self.reported < 2
            and self._stays(size, detection)
            and self._is_confirmed(size)
        ):
            self.reported = 2
            return self._finding(Level.INTERVENE, sample, size)
        if self.slow * fewer >= detection.throughput_rows and self.reported < 1 and self._is_clear(size, detection):
            self.reported = 1
            return self._finding(Level.WARN, sample, size)
        return None

    def _is_news(self, size: float) -> bool:
        """Return whether the drop is larger or longer than those that the run has recovered from."""
        return size > TOLERATED * self.known_size or self.slow > LONGER * self.known_rows

    def _is_clear(self, size: float, detection: Thresholds) -> bool:
        """Return whether not only the median step is slower: with times of several modes it jumps between these."""
        least = (1 + detection.throughput_drop / 2) * self.usual / self.before.median()
        quartiles = ((self.recent.quantile(share), self.before.quantile(share)) for share in (0.25, 0.75))
        return size > detection.throughput_drop and all(now > least * before for now, before in quartiles)

    def _stays(self, size: float, detection: Thresholds) -> bool:
        """Return whether the drop does not recover, and all steps together are slower, not only the median one."""
        mean = self.total / self.slow
        return size > STAYS_AT * self.sizes[0] and mean > self.usual_mean * (1 + detection.throughput_drop)

    def _is_confirmed(self, size: float) -> bool:
        """Return whether the steps were steady before, for as many rows as they have been slow, and are steady now."""
        growth = self.growth_before * max(1.0, self.slow / BEFORE_ROWS)
        return (
            self.rows_before >= min(self.slow, BEFORE_ROWS)
            and size > EARLIER_GROWTH * growth
            and size < GROWS_AT * self.sizes[0]
        )

    def _costs_enough(self, sample: Sample, detection: Thresholds) -> bool:
        """Return whether the slow steps have lost more time than the floor; True if that is not known.

        Steps that begin again with each epoch do not tell it, nor do tokens a second.
        """
        if sample.step_time_s is None or self.onset is None or sample.step is None or sample.step < self.onset:
            return True
        lost_s = (sample.step - self.onset + 1) * (self.recent.median() - self.usual)
        return lost_s >= detection.throughput_floor.total_seconds()

    def _finding(self, level: Level, sample: Sample, size: float) -> Finding:
        text = (
            f"steps take {self.recent.median():.3g} s, {size:.0%} longer than the usual {self.usual:.3g} s, "
            f"for {self.slow} rows"
        )
        if sample.suspect:
            text = f"{text}; {sample.suspect}"
        elif level is Level.WARN:
            lost = timedelta(hours=24 * size / (1 + size))
            text = f"{text}: {format_duration(lost)} a day; no slow rank and no idle machine shows a fault"
        return Finding(Kind.THROUGHPUT_DROP, level, sample.step, self.onset, text, sample.at)


def _measure_growth(seconds: list[float]) -> float:
    """Return by how much the median of the last rows exceeds the least median of as many earlier rows."""
    starts = range(len(seconds) - NOW_ROWS, -1, -NOW_ROWS)
    medians = [sorted(seconds[start : start + NOW_ROWS])[NOW_ROWS // 2] for start in starts]
    return medians[0] / min(medians) - 1 if medians else math.inf
