"""Recognize logs that print running means, which restart with each epoch, and recover the values behind them.

From two means, `k * mean - (k - 1) * mean before` is the value behind the newer one. If the log prints running means,
these values vary as much late in an epoch as early. If it prints plain values, they vary in proportion to `k`.
"""

import math
from dataclasses import dataclass, field

from rerail.detection.copying import copy_state
from rerail.detection.window import Window

CHANGES = 8
# A change this many times the median of the last ones is a pause, a shift or a restart of the mean. The next rows
# decide: after a restart the median of their changes is still this many times the earlier one.
JUMP = 6.0
DECIDING_ROWS = 4
STILL_LARGE = 3.0
# After a shift of the values the mean moves on as fast as with the first of them, within this factor.
SHIFT = 1.5
SHORTEST_EPOCH_ROWS = 10
# Rows of an epoch that its slope needs: in an epoch that is over, and in the one in progress.
NEEDS_ROWS = 48
NEEDS_ROWS_IN_PROGRESS = 128
NEEDS_EPOCHS = 2  # in a row, if each is too short to decide alone
FIRST_ROWS = 4  # left out of the slope, because they follow a jump
# On logarithmic scales the changes of recovered values grow with a slope of 0 for running means, of 1 for plain values.
IS_MEAN, IS_PLAIN = 0.3, 0.6
IS_NOISY = 0.3  # of the changes turn; of white noise two thirds do
# Two epochs of the same length, within this share, predict the next restart.
SAME_LENGTH = 0.02
SPREAD_WEIGHT = 0.02  # of the newest change in the average
# Larger values are passed on as they are, so that no arithmetic overflows.
LARGEST = 1e100
# A recovered value must not be more uncertain than this by the rounding of the means.
UNCERTAIN = 0.05


@dataclass(slots=True)
class Slope:
    """The regression of the logarithms of changes on those of the rows of an epoch."""

    rows: int = 0
    x: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    xy: float = 0.0
    # The newest change, and how many had another sign than the one before.
    change: float = 0.0
    turns: int = 0

    def add(self, rows: int, change: float) -> None:
        """Add the change at a row of the epoch."""
        if rows > FIRST_ROWS and change:
            x, y = math.log(rows), math.log(abs(change))
            self.turns, self.change = self.turns + (change * self.change < 0), change
            self.rows += 1
            self.x, self.y, self.xx, self.xy = self.x + x, self.y + y, self.xx + x * x, self.xy + x * y

    def value(self) -> float:
        """Return the slope, 0.0 if there are too few rows."""
        spread = self.rows * self.xx - self.x * self.x
        return (self.rows * self.xy - self.x * self.y) / spread if spread > 0 else 0.0

    def is_noisy(self) -> bool:
        """Return whether the values go up and down, as losses of batches do; those behind a smooth curve do not."""
        return self.turns > IS_NOISY * self.rows


