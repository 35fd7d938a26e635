"""Detect a jump of the loss beyond the normal deviations of the run."""

import math
from dataclasses import dataclass, field

from rerail.detection.baseline import Baseline, Reading
from rerail.detection.cadence import Cadence
from rerail.model.finding import Finding, Kind, Level
from rerail.model.sample import Sample
from rerail.model.thresholds import Thresholds

REGULAR_SPIKES = 4  # this many spikes at equal distances mark epochs and are normal


@dataclass(slots=True)
class LossSpike:
    """The baseline, and the spike in progress."""

    baseline: Baseline = field(default_factory=Baseline)
    cadence: Cadence = field(default_factory=Cadence)
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

    def __post_init__(self) -> None:
        self.baseline, self.cadence, self.starts = self.baseline.copy(), self.cadence.copy(), list(self.starts)

    def see(self, sample: Sample, detection: Thresholds) -> Finding | None:
        """Warn at the first row that is too high, and again if the loss has not recovered some rows later."""
        if sample.loss is None or not 0 < sample.loss < math.inf:
            return None
        self.rows += 1
        if self.cadence.changed(sample.step):
            self.baseline.clear()
            self.up = self.raised = 0
        value = math.log(sample.loss)
        return self._follow_spike(value, sample, detection) if self.up else self._check_normal(value, sample, detection)

    def _check_normal(self, value: float, sample: Sample, detection: Thresholds) -> Finding | None:
        reading = self.baseline.read(value, detection)
        if reading is None or not self._jumped(reading, detection):
            self._learn(value)
            return None
        self.baseline.habit(reading.excess)
        self.up, self.onset, self.expected, self.allowed = 1, sample.step, reading.expected, reading.allowed
        return self._finding(sample, reading.excess)

    def _jumped(self, reading: Reading, detection: Thresholds) -> bool:
        """Return whether one row is far above, or several in a row are clearly above; small jumps need less noise."""
        clear = max(detection.run_share * reading.allowed, detection.spike_gate)
        self.raised = self.raised + 1 if reading.excess > clear else 0
        if self.raised == 1:
            self.starts = [*self.starts[1 - REGULAR_SPIKES :], self.rows]
        sure = reading.excess**2 > detection.spike_sure * reading.noise
        return (reading.excess > reading.allowed and sure) or self.raised >= detection.run_rows

    def _learn(self, value: float) -> None:
        if self.calm:
            self.calm -= 1
            self.baseline.follow(value)
        else:
            self.baseline.learn(value)

    def _follow_spike(self, value: float, sample: Sample, detection: Thresholds) -> Finding | None:
        excess = value - self.expected
        if excess < detection.spike_recovered * self.allowed:
            self.up, self.calm = 0, detection.spike_aftermath_rows
            self.baseline.follow(value)
            return None
        self.up += 1
        if self.up > detection.spike_cap_rows:
            self.baseline.clear()
            self.up = 0
            return None
        return self._finding(sample, excess) if self.up == detection.spike_again_rows else None

    def _finding(self, sample: Sample, excess: float) -> Finding | None:
        if _are_regular(self.starts):
            return None
        times, expected = math.exp(min(excess, 700)), math.exp(self.expected)
        text = f"loss {sample.loss:.4g} is {times:.2f} times the expected {expected:.4g}, row {self.up} of it"
        return Finding(Kind.LOSS_SPIKE, Level.WARN, sample.step, self.onset, text, sample.at)


def _are_regular(starts: list[int]) -> bool:
    gaps = [later - earlier for earlier, later in zip(starts, starts[1:], strict=False)]
    return len(gaps) == REGULAR_SPIKES - 1 and max(gaps) - min(gaps) <= max(1, 0.1 * max(gaps))
