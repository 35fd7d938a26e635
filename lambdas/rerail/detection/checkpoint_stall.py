"""Detect checkpoints that take far longer than usual, or that no longer arrive."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from rerail.model.finding import Finding, Kind, Level
from rerail.model.liveness import Liveness, Phase
from rerail.model.thresholds import Thresholds

MIN_CHECKPOINTS = 3  # two intervals, because a single one may be unusual


def find_missing_checkpoint(
    saves: Sequence[datetime], now: datetime, detection: Thresholds, *, started_at: datetime | None = None
) -> Finding | None:
    """Return a warning if the next checkpoint is long overdue by the longest interval between the existing ones.

    `saves` are the times of the checkpoints. Time before `started_at`, the last start of the script, does not count.
    """
    times = sorted(saves)
    if len(times) < MIN_CHECKPOINTS:
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


def find_overdue(liveness: Liveness, now: datetime, detection: Thresholds) -> Finding | None:
    """Return a finding if a checkpoint takes longer than the limit, and intervene at twice the limit."""
    if liveness.phase is not Phase.SAVE or liveness.since is None:
        return None
    running = now - liveness.since
    limit = max(detection.save_floor, detection.stall_factor * timedelta(seconds=liveness.save_s))
    if running <= limit:
        return None
    level = Level.INTERVENE if running > 2 * limit else Level.WARN
    text = f"a checkpoint has been running for {running.total_seconds():.0f} s, limit {limit.total_seconds():.0f} s"
    return Finding(Kind.CHECKPOINT_STALL, level, liveness.step, liveness.step, text, now, liveness.since)
