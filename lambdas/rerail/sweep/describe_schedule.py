"""Choose the jobs that need not be described this minute, because SageMaker does not list them as changed.

DescribeTrainingJob is throttled at an unpublished rate, so describing a large fleet would take minutes. One list call
returns a hundred changed jobs; the others are as they were recorded last.
"""

from collections.abc import Mapping
from datetime import datetime

from rerail.model.partitions import is_turn
from rerail.model.run import Job, JobStatus, Run, RunState
from rerail.sweep.shards import hash_name

# Up to this many open runs, each job is described each minute.
EACH_MINUTE = 300
# In larger fleets, each job is described once in a multiple of this many minutes, at most EACH_MINUTE jobs a minute.
OWN_MINUTE = 10


def is_known(run: Run, changed: Mapping[int, int], *, fleet: int, at: datetime) -> bool:
    """Return whether the run's job is as recorded, so that it need not be described.

    It trains or starts, is not listed as changed, has nothing pending, and is not due for its periodic description.
    """
    return (
        (run.state is RunState.STARTING or (run.state is RunState.WATCHING and run.current.secondary == "Training"))
        and not run.pending
        and run.proposal is None
        and run.current.status is JobStatus.IN_PROGRESS
        and run.defined_metrics is not None
        and not has_changed(run, changed)
        and not is_turn(run.id, at, every=choose_describe_period(fleet))
    )


def has_changed(run: Run, changed: Mapping[int, int]) -> bool:
    """Return whether SageMaker lists the run's job with another status than recorded."""
    recorded = hash_name(run.current.job_name, run.current.status or "", run.current.secondary)
    return changed.get(hash_name(run.current.job_name), recorded) != recorded


def choose_describe_period(fleet: int) -> int:
    """Return in how many minutes each job of the fleet is described once, at most 300 jobs a minute."""
    return OWN_MINUTE * max(1, -(-fleet // (OWN_MINUTE * EACH_MINUTE)))


def make_unchanged_job(run: Run) -> Job:
    """Return the run's job as it was described last, with the fields that a watched run needs."""
    attempt = run.current
    assert attempt.status is not None and attempt.created_at is not None
    return Job(
        name=attempt.job_name,
        arn="",
        status=attempt.status,
        secondary=attempt.secondary,
        created_at=attempt.created_at,
        training_started_at=attempt.training_started_at,
        failure_reason=attempt.failure_reason,
        checkpoint_uri=run.checkpoint_uri,
        keep_alive_seconds=attempt.keep_alive_seconds,
        defined_metrics=run.defined_metrics or (),
        cluster=run.cluster,
        script=run.script,
        pool=attempt.pool,
        instance_type=attempt.instance_type,
        instance_count=attempt.instance_count,
        billable_s=attempt.billable_s,
        max_runtime_s=attempt.max_runtime_s,
    )
