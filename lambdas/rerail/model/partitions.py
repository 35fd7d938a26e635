"""Partitions of the index of open runs."""

from zlib import crc32

# Parts of the index of open runs; each run belongs to one by its id. Stored with the runs, so never change it.
PARTITIONS = 8


def find_partition(run_id: str) -> int:
    """Return the part of the index that a run belongs to."""
    return crc32(run_id.encode()) % PARTITIONS
