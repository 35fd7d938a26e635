"""The account's rate limit on relaunches: decide whether one more may go ahead now."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

MIN_RETENTION = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Launches:
    """The account's recent relaunches."""

    at: Mapping[str, datetime] = field(default_factory=dict)  # time of the last request by job name
    paged_by: str = ""  # the job whose launch paged on-call last
    paged_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Admission:
    """The rate limit's answer to one launch."""

    granted: bool
    count: int  # relaunches in the window
    until: datetime  # when to try again, if not granted
    # Set for the one launch that pages on-call, with the same value each time that it is requested again; else None.
    paged_at: datetime | None = None


def admit(
    launches: Launches, job_name: str, *, at: datetime, limit: int, window: timedelta
) -> tuple[Launches, Admission]:
    """Return the account's launches after one more request, and the answer; a limit of 0 is none.

    A job that is requested again is counted once, at its last request: it is never created later than it is counted.
    """
    recent = {
        name: requested_at
        for name, requested_at in launches.at.items()
        if at - requested_at < max(window, MIN_RETENTION)
    }
    others = sorted(
        requested_at for name, requested_at in recent.items() if name != job_name and at - requested_at < window
    )
    if not limit or len(others) < limit:
        return replace(launches, at={**recent, job_name: at}), Admission(True, len(others) + 1, at)
    updated = replace(launches, at=recent)
    if launches.paged_at is None or at - launches.paged_at >= window:
        updated = replace(updated, paged_by=job_name, paged_at=at)
    paged_at = updated.paged_at if updated.paged_by == job_name else None
    return updated, Admission(False, len(others), others[-limit] + window, paged_at)
