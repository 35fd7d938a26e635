"""What a heartbeat tells of a run: its pulse, by the mailbox's clock, and how far the agent itself has judged."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from rerail.model.liveness import Liveness, Phase, with_phase, with_row
from rerail.model.mailbox import Heartbeat
from rerail.model.metrics import Cursor, with_agent_progress
from rerail.model.run import Attempt
from rerail.ports import ReceivedHeartbeat

# One may be late, two are not: then the metrics are read again.
BELIEVED_INTERVALS = 2.5


@dataclass(frozen=True, slots=True)
class LastHeartbeat:
    """The newest heartbeat that was heard: whose it is, when it was made by the job's clock, and when it arrived."""

    job: str
    restart: int
    at: datetime
    arrived: datetime
    step: int | None = None


def make_last_heartbeat(beat: ReceivedHeartbeat) -> LastHeartbeat:
    """What to remember of a heartbeat."""
    heartbeat = beat.heartbeat
    return LastHeartbeat(heartbeat.job, heartbeat.restart, heartbeat.at, beat.at, heartbeat.step)


def select_new(beat: ReceivedHeartbeat, last: LastHeartbeat | None) -> ReceivedHeartbeat | None:
    """The heartbeat with the time at which it arrived first; None for one that was heard before a newer one. Whoever
    may read the mailbox can write an old heartbeat, seal and all, once more: that is no sign of life."""
    heartbeat = beat.heartbeat
    if last is None or (heartbeat.job, heartbeat.restart) != (last.job, last.restart):
        return beat
    if heartbeat.at == last.at:
        return beat._replace(at=min(beat.at, last.arrived))
    # Clocks are set back, steps are not.
    is_older = heartbeat.at < last.at and (heartbeat.step or 0) <= (last.step or 0)
    return None if is_older else beat


def is_credible(beat: ReceivedHeartbeat, attempt: Attempt, *, every: timedelta, at: datetime) -> bool:
    """It is of this attempt, and young by the mailbox's clock: what the job calls the time proves nothing."""
    heartbeat = beat.heartbeat
    ours = (heartbeat.attempt, heartbeat.job) == (attempt.number, attempt.job_name)
    ours = ours and not attempt.is_outdated(heartbeat.restart)
    return ours and at - beat.at < BELIEVED_INTERVALS * every


def update_liveness(pulse: Liveness, beat: ReceivedHeartbeat, *, at: datetime) -> Liveness:
    """The pulse after a heartbeat: the phase that the job is in, and when it last completed a step."""
    heartbeat, now = beat.heartbeat, min(beat.at, at)
    if heartbeat.phase in (Phase.CAPACITY, Phase.STARTUP):
        pulse = with_phase(pulse, Phase.STARTUP, now)
    else:
        pulse = with_phase(_moved(pulse, heartbeat, now), heartbeat.phase, now)
    return replace(pulse, heard_at=max(now, pulse.heard_at or now), idle=None)


def _moved(pulse: Liveness, heartbeat: Heartbeat, now: datetime) -> Liveness:
    if heartbeat.step is None:
        return pulse
    if pulse.step is not None and heartbeat.step < pulse.step:
        pulse = replace(pulse, step=None)  # restarted within its job, and repeating steps: it moves nevertheless
    moved = max(filter(None, (pulse.moved_at, find_last_step_time(heartbeat, now))))
    return replace(with_row(pulse, moved, step=heartbeat.step), moved_at=moved)


def find_last_step_time(heartbeat: Heartbeat, now: datetime) -> datetime:
    """When the last step was completed: so long before the heartbeat as the job's own clock says."""
    still = heartbeat.at - heartbeat.moved_at if heartbeat.moved_at else timedelta(0)
    return now - max(still, timedelta(0))


def with_agent_cursor(cursor: Cursor, beat: ReceivedHeartbeat, *, period: timedelta, at: datetime) -> Cursor:
    """The cursor to go on from, should the heartbeats cease: the agent judges every step up to its last heartbeat."""
    now = min(beat.at, at)
    return with_agent_progress(
        cursor, step=beat.heartbeat.step, moved_at=find_last_step_time(beat.heartbeat, now), at=now, period=period
    )
