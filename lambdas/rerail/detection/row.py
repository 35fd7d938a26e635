"""Prepare a sample for the detectors: its loss on a comparable scale, and whether earlier rows are comparable."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from rerail.detection.cadence import Cadence
from rerail.detection.loss_scale import LossScale
from rerail.detection.repetition import Repetition
from rerail.detection.resolution import Resolution
from rerail.detection.running_mean import LARGEST, RunningMean
from rerail.model.sample import Sample
from rerail.model.thresholds import PlannedChange

# Step numbers that begin again after as many steps as before, within this share, may count those of an epoch.
SAME_LENGTH = 0.02
# Then the loss tells: an epoch goes on where the last one ended, another launch is back near its beginning. It has
# risen this share of the way back, on a logarithmic scale if it is positive, and that way is at least this long.
WAY_BACK, SHORTEST_WAY = 0.5, 0.2
STARTING_ROWS = 3
# A training may begin anew after as many rows as a level needs, at a loss that is higher by this share. That shows in
# the median of the next rows.
TRAINING_ROWS, BEGINNING_ROWS, HIGHER = 24, 8, 0.12
# A learning rate that is raised at once by this factor, as by a warm restart, may raise the loss within these rows. It
# is compared with the highest before, which counts less with each row: logs may print those of several optimizers.
# Rates that are raised more often than that, or in the first rows, are usual.
RAISED, RAISED_ROWS, RATE_KEPT = 2.0, 64, 0.97
LEVEL_WEIGHT = 0.2  # of the newest loss in the level
# Patience in rows is bounded in time, but for so many rows: a halved cluster with rows of five minutes is not watched
# for half a day. The bound is a power of two, so that it changes rarely.
LONGEST_PATIENCE_S, LEAST_ROWS = 9000.0, 8
PACE_WEIGHT = 0.05  # of the newest row in the seconds between rows
# Fewer steps back than this many usual distances between rows are lines out of order.
OUT_OF_ORDER = 3
# A running mean hardly shows values far below it: smaller ones count as this share of the mean.
LEAST_SHARE = 0.25


@dataclass(slots=True)
class Row:
    """A sample as the detectors read it."""

    sample: Sample
    # The scale of the loss.
    scale: LossScale
    # The loss on that scale; None: missing, not finite, or not on the scale.
    value: float | None
    # The smallest difference that the log can show, on the scale, at the present loss.
    resolution: float
    # The smallest difference that the log can show, in units of the loss.
    quantum: float
    # The loss was recovered from a running mean: it varies more than what the log prints.
    is_recovered: bool
    # Losses of earlier rows are not comparable: another logging interval, scale or launch, or a planned change.
    is_new_series: bool
    # Another launch of the script or a planned change, so that step times are not comparable; losses may be.
    is_new_launch: bool
    # Seconds per step; None: unknown.
    step_seconds: float | None
    # Seconds from one row to the next; 0.0: unknown.
    row_seconds: float = 0.0
    # Steps from one row to the next; 0: unknown.
    spacing: int = 0
    # The highest loss that the row aggregates, on the scale; None: not known.
    highest: float | None = None
    # The steps have just begun again after many rows, at a higher loss: it may be another training, as the next fold.
    may_begin_anew: bool = False
    # Rows since the learning rate was raised at once; 0 in that row.
    rows_since_raise: int = RAISED_ROWS

    def find_patience_factor(self, rows: int) -> int:
        """Return by how much a patience of so many rows is shorter, because rows are aggregates or far apart."""
        factor = self.sample.patience_factor
        while rows * self.row_seconds > factor * LONGEST_PATIENCE_S and rows >= 2 * factor * LEAST_ROWS:
            factor *= 2
        return factor


@dataclass(slots=True)
class RowReader:
    """The properties of the log as a whole: scale, logging interval, resolution and running means."""

    scale: LossScale = field(default_factory=LossScale)
    cadence: Cadence = field(default_factory=Cadence)
    resolution: Resolution = field(default_factory=Resolution)
    step_resolution: Resolution = field(default_factory=Resolution)
    repetition: Repetition = field(default_factory=Repetition)
    loss_mean: RunningMean = field(default_factory=RunningMean)
    step_mean: RunningMean = field(default_factory=RunningMean)
    # The newest step, the distance of the rows in steps, and the last step before the steps last began again.
    step: int | None = None
    spacing: int = 0
    length: int = 0
    # The rows since the steps last began again, and whether that may have been another training.
    rows_again: int = 0
    may_begin_anew: bool = False
    # The highest learning rate, of which each row since keeps RATE_KEPT; 0.0: not known.
    rate: float = 0.0
    # Rows since it was raised at once; the first counts every raise, the second only those that are not usual.
    rows_since_any_raise: int = 0
    rows_since_raise: int = RAISED_ROWS
    # The first losses of the launch, its present level, and the newest one.
    first_losses: list[float] = field(default_factory=list)
    level: float | None = None
    newest: float | None = None
    # The time of the newest row, and the seconds from one row to the next; 0.0: not known.
    at: datetime | None = None
    row_seconds: float = 0.0

    def __post_init__(self) -> None:
        self.first_losses = list(self.first_losses)
        self.scale, self.cadence, self.resolution = self.scale.copy(), self.cadence.copy(), self.resolution.copy()
        self.step_resolution, self.repetition = self.step_resolution.copy(), self.repetition.copy()
        self.loss_mean, self.step_mean = self.loss_mean.copy(), self.step_mean.copy()

    def read(self, sample: Sample, planned: Sequence[PlannedChange] = ()) -> Row:
        """Return the sample as a row."""
        loss, step, before = sample.loss, sample.step, self.step
        is_changed = sample.is_changed or (
            step is not None and before is not None and any(before < change.step <= step for change in planned)
        )
        is_new, value, quantum, resolution = False, None, 0.0, 0.0
        has_begun, is_launch = self._read_step(sample)
        self._read_rate(sample.lr)
        self.may_begin_anew = self.may_begin_anew and self.rows_again < BEGINNING_ROWS
        if is_changed:
            has_begun = is_launch = True
            self.first_losses, self.level, self.newest = [], None, None
        if has_begun:
            self.loss_mean.begin_launch()
        if loss is not None and -math.inf < loss < math.inf:
            # Rows without a loss do not show its logging interval.
            is_new = self.cadence.changed(step)
            quantum = self.resolution.read(loss)
            was_mean = self.loss_mean.is_mean
            value = self.scale.read(None if self.repetition.is_repeated(loss) else self._recover(loss, quantum))
            is_new = is_new or self.scale.is_new or self.loss_mean.is_mean != was_mean
            resolution = self.scale.convert(quantum, loss) if quantum and loss else 0.0
            self._learn_level(loss)
        is_new = is_new or has_begun
        seconds = read_step_seconds(sample)
        if seconds is not None:
            seconds = self.step_mean.read(seconds, self.step_resolution.read(seconds))
            # Rounding may leave a recovered time at or below zero.
            seconds = seconds if seconds is not None and seconds > 0 else None
        self._learn_pace(sample, seconds, is_launch=is_launch)
        is_mean, pace, spacing, highest = self.loss_mean.is_mean, self.row_seconds, self.spacing, None
        if value is not None and not is_mean and sample.loss_max is not None and math.isfinite(sample.loss_max):
            highest = self.scale.place(sample.loss_max)
        return Row(
            sample,
            self.scale,
            value,
            resolution,
            quantum,
            is_mean,
            is_new,
            is_launch,
            seconds,
            pace,
            spacing=spacing,
            highest=highest,
            may_begin_anew=self.may_begin_anew,
            rows_since_raise=self.rows_since_raise,
        )

    def _recover(self, loss: float, quantum: float) -> float | None:
        """Return the loss, or the one behind a running mean; None if that is hidden or does not belong to the epoch."""
        plain = self.loss_mean.read(loss, quantum)
        if plain is None or not self.loss_mean.is_mean or loss <= 0:
            return plain
        # A mean of positive losses has none of zero or below behind it.
        return max(plain, LEAST_SHARE * loss) if plain > 0 else None

    def _read_step(self, sample: Sample) -> tuple[bool, bool]:
        """Return whether another launch has begun, and whether one has at least gone on from a checkpoint."""
        step, before = sample.step, self.step
        self.step, self.rows_again = before if step is None else step, self.rows_again + 1
        if sample.begins_again:
            self._begin_again(sample.loss)
            return False, False
        if step is None or before is None or step >= before:
            self.spacing = step - before if step is not None and before is not None and step > before else self.spacing
            return False, False
        if step >= before // 2 or before < 2:
            return False, before - step > OUT_OF_ORDER * self.spacing
        is_regular = abs(before - self.length) <= SAME_LENGTH * before
        self.length = before
        self._begin_again(sample.loss)
        if is_regular and not self._is_back(sample.loss):
            return False, False
        self.first_losses, self.level, self.newest = [], None, None
        return True, True

    def _begin_again(self, loss: float | None) -> None:
        """Note that the steps begin again, and whether another training may have begun at this loss."""
        before = max((known for known in (self.level, self.newest) if known is not None), default=math.inf)
        is_higher = loss is not None and loss > before + HIGHER * abs(before)
        self.may_begin_anew, self.rows_again = is_higher and self.rows_again >= TRAINING_ROWS, 0

    def _read_rate(self, rate: float | None) -> None:
        """Count the rows since the learning rate was raised at once."""
        self.rows_since_any_raise += 1
        self.rows_since_raise += 1
        if not isinstance(rate, int | float) or not 0 < rate < math.inf:
            return  # a script may log anything
        if rate >= RAISED * self.rate > 0:
            if self.rows_since_any_raise > RAISED_ROWS:
                self.rows_since_raise = 0
            self.rows_since_any_raise = 0
        self.rate = max(rate, RATE_KEPT * self.rate)

    def _learn_pace(self, sample: Sample, step_seconds: float | None, *, is_launch: bool) -> None:
        """Update the seconds between rows, by their times or by their steps."""
        before, self.at = self.at, sample.at
        seconds = (step_seconds or 0.0) * max(1, self.spacing)
        if sample.at and before and not is_launch:
            seconds = max(0.0, (sample.at - before).total_seconds())
        if seconds:
            self.row_seconds += (PACE_WEIGHT if self.row_seconds else 1.0) * (seconds - self.row_seconds)

    def _learn_level(self, loss: float) -> None:
        if abs(loss) > LARGEST:
            return
        if len(self.first_losses) < STARTING_ROWS:
            self.first_losses.append(loss)
        self.newest = loss
        self.level = loss if self.level is None else self.level + LEVEL_WEIGHT * (loss - self.level)

    def _is_back(self, loss: float | None) -> bool:
        """Return whether the loss is back near where the launch began."""
        if loss is None or not math.isfinite(loss) or self.level is None or not self.first_losses:
            return False
        start, level = sum(self.first_losses) / len(self.first_losses), self.level
        if min(start, level, loss) > 0:
            # In logarithms, where a loss that has become small is as far from its beginning as it looks.
            start, level, loss = math.log(start), math.log(level), math.log(loss)
        way = start - level
        return way > SHORTEST_WAY and loss - level > WAY_BACK * way


def read_step_seconds(sample: Sample) -> float | None:
    """Return the seconds per step, or the reciprocal of the tokens per second; None if neither is valid."""
    if sample.step_time_s is not None:
        seconds = sample.step_time_s
    elif sample.tokens_per_s:
        seconds = 1 / sample.tokens_per_s
    else:
        return None
    return seconds if 0 < seconds < float("inf") else None
