"""The one column that a published rule looks at, and windows over it."""

import math
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterable, Iterator

from rerail.model.sample import Sample


def losses(samples: Iterable[Sample]) -> Iterator[tuple[int, float]]:
    """Row and loss, where a finite loss was logged."""
    for row, sample in enumerate(samples):
        loss = sample.loss
        if loss is not None and math.isfinite(loss):
            yield row, loss


class Moments:
    """Mean and standard deviation of the last `size` values."""

    def __init__(self, size: int) -> None:
        self._values: deque[float] = deque(maxlen=size)
        self._sum = self._squares = 0.0
        self._since_exact = 0

    def __len__(self) -> int:
        return len(self._values)

    def add(self, value: float) -> None:
        gone = self._values[0] if len(self._values) == self._values.maxlen else 0.0
        self._values.append(value)
        self._sum += value - gone
        self._squares += value * value - gone * gone
        self._since_exact += 1
        if self._since_exact >= (self._values.maxlen or 1):  # running sums drift
            self._sum, self._squares = math.fsum(self._values), math.fsum(v * v for v in self._values)
            self._since_exact = 0

    @property
    def mean(self) -> float:
        return self._sum / len(self._values)

    @property
    def std(self) -> float:
        """Unbiased, as torch computes it."""
        n = len(self._values)
        variance = (self._squares - self._sum * self._sum / n) / (n - 1)
        return math.sqrt(max(0.0, variance))


class Ordered:
    """The last `size` values, kept in order too, for medians and quantiles."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: deque[float] = deque()
        self._ordered: list[float] = []

    def __len__(self) -> int:
        return len(self._values)

    def add(self, value: float) -> float | None:
        """Take the value in; returns the one that fell out."""
        self._values.append(value)
        insort(self._ordered, value)
        if len(self._values) <= self._size:
            return None
        gone = self._values.popleft()
        del self._ordered[bisect_left(self._ordered, gone)]
        return gone

    def quantile(self, q: float) -> float:
        return self._ordered[round(q * (len(self._ordered) - 1))]

    def share_within(self, distance: float, *, of: float) -> float:
        """How many of the values lie less than `distance` from the value `of`: at least half of them when it is more
        than their median absolute deviation."""
        inside = bisect_left(self._ordered, of + distance) - bisect_right(self._ordered, of - distance)
        return inside / len(self._ordered)
