"""ListTrainingJobs: which jobs are on a page, with the real API's habit of filtering by status after paging."""

import base64
import json
from collections.abc import Callable, Iterable
from typing import Any

from .errors import invalid
from .job import LocalJob

_SORT_KEYS: dict[str, Callable[[LocalJob], Any]] = {
    "CreationTime": lambda job: job.created,
    "Name": lambda job: job.name,
    "Status": lambda job: str(job.status),
}


def list_page(jobs: Iterable[LocalJob], request: dict[str, Any]) -> dict[str, Any]:
    """Apply StatusEquals to the page, not to the list: a page may be short or empty with a NextToken."""
    ordered = _ordered([job for job in jobs if _matches(job, request)], request)
    size = request.get("MaxResults", 10)
    begin = read_token(request["NextToken"]) if request.get("NextToken") else 0
    page = ordered[begin : begin + size]
    wanted = request.get("StatusEquals")
    answer: dict[str, Any] = {"TrainingJobSummaries": [j.summary() for j in page if wanted in (None, j.status)]}
    if begin + size < len(ordered):
        answer["NextToken"] = write_token(begin + size)
    return answer


def _matches(job: LocalJob, request: dict[str, Any]) -> bool:
    pool = (job.warm_pool or {}).get("Status")
    return (
        request.get("NameContains", "") in job.name
        and request.get("CreationTimeAfter", 0) < job.created
        and job.created < request.get("CreationTimeBefore", float("inf"))
        and request.get("LastModifiedTimeAfter", 0) < job.modified
        and job.modified < request.get("LastModifiedTimeBefore", float("inf"))
        and request.get("WarmPoolStatusEquals", pool) == pool
        and "TrainingPlanArnEquals" not in request
    )


def _ordered(jobs: list[LocalJob], request: dict[str, Any]) -> list[LocalJob]:
    """Newest first unless asked otherwise, as the API's own note on StatusEquals describes."""
    key = _SORT_KEYS[request.get("SortBy", "CreationTime")]
    newest_first = request.get("SortOrder", "Descending") == "Descending"
    return sorted(jobs, key=lambda job: (key(job), job.name), reverse=newest_first)


def write_token(offset: int) -> str:
    """Return the NextToken of the page that begins there."""
    return base64.urlsafe_b64encode(json.dumps({"offset": offset}).encode()).decode()


def read_token(token: str) -> int:
    """Return where the page of a NextToken begins."""
    try:
        return int(json.loads(base64.urlsafe_b64decode(token))["offset"])
    except (ValueError, KeyError, TypeError) as error:
        raise invalid("The NextToken is not one that this operation returned.") from error
