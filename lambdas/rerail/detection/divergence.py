"""Has the loss risen above where it already was, and does it stay there?"""

import math
from dataclasses import dataclass, field

from rerail.detection.cadence import Cadence
from rerail.detection.lowest import RunningMinimum
from rerail.detection.rise import LossRise
from rerail.detection.window import Window
from rerail.model.finding import Finding, Kind, Level
from rerail.model.sample import Sample
from rerail.model.thresholds import Thresholds

NOW_ROWS = 8
LEVEL_ROWS = 48
LEVEL_NEEDS = 24
BEST_ROWS = 200
HISTORY_ROWS = 128
HISTORY_NEEDS = 24
NORMAL_MAD = 1.4826
UNTOLD_CAP = 8  # a rise that is mending slowly is watched so many times longer before it is the level
# A loss that jumps back to within a quarter of where the run began was most likely begun anew, not broken.
RESTART_WITHIN = 0.25
LEARNT = 0.2  # log units below the start of the run
FORGIVEN_ROWS = 512  # what a run mended by itself counts half as much after so many rows


@dataclass(slots=True)
class Divergence:
    """The level now, the best level of the past, how far this run rises of its own accord, and the rise going on."""

    cadence: Cadence = field(default_factory=Cadence)
    rows: int = 0
    start: float = 0.0
    recent: Window = field(default_factory=lambda: Window(NOW_ROWS))
    level: Window = field(default_factory=lambda: Window(LEVEL_ROWS))
    strays: Window = field(default_factory=lambda: Window(HISTORY_ROWS))
    rises: Window = field(default_factory=lambda: Window(HISTORY_ROWS))
    lagged: list[float] = field(default_factory=list)
    best: RunningMinimum = field(default_factory=lambda: RunningMinimum(BEST_ROWS))
    rise: LossRise | None = None
    mended: float = 0.0
    mended_row: int = 0

    def __post_init__(self) -> None:
        self.cadence, self.best, self.lagged = self.cadence.copy(), self.best.copy(), list(self.lagged)
        self.recent, self.level, self.strays, self.rises = (
            w.copy() for w in (self.recent, self.level, self.strays, self.rises)
        )
        self.rise = self.rise.copy() if self.rise else None

    def see(self, sample: Sample, detection: Thresholds) -> Finding | None:
        """Warn when the level of some rows is too high, intervene when it neither mends nor is mending in time."""
        if sample.loss is None or not 0 < sample.loss < math.inf:
            return None
        if self.cadence.changed(sample.step):
            self._forget()
        self._take(math.log(sample.loss))
        now = self.recent.median()
        return self._rising(now, sample, detection) if self.rise else self._level(now, sample, detection)

    def _take(self, value: float) -> None:
        self.rows += 1
        self.recent.push(value)
        self.level.push(value)
        self.strays.push(abs(value - self.recent.median()))
        if self.rows == NOW_ROWS:
            self.start = self.recent.median()

    def _level(self, now: float, sample: Sample, detection: Thresholds) -> Finding | None:
        if len(self.level) >= NOW_ROWS:
            self.lagged.append(self.level.median())
        if len(self.lagged) <= NOW_ROWS:
            return None
        self.best.push(self.lagged.pop(0))
        if len(self.level) < LEVEL_NEEDS:
            return None
        rise = now - self.best.value()
        if len(self.rises) < HISTORY_NEEDS or rise <= (allowed := self._allowed(detection)):
            self.rises.push(rise)
            return None
        self.rise = LossRise(self.best.value(), allowed, peak=rise, trough=rise, onset=sample.step, since=sample.at)
        # What this run mended by itself before is no news; whether it lasts is judged all the same.
        known = self.mended * 0.5 ** ((self.rows - self.mended_row) / FORGIVEN_ROWS)
        return self._finding(Level.WARN, sample, rise) if rise > detection.rise_tolerated * known else None

    def _allowed(self, detection: Thresholds) -> float:
        noise = max(NORMAL_MAD * self.strays.median(), detection.rise_tail * self.strays.quantile(0.9))
        within_noise = detection.rise_noise * max(noise, detection.noise_floor)
        # A slow rise must not become a habit while it goes on. But where nothing was learnt yet there is nothing to
        # lose: an objective that grows from the start, as the value loss of reinforcement learning does, is a habit.
        learnt = len(self.rises) == HISTORY_ROWS and self.start - self.best.value() > max(LEARNT, within_noise)
        habit = detection.rise_history * self.rises.quantile(detection.rise_quantile)
        return max(detection.rise_gate, within_noise, min(habit, detection.rise_history_cap) if learnt else habit)

    def _rising(self, now: float, sample: Sample, detection: Thresholds) -> Finding | None:
        assert self.rise is not None
        rise, going = now - self.rise.base, self.rise
        if rise < detection.rise_mended * going.allowed:
            self.mended, self.mended_row, self.rise = max(self.mended, going.peak), self.rows, None
            return None
        if going.goes_on(rise, sample, restart=abs(now - self.start) < RESTART_WITHIN, detection=detection):
            going.told = True
            return self._finding(Level.INTERVENE, sample, rise)
        if going.rows > detection.rise_cap_rows * (1 if going.told else UNTOLD_CAP):
            self._forget()
        return None

    def _forget(self) -> None:
        fresh = Divergence()
        self.recent, self.level, self.strays, self.rises = fresh.recent, fresh.level, fresh.strays, fresh.rises
        self.lagged, self.rise = [], None
        self.best = RunningMinimum(BEST_ROWS)

    def _finding(self, level: Level, sample: Sample, rise: float) -> Finding:
        assert self.rise is not None
        times, base = math.exp(min(rise, 700)), math.exp(self.rise.base)
        text = f"loss has been {times:.2f} times its level of {base:.4g}, for {self.rise.rows} rows"
        return Finding(Kind.DIVERGENCE, level, sample.step, self.rise.onset, text, sample.at, self.rise.since)
