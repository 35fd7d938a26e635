"""Look at the world for one run: what SageMaker and the checkpoint folder say now, as signals."""

from datetime import datetime
from zlib import crc32

from rerail import pools
from rerail.errors import Blind, JobNotFound
from rerail.model import Job, JobStatus, Run, RunState
from rerail.ports import Checkpoints, Jobs
from rerail.signals import JobGone, JobSeen, Signal, Tick

# Each run in a minute of its own, so that a thousand folders are not listed at once.
LOOK_EVERY_MINUTES = 10


def observe(run: Run, jobs: Jobs, checkpoints: Checkpoints, *, at: datetime) -> tuple[Signal, ...]:
    """The current job as it is now, and the time."""
    if run.state is RunState.WAITING and not run.current.exists:
        is_due = run.checkpoint_uri and run.wake_at is not None and at >= run.wake_at
        saved = checkpoints.under(run.checkpoint_uri, upto=run.current.resumed_from_step) if is_due else None
        return (*_machines_kept(run, jobs, at), Tick(at, saved))  # the next job is not launched yet
    if not run.is_open:
        return (Tick(at),)  # nothing happens to it any more, but for the page that stands
    try:
        job, _ = jobs.describe(run.current.job_name)
    except JobNotFound:
        return (JobGone(at, run.current.job_name), Tick(at))
    back = run.stop if job.status.is_terminal and run.stop and run.stop.is_rollback else None
    upto = back.to_step if back else None  # it may be older than the newest few
    seen = checkpoints.under(run.checkpoint_uri, upto=upto) if wants_checkpoints(run, job, at=at) else None
    return (JobSeen(at, job, seen), Tick(at))


def _machines_kept(run: Run, jobs: Jobs, at: datetime) -> tuple[Signal, ...]:
    """The job before, once its successor is due: what is told of its warm pool is a moment old then. Not to know it
    keeps nothing waiting."""
    attempt = pools.keeper(run)
    if attempt is None or run.wake_at is None or at < run.wake_at:
        return ()
    try:
        return (JobSeen(at, jobs.describe(attempt.job_name)[0]),)
    except (JobNotFound, Blind):
        return ()


def wants_checkpoints(run: Run, job: Job, *, at: datetime) -> bool:
    """Listing a folder every minute for every run costs more than it tells: look when an answer decides something, and
    now and then whether saves still arrive."""
    if not run.checkpoint_uri:
        return False
    is_rolled_back = run.stop is not None and run.stop.is_rollback
    needs_a_step = job.status in (JobStatus.FAILED, JobStatus.STOPPED) or (job.status.is_terminal and is_rolled_back)
    proves_progress = (run.open_incident is not None or run.proposal is not None) and job.is_training
    now_and_then = job.is_training and (int(at.timestamp() / 60) + crc32(run.id.encode())) % LOOK_EVERY_MINUTES == 0
    return needs_a_step or proves_progress or run.state is RunState.SAVING or now_and_then
