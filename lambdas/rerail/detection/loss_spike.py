"""Detect a jump of the loss beyond the normal deviations of the run."""

from dataclasses import dataclass, field

from rerail.detection.baseline import Baseline, Reading
from rerail.detection.row import Row
from rerail.model.finding import Finding, Kind, Level
from rerail.model.thresholds import Thresholds

# Rounding is spread evenly: its standard deviation is 0.29 of the difference between two printed values. Small losses
# that alternate between two such values need a margin.
ROUNDING_NOISE = 0.5
# A log that prints running means does not show single rows: only some in a row are a spike of what it prints.
RECOVERED_ROWS = 3
# This many spikes at equal distances mark epochs and are normal, unless they are as large as this: a factor of 3.
REGULAR_SPIKES = 4
IRREGULAR_SIZE = 1.1
# Small batches make single rows that are far too high. After this many of at most so many rows, from which the run
# recovered, one that is not larger by this factor is only reported if it lasts longer.
SHORT_SPIKES = 2
SHORT_ROWS = 2
LARGER = 1.25
SHORT_MEMORY = 4


@dataclass(slots=True)
class LossSpike:
    """The baseline, and the spike in progress."""

    # Of the highest loss that each row aggregates: in a mean, a short spike disappears.
    of_highest: bool = False
    baseline: Baseline = field(default_factory=Baseline)
    rows: int = 0
    # Rows in a row that are clearly raised.
    raised: int = 0
    # Rows of the spike so far; 0: none is in progress.
    up: int = 0
    # Rows until noise is learnt again after a spike.
    calm: int = 0
    onset: int | None = None
    expected: float = 0.0
    allowed: float = 0.0
    starts: list[int] = field(default_factory=list)
    # The sizes of the last short spikes that the run recovered from, and that of the spike in progress.
    short: list[float] = field(default_factory=list)
    size: float = 0.0
    # The spike in progress was reported.
    is_reported: bool = False
    # The losses that the last rows printed, if the values are recovered from running means.
    printed: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.baseline, self.starts, self.short = self.baseline.copy(), list(self.starts), list(self.short)
        self.printed = list(self.printed)

    def see(self, row: Row, detection: Thresholds) -> Finding | None:
        """Warn at the first row that is too high, and again if the loss has not recovered some rows later."""
        if row.is_new_series or row.rows_since_raise == 0:
            self.baseline.clear()
            self.up = self.raised = 0
        if row.scale.factor != 1:
            self.baseline.scale(row.scale.factor)
            self.expected, self.allowed = self.expected * row.scale.factor, self.allowed * row.scale.factor
            self.size, self.short = self.size * row.scale.factor, [size * row.scale.factor for size in self.short]
        value = row.highest if self.of_highest else row.value
        if value is None:
            return None
        self.rows += 1
        if row.is_recovered and row.sample.loss is not None:
            self.printed = [*self.printed[-RECOVERED_ROWS:], row.sample.loss]
        return self._follow_spike(value, row, detection) if self.up else self._check_normal(value, row, detection)

    def _check_normal(self, value: float, row: Row, detection: Thresholds) -> Finding | None:
        sample = row.sample
        reading = self.baseline.read(value, detection, floor=ROUNDING_NOISE * row.resolution)
        needs = RECOVERED_ROWS if row.is_recovered else 1
        falls = row.is_recovered and self.printed[-1] <= self.printed[0]
        # A policy that mostly has nothing to learn: its loss is zero, so any other value is far above its level.
        is_idle = row.scale.unit and row.scale.recent.median() == 0
        if reading is None or is_idle or not self._jumped(reading, detection, needs=needs) or falls:
            self._learn(value)
            return None
        self.baseline.habit(reading.excess)
        self.up, self.onset, self.expected, self.allowed = 1, sample.step, reading.expected, reading.allowed
        self.size, self.is_reported = reading.excess, False
        return self._report(row, reading.excess, detection)

    def _jumped(self, reading: Reading, detection: Thresholds, *, needs: int) -> bool:
        """Return whether one row is far above, or several in a row are clearly above; small jumps need less noise."""
        clear = max(detection.run_share * reading.allowed, detection.spike_gate)
        self.raised = self.raised + 1 if reading.excess > clear else 0
        if self.raised == 1:
            self.starts = [*self.starts[1 - REGULAR_SPIKES :], self.rows]
        sure = reading.excess**2 > detection.spike_sure * reading.noise
        far = reading.excess > reading.allowed and sure and self.raised >= needs
        return far or self.raised >= detection.run_rows

    def _learn(self, value: float) -> None:
        if self.calm:
            self.calm -= 1
            self.baseline.follow(value)
        else:
            self.baseline.learn(value)

    def _follow_spike(self, value: float, row: Row, detection: Thresholds) -> Finding | None:
        excess = value - self.expected
        if excess < detection.spike_recovered * self.allowed:
            if self.up <= SHORT_ROWS:
                self.short = [*self.short[1 - SHORT_MEMORY :], self.size]
            self.up, self.calm = 0, detection.spike_aftermath_rows
            self.baseline.follow(value)
            return None
        self.up, self.size = self.up + 1, max(self.size, excess)
        if self.up > detection.spike_cap_rows:
            self.baseline.clear()
            self.up = 0
            return None
        return self._report(row, excess, detection)

    def _report(self, row: Row, excess: float, detection: Thresholds) -> Finding | None:
        """Return a finding once the spike is larger or longer than usual ones, and again some rows later."""
        usual = sum(LARGER * size >= self.size for size in self.short) >= SHORT_SPIKES
        if self.is_reported or (usual and self.up <= SHORT_ROWS):
            return self._finding(row, excess) if self.up == detection.spike_again_rows else None
        self.is_reported = True
        return self._finding(row, excess)

    def _finding(self, row: Row, excess: float) -> Finding | None:
        if self.size < IRREGULAR_SIZE and _are_regular(self.starts):
            return None
        sample = row.sample
        loss = sample.loss_max if self.of_highest else sample.loss
        text = f"loss {loss:.4g} is {row.scale.format_rise(self.expected, excess)}, row {self.up} of it"
        return Finding(Kind.LOSS_SPIKE, Level.WARN, sample.step, self.onset, text, sample.at)


def _are_regular(starts: list[int]) -> bool:
    gaps = [later - earlier for earlier, later in zip(starts, starts[1:], strict=False)]
    return len(gaps) == REGULAR_SPIKES - 1 and max(gaps) - min(gaps) <= max(1, 0.1 * max(gaps))
