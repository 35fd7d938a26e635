"""The minimum of the last values of a series."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class RunningMinimum:
    """A sliding-window minimum: an ascending queue of the values that may still become the minimum."""

    size: int
    pushed: int = 0
    numbers: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.numbers, self.values = list(self.numbers), list(self.values)

    def push(self, value: float) -> None:
        """Add a value and drop those older than `size` pushes, in amortised O(1)."""
        self.pushed += 1
        while self.values and self.values[-1] >= value:
            self.values.pop()
            self.numbers.pop()
        self.values.append(value)
        self.numbers.append(self.pushed)
        if self.numbers[0] <= self.pushed - self.size:
            self.values.pop(0)
            self.numbers.pop(0)

    def value(self) -> float:
        """Return the minimum; there must have been a push."""
        return self.values[0]

    def scale(self, factor: float) -> None:
        """Multiply all values by a positive factor."""
        self.values = [value * factor for value in self.values]

    def copy(self) -> "RunningMinimum":
        """Return a copy."""
        return RunningMinimum(self.size, self.pushed, self.numbers, self.values)