@dataclass(slots=True)
class RunningMean:
    """The epoch in progress, and whether its values are running means."""

    is_mean: bool = False
    rows: int = 0
    last: float = 0.0
    changes: Window = field(default_factory=lambda: Window(CHANGES, digits=12))
    # The value before a change that may be a restart, and the values since, until that is decided.
    pending: list[float] = field(default_factory=list)
    slope: Slope = field(default_factory=Slope)
    # Epochs in a row that looked like running means, and were too short to decide alone.
    epochs: int = 0
    # In this epoch the values behind the mean have changed their level.
    has_shifted: bool = False
    # The last value recovered, for the slope, and how much recovered values change on average.
    recovered: float = 0.0
    spread: float = 0.0
    # The rows of the last epoch, and those of an epoch that has come twice in a row; 0: not known.
    length: int = 0
    period: int = 0
    # The rows and the mean at which the last recovered value ends.
    anchor_rows: int = 0
    anchor: float = 0.0

    def __post_init__(self) -> None:
        self.changes, self.slope, self.pending = self.changes.copy(), copy_state(self.slope), list(self.pending)

    def copy(self) -> "RunningMean":
        """Return a copy."""
        return copy_state(self)

    def read(self, value: float, quantum: float) -> float | None:
        """Return the printed value, or the one behind a running mean; None while that is not decided or is hidden."""
        if abs(value) > LARGEST:
            return value
        change = abs(value - self.last)
        if self.pending:
            self.pending.append(value)
            if len(self.pending) > DECIDING_ROWS:
                self._decide()
        elif self._is_impossible(value, quantum):
            self._restart([value])
        elif self._is_jump(change):
            self.pending = [self.last, value]
        else:
            self._add(value, quantum)
        self.last = value
        if not self.is_mean:
            return value
        return None if self.pending else self._recover(value, quantum)

    def begin_launch(self) -> None:
        """Forget the rows of the epoch in progress: values of another launch have no mean in common with them."""
        self.rows = 0
        self.pending = []
        self._begin_epoch()

    def _is_impossible(self, value: float, quantum: float) -> bool:
        """Return whether a mean of positive values cannot fall as far with one more of them."""
        rows = self.rows + 1
        return self.rows > 0 and value > 0 and rows * (value + quantum) < self.rows * (self.last - quantum)

    def _is_jump(self, change: float) -> bool:
        if len(self.changes) < CHANGES or self.rows < SHORTEST_EPOCH_ROWS:
            return False
        if self.is_mean and (self.rows + 1) * change < JUMP * self.spread:
            return self.rows == self.period  # the value behind it would be a usual one
        return self.rows == self.period or change > JUMP * self.changes.median() > 0

    def _add(self, value: float, quantum: float) -> None:
        self.rows += 1
        change = value - self.last
        recovered = self.rows * change + self.last
        if self.rows > 1:
            self.changes.push(abs(change))
            moved = recovered - self.recovered
            varied = abs(moved)
            self.spread += SPREAD_WEIGHT * (min(varied, JUMP * self.spread or varied) - self.spread)
            if self.rows * quantum < UNCERTAIN * abs(value):
                self.slope.add(self.rows, moved)
        self.recovered = recovered
        if self.rows >= NEEDS_ROWS_IN_PROGRESS and self.rows % CHANGES == 0:
            self._evaluate_slope()

    def _evaluate_slope(self) -> None:
        """Decide from the epoch in progress whether its values are running means."""
        if self.slope.rows < NEEDS_ROWS:
            return
        slope = self.slope.value()
        if self.is_mean and slope > IS_PLAIN and not self.has_shifted:
            self.is_mean = False
        elif not self.is_mean and slope < IS_MEAN and self.slope.is_noisy():
            self.is_mean, self.anchor_rows, self.anchor = True, self.rows, self.last

    def _decide(self) -> None:
        """Decide whether the mean has restarted with the second of the pending values."""
        values, self.pending = self.pending, []
        jump, *others = (later - earlier for earlier, later in zip(values, values[1:], strict=False))
        sizes = sorted(map(abs, others))
        median = sizes[len(sizes) // 2]
        # A mean also moves on at the same pace when the values behind it have changed their level.
        shifts = abs(jump) <= SHIFT * median and all(other * jump > 0 for other in others)
        if shifts or median <= STILL_LARGE * self.changes.median() or self._was_outlier(values):
            self.rows += len(values) - 1
            for size in sizes:
                self.changes.push(size)
            self.recovered = self.rows * (values[-1] - values[-2]) + values[-2]
            # Larger values vary more, so that this epoch no longer shows whether it has running means.
            self.has_shifted = self.has_shifted or shifts
        else:
            self._restart(values[1:])

    def _was_outlier(self, values: list[float]) -> bool:
        """Return whether usual values follow the jump if the mean goes on: it was one value, such as a pause."""
        if not self.is_mean or self.rows == self.period:
            return False
        pairs = enumerate(zip(values[1:], values[2:], strict=False), start=self.rows + 2)
        strays = sorted(abs(rows * (later - earlier) + earlier - self.recovered) for rows, (earlier, later) in pairs)
        return strays[len(strays) // 2] < JUMP * self.spread

    def _restart(self, values: list[float]) -> None:
        """Begin an epoch with these values."""
        if self.slope.rows >= NEEDS_ROWS:
            self.epochs = self.epochs + 1 if self.slope.value() < IS_MEAN else 0
            if self.is_mean or self.epochs >= NEEDS_EPOCHS:
                self._evaluate_slope()
        self.period = self.rows if abs(self.rows - self.length) <= 1 + SAME_LENGTH * self.rows else 0
        self.length = self.rows
        self.rows = len(values)
        self.anchor_rows, self.anchor = 1, values[0]
        self.recovered = values[-1]
        self._begin_epoch()

    def _begin_epoch(self) -> None:
        self.slope, self.has_shifted = Slope(), False
        self.changes.clear()

    def _recover(self, value: float, quantum: float) -> float | None:
        rows = self.rows - self.anchor_rows
        if self.rows == 1:
            return value
        if rows <= 0:
            return None
        recovered = (self.rows * value - self.anchor_rows * self.anchor) / rows
        if self.rows * quantum > UNCERTAIN * rows * min(abs(value), abs(recovered)):
            return None
        self.anchor, self.anchor_rows = value, self.rows
        return recovered
