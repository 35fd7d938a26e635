"""Detect a loss that stops changing while steps continue."""

from dataclasses import dataclass, field
from itertools import pairwise

from rerail.detection.row import Row
from rerail.detection.window import Window
from rerail.model.finding import Finding, Kind, Level
from rerail.model.thresholds import Thresholds

LEVEL_ROWS = 12
# If the loss was ten times smaller than its recent level just before it became zero, it fell to zero by learning.
LEARNT = 0.1
# Rounding repeats values. It cannot explain a long repetition if the values before varied by this many times the
# smallest difference that the log shows.
VARIED = 4.0
# A loss converges, however far it has fallen, if each of its last changes was less than this many such differences.
CONVERGES, LAST_CHANGES = 1.5, 4
# A loss of at most this many times that difference is about to be printed as zero.
NEARLY_ZERO = 3.0
# Before the loss has changed for the first time, its variation is taken to be at most a thousandth of it.
UNKNOWN_VARIATION = 1000.0


@dataclass(slots=True)
class FrozenLoss:
    """The value that repeats, the number of its repetitions, and the longest repetition before."""

    # The last values that differ from the one before, without sign.
    level: Window = field(default_factory=lambda: Window(LEVEL_ROWS, digits=15))
    value: float | None = None
    repeats: int = 0
    longest: int = 0
    onset: int | None = None
    # The value can be the result of learning, or of rounding.
    is_explained: bool = False

    def __post_init__(self) -> None:
        self.level = self.level.copy()

    def see(self, row: Row, detection: Thresholds) -> Finding | None:
        """Warn if a value repeats far more often in a row than any before, and intervene if that continues."""
        loss = row.sample.loss
        if loss is None or loss != loss or row.sample.step is None:
            return None
        if loss != self.value:
            self._start_value(loss, row)
            return None
        self.repeats += 1
        return self._evaluate(row, detection)

    def _start_value(self, loss: float, row: Row) -> None:
        self.longest = max(self.longest, self.repeats)
        before, self.value, self.repeats, self.onset = self.value, loss, 1, row.sample.step
        if len(self.level) and before is not None:
            self.is_explained = self._is_explained(loss, before, row.quantum)
        else:
            self.is_explained = abs(loss) < UNKNOWN_VARIATION * row.quantum
        if loss != 0 and abs(loss) != float("inf"):
            self.level.push(abs(loss))

    def _is_explained(self, loss: float, before: float, quantum: float) -> bool:
        """Return whether learning to zero, or rounding, explains that a value repeats."""
        if loss == 0:
            return abs(before) < LEARNT * self.level.median() or abs(before) <= NEARLY_ZERO * quantum
        varied = self.level.quantile(0.75) - self.level.quantile(0.25)
        last = [*self.level.values[-LAST_CHANGES:], abs(loss)]
        converges = all(abs(later - earlier) < CONVERGES * quantum for earlier, later in pairwise(last))
        return quantum > 0 and (converges or varied < VARIED * quantum or abs(loss) <= NEARLY_ZERO * quantum)

    def _evaluate(self, row: Row, detection: Thresholds) -> Finding | None:
        if self.is_explained or not len(self.level) or self.value is None:
            return None
        rows = detection.frozen_zero_rows if self.value == 0 else detection.frozen_rows
        # A log with few digits repeats values, so earlier repetitions raise the limit.
        rows = max(rows, detection.frozen_factor * self.longest)
        if self.repeats not in (rows, detection.frozen_patience * rows):
            return None
        level = Level.WARN if self.repeats == rows else Level.INTERVENE
        # A loss that was zero for a while before, as in reinforcement learning, may be so again: that is only reported.
        if level is Level.INTERVENE and self.value == 0 and self.longest >= detection.frozen_zero_rows:
            return None
        text = f"loss reads exactly {self.value + 0:.6g} for {self.repeats} rows; never before more than {self.longest}"
        return Finding(Kind.FROZEN_LOSS, level, row.sample.step, self.onset, text, row.sample.at)
