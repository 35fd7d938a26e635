"""Recognize logs that print each loss several times, because a loss is computed more rarely than a row is printed."""

from dataclasses import dataclass, field

VALUES = 8
# A log prints each loss as often if that holds for this many of the last values; rounding repeats values irregularly.
ALIKE = 6


@dataclass(slots=True)
class Repetition:
    """The newest loss, how often it was printed, and how often each of the last ones was."""

    loss: float | None = None
    times: int = 0
    before: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.before = list(self.before)

    def is_repeated(self, loss: float) -> bool:
        """Record one more loss, and return whether the log only prints the one before again."""
        if loss == self.loss:
            self.times += 1
            usual = sorted(self.before)[len(self.before) // 2] if self.before else 1
            return usual > 1 and self.before.count(usual) >= ALIKE
        if self.times:
            self.before = [*self.before[1 - VALUES :], self.times]
        self.loss, self.times = loss, 1
        return False

    def copy(self) -> "Repetition":
        """Return a copy."""
        return Repetition(self.loss, self.times, self.before)
