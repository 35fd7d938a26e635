"""Say in one line why an attempt ended, and leave repeated lines out of SageMaker's reason."""

import re
from itertools import groupby

from rerail.diagnosis.classify import diagnose
from rerail.model.run import Attempt, JobStatus, Run

EVIDENCE_LIMIT = 200  # in characters
_NUMBER = re.compile(r"[-+]?\d+(?:[.,:e+-]+\d+)*")


def find_evidence(attempt: Attempt, run: Run) -> str:
    """Return the line that shows why the attempt ended, such as the exception; "" if nothing is known."""
    shown = [known for known in run.incidents if known.kind in ("job_failed", "crashed") and known.evidence]
    own = [known.evidence for known in shown if known.attempt == attempt.number and known.kind == "job_failed"]
    if attempt.status is not JobStatus.FAILED and not own:
        return " ".join(attempt.failure_reason.split())[:EVIDENCE_LIMIT]
    if not own:
        read = diagnose(attempt.failure_reason, secondary_status=attempt.secondary)
        # Else the reason is cut off, and the log had the error. An incident has that of its first failure only.
        is_whole = attempt.fingerprint == read.fingerprint
        alike = {other.number for other in run.attempts if attempt.fingerprint in _list_fingerprints(other)}
        own = [known.evidence for known in shown if known.attempt in alike and not is_whole] or [read.evidence]
    found = own[-1]
    if found.count('"') % 2:  # the quotation mark that ends SageMaker's ErrorMessage
        found = found.rstrip().removesuffix('"')
    return " ".join(found.split())[:EVIDENCE_LIMIT]


def _list_fingerprints(attempt: Attempt) -> list[str]:
    return list(filter(None, (attempt.fingerprint, *(restart.fingerprint for restart in attempt.in_place_restarts))))


def shorten_reason(reason: str) -> str:
    """Return the reason with runs of lines that differ only in numbers, such as metric lines, reduced to the last."""
    kept: list[str] = []
    for _, alike in groupby(reason.splitlines(), key=lambda line: _NUMBER.sub("#", line.strip())):
        *left_out, last = alike
        kept += [f"({len(left_out)} similar lines left out)"] if len(left_out) > 1 else left_out
        kept.append(last)
    return "\n".join(kept)
