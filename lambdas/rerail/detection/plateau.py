"""Detect a loss that has hardly improved for most of the run."""

import math
from bisect import bisect_right
from dataclasses import dataclass, field

from rerail.detection.row import Row
from rerail.detection.window import Window
from rerail.model.finding import Finding, Kind, Level
from rerail.model.sample import Sample
from rerail.model.thresholds import Thresholds

LEVEL_ROWS = 25
# One mark for every 20 % more steps: a run of a billion steps needs a hundred.
SPACING = 1.2
# A run that learns improves over eight times the steps; one at the trivial level does not.
SPAN = 8
# The fall before the plateau, as a logarithm: a fifth.
FALLEN = 0.22


@dataclass(slots=True)
class Plateau:
    """The current level of the loss, and earlier levels at steps that are increasingly far apart."""

    level: Window = field(default_factory=lambda: Window(LEVEL_ROWS))
    rows: int = 0
    steps: list[int] = field(default_factory=list)
    levels: list[float] = field(default_factory=list)
    is_reported: bool = False

    def __post_init__(self) -> None:
        self.level, self.steps, self.levels = self.level.copy(), list(self.steps), list(self.levels)

    def see(self, row: Row, detection: Thresholds) -> Finding | None:
        """Warn once if a loss that had fallen is hardly better than at an eighth of the steps, if the policy asks."""
        sample = row.sample
        if not detection.plateau or sample.loss is None or not 0 < sample.loss < math.inf or sample.step is None:
            return None
        self.rows += 1
        self.level.push(math.log(sample.loss))
        if not self.steps or sample.step >= self.steps[-1] * SPACING:
            self.steps.append(max(sample.step, 1))
            self.levels.append(self.level.median())
        # If rounding hides a third of the required gain, the gain cannot be measured.
        if self.rows < detection.plateau_rows or row.quantum > detection.plateau_gain / 3 * sample.loss:
            return None
        return self._evaluate(sample, detection)

    def _evaluate(self, sample: Sample, detection: Thresholds) -> Finding | None:
        step = sample.step or 0
        early = bisect_right(self.steps, step // SPAN) - 1
        if early < 0:
            return None
        gained = self.levels[early] - self.level.median()
        # If the noise is wider than a third of the required gain, the gain cannot be measured.
        if self.level.quantile(0.75) - self.level.quantile(0.25) > detection.plateau_gain / 3:
            return None
        # Only a loss that has fallen can have stopped falling, and it is told once: some objectives have a floor.
        if self.is_reported or abs(gained) > detection.plateau_gain or self.levels[0] - self.levels[early] < FALLEN:
            return None
        self.is_reported = True
        text = f"loss {math.exp(self.level.median()):.4g} is {gained:.1%} better than at step {self.steps[early]}"
        return Finding(Kind.PLATEAU, Level.WARN, step, self.steps[early], text, sample.at)
