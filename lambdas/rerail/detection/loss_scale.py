"""The scale on which losses are compared: logarithmic, or relative to the run's progress if losses are not positive."""

import math
from dataclasses import dataclass, field

from rerail.detection.copying import copy_state
from rerail.detection.window import Window

LEVEL_ROWS = 12
# A single loss below zero may be an accident of the log; this many show that the objective has no lower bound of 0.
NEGATIVE_ROWS = 3
# A loss below zero is measured in halves of the progress that the run has made: on this scale the thresholds for
# logarithms ask for about 5 % of the progress.
GAIN = 2.0
# Larger losses count as this one, and larger values on the scale as that, so that no arithmetic overflows.
LARGEST_LOSS = 1e100
LARGEST_VALUE = 1e6
# The unit grows with the progress, in steps of at least this factor.
GROWTH = 1.5


@dataclass(slots=True)
class LossScale:
    """The scale in use, and what it is derived from."""

    # Rows below zero so far; from `NEGATIVE_ROWS` on the scale is linear.
    negative: int = 0
    # The last losses, and the median of the first.
    recent: Window = field(default_factory=lambda: Window(LEVEL_ROWS, digits=12))
    start: float | None = None
    # The progress that one unit stands for; 0 on the logarithmic scale.
    unit: float = 0.0
    # At the newest row the scale became linear: earlier values are not comparable.
    is_new: bool = False
    # At the newest row the unit grew: earlier values have to be multiplied by this.
    factor: float = 1.0

    def __post_init__(self) -> None:
        self.recent = self.recent.copy()

    def read(self, loss: float | None) -> float | None:
        """Return the loss on the scale; None if it is missing, not finite, or has no place on the scale."""
        self.is_new, self.factor = False, 1.0
        if loss is None or not -math.inf < loss < math.inf:
            return None
        if self.negative < NEGATIVE_ROWS:
            if loss > 0:
                if self.start is None:
                    self._find_start(loss)
                return math.log(loss)
            if loss == 0:
                return None
            self.negative += 1
            if self.negative < NEGATIVE_ROWS:
                return None
        return self._read_linear(loss)

    def place(self, loss: float) -> float | None:
        """Return a loss on the scale as it stands; None if it has no place there."""
        if self.unit:
            return max(-LARGEST_VALUE, min(LARGEST_VALUE, GAIN * loss / self.unit))
        return math.log(loss) if loss > 0 and self.negative < NEGATIVE_ROWS else None

    def convert(self, difference: float, loss: float) -> float:
        """Return a small difference of the loss in units of the scale."""
        return GAIN * difference / self.unit if self.unit else difference / abs(loss)

    def format_rise(self, expected: float, rise: float) -> str:
        """Return how far a loss is above the expected one; both are on the scale."""
        if not self.unit:
            return f"{math.exp(min(rise, 700)):.2f} times the usual {math.exp(min(expected, 700)):.4g}"
        loss = expected * self.unit / GAIN
        return f"{rise * self.unit / GAIN:.4g} above the usual {loss:.4g}, {rise / GAIN:.0%} of the run's progress"

    def format_fall(self, usual: float, fall: float) -> str:
        """Return how far a loss is below the usual one; both are on the scale."""
        if not self.unit:
            return f"{math.exp(-fall):.2g} times {math.exp(min(usual, 700)):.4g}"
        return f"{fall * self.unit / GAIN:.4g} less than {usual * self.unit / GAIN:.4g}"

    def copy(self) -> "LossScale":
        """Return a copy."""
        return copy_state(self)

    def _find_start(self, loss: float) -> None:
        self.recent.push(loss)
        if len(self.recent) == LEVEL_ROWS:
            self.start = self.recent.median()
            self.recent.clear()

    def _read_linear(self, loss: float) -> float | None:
        loss = max(-LARGEST_LOSS, min(LARGEST_LOSS, loss))
        self.recent.push(loss)
        if len(self.recent) < LEVEL_ROWS:
            return None
        level = self.recent.median()
        if self.start is None:
            self.start = level
        # The first noise is a lower bound, so that a run without progress has a unit.
        noise = 0.0 if self.unit else self.recent.quantile(0.75) - self.recent.quantile(0.25)
        progress = max(self.start - level, noise)
        if progress > GROWTH * self.unit:
            self.is_new, self.factor = not self.unit, self.unit / progress if self.unit else 1.0
            self.unit = progress
        return self.place(loss) if self.unit else None
