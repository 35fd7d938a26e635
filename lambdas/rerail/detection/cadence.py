"""Detect a change of the logging interval, after which noise and slopes learnt before are not valid."""

from dataclasses import dataclass

# An interval has changed if it is more than twice or less than half the previous one for three rows in a row.
FACTOR = 2.0
ROWS = 3


@dataclass(slots=True)
class Cadence:
    """The number of steps between two logged rows."""

    step: int | None = None
    interval: float | None = None
    odd: int = 0

    def changed(self, step: int | None) -> bool:
        """Record the step of one more row, and return whether the interval has changed at this row."""
        before, self.step = self.step, step
        if before is None or step is None or step <= before:
            return False
        interval = float(step - before)
        if self.interval is None or interval / FACTOR <= self.interval <= interval * FACTOR:
            self.interval, self.odd = self.interval or interval, 0
            return False
        self.odd += 1
        if self.odd < ROWS:
            return False
        self.interval, self.odd = interval, 0
        return True

    def copy(self) -> "Cadence":
        """Return a copy."""
        return Cadence(self.step, self.interval, self.odd)
