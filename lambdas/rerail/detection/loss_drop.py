"""Detect a sudden fall of the loss that learning does not explain."""

from dataclasses import dataclass, field

from rerail.detection.row import Row
from rerail.detection.window import Window
from rerail.model.finding import Finding, Kind, Level
from rerail.model.thresholds import Thresholds

ROWS = 12
# Losses fall steeply at the start of a run.
NEEDS_ROWS = 100
# A fall must exceed the noise, and the largest fall in as many rows before, by these factors.
NOISE_FACTOR = 6.0
LARGEST_FACTOR = 2.0


@dataclass(slots=True)
class LossDrop:
    """The last rows, the rows before these, and the largest fall between them so far."""

    recent: Window = field(default_factory=lambda: Window(ROWS))
    before: Window = field(default_factory=lambda: Window(ROWS))
    rows: int = 0
    largest: float = 0.0

    def __post_init__(self) -> None:
        self.recent, self.before = self.recent.copy(), self.before.copy()

    def see(self, row: Row, detection: Thresholds) -> Finding | None:
        """Warn once the last rows are far below the rows before them."""
        if row.is_new_series:
            self._forget()
        if row.value is None:
            return None
        if row.scale.factor != 1:
            self.recent.scale(row.scale.factor)
            self.before.scale(row.scale.factor)
            self.largest *= row.scale.factor
        self.rows += 1
        if len(self.recent) == ROWS:
            self.before.push(self.recent.values[0])
        self.recent.push(row.value)
        return self._evaluate(row, detection) if len(self.before) == ROWS else None

    def _evaluate(self, row: Row, detection: Thresholds) -> Finding | None:
        fall = self.before.median() - self.recent.median()
        if fall <= self.largest:
            return None
        allowed = max(detection.loss_drop, NOISE_FACTOR * self.before.deviation(), LARGEST_FACTOR * self.largest)
        if fall <= allowed or self.rows < NEEDS_ROWS or row.is_recovered:
            self.largest = fall if self.rows < NEEDS_ROWS else min(fall, allowed)
            return None
        self.largest = fall
        sample = row.sample
        text = f"loss {sample.loss:.4g} is far below the usual one: {row.scale.format_fall(self.before.median(), fall)}"
        self._forget()
        return Finding(Kind.LOSS_DROP, Level.WARN, sample.step, sample.step, text, sample.at)

    def _forget(self) -> None:
        self.recent.clear()
        self.before.clear()
