"""Choose the runs whose metrics are read this minute: each series that is read costs money."""

from datetime import datetime, timedelta
from zlib import crc32

from rerail.detection.detectors import DetectorState, find_overdue
from rerail.model.liveness import Phase
from rerail.model.metrics import Cursor, MetricNames
from rerail.model.thresholds import Thresholds

MINUTE = timedelta(minutes=1)
# Metrics of a run in which nothing is wrong are read together, once in so many minutes.
QUIET_MINUTES = 6


def is_minute_of(run_id: str, at: datetime, *, every: int) -> bool:
    """Return whether this is the run's minute of every `every` minutes; runs are spread evenly over them."""
    return (int(at.timestamp() / 60) + crc32(run_id.encode())) % every == 0


def is_reading_due(run_id: str, at: datetime, *, read_at: datetime | None, is_quiet: bool) -> bool:
    """Return whether the run's metrics are read now; `read_at` is when they were read last."""
    if read_at is None or not is_quiet:
        return True
    # A sweep that was missed is made up for in the next minute.
    return is_minute_of(run_id, at, every=QUIET_MINUTES) or at - read_at > QUIET_MINUTES * MINUTE


def is_quiet(
    names: MetricNames, cursor: Cursor, state: DetectorState, detection: Thresholds, *, read_at: datetime
) -> bool:
    """Return whether at the last reading the run made steps, published its loss, and nothing was about to be overdue.

    A policy that asks for details or for another period than a minute has its metrics read as soon as they exist.
    """
    is_default = not names.detailed and names.period == MINUTE
    is_training = cursor.read_to is not None and state.liveness.phase not in (Phase.CAPACITY, Phase.STARTUP)
    is_complete = cursor.silence.minutes == 0 and state.detectors.throughput_drop.slow == 0
    return is_default and is_training and is_complete and not find_overdue(state, read_at + MINUTE, detection)
