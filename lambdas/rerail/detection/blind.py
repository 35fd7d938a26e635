"""Detect missing metrics of a running job."""

from datetime import datetime

from rerail.model.finding import Finding, Kind, Level
from rerail.model.liveness import Liveness, Phase
from rerail.model.metrics import GAP_FACTOR, REGULAR_LOSSES, Cursor, MetricNames, find_resolution
from rerail.model.thresholds import Thresholds


def find_overdue(liveness: Liveness, now: datetime, detection: Thresholds, *, what: str = "metrics") -> Finding | None:
    """Return a warning if no metrics, or no `what`, arrive while steps are due; that alone stops no job."""
    if liveness.phase is Phase.CAPACITY or liveness.since is None:
        return None
    last_received = max(liveness.received_at, liveness.since) if liveness.received_at else liveness.since
    # Before the first row, the longer limit for the startup applies; startup_stall reports a missing first step.
    limit = detection.startup_limit if liveness.phase is Phase.STARTUP else detection.blind_after
    if now - last_received <= limit:
        return None
    text = f"no {what} for {(now - last_received).total_seconds():.0f} s while the job is training"
    return Finding(Kind.BLIND, Level.WARN, liveness.step, liveness.step, text, now, last_received)


def find_missing_loss(cursor: Cursor, names: MetricNames, detection: Thresholds, *, at: datetime) -> Finding | None:
    """Return a warning if steps arrive without a loss, and too few losses arrived to expect one in each minute.

    A job may log its loss seldom; so this stops no job.
    """
    silence, period = cursor.silence, find_resolution(names.period)
    missing = silence.minutes * period
    is_known = silence.loss_minutes >= REGULAR_LOSSES or silence.minutes <= GAP_FACTOR * silence.longest_wait
    if is_known or missing <= detection.blind_after:
        return None
    seconds = f"{missing.total_seconds():.0f} s"
    text = f"no {names.loss} for {seconds} while steps are made; it may be NaN, which CloudWatch does not store"
    return Finding(Kind.BLIND, Level.WARN, cursor.seen_step, silence.loss_step, text, at, at - missing)
