"""Detect an attempt whose first step is overdue."""

from datetime import datetime

from rerail.model.finding import Finding, Kind, Level
from rerail.model.liveness import Liveness, Phase
from rerail.model.thresholds import Thresholds


def find_overdue(pulse: Liveness, now: datetime, detection: Thresholds) -> Finding | None:
    """Return a finding if there is no first step within the limit.

    Intervene if the machines are idle, or at twice the limit.
    """
    if pulse.phase is not Phase.STARTUP or pulse.since is None:
        return None
    waited = now - pulse.since
    if waited <= detection.startup_limit:
        return None
    level = Level.INTERVENE if pulse.idle or waited > 2 * detection.startup_limit else Level.WARN
    text = f"no first step {waited.total_seconds():.0f} s after training began"
    return Finding(Kind.STARTUP_STALL, level, pulse.step, pulse.step, text, now, pulse.since)
