"""Update a run's liveness and cursor from the heartbeats of its agent, by the mailbox's clock."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from rerail.model.liveness import Liveness, Phase, with_phase, with_row
from rerail.model.mailbox import Heartbeat
from rerail.model.metrics import Cursor, with_agent_progress
from rerail.model.run import Attempt
from rerail.ports import ReceivedHeartbeat

# One heartbeat may be late; if two are missing, the metrics are read again.
MAX_AGE_INTERVALS = 2.5


@dataclass(frozen=True, slots=True)
class LastHeartbeat:
    """The newest heartbeat that was received."""

    job: str
    restart: int
    # When it was made, by the job's clock.
    at: datetime
    # When it arrived, by the mailbox's clock.
    arrived: datetime
    step: int | None = None


def make_last_heartbeat(received: ReceivedHeartbeat) -> LastHeartbeat:
    """Return the record of a received heartbeat."""
    heartbeat = received.heartbeat
    return LastHeartbeat(heartbeat.job, heartbeat.restart, heartbeat.at, received.at, heartbeat.step)


def select_new(received: ReceivedHeartbeat, last: LastHeartbeat | None) -> ReceivedHeartbeat | None:
    """Return the heartbeat with the time at which it first arrived, or None if a newer one was received before.

    A copy of an old heartbeat, with its valid signature, can be written again by others. It is not a sign of life.
    """
    heartbeat = received.heartbeat
    if last is None or (heartbeat.job, heartbeat.restart) != (last.job, last.restart):
        return received
    if heartbeat.at == last.at:
        return received._replace(at=min(received.at, last.arrived))
    # A clock may be set back, but steps do not go back.
    is_older = heartbeat.at < last.at and (heartbeat.step or 0) <= (last.step or 0)
    return None if is_older else received


def is_credible(received: ReceivedHeartbeat, attempt: Attempt, *, every: timedelta, at: datetime) -> bool:
    """Return whether it is from this attempt and recent by the mailbox's clock; the job's clock may be wrong."""
    heartbeat = received.heartbeat
    ours = (heartbeat.attempt, heartbeat.job) == (attempt.number, attempt.job_name)
    ours = ours and not attempt.is_outdated(heartbeat.restart)
    return ours and at - received.at < MAX_AGE_INTERVALS * every


def update_liveness(liveness: Liveness, received: ReceivedHeartbeat, *, at: datetime) -> Liveness:
    """Return the liveness after a heartbeat: the phase of the job, and when it last completed a step."""
    heartbeat, now = received.heartbeat, min(received.at, at)
    if heartbeat.phase in (Phase.CAPACITY, Phase.STARTUP):
        liveness = with_phase(liveness, Phase.STARTUP, now)
    else:
        liveness = with_phase(_with_step(liveness, heartbeat, now), heartbeat.phase, now)
    return replace(liveness, received_at=max(now, liveness.received_at or now), idle=None)


def _with_step(liveness: Liveness, heartbeat: Heartbeat, now: datetime) -> Liveness:
    if heartbeat.step is None:
        return liveness
    if liveness.step is not None and heartbeat.step < liveness.step:
        liveness = replace(liveness, step=None)  # restarted within the job and repeating steps, which is progress too
    moved = max(filter(None, (liveness.moved_at, find_last_step_time(heartbeat, now))))
    return replace(with_row(liveness, moved, step=heartbeat.step), moved_at=moved)


def find_last_step_time(heartbeat: Heartbeat, now: datetime) -> datetime:
    """Return when the last step was completed; its distance to the heartbeat is taken from the job's clock."""
    still = heartbeat.at - heartbeat.moved_at if heartbeat.moved_at else timedelta(0)
    return now - max(still, timedelta(0))


def with_agent_cursor(cursor: Cursor, received: ReceivedHeartbeat, *, period: timedelta, at: datetime) -> Cursor:
    """Return the cursor to continue from if heartbeats stop; the agent evaluates all steps up to its last heartbeat."""
    now = min(received.at, at)
    return with_agent_progress(
        cursor,
        step=received.heartbeat.step,
        moved_at=find_last_step_time(received.heartbeat, now),
        at=now,
        period=period,
    )
