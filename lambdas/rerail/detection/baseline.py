"""What the next log loss would be if nothing happened, and how far this run strays from that of its own accord."""

from dataclasses import dataclass, field

from rerail.detection.window import Window
from rerail.model.thresholds import Thresholds

LEVEL_ROWS = 12  # short enough to follow a steep start, long enough to shrug off a spike of the median width, 5 rows
LEVEL_NEEDS = 6
NOISE_ROWS = 96
NOISE_NEEDS = 28
HISTORY_ROWS = 512
# Increments of white noise have a median of 0.95 standard deviations. A log whose rows differ far less from one another
# than from their median prints running means, which stray where an epoch begins: it takes twice the jump to tell.
SMOOTH = 0.4
SMOOTH_GATE = 2.0
INTERQUARTILE = 1.349  # of a normal distribution, in standard deviations


@dataclass(frozen=True, slots=True)
class Reading:
    """One log loss against its baseline: where it was expected, how far above it is, and how far it may be."""

    expected: float
    excess: float
    noise: float
    allowed: float


@dataclass(slots=True)
class Baseline:
    """The median of the last rows, what came off it lately, and what came off it over a longer past.

    The caller decides what may be learnt. The distance from a median lags behind a falling loss by a drift that is
    about the same from row to row: it is taken out again with the median of the distances.
    """

    level: Window = field(default_factory=lambda: Window(LEVEL_ROWS))
    residuals: Window = field(default_factory=lambda: Window(NOISE_ROWS))
    history: Window = field(default_factory=lambda: Window(HISTORY_ROWS))
    increments: Window = field(default_factory=lambda: Window(NOISE_ROWS))

    def __post_init__(self) -> None:
        self.level, self.residuals = self.level.copy(), self.residuals.copy()
        self.history, self.increments = self.history.copy(), self.increments.copy()

    def copy(self) -> "Baseline":
        """Another one with the same memory."""
        return Baseline(self.level, self.residuals, self.history, self.increments)

    def read(self, value: float, detection: Thresholds) -> Reading | None:
        """Judge a value against the rows before it; None while they are too few."""
        if len(self.residuals) < NOISE_NEEDS:
            return None
        spread = self.residuals.quantile(0.75) - self.residuals.quantile(0.25)
        noise = max(spread / INTERQUARTILE, detection.noise_floor)
        expected = self.level.median() + self.residuals.median()
        allowed = max(
            detection.spike_noise * noise,
            detection.spike_gate * (SMOOTH_GATE if self.increments.median() < SMOOTH * noise else 1),
            detection.history_up_factor * self.history.quantile(detection.history_up),
            -detection.history_down_factor * self.history.quantile(detection.history_down),
        )
        return Reading(expected, value - expected, noise, allowed)

    def learn(self, value: float) -> None:
        """Take an ordinary value in."""
        if len(self.level) >= LEVEL_NEEDS:
            self.increments.push(abs(value - self.level.values[-1]))
            residual = value - self.level.median()
            self.history.push(residual - self.residuals.median() if len(self.residuals) >= NOISE_NEEDS else 0.0)
            self.residuals.push(residual)
        self.level.push(value)

    def follow(self, value: float) -> None:
        """Let the level follow, and learn nothing about the noise: the way back from a spike is no noise."""
        self.level.push(value)

    def habit(self, excess: float) -> None:
        """Remember one jump as a thing this run does: the rare one stays news, the frequent one does not."""
        self.history.push(excess)

    def clear(self) -> None:
        """Forget all, as at the start of a run."""
        for window in (self.level, self.residuals, self.history, self.increments):
            window.clear()
