"""Recognize errors that several runs share, such as those of a broken image."""

import re
from datetime import datetime, timedelta
from hashlib import sha256

from rerail.diagnosis.classify import names_error
from rerail.model.causes import Cause
from rerail.model.run import Attempt, Run, RunState

# Machines, capacity, memory and divergence concern one run, or pass by themselves.
SHARED_CAUSES = (Cause.USER_CODE, Cause.DATA)
# A job that has trained for this much longer than those that failed has got past their error.
MARGIN, NO_TIME = timedelta(minutes=10), timedelta()


def find_shareable_error(run: Run, attempt: Attempt) -> str:
    """Return the error that the attempt failed with, if other runs may have failed with it for the same reason, or "".

    A bare "AssertionError" says too little to be the same error in another run, as does that a script has failed.
    """
    incident = run.incidents[-1] if run.incidents else None
    if incident is None or not attempt.fingerprint or attempt.cause not in SHARED_CAUSES:
        return ""
    # The incident keeps the error of its first failure only.
    first = next((known.fingerprint for known in run.attempts if known.number == incident.attempt), "")
    words = re.findall(r"[^\W\d][\w.]*", re.sub(r"exit code: -?\d+", "", incident.evidence))
    is_telling = len(words) > 1 and names_error(incident.evidence)
    return incident.evidence if first == attempt.fingerprint and is_telling else ""


def make_error_key(attempt: Attempt, image: str) -> str:
    """Return the key of the attempt's error, equal for all runs of one image that fail with it."""
    return sha256(f"{attempt.fingerprint}\n{image}".encode()).hexdigest()[:16]


def has_recovered(run: Run, since: datetime, at: datetime) -> bool:
    """Return whether the run has got past its problem after `since`, by its record and the time.

    It has recovered or completed, or its job has trained for longer than any that failed. The last counts for scripts
    that save nothing, and for runs that an operator released: their incident has ended with the hold.
    """
    closed = [incident.closed_at for incident in run.incidents if incident.recovered]
    passed = [incident.passed_at for incident in run.incidents]
    if run.state is RunState.COMPLETED or any(moment and moment > since for moment in (*closed, *passed)):
        return True
    started_at = run.current.training_started_at
    if run.state is not RunState.WATCHING or started_at is None:
        return False
    failed = [
        attempt.ended_at - (attempt.training_started_at or attempt.ended_at)
        for attempt in run.attempts
        if attempt.fingerprint and attempt.ended_at
    ]
    return at - started_at > max(failed, default=NO_TIME) + MARGIN
