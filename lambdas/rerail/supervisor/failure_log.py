"""Read the log of a job that has ended: for the error of a failed one, and one with which a completed one ends."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite
from statistics import median
from typing import Any

from rerail.diagnosis.classify import diagnose, diagnose_job, needs_log, with_named_cause, with_redaction
from rerail.diagnosis.failure_lines import find_final_error
from rerail.model.causes import Cause
from rerail.model.diagnosis import CALLED_COMPLETED
from rerail.model.errors import StateUnknown, Throttled
from rerail.model.lazy_pattern import LazyPattern
from rerail.model.redaction import find_secrets, redact_secrets
from rerail.model.run import Job, JobStatus
from rerail.ports import FailureLogs

MAX_PROBLEM_CHARS = 200
_NUMBER = r"([-+]?(?:\d{1,30}(?:\.\d{0,30})?(?:e[-+]?\d{1,3})?|nan|inf(?:inity)?))(?![\w.])"
# A step and a loss in one line; a loss as libraries print it, such as `{'loss': 'nan', 'epoch': 1}`.
ROW = LazyPattern(r"(?i)\b(?:step|iter)[ :=]{1,3}(\d{1,15})\b.{0,200}?\bloss[ :=]{1,3}" + _NUMBER)
LOSS = LazyPattern(r"(?i)\bloss['\"]?[ :=]{1,3}['\"]?" + _NUMBER)
# The last rows of a log, compared with those before; what is above the highest of these times FAR is far.
LAST_ROWS, LEVEL_ROWS, FAR = 10, 50, 10
TEXT_LIMIT, MOST_TIMES = 30_000, 1e12
NO_CAUSES: Mapping[str, Cause] = {}


def with_log_read(
    job: Job,
    description: Mapping[str, Any],
    logs: FailureLogs,
    causes: Mapping[str, Cause] = NO_CAUSES,
    *,
    fails_with_error: bool = False,
) -> Job:
    """Return the job with a diagnosis from its reason and its log, or with the reason why no log could be read.

    `causes` are those that the policy gives to texts; for them, the log of every failed job is read.

    A script may hide its exit code (`python train.py | tee log`): SageMaker then calls the job Completed. With
    `fails_with_error`, one whose log ends with an error that the script has not logged itself is returned as failed.
    """
    if job.status is JobStatus.COMPLETED:
        secrets = find_secrets(description)
        ends, problem = _read_ends(job, logs, secrets)
        job = _with_end(job, ends, problem, secrets)
        if not fails_with_error or not any(find_final_error(end, logged=False) for end in ends):
            return job
        job = replace(job, status=JobStatus.FAILED, failure_reason=job.error_at_end)
        return _with_diagnosis(job, job.failure_reason, ends, causes, secrets, CALLED_COMPLETED)
    reason = str(description.get("FailureReason") or job.failure_reason)
    is_needed = bool(needs_log(reason, secondary_status=job.secondary) or causes)
    # The error of a script with a loss may follow from that loss.
    shows_loss = bool(job.metrics) and diagnose_job(job).cause in (Cause.USER_CODE, Cause.DIVERGED)
    if job.status is not JobStatus.FAILED or not (is_needed or shows_loss):
        return job
    secrets = find_secrets(description)
    ends, problem = _read_ends(job, logs, secrets)
    problem = problem or ("" if any(ends) else "the job has no log")
    limitation = f"no log could be read: {problem}" if problem and is_needed else ""
    return _with_diagnosis(job, reason, ends, causes, secrets, limitation)


def _read_ends(job: Job, logs: FailureLogs, secrets: Sequence[str]) -> tuple[Sequence[str], str]:
    """Return the ends of the job's logs, or none and why they cannot be read."""
    try:
        return logs.read_ends(job), ""
    except (StateUnknown, Throttled) as error:
        return (), redact_secrets(str(error), secrets)[:MAX_PROBLEM_CHARS]


def _with_diagnosis(
    job: Job, reason: str, ends: Sequence[str], causes: Mapping[str, Cause], secrets: Sequence[str], limitation: str
) -> Job:
    used = ends if needs_log(reason, secondary_status=job.secondary) else ()
    found = diagnose(reason, logs=used, secondary_status=job.secondary, hosts=job.cluster.count)
    diagnosis = with_redaction(with_named_cause(found, (reason, *ends), causes), secrets)
    last_loss = next(filter(None, map(describe_last_loss, ends)), "")
    return replace(job, diagnosis=replace(diagnosis, limitation=limitation, last_loss=last_loss))


def describe_last_loss(text: str, *, among: int = LAST_ROWS) -> str:
    """Return how far the last losses in a log are above those before; "" if they are not far, or too few are known.

    The newest far one of the last `among` is described.
    """
    rows = [(int(step), float(loss)) for step, loss in ROW.findall(text[-TEXT_LIMIT:])][-LEVEL_ROWS - LAST_ROWS :]
    before, last = [loss for _, loss in rows[:-LAST_ROWS] if isfinite(loss)], rows[-among:]
    if len(before) < LAST_ROWS or (level := median(before)) <= 0:
        losses = [loss for _, loss in rows] or [float(loss) for loss in LOSS.findall(text[-TEXT_LIMIT:])]
        place = f" at step {rows[-1][0]:,}" if rows else ""
        return f"the last loss was {losses[-1]}{place}" if losses and not isfinite(losses[-1]) else ""
    far = [row for row in last if not abs(row[1]) <= FAR * max(map(abs, before))]
    if not far:
        return ""
    step, loss = far[-1]
    name = "the last loss" if far[-1] == rows[-1] else "the loss"
    described, rows_before = (
        f"{name} was {loss:.4g} at step {step:,}",
        f"the median of the {len(before)} rows before it",
    )
    if 0 < loss / level < MOST_TIMES:
        return f"{described}, {float(f'{loss / level:.2g}'):,.0f} times {rows_before}"
    return f"{described}; {rows_before} was {level:.4g}"


def _with_end(job: Job, ends: Sequence[str], problem: str, secrets: Sequence[str]) -> Job:
    """Return a completed job with the error, and the loss far above those before, with which its log ends."""
    error = redact_secrets(next(filter(None, map(find_final_error, ends)), ""), secrets)
    loss = next(filter(None, (describe_last_loss(end, among=1) for end in ends)), "")
    # A part of a secret may not look like one.
    return replace(job, error_at_end=error[:MAX_PROBLEM_CHARS], loss_at_end=loss, unread_end=problem)
