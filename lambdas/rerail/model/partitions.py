"""Spread runs evenly: over the index of open runs, and over time."""

from datetime import datetime, timedelta
from zlib import crc32

# Parts of the index of open runs; each run belongs to one by its id. Stored with the runs, so never change it.
PARTITIONS = 8


def find_partition(run_id: str) -> int:
    """Return the part of the index that a run belongs to."""
    return crc32(run_id.encode()) % PARTITIONS


def is_turn(run_id: str, at: datetime, *, every: int, period: timedelta = timedelta(minutes=1)) -> bool:
    """Return whether this period is the run's: each run has one of `every` periods."""
    return (int(at.timestamp() / period.total_seconds()) + crc32(run_id.encode())) % every == 0
