"""Record actions that were performed, and answer refused ones."""

from dataclasses import replace

from rerail.decisions import warm_pools
from rerail.decisions.decision import Decision, with_attempt
from rerail.decisions.deferrals import on_rate_limited
from rerail.decisions.launch import make_create_job
from rerail.decisions.on_failure import on_refusal
from rerail.decisions.on_job import on_late_job
from rerail.model.actions import ReleaseWarmPool
from rerail.model.machines import WarmPool
from rerail.model.policy import Policy
from rerail.model.run import Attempt, JobStatus, Run, RunState
from rerail.model.signals import ActionsDone, CreateRefused, Refusal, StopThrottled


def on_actions_done(run: Run, done: ActionsDone, policy: Policy) -> Decision:
    """Return the run without what was done; a created job now exists, a released pool does not."""
    run = replace(
        run,
        pending=tuple(action for action in run.pending if action not in done.actions),
        unpublished=tuple(change for change in run.unpublished if change.id not in done.published),
    )
    released = {action.job_name for action in done.actions if isinstance(action, ReleaseWarmPool)}
    run = replace(
        run,
        attempts=tuple(_with_pool_released(item) if item.job_name in released else item for item in run.attempts),
    )
    attempt = run.current
    if make_create_job(run) in done.actions and (not attempt.exists or attempt.is_unconfirmed):
        created = replace(attempt, status=JobStatus.IN_PROGRESS, secondary="Starting", requested_at=done.at)
        run = with_attempt(run, created)
        return on_late_job(run, done.at) if run.state is RunState.HELD else Decision(run)
    return Decision(run)


def _with_pool_released(attempt: Attempt) -> Attempt:
    """Return the attempt with its warm pool marked as released."""
    billed_s = attempt.pool.billed_s if attempt.pool else 0
    return replace(attempt, pool=WarmPool(warm_pools.GIVEN_BACK, billed_s))


def on_stop_throttled(run: Run, throttled: StopThrottled, policy: Policy) -> Decision:
    """Note that the stop is not Rerail's yet."""
    return Decision(replace(run, stop=replace(run.stop, is_throttled=True)) if run.stop else run)


def on_create_refused(run: Run, refused: CreateRefused, policy: Policy) -> Decision:
    """Defer a launch over the account's rate limit; treat any other refusal as a failed launch."""
    if refused.refusal is Refusal.RATE_LIMIT:
        return on_rate_limited(run, refused)
    return on_refusal(run, refused, policy)
