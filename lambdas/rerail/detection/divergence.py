"""Detect a loss that has risen above an earlier level and stays there."""

import math
from dataclasses import dataclass, field, replace

from rerail.detection.lowest import RunningMinimum
from rerail.detection.rise import LossRise
from rerail.detection.row import RAISED_ROWS, TRAINING_ROWS, Row
from rerail.detection.window import Window
from rerail.model.finding import Finding, Kind, Level
from rerail.model.thresholds import Thresholds

NOW_ROWS = 8
LEVEL_ROWS = 48
LEVEL_NEEDS = 24
BEST_ROWS = 200
HISTORY_ROWS = 128
HISTORY_NEEDS = 24
# Until the history is full, the rises of the last rows are not part of it.
NEW_ROWS = 24
NORMAL_MAD = 1.4826
UNREPORTED_CAP = 8  # a slowly recovering rise is followed this many times longer before it becomes the normal level
# A loss that jumps back to within a quarter of its starting level most likely belongs to a restarted run.
RESTART_WITHIN = 0.25
LEARNT = 0.2  # log units below the start of the run
# Before there is a history, one rise is reported, and not acted on: the loss has fallen from its first rows, and each
# of the last rows is above all others since then, by this much and by this multiple of their spread.
EARLY_RISE, EARLY_SPREAD, EARLY_ROWS, FIRST_ROWS = 0.26, 1.5, 10, 3
# A loss that has only grown has no usual rise to compare with. It is told once it is this many times its first level,
# and this large: some healthy losses start close to zero.
GROWN = 1000.0
# To act on a loss whose logarithm varies by this much, as in reinforcement learning, takes twice the usual rise, and
# more the more it varies.
NOISY = 0.2
LONGER = 2  # than the longest rise that the run recovered from
# An earlier recovery counts half as much after this many rows: for a warning, and for an intervention.
RECOVERY_HALF_LIFE_ROWS = 512
CONFIRMING_HALF_LIFE_ROWS = 4096


@dataclass(frozen=True, slots=True)
class EarlierLevel:
    """The level before the problem for which a run was rolled back, and the step from which on it is compared."""

    step: int
    level: float
    # The largest normal rise above it.
    allowed: float


