"""The expected next loss of a run, and its normal deviations from that."""

from dataclasses import dataclass, field

from rerail.detection.window import Window
from rerail.model.thresholds import Thresholds

LEVEL_ROWS = 12  # short enough to follow a steep start, long enough to ignore a spike of the median width, 5 rows
LEVEL_NEEDS = 6
NOISE_ROWS = 96
NOISE_NEEDS = 28
HISTORY_ROWS = 512
# In a shorter history than this, a few jumps are not a habit.
HISTORY_LEAST = 128
# Increments of white noise have a median of 0.95 standard deviations. If rows differ far less from one another than
# from their median, the log prints running means, which deviate at the start of an epoch: the gate is then doubled.
SMOOTH = 0.4
SMOOTH_GATE = 2.0
# A loss counts as this many times as far above what was expected as it is above the last rows, at most.
ABOVE_LEVEL = 2.0
# However often a run has had them, jumps by more than a factor of 5 are told.
MOST_USUAL = 1.6


@dataclass(frozen=True, slots=True)
class Reading:
    """One loss compared with its baseline; all values are losses."""

    expected: float
    # How far the loss is above the expected one.
    excess: float
    # The standard deviation of the noise.
    noise: float
    # The largest normal excess.
    allowed: float


@dataclass(slots=True)
class Baseline:
    """The level of the loss and its deviations; the caller decides which rows are learnt.

    A median lags behind a falling loss by a drift that is about the same in each row. The median of the residuals
    removes it.
    """

    level: Window = field(default_factory=lambda: Window(LEVEL_ROWS))
    # The recent distances from the level.
    residuals: Window = field(default_factory=lambda: Window(NOISE_ROWS))
    # The distances over a longer time, without the drift.
    history: Window = field(default_factory=lambda: Window(HISTORY_ROWS))
    # The absolute differences between consecutive rows.
    increments: Window = field(default_factory=lambda: Window(NOISE_ROWS))

    def __post_init__(self) -> None:
        self.level, self.residuals = self.level.copy(), self.residuals.copy()
        self.history, self.increments = self.history.copy(), self.increments.copy()

    def copy(self) -> "Baseline":
        """Return a copy."""
        return Baseline(self.level, self.residuals, self.history, self.increments)

    def read(self, value: float, detection: Thresholds, *, floor: float = 0.0) -> Reading | None:
        """Compare a value with the rows before it, whose noise is at least `floor`; None while there are too few."""
        if len(self.residuals) < NOISE_NEEDS:
            return None
        noise = max(self.residuals.deviation(), detection.noise_floor, floor)
        expected = self.level.median() + self.residuals.median()
        usual = 1 - (1 - detection.history_up) * max(1, HISTORY_LEAST / len(self.history))
        allowed = max(
            detection.spike_noise * noise,
            detection.spike_gate * (SMOOTH_GATE if self.increments.median() < SMOOTH * noise else 1),
            min(detection.history_up_factor * self.history.quantile(usual), MOST_USUAL),
            -detection.history_down_factor * self.history.quantile(detection.history_down),
        )
        # The end of a fall is above what was expected, but not above the last rows.
        excess = min(value - expected, ABOVE_LEVEL * (value - self.level.median()))
        return Reading(expected, excess, noise, allowed)

    def learn(self, value: float) -> None:
        """Learn from a normal value."""
        if len(self.level) >= LEVEL_NEEDS:
            self.increments.push(abs(value - self.level.values[-1]))
            residual = value - self.level.median()
            self.history.push(residual - self.residuals.median() if len(self.residuals) >= NOISE_NEEDS else 0.0)
            self.residuals.push(residual)
        self.level.push(value)

    def follow(self, value: float) -> None:
        """Update the level, but not the noise, because the recovery from a spike is not noise."""
        self.level.push(value)

    def habit(self, excess: float) -> None:
        """Add a jump to the history, so that frequent jumps of the run are no longer reported."""
        self.history.push(excess)

    def scale(self, factor: float) -> None:
        """Convert everything to another unit."""
        for window in (self.level, self.residuals, self.history, self.increments):
            window.scale(factor)

    def clear(self) -> None:
        """Forget everything, as at the start of a run."""
        for window in (self.level, self.residuals, self.history, self.increments):
            window.clear()
