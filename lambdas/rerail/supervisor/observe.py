"""Observe one run: read its job and its checkpoints from AWS, as signals."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from rerail.decisions import warm_pools
from rerail.decisions.decision import has_agent, with_attempt, with_facts
from rerail.decisions.on_job import TIMEOUT_STATUSES, describe_few_steps, has_done_steps
from rerail.decisions.on_policy import is_page_due
from rerail.diagnosis.classify import diagnose
from rerail.messages.messages import QueueMessage
from rerail.model.checkpoints import Checkpoint
from rerail.model.diagnosis import CALLED_COMPLETED, FEW_STEPS
from rerail.model.errors import BoundsExceeded, JobNotFound, PolicyError, StateUnknown
from rerail.model.policy import Mode, OnDoubtfulEnd, Policy
from rerail.model.run import AfterStop, Job, JobStatus, PlannedStop, Run, RunState
from rerail.model.signals import CheckpointsRefused, JobGone, JobObserved, PolicyRead, Signal, Tick
from rerail.ports import Checkpoints, FailureLogs, Jobs, Policies
from rerail.requests.relaunch import is_handed
from rerail.supervisor.failure_log import with_log_read

# An event's change is visible in DescribeTrainingJob at most this long after the event was sent.
EVENT_VISIBLE_AFTER = timedelta(seconds=1)
# 30 minutes by SageMaker's documentation, and a little for clocks.
TERMINATES_BEFORE = timedelta(minutes=32)
MAX_PROBLEM_CHARS = 500


def observe(
    run: Run,
    jobs: Jobs,
    checkpoints: Checkpoints,
    *,
    at: datetime,
    known: Job | None = None,
    lists: bool = False,
    logs: FailureLogs | None = None,
    policy: Policy | None = None,
) -> tuple[Signal, ...]:
    """Return the current job as it is now, and the time, as signals.

    `known` is the job where it need not be described. With `lists`, its checkpoints are listed in any case. `logs` and
    `policy` together complete the diagnosis of a job that failed, and tell whether a completed one did; without them, a
    training plan's end is not read either.
    """
    if run.state is RunState.WAITING and not run.current.exists:
        is_due = run.checkpoint_uri and run.wake_at is not None and at >= run.wake_at
        saved, refused = (
            _list_checkpoints(run, checkpoints, upto=run.current.resumed_from_step, at=at) if is_due else (None, ())
        )
        return (*refused, *_observe_warm_pool(run, jobs, at), Tick(at, saved))  # the next job is not launched yet
    if not run.is_open:
        return (Tick(at),)  # an ended run only has its open pages to close
    try:
        job, description = (known, None) if known else jobs.describe(run.current.job_name)
    except JobNotFound:
        return (JobGone(at, run.current.job_name), Tick(at))
    if description and run.current.number > 1 and not is_handed(description, run.signing_key):
        # Another job has the name: the run's own was never created, or was deleted.
        return (JobGone(at, run.current.job_name), Tick(at)) if run.current.exists else (Tick(at),)
    if logs and policy and description:
        fails = _fails_with_doubt(run, policy)
        fails_with_error = fails and not has_done_steps(with_attempt(run, with_facts(run.current, job, at)), job)
        job = with_log_read(job, description, logs, policy.causes, fails_with_error=fails_with_error)
        job = _with_plan_read(job, jobs)
        job = _with_few_steps_failed(run, job, at) if fails else job
    return _observe_job(run, job, checkpoints, at=at, lists=lists)


def _observe_job(run: Run, job: Job, checkpoints: Checkpoints, *, at: datetime, lists: bool) -> tuple[Signal, ...]:
    """Return the job with its checkpoints, where they are needed or to be listed in any case, and the time."""
    upto = _find_newest_allowed_step(run.stop) if job.status.is_terminal and run.stop else None
    is_needed = needs_checkpoints(run, job)
    if not is_needed and not (lists and run.checkpoint_uri):
        return (JobObserved(at, job), Tick(at))
    is_relaunched = is_needed and job.status.is_terminal and not _is_last(run, job)
    seen, refused = _list_checkpoints(run, checkpoints, upto=upto, at=at, job=job if is_relaunched else None)
    # A relaunch waits for the checkpoints if another try may succeed.
    waits = is_relaunched and any(not signal.is_needed for signal in refused)
    return (*refused, Tick(at)) if waits else (*refused, JobObserved(at, job, seen), Tick(at))


def _fails_with_doubt(run: Run, policy: Policy) -> bool:
    """Return whether a completed job whose end is in doubt has failed: not if an operator ends or rewinds the run."""
    if policy.on_doubtful_end is not OnDoubtfulEnd.FAIL or policy.mode is Mode.OBSERVE:
        return False
    return run.stop is None or (run.stop.then is AfterStop.RELAUNCH and not run.stop.is_rollback)


def _with_few_steps_failed(run: Run, job: Job, at: datetime) -> Job:
    """Return a completed job as a failed one if it did not do half of the steps that its arguments ask for."""
    few = describe_few_steps(with_attempt(run, with_facts(run.current, job, at)), job)
    if job.status is not JobStatus.COMPLETED or not few:
        return job
    diagnosis = replace(diagnose(few), rule=FEW_STEPS, limitation=CALLED_COMPLETED)
    return replace(job, status=JobStatus.FAILED, failure_reason=few, diagnosis=diagnosis)


def _with_plan_read(job: Job, jobs: Jobs) -> Job:
    """Return the job with the end of its reserved capacity, if it ended with that."""
    if not job.cluster.plan or job.ended_at is None or job.status not in (JobStatus.FAILED, JobStatus.STOPPED):
        return job
    return replace(job, capacity_ended_at=find_capacity_end(jobs.list_capacities(job.cluster.plan), job))


def find_capacity_end(capacities: Sequence[tuple[datetime, datetime]], job: Job) -> datetime | None:
    """Return the end of the reserved capacity with which a job that trained ended; None if it had capacity left.

    SageMaker begins to terminate the machines 30 minutes before a capacity ends.
    """
    at, began = job.ended_at, job.training_started_at
    if at is None or began is None or any(start <= at < end - TERMINATES_BEFORE for start, end in capacities):
        return None
    return max((end for _, end in capacities if end - TERMINATES_BEFORE <= at and began < end), default=None)


def _is_last(run: Run, job: Job) -> bool:
    """Return whether the run ends with this job, because a person has stopped it."""
    if job.status is not JobStatus.STOPPED or job.pending_ran_out or job.capacity_ended_at:
        return False
    return run.stop.then is AfterStop.END if run.stop else job.secondary not in TIMEOUT_STATUSES


def _list_checkpoints(
    run: Run, checkpoints: Checkpoints, *, upto: int | None, at: datetime, job: Job | None = None
) -> tuple[Sequence[Checkpoint] | None, tuple[CheckpointsRefused, ...]]:
    """Return the run's checkpoints, or None and why they are more than Rerail reads; `job` is one to relaunch."""
    try:
        return list_with_signatures(run, checkpoints, upto=upto), ()
    except BoundsExceeded as error:
        is_needed = job is not None and not error.may_pass
        return None, (CheckpointsRefused(at, error.message, error.advice, is_needed, job),)


