"""Look at the world for one run: what SageMaker and the checkpoint folder say now, as signals."""

from datetime import datetime, timedelta

from rerail.decisions import warm_pools as pools
from rerail.messages.messages import QueueMessage
from rerail.model.errors import JobNotFound, StateUnknown
from rerail.model.run import Job, JobStatus, PlannedStop, Run, RunState
from rerail.model.signals import JobGone, JobObserved, Signal, Tick
from rerail.ports import Checkpoints, Jobs
from rerail.requests.relaunch import is_handed

# What SageMaker tells of is to be seen in its descriptions so long after it has told, at the latest.
SEEN_AFTER = timedelta(seconds=1)


def observe(
    run: Run, jobs: Jobs, checkpoints: Checkpoints, *, at: datetime, known: Job | None = None
) -> tuple[Signal, ...]:
    """The current job as it is now, and the time; `known` is the job where it need not be asked about."""
    if run.state is RunState.WAITING and not run.current.exists:
        is_due = run.checkpoint_uri and run.wake_at is not None and at >= run.wake_at
        saved = checkpoints.under(run.checkpoint_uri, upto=run.current.resumed_from_step) if is_due else None
        return (*_machines_kept(run, jobs, at), Tick(at, saved))  # the next job is not launched yet
    if not run.is_open:
        return (Tick(at),)  # nothing happens to it any more, but for the page that stands
    try:
        job, description = (known, None) if known else jobs.describe(run.current.job_name)
    except JobNotFound:
        return (JobGone(at, run.current.job_name), Tick(at))
    if description and run.current.number > 1 and not is_handed(description, run.seal_key):
        # A stranger's job has the name: ours was never created, or is gone.
        return (JobGone(at, run.current.job_name), Tick(at)) if run.current.exists else (Tick(at),)
    upto = _bound(run.stop) if job.status.is_terminal and run.stop else None
    seen = checkpoints.under(run.checkpoint_uri, upto=upto) if wants_checkpoints(run, job) else None
    return (JobObserved(at, job, seen), Tick(at))


def has_looked_since(run: Run, post: QueueMessage | None) -> bool:
    """Whatever a message tells of that only says "look" has been seen: somebody looked after it was sent, and nothing
    is owed. Where a thousand jobs die at once such messages lie in the queue for minutes, and most are repetitions."""
    if post is None or run.looked_at is None or run.pending or not run.is_open:
        return False
    return run.looked_at >= post.sent_at + SEEN_AFTER


def _bound(stop: PlannedStop) -> int | None:
    """The newest step to go back to, where the run goes back on purpose: it may be older than the newest few saves."""
    if stop.is_rollback:
        return stop.to_step
    return max(0, stop.before_step - 1) if stop.before_step is not None else None


def _machines_kept(run: Run, jobs: Jobs, at: datetime) -> tuple[Signal, ...]:
    """The job before, once its successor is due: what is told of its warm pool is a moment old then. Not to know it
    keeps nothing waiting."""
    attempt = pools.find_pool_attempt(run)
    if attempt is None or run.wake_at is None or at < run.wake_at:
        return ()
    try:
        return (JobObserved(at, jobs.describe(attempt.job_name)[0]),)
    except (JobNotFound, StateUnknown):
        return ()


def wants_checkpoints(run: Run, job: Job) -> bool:
    """Listing a folder every minute for every run costs more than it tells: look when an answer decides something."""
    if not run.checkpoint_uri:
        return False
    is_rolled_back = run.stop is not None and run.stop.is_rollback
    needs_a_step = job.status in (JobStatus.FAILED, JobStatus.STOPPED) or (job.status.is_terminal and is_rolled_back)
    proves_progress = (run.open_incident is not None or run.proposal is not None) and job.is_training
    return needs_a_step or proves_progress or run.state is RunState.SAVING
