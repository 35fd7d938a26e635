"""Whose job need not be described this minute: SageMaker lists what has changed, a hundred jobs a call, and what it
does not list is as it was described last. The record holds that.

DescribeTrainingJob is throttled, at a rate that is published nowhere: of a large fleet it would take minutes."""

from collections.abc import Mapping
from datetime import datetime
from zlib import crc32

from rerail.model.run import Job, JobStatus, Run, RunState
from rerail.sweep.shards import hash_name

# As long as there are no more open runs than this each job is described each minute, whatever is listed.
EACH_MINUTE = 300
# Of more than that each is described in its own minute of so many, at most so often over the whole fleet.
OWN_MINUTE = 10


def is_known(run: Run, changed: Mapping[int, int], *, fleet: int, at: datetime) -> bool:
    """The run's job is as the record has it: it trains or is on its way there, it is not listed as anything else, and
    nothing is under way."""
    return (
        (run.state is RunState.STARTING or (run.state is RunState.WATCHING and run.current.secondary == "Training"))
        and not run.pending
        and run.proposal is None
        and run.current.status is JobStatus.IN_PROGRESS
        and run.defined_metrics is not None
        and not has_changed(run, changed)
        and not is_describe_due(run.id, at, every=describe_period(fleet))
    )


def has_changed(run: Run, changed: Mapping[int, int]) -> bool:
    """SageMaker lists the run's job as something else than is recorded of it."""
    recorded = hash_name(run.current.job_name, run.current.status or "", run.current.secondary)
    return changed.get(hash_name(run.current.job_name), recorded) != recorded


def describe_period(fleet: int) -> int:
    """In how many minutes each job of so many is described once, though nothing is said of it: 300 jobs a minute."""
    return OWN_MINUTE * max(1, -(-fleet // (OWN_MINUTE * EACH_MINUTE)))


def is_describe_due(run_id: str, at: datetime, *, every: int) -> bool:
    """Each run in a minute of its own, so that a thousand are not asked about at once."""
    return (int(at.timestamp() / 60) + crc32(run_id.encode())) % every == 0


def job_of(run: Run) -> Job:
    """The run's job as it was described last, as far as it matters to a run that is watched."""
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
        pool=attempt.pool,
        instance_type=attempt.instance_type,
        instance_count=attempt.instance_count,
        billable_s=attempt.billable_s,
        max_runtime_s=attempt.max_runtime_s,
    )
