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

    def see(self, sample: Sample) -> Finding | None:
        """Add the rate of one more row; return that the schedule has started again, once after each resume."""
        rate = sample.lr
        if not isinstance(rate, int | float) or not 0 < rate < math.inf:
            return None
        has_jumped = 0 < JUMP * self.newest <= min(rate, self.highest)  # up, after it had fallen
        self.newest, self.highest = rate, max(self.highest, rate)
        saved, first = self._saved, self._first
        self._saved = self._first = 0.0
        if not saved:
            self.has_cycles |= has_jumped
        elif self.has_cycles:
            return None
        elif has_jumped or first and rate >= CLIMB * first:
            text = f"learning rate {first or rate:.3g} after the resume, {saved:.3g} when it was saved: its schedule"
            return Finding(
                Kind.RESUME_MISMATCH, Level.WARN, sample.step, sample.step, f"{text} has started again", sample.at
            )
        elif not first and JUMP * rate <= saved:
            self._saved, self._first = saved, rate
        return None

    def dump_state(self) -> list[Any]:
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