def list_with_signatures(run: Run, checkpoints: Checkpoints, *, upto: int | None = None) -> Sequence[Checkpoint]:
    """Return the run's checkpoints, each with whether the run's key has signed it.

    The first report of an agent may be recorded before the decision: what it has signed must be known then.
    """
    return checkpoints.list_checkpoints(
        run.checkpoint_uri, upto=upto, signing_key=run.signing_key, signed_only=has_agent(run)
    )


def observe_policy(run: Run, policies: Policies, *, at: datetime) -> tuple[PolicyRead, ...]:
    """Return the run's policy as a signal if it is not the one last recorded, or cannot be used."""
    if run.state.is_end:
        return ()
    try:
        policy = policies.get(run.policy)
    except PolicyError as error:
        is_news = run.policy_lost_at is None or is_page_due(run, at)
        return (PolicyRead(at, None, str(error)[:MAX_PROBLEM_CHARS]),) if is_news else ()
    return () if policy == run.last_policy and run.policy_lost_at is None else (PolicyRead(at, policy),)


def may_have_lost_job(run: Run) -> bool:
    """Return whether the attempt's job may exist although the record says that it was never created.

    The answer to CreateTrainingJob may have been lost, and a later try refused.
    """
    is_unobserved = run.state is RunState.WAITING or run.state.is_end
    return is_unobserved and not run.current.exists and run.current.number > 1


def has_looked_since(run: Run, post: QueueMessage | None) -> bool:
    """Return whether the run was observed after the message was sent, with no work left.

    Where a thousand jobs end at once, messages wait in the queue for minutes, and most are repetitions.
    """
    if post is None or run.looked_at is None or run.has_work or not run.is_open:
        return False
    return run.looked_at >= post.sent_at + EVENT_VISIBLE_AFTER


def _find_newest_allowed_step(stop: PlannedStop) -> int | None:
    """Return the newest step that a planned rollback may resume from, or None without a rollback.

    It may be older than the newest few checkpoints, which are all that is listed by default.
    """
    if stop.is_rollback:
        return stop.to_step
    return max(0, stop.before_step - 1) if stop.before_step is not None else None


def _observe_warm_pool(run: Run, jobs: Jobs, at: datetime) -> tuple[Signal, ...]:
    """Return the previous job once the next launch is due, for the status of its warm pool.

    If it cannot be described, the launch goes ahead without that status.
    """
    attempt = warm_pools.find_pool_attempt(run)
    if attempt is None or run.wake_at is None or at < run.wake_at:
        return ()
    try:
        return (JobObserved(at, jobs.describe(attempt.job_name)[0]),)
    except (JobNotFound, StateUnknown):
        return ()


def needs_checkpoints(run: Run, job: Job) -> bool:
    """Return whether the checkpoints are needed for a decision.

    Listing a folder every minute for every run would cost too much.
    """
    if not run.checkpoint_uri:
        return False
    is_rolled_back = run.stop is not None and run.stop.is_rollback
    needs_a_step = job.status in (JobStatus.FAILED, JobStatus.STOPPED) or (job.status.is_terminal and is_rolled_back)
    proves_progress = (run.open_incident is not None or run.proposal is not None) and job.is_training
    return needs_a_step or proves_progress or run.state is RunState.SAVING
