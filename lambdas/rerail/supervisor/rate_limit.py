"""The account's brake: whether one more relaunch may go ahead, of all that there were in the last while."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

KEPT_FOR = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Launches:
    """The account's newest relaunches by job name; on-call was last paged at `paged_at`, by the launch `paged_by`."""

    at: Mapping[str, datetime] = field(default_factory=dict)
    paged_by: str = ""
    paged_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Admission:
    """The brake's answer: the launch may go ahead, or waits `until` then; `count` are the relaunches in the window.

    `paged_at` is given to the one launch that has on-call paged, the same each time that it asks."""

    granted: bool
    count: int
    until: datetime
    paged_at: datetime | None = None


def admit(
    launches: Launches, job_name: str, *, at: datetime, limit: int, window: timedelta
) -> tuple[Launches, Admission]:
    """Ask for one launch; 0 is no limit. A job that asks again is counted once, at the time when it asked last: no job
    is ever made later than it is counted."""
    kept = {name: then for name, then in launches.at.items() if at - then < max(window, KEPT_FOR)}
    others = sorted(then for name, then in kept.items() if name != job_name and at - then < window)
    if not limit or len(others) < limit:
        return replace(launches, at={**kept, job_name: at}), Admission(True, len(others) + 1, at)
    after = replace(launches, at=kept)
    if launches.paged_at is None or at - launches.paged_at >= window:
        after = replace(after, paged_by=job_name, paged_at=at)
    paged_at = after.paged_at if after.paged_by == job_name else None
    return after, Admission(False, len(others), others[-limit] + window, paged_at)
