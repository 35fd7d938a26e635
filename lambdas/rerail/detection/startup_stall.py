"""Detect an attempt whose first step is overdue."""

from datetime import datetime

from rerail.model.finding import Finding, Kind, Level
from rerail.model.liveness import Liveness, Phase
from rerail.model.thresholds import Thresholds


def find_overdue(liveness: Liveness, now: datetime, detection: Thresholds) -> Finding | None:
    """Return a finding if there is no first step within the limit.

    Intervene if the machines are idle, or at twice the limit.
    """
    if liveness.phase is not Phase.STARTUP or liveness.since is None:
        return None
    waited = now - liveness.since
    if waited <= detection.startup_limit:
        return None
    level = Level.INTERVENE if liveness.idle or waited > 2 * detection.startup_limit else Level.WARN
    text = f"no first step {waited.total_seconds():.0f} s after training began"
    return Finding(Kind.STARTUP_STALL, level, liveness.step, liveness.step, text, now, liveness.since)
