"""When a run last moved, what it is doing, and how long it took for such things before."""

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

# The first gaps between steps hold compilation and warm-up.
IGNORED_GAPS = 5


class Phase(StrEnum):
    """What a run is doing, as far as anyone told us."""

    CAPACITY = "capacity"
    STARTUP = "startup"
    STEP = "step"
    SAVE = "save"
    EVALUATION = "evaluation"


@dataclass(frozen=True, slots=True)
class Liveness:
    """The signs of life of one attempt, and the longest gaps of the run in seconds, halfway to the newest longest.

    `idle` is the second signal: True when the accelerators are known to do nothing, None when nobody knows;
    `started_at` is when the machines last were there and the script began.
    """

    phase: Phase = Phase.STARTUP
    since: datetime | None = None
    moved_at: datetime | None = None
    step: int | None = None
    heard_at: datetime | None = None
    gaps: int = 0
    step_s: float = 0.0
    save_s: float = 0.0
    evaluation_s: float = 0.0
    idle: bool | None = None
    started_at: datetime | None = None

    def longest(self, phase: Phase) -> float:
        """The longest gap known for a phase, in seconds; 0 when none is."""
        return {Phase.STEP: self.step_s, Phase.SAVE: self.save_s, Phase.EVALUATION: self.evaluation_s}.get(phase, 0.0)


def with_phase(pulse: Liveness, phase: Phase, at: datetime) -> Liveness:
    """The pulse after the run entered a phase; the length of the one that ended is learnt."""
    if phase is pulse.phase:
        return pulse if pulse.since else replace(pulse, since=at)
    seconds = (at - pulse.since).total_seconds() if pulse.since else 0.0
    if pulse.phase is Phase.SAVE:
        pulse = replace(pulse, save_s=_longer(pulse.save_s, seconds))
    elif pulse.phase is Phase.EVALUATION:
        pulse = replace(pulse, evaluation_s=_longer(pulse.evaluation_s, seconds))
    moved_at = at if phase is Phase.STEP else pulse.moved_at
    started_at = at if phase is Phase.STARTUP else pulse.started_at
    return replace(pulse, phase=phase, since=at, moved_at=moved_at, started_at=started_at)


def with_row(pulse: Liveness, at: datetime, *, step: int | None) -> Liveness:
    """The pulse after a row of metrics; a step that is new is a movement, and its gap is learnt."""
    pulse = replace(pulse, heard_at=max(at, pulse.heard_at or at))
    if step is None or (pulse.step is not None and step <= pulse.step):
        return pulse
    if pulse.step is None or pulse.moved_at is None or pulse.phase is not Phase.STEP:
        return replace(with_phase(pulse, Phase.STEP, at), moved_at=at, step=step)
    gap = (at - pulse.moved_at).total_seconds()
    longer = pulse.step_s if pulse.gaps < IGNORED_GAPS else _longer(pulse.step_s, gap)
    return replace(pulse, moved_at=at, step=step, gaps=pulse.gaps + 1, step_s=longer)


def with_relaunch(pulse: Liveness, at: datetime) -> Liveness:
    """The pulse of the run's next attempt: it starts up anew, and remembers what was learnt."""
    return Liveness(Phase.CAPACITY, at, step_s=pulse.step_s, save_s=pulse.save_s, evaluation_s=pulse.evaluation_s)


def _longer(longest: float, seconds: float) -> float:
    # Halfway, as NVIDIA's resiliency extension does: a maximum alone never forgets one bad day.
    return (longest + seconds) / 2 if seconds > longest > 0 else max(longest, seconds)