@dataclass(slots=True)
class Divergence:
    """The current and the best level of the loss, the normal rises of the run, and the rise in progress."""

    rows: int = 0
    start: float = 0.0
    recent: Window = field(default_factory=lambda: Window(NOW_ROWS))
    level: Window = field(default_factory=lambda: Window(LEVEL_ROWS))
    strays: Window = field(default_factory=lambda: Window(HISTORY_ROWS))
    rises: Window = field(default_factory=lambda: Window(HISTORY_ROWS))
    lagged: list[float] = field(default_factory=list)
    # The losses that the last rows printed, if the values are recovered from running means.
    printed: list[float] = field(default_factory=list)
    best: RunningMinimum = field(default_factory=lambda: RunningMinimum(BEST_ROWS))
    rise: LossRise | None = None
    recovered_level: float = 0.0
    recovered_row: int = 0
    # The largest usual rise since the loss was last back at its level, and the rows since then.
    usual_peak: float = 0.0
    usual_rows: int = 0
    # The most rows that a rise took until it recovered.
    recovered_rows: int = 0
    # The level that a rise was called to act on to get back to; it has not come back to it. A further rise is told.
    acted_from: float | None = None
    # The first rows are over, or a rise above them was reported.
    is_early_over: bool = False
    # The level before a rollback, and the rows seen from its step on: a problem that returns soon leaves no rows to
    # learn the normal level from.
    earlier: EarlierLevel | None = None
    earlier_rows: int = 0

    def __post_init__(self) -> None:
        self.best, self.lagged, self.printed = self.best.copy(), list(self.lagged), list(self.printed)
        self.recent, self.level, self.strays, self.rises = (
            w.copy() for w in (self.recent, self.level, self.strays, self.rises)
        )
        self.rise = self.rise.copy() if self.rise else None

    def see(self, row: Row, detection: Thresholds) -> Finding | None:
        """Warn if the level of the last rows is too high, and intervene if it does not recover in time."""
        if row.is_new_series:
            self._forget()
            self.acted_from, self.is_early_over = None, False
        if row.is_new_launch or row.scale.is_new:
            self.earlier = None
        if row.scale.factor != 1:
            self._scale(row.scale.factor)
        if row.value is None:
            return None
        self._add(row.value)
        if row.is_recovered and row.sample.loss is not None:
            self.printed = [*self.printed[1 - NOW_ROWS :], row.sample.loss]
        now = self.recent.median()
        if self.acted_from is not None and now < self.acted_from + detection.rise_recovered * detection.rise_gate:
            self.acted_from = None
        return self._follow_rise(now, row, detection) if self.rise else self._check_level(now, row, detection)

    def find_earlier_level(self, step: int | None) -> EarlierLevel | None:
        """Return the level before the rise in progress, or the one acted on; else the one known from before.

        The rise began at the given step, unless it is known.
        """
        rise = self.rise
        level = self.acted_from if self.acted_from is not None or rise is None else rise.base
        onset = rise.onset if rise and rise.onset is not None else step
        if level is None or onset is None:
            return self.earlier
        return EarlierLevel(onset, level, rise.allowed if rise else Thresholds.rise_gate)

    def _add(self, value: float) -> None:
        self.rows += 1
        self.recent.push(value)
        self.level.push(value)
        self.strays.push(abs(value - self.recent.median()))
        if self.rows == NOW_ROWS:
            self.start = self.recent.median()

    def _check_level(self, now: float, row: Row, detection: Thresholds) -> Finding | None:
        is_young = len(self.rises) < HISTORY_NEEDS
        if (
            self._start_returned_rise(now, row, detection)
            or (is_young and self._start_early_rise(now, row))
            or self._start_growth(now, row)
        ):
            assert self.rise is not None
            return self._finding(Level.WARN, row, self.rise.peak)
        if len(self.level) >= LEVEL_NEEDS:
            self.lagged.append(self.level.median())
        if len(self.lagged) <= NOW_ROWS:
            return None
        self.best.push(self.lagged.pop(0))
        rise = now - self.best.value()
        falls = row.is_recovered and len(self.printed) > 1 and self.printed[-1] <= self.printed[0]
        if falls or len(self.rises) < HISTORY_NEEDS or rise <= (allowed := self._allowed(detection)):
            self._add_usual_rise(rise, detection)
            return None
        base, sample = self.best.value(), row.sample
        self.rise = LossRise(base, allowed, peak=rise, trough=rise, onset=sample.step, since=sample.at)
        self.rise.printed = row.sample.loss if row.is_recovered else None
        # After so small a fall a healthy objective may grow: a rise that only shows against it is told, not acted on.
        has_learnt = self.start - self.best.value() > LEARNT
        self.rise.is_reported = not has_learnt and rise <= self._allowed(detection, least_fall=LEARNT)
        # A rise that the run recovered from before is not reported again; whether it lasts is checked all the same.
        is_new = self._is_new(rise, detection, half_life=RECOVERY_HALF_LIFE_ROWS)
        self.rise.may_begin_anew = row.may_begin_anew
        self.rise.follows_raised_rate = row.rows_since_raise < RAISED_ROWS
        return self._finding(Level.WARN, row, rise) if is_new else None

    def _add_usual_rise(self, rise: float, detection: Thresholds) -> None:
        """Add a rise within the usual ones, and remember the largest that the run recovered from."""
        self.rises.push(rise)
        self.usual_peak, self.usual_rows = max(self.usual_peak, rise), self.usual_rows + 1
        has_recovered = rise < detection.rise_recovered * self.usual_peak
        if has_recovered and self.usual_peak > self._find_recovered(CONFIRMING_HALF_LIFE_ROWS):
            self.recovered_level, self.recovered_row = self.usual_peak, self.rows
            self.recovered_rows = max(self.recovered_rows, self.usual_rows)
        if has_recovered or len(self.rises) < HISTORY_NEEDS:
            self.usual_peak, self.usual_rows = 0.0, 0

    def _start_early_rise(self, now: float, row: Row) -> bool:
        """Follow a rise in the first rows: the loss has fallen, and is suddenly far above that level."""
        if self.is_early_over or len(self.level) < EARLY_ROWS + NOW_ROWS or row.is_recovered:
            return False
        earlier, last = self.level.values[:-NOW_ROWS], self.level.values[-NOW_ROWS:]
        known = earlier[FIRST_ROWS:]
        usual, allowed = sorted(known)[len(known) // 2], max(EARLY_RISE, EARLY_SPREAD * (max(known) - min(known)))
        has_fallen = sorted(earlier[:FIRST_ROWS])[FIRST_ROWS // 2] - usual > LEARNT
        if not has_fallen or min(last) - max(known) < allowed:
            return False
        sample, rise = row.sample, now - usual
        onset = None if sample.step is None else max(0, sample.step - (NOW_ROWS - 1) * row.spacing)
        self.rise = LossRise(usual, allowed, peak=rise, trough=rise, onset=onset, since=sample.at, rows=NOW_ROWS)
        self.rise.is_reported = self.is_early_over = True
        return True

    def _start_growth(self, now: float, row: Row) -> bool:
        """Follow a loss that is far above its first level, whether it has ever fallen or not."""
        rise, allowed = now - self.start, math.log(GROWN)
        if self.is_early_over or row.scale.unit or rise < allowed or now < allowed or len(self.level) < LEVEL_ROWS:
            return False
        if self.best.values and self.start - self.best.value() > LEARNT:
            return False  # it has fallen since, and is compared with its best level
        self.rise = LossRise(self.start, allowed, peak=rise, trough=rise, onset=row.sample.step, since=row.sample.at)
        self.rise.is_reported = self.is_early_over = True
        return True

    def _start_returned_rise(self, now: float, row: Row, detection: Thresholds) -> bool:
        """Follow a rise above the level before a rollback, until there are enough rows to learn the level from."""
        known, step = self.earlier, row.sample.step
        if known is None or step is None or step < known.step or row.is_recovered:
            return False
        self.earlier_rows += 1
        if self.earlier_rows < NOW_ROWS:
            return False
        rise, allowed = now - known.level, max(known.allowed, self._find_rise_to_act_on(detection))
        if rise <= allowed:
            self.earlier = None if len(self.rises) >= HISTORY_NEEDS else known
            return False
        # In the first rows there was hardly time for a good level: it is the same problem at the same step.
        onset = known.step if self.earlier_rows < 2 * NOW_ROWS else step - (NOW_ROWS - 1) * row.spacing
        self.rise = LossRise(known.level, allowed, peak=rise, trough=rise, onset=onset, since=row.sample.at)
        self.rise.rows = NOW_ROWS
        return True

    def _is_new(self, rise: float, detection: Thresholds, *, half_life: int) -> bool:
        """Return whether the run has not yet recovered from a rise as large as this one."""
        return rise > detection.rise_tolerated * self._find_recovered(half_life)

    def _find_recovered(self, half_life: int) -> float:
        """Return the largest rise that the run recovered from, which counts half as much after so many rows."""
        known: float = self.recovered_level * 0.5 ** ((self.rows - self.recovered_row) / half_life)
        return known

    def _is_confirmed(self, rise: float, row: Row, detection: Thresholds) -> bool:
        """Return whether there is a second reason to intervene besides that the rise lasts.

        It must be larger, or last longer, than any that the run recovered from; a loss below zero, such as that of a
        policy, may stay up for long. If the loss was recovered from running means, these must have risen too.
        """
        assert self.rise is not None
        if self.recent.median() == 0 and row.scale.unit:
            return False  # as of a policy that has settled; FrozenLoss judges a loss that stays at zero
        is_new = self._is_new(rise, detection, half_life=CONFIRMING_HALF_LIFE_ROWS)
        unusual = is_new or (not row.scale.unit and self.rise.rows > LONGER * self.recovered_rows)
        printed, loss = self.rise.printed, row.sample.loss
        return unusual and (printed is None or (loss is not None and loss > printed))

    def _allowed(self, detection: Thresholds, *, least_fall: float = 0.0) -> float:
        noise = max(NORMAL_MAD * self.strays.median(), detection.rise_tail * self.strays.quantile(0.9))
        within_noise = detection.rise_noise * max(noise, detection.noise_floor)
        # Before the loss has ever fallen, rises are normal: some objectives grow from the start, such as the value loss
        # of reinforcement learning. After that, a slow rise must not become normal while it goes on.
        learnt, known = self.start - self.best.value() > max(least_fall, within_noise), self.rises
        if learnt and len(known) < HISTORY_ROWS:
            known = Window(HISTORY_ROWS, known.values[: max(HISTORY_NEEDS, len(known) - NEW_ROWS)])
        habit = detection.rise_history * known.quantile(detection.rise_quantile)
        if learnt:
            habit = min(habit, detection.rise_history_cap)
        return max(detection.rise_gate, within_noise, habit)

    def _find_rise_to_act_on(self, detection: Thresholds) -> float:
        noise = max(NORMAL_MAD * self.strays.median(), detection.noise_floor)
        return detection.rise_noise * noise * (1 + (noise / NOISY) ** 4)

    def _follow_rise(self, now: float, row: Row, detection: Thresholds) -> Finding | None:
        assert self.rise is not None
        rise, going = now - self.rise.base, self.rise
        if rise < detection.rise_recovered * going.allowed:
            self.recovered_level, self.recovered_row, self.rise = max(self.recovered_level, going.peak), self.rows, None
            self.recovered_rows = max(self.recovered_rows, going.rows)
            return None
        if going.may_begin_anew and going.rows >= TRAINING_ROWS:
            self._forget()
            self.acted_from, self.is_early_over = None, False
            return None
        # The lesser of the noise before the rise and that of now decides: a diverged loss may be noisier, or quieter.
        going.least = min(going.least, self._find_rise_to_act_on(detection))
        goes_on = going.goes_on(rise, row, restart=abs(now - self.start) < RESTART_WITHIN, detection=detection)
        if goes_on and rise > going.least and self._is_confirmed(rise, row, detection):
            going.is_reported = True
            is_first = self.acted_from is None
            self.acted_from = going.base if is_first else self.acted_from
            return self._finding(Level.INTERVENE if is_first else Level.WARN, row, rise)
        if going.rows > detection.rise_cap_rows * (1 if going.is_reported else UNREPORTED_CAP):
            self._forget()
            self.earlier, self.is_early_over = None, True  # these are not the first rows
        return None

    def _scale(self, factor: float) -> None:
        """Convert everything to another unit."""
        for window in (self.recent, self.level, self.strays, self.rises, self.best):
            window.scale(factor)
        self.start, self.recovered_level = self.start * factor, self.recovered_level * factor
        self.usual_peak *= factor
        self.acted_from = None if self.acted_from is None else self.acted_from * factor
        if known := self.earlier:
            self.earlier = replace(known, level=known.level * factor, allowed=known.allowed * factor)
        self.lagged = [value * factor for value in self.lagged]
        if self.rise:
            self.rise.scale(factor)

    def _forget(self) -> None:
        fresh = Divergence()
        self.recent, self.level, self.strays, self.rises = fresh.recent, fresh.level, fresh.strays, fresh.rises
        self.lagged, self.rise, self.usual_peak, self.usual_rows = [], None, 0.0, 0
        self.best = RunningMinimum(BEST_ROWS)

    def _finding(self, level: Level, row: Row, rise: float) -> Finding:
        assert self.rise is not None
        sample = row.sample
        text = f"loss has been {row.scale.format_rise(self.rise.base, rise)}, for {self.rise.rows} rows"
        return Finding(Kind.DIVERGENCE, level, sample.step, self.rise.onset, text, sample.at, self.rise.since)
