"""A loss that is above where it already was: does it mend, and if not, is it time to act?"""

from dataclasses import dataclass, field, replace
from datetime import datetime

from rerail.model.sample import Sample
from rerail.model.thresholds import Thresholds

# A restart (concatenated launches, new folds) needs longer to prove that it does not learn; it shows by rows 8.
RESTART_SHOWS = 8
RESTART_RISE = 0.5
RESTART_PATIENCE = 8
# It stays: within a fifth of its peak, and not falling. Or it turns: it had half mended, and is as high again.
STAYS_AT = 0.8
FALLS = 0.95
TURNS = 2.0
TURNS_AT = 0.3


@dataclass(slots=True)
class LossRise:
    """One rise above `base`, in log units: how far it may be, was at most, was at least since then, and was of late."""

    base: float
    allowed: float
    peak: float
    trough: float
    onset: int | None
    since: datetime | None
    rows: int = 1
    restart: bool = False
    told: bool = False
    past: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.past = list(self.past)

    def copy(self) -> "LossRise":
        """Another one with the same memory."""
        return replace(self)

    def goes_on(self, rise: float, sample: Sample, *, restart: bool, detection: Thresholds) -> bool:
        """Take one more row in; True when patience is at its end, and the loss neither mended nor is mending."""
        self.rows += 1
        if self.rows == RESTART_SHOWS:
            self.restart = restart and rise > RESTART_RISE
        if rise > self.peak:
            self.peak = self.trough = rise
        self.trough = min(self.trough, rise)
        self.past.append(rise)
        before = self.past.pop(0) if len(self.past) > detection.patience_rows // 2 else 0.0
        return not self.told and self._patience_is_over(sample, detection) and self._lasts(rise, before)

    def _patience_is_over(self, sample: Sample, detection: Thresholds) -> bool:
        """Counted in rows, in steps and in time, as far as each is known: minutes alone mend nothing in slow steps."""
        times = RESTART_PATIENCE if self.restart else 1
        steps = sample.step - self.onset if sample.step is not None and self.onset is not None else None
        waited = sample.at - self.since if sample.at and self.since else None
        return (
            self.rows >= times * detection.patience_rows
            and (steps is None or steps >= times * detection.patience_steps - 1)
            and (waited is None or waited >= times * detection.patience)
        )

    def _lasts(self, rise: float, before: float) -> bool:
        stays = rise > STAYS_AT * self.peak and rise > FALLS * before
        turns = rise > TURNS * self.trough and rise > TURNS_AT * self.peak
        return rise > self.allowed and (stays or turns)
