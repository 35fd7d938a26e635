"""Warm pools: which machines are kept after a job, whether the next job gets them, and when to release them."""

from collections.abc import Iterator
from datetime import datetime, timedelta

from rerail.model.actions import ReleaseWarmPool
from rerail.model.machines import Cluster
from rerail.model.run import Attempt, Run

AVAILABLE, IN_USE, REUSED, TERMINATED = "Available", "InUse", "Reused", "Terminated"
GIVEN_BACK = "given back"  # not a SageMaker status: Rerail released it
GONE = (REUSED, TERMINATED, GIVEN_BACK)
# Field of Cluster -> reason. All must be equal for a reuse, as SageMaker's developer guide lists them.
MISMATCH_REASONS = {
    "role": "another role",
    "instance_types": "another instance type",
    "count": "another number of instances",
    "volume_gb": "another volume size",
    "volume_key": "another key for the volume",
    "security_groups": "other security groups",
    "subnets": "other subnets",
    "encrypted": "another choice of encryption between its machines",
    "isolated": "another choice of network isolation",
}


def find_pool_attempt(run: Run) -> Attempt | None:
    """Return the attempt whose warm pool may still be kept, or None.

    That is the newest that SageMaker has accepted, once it has ended.
    """
    attempt = _find_newest(run)
    if attempt is None or attempt.may_be_live or not attempt.keep_alive_seconds:
        return None
    if attempt.pool is None:  # a job that never had machines leaves no pool
        return attempt if attempt.training_started_at else None
    return None if attempt.pool.status in GONE else attempt


def find_pool_end(attempt: Attempt) -> datetime | None:
    """Return when the pool's keep-alive period ends, or None if unknown."""
    ended = attempt.ended_at
    return ended + timedelta(seconds=attempt.keep_alive_seconds) if ended and attempt.keep_alive_seconds else None


def make_release(run: Run) -> tuple[ReleaseWarmPool, ...]:
    """Return the action that releases the warm pool of the run's newest job, if one is kept."""
    attempt = find_pool_attempt(run)
    return (ReleaseWarmPool(attempt.job_name),) if attempt else ()


def has_ended(run: Run, action: ReleaseWarmPool, at: datetime) -> bool:
    """Return whether the pool's keep-alive period is over, so that there is nothing to release."""
    until = next((find_pool_end(attempt) for attempt in run.attempts if attempt.job_name == action.job_name), None)
    return until is not None and at >= until


def is_unmatched(run: Run) -> bool:
    """Return whether a pool is kept that the run's next job cannot use."""
    attempt = find_pool_attempt(run)
    return attempt is not None and not run.current.exists and any(_list_differences(run, attempt))


def format_forecast(run: Run, at: datetime) -> str:
    """Return whether the next attempt gets the previous attempt's warm pool, in words.

    The text is empty where no pool was requested.
    """
    attempt, following = _find_newest(run), run.current
    if attempt is None or attempt is following or not attempt.keep_alive_seconds:
        return ""
    if attempt.pool is None and attempt.training_started_at is None:
        return ""
    problems = list(_list_problems(run, attempt, at))
    if problems:
        return f"attempt {following.number} will not get the warm pool: {'; '.join(problems)}"
    if attempt.pool and attempt.pool.status == AVAILABLE:
        return f"attempt {following.number} goes into the warm pool of {attempt.job_name}"
    return f"attempt {following.number} goes into the warm pool of {attempt.job_name}, if one is kept"


def find_differences(before: Cluster, after: Cluster) -> tuple[str, ...]:
    """Return why a job on the second cluster cannot use the first one's pool."""
    reasons = tuple(text for name, text in MISMATCH_REASONS.items() if getattr(before, name) != getattr(after, name))
    exclusions = {"spot jobs use no pool": after.spot, "mixed clusters use no pool": after.grouped}
    return reasons + tuple(text for text, applies in exclusions.items() if applies)


def _find_newest(run: Run) -> Attempt | None:
    return next((attempt for attempt in reversed(run.attempts) if attempt.exists), None)


def _list_problems(run: Run, attempt: Attempt, at: datetime) -> Iterator[str]:
    """Yield why the next attempt will not get the pool."""
    pool, until = attempt.pool, find_pool_end(attempt)
    if ReleaseWarmPool(attempt.job_name) in run.pending:
        yield "it is given back first"
    elif pool and pool.status == REUSED:
        yield f"{pool.reused_by or 'another job'} has taken it"
    elif pool and pool.status == TERMINATED:
        yield "it is gone"
    elif pool and pool.status == GIVEN_BACK:
        yield "it was given back"
    elif until and at >= until:
        yield f"its keep-alive period ended at {until:%H:%M:%S}"
    elif pool and pool.status == IN_USE:
        yield f"{attempt.job_name} has not left it yet"
    yield from _list_differences(run, attempt)


def _list_differences(run: Run, attempt: Attempt) -> tuple[str, ...]:
    return find_differences(run.cluster.on(attempt.machines), run.cluster.on(run.current.machines))
