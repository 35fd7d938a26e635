"""Complete the diagnosis of a failed job from the end of its log, where its FailureReason does not name the error."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rerail.diagnosis.classify import diagnose, needs_log, with_redaction
from rerail.model.errors import StateUnknown, Throttled
from rerail.model.redaction import find_secrets, redact_secrets
from rerail.model.run import Job, JobStatus
from rerail.ports import FailureLogs

MAX_PROBLEM_CHARS = 200


def with_log_read(job: Job, description: Mapping[str, Any], logs: FailureLogs) -> Job:
    """Return the job with a diagnosis from its reason and its log, or with the reason why no log could be read."""
    reason, secondary = str(description.get("FailureReason") or job.failure_reason), job.secondary
    if job.status is not JobStatus.FAILED or not needs_log(reason, secondary_status=secondary):
        return job
    secrets = find_secrets(description)
    try:
        ends = logs.read_ends(job.name)
        problem = "" if any(ends) else "the job has no log"
    except (StateUnknown, Throttled) as error:
        ends, problem = (), redact_secrets(str(error)[:MAX_PROBLEM_CHARS], secrets)
    diagnosis = with_redaction(diagnose(reason, logs=ends, secondary_status=secondary), secrets)
    limitation = f"no log could be read: {problem}" if problem else ""
    return replace(job, diagnosis=replace(diagnosis, limitation=limitation))
