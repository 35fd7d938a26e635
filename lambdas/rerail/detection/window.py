"""The last values of a series, with their order statistics."""

from bisect import bisect_left, insort
from dataclasses import dataclass, field

INTERQUARTILE = 1.349  # of a normal distribution, in standard deviations


@dataclass
class Window:
    """At most `size` values, oldest first, rounded to `digits` decimal places to keep records short.

    A push takes O(log size) comparisons, a quantile O(1). The sorted list is not stored in records.
    """

    size: int
    values: list[float] = field(default_factory=list)
    digits: int = 6

    def __post_init__(self) -> None:
        # Sequences are read from JSON as tuples, and a list must not be shared.
        self.values = list(self.values)
        self.ranked = sorted(self.values)

    def __len__(self) -> int:
        return len(self.values)

    def push(self, value: float) -> None:
        """Add a finite value, and drop the oldest if the window is full."""
        value = round(value, self.digits)
        values, ranked = self.values, self.ranked
        values.append(value)
        insort(ranked, value)
        if len(values) > self.size:
            del ranked[bisect_left(ranked, values.pop(0))]

    def quantile(self, share: float) -> float:
        """Return the value below which about this share of the others lies; the window must not be empty."""
        return self.ranked[min(len(self.ranked) - 1, int(share * len(self.ranked)))]

    def median(self) -> float:
        """Return the median; the window must not be empty."""
        return self.ranked[len(self.ranked) // 2]

    def deviation(self) -> float:
        """Return the standard deviation of a normal distribution with this interquartile range."""
        return (self.quantile(0.75) - self.quantile(0.25)) / INTERQUARTILE

    def scale(self, factor: float) -> None:
        """Multiply all values by a positive factor."""
        self.values = [value * factor for value in self.values]
        self.ranked = [value * factor for value in self.ranked]

    def copy(self) -> "Window":
        """Return a copy."""
        copy = object.__new__(Window)  # avoids sorting, because this happens for every run every minute
        copy.size, copy.digits = self.size, self.digits
        copy.values, copy.ranked = self.values.copy(), self.ranked.copy()
        return copy

    def clear(self) -> None:
        """Remove all values."""
        self.values.clear()
        self.ranked.clear()
