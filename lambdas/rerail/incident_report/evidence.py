"""Say in one line why an attempt ended, and leave repeated lines out of SageMaker's reason."""

import re
from collections.abc import Sequence
from itertools import groupby

from rerail.diagnosis.classify import diagnose
from rerail.model.run import Attempt, Incident, JobStatus

EVIDENCE_LIMIT = 200  # in characters
_NUMBER = re.compile(r"[-+]?\d+(?:[.,:e+-]+\d+)*")


def find_evidence(attempt: Attempt, incidents: Sequence[Incident]) -> str:
    """Return the line that shows why the attempt ended, such as the exception; "" if nothing is known."""
    own = [i.evidence for i in incidents if i.attempt == attempt.number and i.kind == "job_failed" and i.evidence]
    if attempt.status is not JobStatus.FAILED and not own:
        return " ".join(attempt.failure_reason.split())[:EVIDENCE_LIMIT]
    found = own[-1] if own else diagnose(attempt.failure_reason, secondary_status=attempt.secondary).evidence
    if found.count('"') % 2:  # the quotation mark that ends SageMaker's ErrorMessage
        found = found.rstrip().removesuffix('"')
    return " ".join(found.split())[:EVIDENCE_LIMIT]


def shorten_reason(reason: str) -> str:
    """Return the reason with runs of lines that differ only in numbers, such as metric lines, reduced to the last."""
    kept: list[str] = []
    for _, alike in groupby(reason.splitlines(), key=lambda line: _NUMBER.sub("#", line.strip())):
        *left_out, last = alike
        kept += [f"({len(left_out)} similar lines left out)"] if len(left_out) > 1 else left_out
        kept.append(last)
    return "\n".join(kept)
