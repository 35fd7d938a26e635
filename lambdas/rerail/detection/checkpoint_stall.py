"""Does a save take far longer than this run's saves do, or do they arrive no more?"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from rerail.model.finding import Finding, Kind, Level
from rerail.model.liveness import Liveness, Phase
from rerail.model.thresholds import Thresholds

SAVES_NEEDED = 3  # two intervals: one alone may be the odd one


def find_missing_checkpoint(
    saves: Sequence[datetime], now: datetime, detection: Thresholds, *, started_at: datetime | None = None
) -> Finding | None:
    """The next save should have come long ago, by the longest interval between the saves that there are.

    `started_at`: when the script last began; before that nobody could save."""
    times = sorted(saves)
    if len(times) < SAVES_NEEDED:
        return None
    longest = max(later - earlier for earlier, later in zip(times, times[1:], strict=False))
    limit = max(detection.save_floor, detection.save_factor * longest)
    if now - max(times[-1], started_at or times[-1]) <= limit:
        return None
    text = f"no checkpoint for {_format(now - times[-1])}, they came at most {_format(longest)} apart"
    return Finding(Kind.CHECKPOINT_STALL, Level.WARN, None, None, text, now, times[-1])


def _format(duration: timedelta) -> str:
    """Return the duration in minutes, or in seconds below two minutes."""
    seconds = duration.total_seconds()
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"


def find_overdue(pulse: Liveness, now: datetime, detection: Thresholds) -> Finding | None:
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
