"""A rise of the loss in progress: whether it recovers, and when to intervene."""

import math
from dataclasses import dataclass, field
from datetime import datetime

from rerail.detection.copying import copy_state
from rerail.detection.row import Row
from rerail.model.sample import Sample
from rerail.model.thresholds import Thresholds

# A restarted run (concatenated launches, new folds) gets more patience; it is recognized after 8 rows.
RESTART_SHOWS = 8
RESTART_RISE = 2.1  # a factor of 8: a smaller jump that ends near the first loss most likely does so by chance
RESTART_PATIENCE = 8
# The rise stays (within a fifth of its peak and not falling), or it turns (half recovered, then high again).
STAYS_AT = 0.8
FALLS = 0.95
# A loss a thousand times above its level when the patience is over is not left to recover, even if it sinks slowly.
# This does not apply to a loss below zero, whose rise is not a logarithm.
VAST = math.log(1000)
TURNS = 2.0
TURNS_AT = 0.3
# A rise that jumps by this share of its peak within these rows may be another fold, whose loss falls again, if it was
# lower in at least so many rows before. It lasts if it stays for as long as a fall would show, or grows by this factor.
JUMP, JUMP_ROWS, LOW_ROWS, GROWS = 0.3, 4, 12, 1.25
TURNED_ROWS = 24  # a short spike while the loss recovers is not a turn


@dataclass(slots=True)
class LossRise:
    """A rise of the log loss above `base`."""

    base: float
    # The largest normal rise.
    allowed: float
    # The highest rise so far, and the lowest since then.
    peak: float
    trough: float
    # The step and the time at which the rise began.
    onset: int | None
    since: datetime | None
    rows: int = 1
    # The step has been below the onset, as in the next epoch: steps do not tell how long the rise lasts.
    has_wrapped: bool = False
    # Rows in a row in which the rise has turned.
    turned: int = 0
    # Rows since the rise last jumped, and its highest value right after that.
    rows_from_jump: int = JUMP_ROWS
    jumped_to: float = 0.0
    # The least rise to act on, by the least noise right before it and in it.
    least: float = 1e9
    # The loss most likely belongs to a restarted run.
    restart: bool = False
    # It began after the learning rate was raised, which raises the loss for a while.
    follows_raised_rate: bool = False
    # It is not acted on (again): an intervention was requested, or there was no history to compare with.
    is_reported: bool = False
    # It is of the first rows of what may be another training, which does not recover.
    may_begin_anew: bool = False
    # The loss that the log printed at the onset, if the rise was found in values recovered from running means.
    printed: float | None = None
    # The recent rises, oldest first.
    past: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.past = list(self.past)

    def copy(self) -> "LossRise":
        """Return a copy."""
        return copy_state(self)

    def scale(self, factor: float) -> None:
        """Convert everything to another unit."""
        self.base, self.allowed, self.least = self.base * factor, self.allowed * factor, self.least * factor
        self.peak, self.trough = self.peak * factor, self.trough * factor
        self.jumped_to *= factor
        self.past = [rise * factor for rise in self.past]

    def goes_on(self, rise: float, row: Row, *, restart: bool, detection: Thresholds) -> bool:
        """Add one more row, and return whether the patience is over and the loss is not recovering."""
        self.rows += 1
        self.has_wrapped = self.has_wrapped or (self._count_steps(row.sample) or 0) < 0
        if self.rows == RESTART_SHOWS:
            self.restart = restart and rise > RESTART_RISE
        self._follow_peak(rise)
        self.past.append(rise)
        factor = row.find_patience_factor(detection.patience_rows)
        turns = rise > TURNS * self.trough and rise > TURNS_AT * self.peak
        self.turned = self.turned + 1 if turns else 0
        before = self.past.pop(0) if len(self.past) > detection.patience_rows // (2 * factor) else 0.0
        is_vast = rise > VAST and not row.scale.unit
        times = RESTART_PATIENCE if self.restart or (self.follows_raised_rate and not is_vast) else 1
        return (
            not self.is_reported
            and self._patience_is_over(row.sample, detection.patience_rows // factor, detection, times=times)
            and self._lasts(rise, before, is_vast=is_vast)
        )

    def _follow_peak(self, rise: float) -> None:
        """Update the peak since the last jump, and the trough since the peak."""
        # The rows before the jump, once there are as many as are kept.
        known = self.past[:-JUMP_ROWS] if self.rows > len(self.past) + 2 else []
        was_low = len(known) >= LOW_ROWS and max(known) < STAYS_AT * self.peak
        has_jumped = was_low and rise - min(self.past[-JUMP_ROWS:]) > JUMP * self.peak
        self.rows_from_jump = 0 if has_jumped else self.rows_from_jump + 1
        if has_jumped or rise > self.peak:
            self.peak = self.trough = rise
        if self.rows_from_jump < JUMP_ROWS:
            self.jumped_to = self.peak
        self.trough = min(self.trough, rise)

    def _count_steps(self, sample: Sample) -> int | None:
        """Return the steps since the onset; None if they are not known."""
        if sample.step is None or self.onset is None or self.has_wrapped:
            return None
        return sample.step - self.onset

    def _patience_is_over(self, sample: Sample, rows: int, detection: Thresholds, *, times: int) -> bool:
        """Return whether the patience, so many times over, has passed in rows, steps and time.

        Time alone means little with slow steps.
        """
        steps = self._count_steps(sample)
        waited = sample.at - self.since if sample.at and self.since else None
        return (
            self.rows >= times * rows
            and (steps is None or steps >= times * detection.patience_steps - 1)
            and (waited is None or waited >= times * detection.patience)
        )

    def _lasts(self, rise: float, before: float, *, is_vast: bool) -> bool:
        is_settled = self.rows_from_jump > len(self.past) or rise > GROWS * self.jumped_to
        stays = is_settled and rise > STAYS_AT * self.peak and rise > FALLS * before
        return rise > self.allowed and (is_vast or stays or self.turned >= TURNED_ROWS)
