"""Does a save take far longer than this run's saves do?"""

from datetime import datetime, timedelta

from rerail.detectors.detection import Detection
from rerail.detectors.finding import Finding, Kind, Level
from rerail.detectors.pulse import Phase, Pulse


def due(pulse: Pulse, now: datetime, detection: Detection) -> Finding | None:
    """A save is running beyond the floor and a multiple of the longest one; intervene when it doubles."""
    if pulse.phase is not Phase.SAVE or pulse.since is None:
        return None
    running = now - pulse.since
    limit = max(detection.save_floor, detection.stall_factor * timedelta(seconds=pulse.save_s))
    if running <= limit:
        return None
    level = Level.INTERVENE if running > 2 * limit else Level.WARN
    text = f"a save has been running for {running.total_seconds():.0f} s, limit {limit.total_seconds():.0f} s"
    return Finding(Kind.CHECKPOINT_STALL, level, pulse.step, pulse.step, text, now, pulse.since)
