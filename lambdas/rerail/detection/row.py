"""Prepare a sample for the detectors: its loss on a comparable scale, and whether earlier rows are comparable."""

import math
from dataclasses import dataclass, field

from rerail.detection.cadence import Cadence
from rerail.detection.loss_scale import LossScale
from rerail.detection.repetition import Repetition
from rerail.detection.resolution import Resolution
from rerail.detection.running_mean import RunningMean
from rerail.model.sample import Sample

# Step numbers that begin again this many times count the steps of an epoch, not launches.
EPOCH_RESTARTS = 2
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
    # Losses of earlier rows are not comparable: another logging interval, another scale or another launch.
    is_new_series: bool
    # Seconds per step; None: unknown.
    step_seconds: float | None


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
    # The newest step, and how often step numbers have begun again.
    step: int | None = None
    restarts: int = 0

    def __post_init__(self) -> None:
        self.scale, self.cadence, self.resolution = self.scale.copy(), self.cadence.copy(), self.resolution.copy()
        self.step_resolution, self.repetition = self.step_resolution.copy(), self.repetition.copy()
        self.loss_mean, self.step_mean = self.loss_mean.copy(), self.step_mean.copy()

    def read(self, sample: Sample) -> Row:
        """Return the sample as a row."""
        loss, step = sample.loss, sample.step
        is_new, value, quantum, resolution = False, None, 0.0, 0.0
        if loss is not None and -math.inf < loss < math.inf:
            # Rows without a loss do not show its logging interval.
            is_new = self.cadence.changed(step)
            quantum = self.resolution.read(loss)
            was_mean = self.loss_mean.is_mean
            value = self.scale.read(None if self.repetition.is_repeated(loss) else self._recover(loss, quantum))
            is_new = is_new or self.scale.is_new or self.loss_mean.is_mean != was_mean
            resolution = self.scale.convert(quantum, loss) if quantum and loss else 0.0
        if step is not None:
            is_new = self._has_begun_again(step) or is_new
        seconds = read_step_seconds(sample)
        if seconds is not None:
            seconds = self.step_mean.read(seconds, self.step_resolution.read(seconds))
            # Rounding may leave a recovered time at or below zero.
            seconds = seconds if seconds is not None and seconds > 0 else None
        return Row(sample, self.scale, value, resolution, quantum, self.loss_mean.is_mean, is_new, seconds)

    def _recover(self, loss: float, quantum: float) -> float | None:
        """Return the loss, or the one behind a running mean; None if that is hidden or does not belong to the epoch."""
        plain = self.loss_mean.read(loss, quantum)
        if plain is None or not self.loss_mean.is_mean or loss <= 0:
            return plain
        # A mean of positive losses has none of zero or below behind it.
        return max(plain, LEAST_SHARE * loss) if plain > 0 else None

    def _has_begun_again(self, step: int) -> bool:
        """Return whether the step belongs to another launch: it is below half of the newest one."""
        before, self.step = self.step, step
        if before is None or step >= before // 2 or before < 2:
            return False
        self.restarts += 1
        return self.restarts <= EPOCH_RESTARTS


def read_step_seconds(sample: Sample) -> float | None:
    """Return the seconds per step, or the reciprocal of the tokens per second; None if neither is valid."""
    if sample.step_time_s is not None:
        seconds = sample.step_time_s
    elif sample.tokens_per_s:
        seconds = 1 / sample.tokens_per_s
    else:
        return None
    return seconds if 0 < seconds < float("inf") else None
