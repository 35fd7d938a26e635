"""The liveness of a run: its phase, its last progress, and the longest gaps seen so far."""

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

# The first gaps between steps include compilation and warm-up.
IGNORED_GAPS = 5


class Phase(StrEnum):
    """The known activity of a run."""

    CAPACITY = "capacity"
    STARTUP = "startup"
    STEP = "step"
    SAVE = "save"
    EVALUATION = "evaluation"


@dataclass(frozen=True, slots=True)
class Liveness:
    """The last signs of life of an attempt, and the longest gaps of the run."""

    phase: Phase = Phase.STARTUP
    # When the phase began.
    since: datetime | None = None
    # When a new step was last completed.
    moved_at: datetime | None = None
    step: int | None = None
    # When metrics or a heartbeat were last received.
    received_at: datetime | None = None
    # The number of gaps between steps so far.
    gaps: int = 0
    # The longest gaps in seconds between steps, for a checkpoint, and for an evaluation. A new maximum counts by half.
    step_s: float = 0.0
    save_s: float = 0.0
    evaluation_s: float = 0.0
    # Whether the accelerators are idle, as a second signal; None: unknown.
    idle: bool | None = None
    # When the machines were last available and the script started.
    started_at: datetime | None = None

    def longest(self, phase: Phase) -> float:
        """Return the longest known gap of a phase in seconds; 0 if there is none."""
        return {Phase.STEP: self.step_s, Phase.SAVE: self.save_s, Phase.EVALUATION: self.evaluation_s}.get(phase, 0.0)


def with_phase(liveness: Liveness, phase: Phase, at: datetime) -> Liveness:
    """Return the liveness after the run entered a phase; the duration of the phase that ended is learnt."""
    if phase is liveness.phase:
        return liveness if liveness.since else replace(liveness, since=at)
    seconds = (at - liveness.since).total_seconds() if liveness.since else 0.0
    if liveness.phase is Phase.SAVE:
        liveness = replace(liveness, save_s=_update_longest(liveness.save_s, seconds))
    elif liveness.phase is Phase.EVALUATION:
        liveness = replace(liveness, evaluation_s=_update_longest(liveness.evaluation_s, seconds))
    moved_at = at if phase is Phase.STEP else liveness.moved_at
    started_at = at if phase is Phase.STARTUP else liveness.started_at
    return replace(liveness, phase=phase, since=at, moved_at=moved_at, started_at=started_at)


def with_row(liveness: Liveness, at: datetime, *, step: int | None, moved: bool = False) -> Liveness:
    """Return the liveness after a row of metrics; a new step is progress, and its gap is learnt.

    A job that prints no steps makes progress with each row that has `moved`.
    """
    liveness = replace(liveness, received_at=max(at, liveness.received_at or at))
    is_new = moved if step is None else liveness.step is None or step > liveness.step
    if not is_new:
        return liveness
    is_first = step is not None and liveness.step is None
    step = liveness.step if step is None else step
    if is_first or liveness.moved_at is None or liveness.phase is not Phase.STEP:
        return replace(with_phase(liveness, Phase.STEP, at), moved_at=at, step=step)
    gap = (at - liveness.moved_at).total_seconds()
    longer = liveness.step_s if liveness.gaps < IGNORED_GAPS else _update_longest(liveness.step_s, gap)
    return replace(liveness, moved_at=at, step=step, gaps=liveness.gaps + 1, step_s=longer)


def with_relaunch(liveness: Liveness, at: datetime) -> Liveness:
    """Return the liveness of the run's next attempt, which keeps the longest gaps."""
    return Liveness(
        Phase.CAPACITY, at, step_s=liveness.step_s, save_s=liveness.save_s, evaluation_s=liveness.evaluation_s
    )


def _update_longest(longest: float, seconds: float) -> float:
    # Halfway to a new maximum, as in NVIDIA's resiliency extension: a plain maximum would keep one outlier permanently.
    return (longest + seconds) / 2 if seconds > longest > 0 else max(longest, seconds)
