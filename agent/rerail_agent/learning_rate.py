"""Notice that the schedule of the learning rate has started again after a resume."""

import math
from dataclasses import dataclass
from typing import Any

from rerail.model.finding import Finding, Kind, Level
from rerail.model.sample import Sample

# From one row to the next a schedule that goes on changes by less.
JUMP = 2.0
# A warm-up rises at least so much from its first row to its second.
CLIMB = 1.5


@dataclass(slots=True)
class RateMemory:
    """The learning rate of a run over its processes; 0 while it is not known."""

    # The factor on the rate that a rollback has ordered for this process.
    scale: float = 1.0
    newest: float = 0.0
    highest: float = 0.0
    # It has jumped up without a resume: a schedule in cycles tells nothing.
    has_cycles: bool = False
    # After a resume: the rate in the checkpoint, and the low one of the first row, until the second is known.
    _saved: float = 0.0
    _first: float = 0.0

    def add_row(self, sample: Sample) -> Finding | None:
        """Add the rate of one more row; return that the schedule seems to have started again, once for each resume.

        The end of a first cycle looks the same if the checkpoint was saved there.
        """
        rate = sample.lr
        if not isinstance(rate, int | float) or not 0 < rate < math.inf:
            return None
        before, saved, first = self.newest, self._saved, self._first
        has_fallen = 0 < JUMP * before <= self.highest
        has_jumped = has_fallen and rate >= JUMP * before
        is_warming_up = first > 0 and rate >= CLIMB * first
        self.newest, self.highest = rate, max(self.highest, rate)
        self._saved = self._first = 0.0
        if not saved:
            self.has_cycles |= has_jumped
        elif (has_jumped or is_warming_up) and not self.has_cycles:
            rates = f"learning rate {first or rate:.3g} after the resume, {saved:.3g} when it was saved"
            text = f"{rates}: its schedule seems to have started again"
            return Finding(Kind.RESUME_MISMATCH, Level.WARN, sample.step, sample.step, text, sample.at)
        elif not first and JUMP * rate <= saved:
            self._saved, self._first = saved, rate
        return None

    def dump_state(self) -> list[Any]:
        """Return what `restore` takes, as values of JSON."""
        return [self.newest, self.highest, self.has_cycles, self.scale]

    def restore(self, state: Any) -> None:
        """Continue with what was saved; raise ValueError or TypeError, and change nothing, if it is not valid.

        Rates with another factor are not compared.
        """
        newest, highest, has_cycles, scale = state
        self.newest, self.highest, self.has_cycles = float(newest), float(highest), bool(has_cycles)
        if scale != self.scale:
            self.newest = self.highest = 0.0
        self._saved, self._first = self.newest, 0.0
