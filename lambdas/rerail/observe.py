"""Look at the world for one run: what SageMaker and the checkpoint folder say now, as signals."""

from datetime import datetime
from zlib import crc32

from rerail.errors import JobNotFound
from rerail.model import Job, JobStatus, Run, RunState
from rerail.ports import Checkpoints, Jobs
from rerail.signals import JobGone, JobSeen, Signal, Tick

# Each run in a minute of its own, so that a thousand folders are not listed at once.
LOOK_EVERY_MINUTES = 10


def observe(run: Run, jobs: Jobs, checkpoints: Checkpoints, *, at: datetime) -> tuple[Signal, ...]:
    """The current job as it is now, and the time."""
    if run.state is RunState.WAITING and not run.current.exists:
        return (Tick(at),)  # the next job is not launched yet: there is nothing to look at
    try:
        job, _ = jobs.describe(run.current.job_name)
    except JobNotFound:
        return (JobGone(at, run.current.job_name), Tick(at))
    seen = checkpoints.under(run.checkpoint_uri) if wants_checkpoints(run, job, at=at) else None
    return (JobSeen(at, job, seen), Tick(at))


def wants_checkpoints(run: Run, job: Job, *, at: datetime) -> bool:
    """Listing a folder every minute for every run costs more than it tells: look when an answer decides something, and
    now and then whether saves still arrive."""
    if not run.checkpoint_uri:
        return False
    needs_a_step = job.status in (JobStatus.FAILED, JobStatus.STOPPED)
    proves_progress = run.open_incident is not None and job.is_training
    now_and_then = job.is_training and (int(at.timestamp() / 60) + crc32(run.id.encode())) % LOOK_EVERY_MINUTES == 0
    return needs_a_step or proves_progress or run.state is RunState.SAVING or now_and_then
