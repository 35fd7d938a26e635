"""Detect a long wait for machines."""

from datetime import datetime

from rerail.model.finding import Finding, Kind, Level
from rerail.model.liveness import Liveness, Phase
from rerail.model.thresholds import Thresholds


def find_overdue(liveness: Liveness, now: datetime, detection: Thresholds) -> Finding | None:
    """Return a warning if the wait is too long; never intervene, since a stopped job loses its place in the queue."""
    if (
        liveness.phase is not Phase.CAPACITY
        or liveness.since is None
        or now - liveness.since <= detection.capacity_wait_after
    ):
        return None
    text = f"waiting for machines for {(now - liveness.since).total_seconds() / 60:.0f} minutes"
    return Finding(Kind.CAPACITY_WAIT, Level.WARN, liveness.step, liveness.step, text, now, liveness.since)
