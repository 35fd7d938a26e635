"""Did the logging interval change, so that old noise and old slopes say nothing about the rows to come?"""

from dataclasses import dataclass

# An interval counts as another one when it is more than twice or less than half the one before, three rows running.
FACTOR = 2.0
ROWS = 3


@dataclass(slots=True)
class Cadence:
    """Steps from one row to the next, as they have been so far."""

    step: int | None = None
    interval: float | None = None
    odd: int = 0

    def changed(self, step: int | None) -> bool:
        """Take in the step of one more row; True at the row from which on the interval is another one."""
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
        """Another one with the same memory."""
        return Cadence(self.step, self.interval, self.odd)
