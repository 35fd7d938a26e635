"""Detect a loss that stops changing while steps continue."""

from dataclasses import dataclass, field

from rerail.detection.window import Window
from rerail.model.finding import Finding, Kind, Level
from rerail.model.sample import Sample
from rerail.model.thresholds import Thresholds

LEVEL_ROWS = 12
# If the loss was ten times smaller than its recent level just before it became zero, it fell to zero by learning.
LEARNT = 0.1


@dataclass(slots=True)
class FrozenLoss:
    """The value that repeats, the number of its repetitions, and the longest repetition before."""

    level: Window = field(default_factory=lambda: Window(LEVEL_ROWS, digits=15))
    value: float | None = None
    repeats: int = 0
    longest: int = 0
    onset: int | None = None
    learnt: bool = False

    def __post_init__(self) -> None:
        self.level = self.level.copy()

    def see(self, sample: Sample, detection: Thresholds) -> Finding | None:
        """Warn if a value repeats far more often in a row than any before, and intervene if that continues."""
        loss = sample.loss
        if loss is None or loss != loss or sample.step is None:
            return None
        if loss != self.value:
            self._start_value(loss, sample.step)
            return None
        self.repeats += 1
        return self._evaluate(sample, detection)

    def _start_value(self, loss: float, step: int) -> None:
        self.longest = max(self.longest, self.repeats)
        before, self.value, self.repeats, self.onset = self.value, loss, 1, step
        if len(self.level) and before is not None:
            self.learnt = loss == 0 and abs(before) < LEARNT * self.level.median()
        if loss != 0 and abs(loss) != float("inf"):
            self.level.push(abs(loss))

    def _evaluate(self, sample: Sample, detection: Thresholds) -> Finding | None:
        if self.learnt or not len(self.level):
            return None
        rows = detection.frozen_zero_rows if self.value == 0 else detection.frozen_rows
        # A log with few digits repeats values, so earlier repetitions raise the limit.
        rows = max(rows, detection.frozen_factor * self.longest)
        if self.repeats not in (rows, detection.frozen_patience * rows):
            return None
        level = Level.WARN if self.repeats == rows else Level.INTERVENE
        text = f"loss reads exactly {self.value:.6g} for {self.repeats} rows; never before more than {self.longest}"
        return Finding(Kind.FROZEN_LOSS, level, sample.step, self.onset, text, sample.at)
