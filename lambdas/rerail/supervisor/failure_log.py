"""Read the log of a job that has ended: for the error of a failed one, and one with which a completed one ends."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rerail.diagnosis.classify import diagnose, needs_log, with_named_cause, with_redaction
from rerail.diagnosis.failure_lines import find_final_error
from rerail.model.causes import Cause
from rerail.model.errors import StateUnknown, Throttled
from rerail.model.redaction import find_secrets, redact_secrets
from rerail.model.run import Job, JobStatus
from rerail.ports import FailureLogs

MAX_PROBLEM_CHARS = 200
NO_CAUSES: Mapping[str, Cause] = {}


def with_log_read(
    job: Job, description: Mapping[str, Any], logs: FailureLogs, causes: Mapping[str, Cause] = NO_CAUSES
) -> Job:
    """Return the job with a diagnosis from its reason and its log, or with the reason why no log could be read.

    `causes` are those that the policy gives to texts; for them, the log of every failed job is read.

    A script may hide its exit code (`python train.py | tee log`): SageMaker then calls the job Completed.
    """
    if job.status is JobStatus.COMPLETED:
        return replace(job, error_at_end=_find_error_at_end(job, description, logs))
    reason, secondary = str(description.get("FailureReason") or job.failure_reason), job.secondary
    is_needed = needs_log(reason, secondary_status=secondary)
    if job.status is not JobStatus.FAILED or not (is_needed or causes):
        return job
    secrets = find_secrets(description)
    try:
        ends = logs.read_ends(job)
        problem = "" if any(ends) else "the job has no log"
    except (StateUnknown, Throttled) as error:
        ends, problem = (), redact_secrets(str(error), secrets)[:MAX_PROBLEM_CHARS]
    used = ends if is_needed else ()
    found = diagnose(reason, logs=used, secondary_status=secondary, hosts=job.cluster.count)
    diagnosis = with_redaction(with_named_cause(found, (reason, *ends), causes), secrets)
    limitation = f"no log could be read: {problem}" if problem else ""
    return replace(job, diagnosis=replace(diagnosis, limitation=limitation))


def _find_error_at_end(job: Job, description: Mapping[str, Any], logs: FailureLogs) -> str:
    try:
        ends = logs.read_ends(job)
    except (StateUnknown, Throttled):
        return ""  # the job is complete, whatever its log says
    error = next(filter(None, map(find_final_error, ends)), "")
    return redact_secrets(error, find_secrets(description))[:MAX_PROBLEM_CHARS]  # a part may not look like a secret
