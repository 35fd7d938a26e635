"""The last few values of a series, with their order statistics at hand."""

from bisect import bisect_left, insort
from dataclasses import dataclass, field


@dataclass
class Window:
    """At most `size` values, oldest first, kept to so many digits that they are short to store.

    A push costs O(log size) comparisons, a quantile nothing. The ranks are no field: they are found again when the
    window is read from its record.
    """

    size: int
    values: list[float] = field(default_factory=list)
    digits: int = 6

    def __post_init__(self) -> None:
        # A list of its own again: sequences come back from JSON as tuples.
        self.values = list(self.values)
        self.ranked = sorted(self.values)

    def __len__(self) -> int:
        return len(self.values)

    def push(self, value: float) -> None:
        """Take one more finite value in, and forget the oldest when full."""
        value = round(value, self.digits)
        values, ranked = self.values, self.ranked
        values.append(value)
        insort(ranked, value)
        if len(values) > self.size:
            del ranked[bisect_left(ranked, values.pop(0))]

    def quantile(self, share: float) -> float:
        """The value below which about this share of the others lies; the window must not be empty."""
        return self.ranked[min(len(self.ranked) - 1, int(share * len(self.ranked)))]

    def median(self) -> float:
        """The middle value."""
        return self.ranked[len(self.ranked) // 2]

    def copy(self) -> "Window":
        """Another window with the same values."""
        twin = object.__new__(Window)  # nothing is sorted anew: this is done for every run, every minute
        twin.size, twin.digits = self.size, self.digits
        twin.values, twin.ranked = self.values.copy(), self.ranked.copy()
        return twin

    def clear(self) -> None:
        """Forget all."""
        self.values.clear()
        self.ranked.clear()
