"""Detect missing metrics of a running job."""

from datetime import datetime

from rerail.model.finding import Finding, Kind, Level
from rerail.model.liveness import Liveness, Phase
from rerail.model.thresholds import Thresholds


def find_overdue(pulse: Liveness, now: datetime, detection: Thresholds) -> Finding | None:
    """Return a warning if no metrics arrive while steps are due; that alone is no reason to stop a job."""
    if pulse.phase is Phase.CAPACITY or pulse.since is None:
        return None
    heard = max(pulse.received_at, pulse.since) if pulse.received_at else pulse.since
    # Before the first row, the longer limit for the startup applies; startup_stall reports a missing first step.
    limit = detection.startup_limit if pulse.phase is Phase.STARTUP else detection.blind_after
    if now - heard <= limit:
        return None
    text = f"no metrics for {(now - heard).total_seconds():.0f} s while the job is training"
    return Finding(Kind.BLIND, Level.WARN, pulse.step, pulse.step, text, now, heard)
