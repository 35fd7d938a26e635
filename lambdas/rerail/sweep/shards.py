"""Distribute a sweep over several invocations, each of which sweeps a shard of the index of open runs.

An invocation reads part after part until it has enough runs, and hands on the remaining parts. One invocation sweeps a
small fleet alone.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar
from zlib import crc32

from rerail.model.errors import BadMessage
from rerail.model.partitions import PARTITIONS

# Runs after which an invocation reads no further part: with half a gigabyte Lambda gives a third of a core, and a
# minute of that is some 4,000 runs' worth (bench/scale.py).
ENOUGH = 1000
# A shard that was requested longer ago is dropped: the next sweep has begun.
SHARD_TTL = timedelta(minutes=1)
# Reports about handed-on parts are valid for this long; the newest is a minute old at best.
REPORT_TTL = timedelta(minutes=3)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Shard:
    """The parts that another invocation is to sweep."""

    parts: tuple[int, ...]
    asked_at: datetime
    fleet: int  # approximate number of open runs in the whole fleet
    # Jobs that SageMaker lists as recently changed: hash of the name -> hash of name and status.
    changed: Mapping[int, int] = field(default_factory=dict)

    def is_stale(self, at: datetime) -> bool:
        """Return whether the shard was requested too long ago to be of use."""
        return at - self.asked_at > SHARD_TTL


class Shards(Protocol):
    """The port to other invocations of the sweep, and to their reports."""

    def hand_on(self, share: Shard, *, to: str) -> None:
        """Invoke the named function asynchronously for the shard; raises CallFailed."""

    def keep(self, parts: Sequence[int], report: Any, *, at: datetime) -> None:
        """Store the report on these parts."""

    def reports(self) -> Mapping[tuple[int, ...], tuple[datetime, Any]]:
        """Return the last report of each shard by its parts, with its time."""


def hash_name(job_name: str, *status: str) -> int:
    """Return a job's name, with or without its status, as a 32-bit number, so that thousands fit into one event.

    A collision only costs one more call to SageMaker.
    """
    return crc32(" ".join((job_name, *status)).encode())


def fan_out(*, runs: int, read: int, left: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield groups of the remaining parts, each enough for one invocation, given `runs` in the `read` parts so far."""
    group_size = max(1, ENOUGH * read // max(1, runs))
    for start in range(0, len(left), group_size):
        yield tuple(left[start : start + group_size])


def select_newest(
    reports: Mapping[tuple[int, ...], tuple[datetime, T]], parts: Iterable[int], *, at: datetime
) -> tuple[list[T], tuple[int, ...]]:
    """Return the newest valid reports about these parts, without overlaps, and the parts without a report."""
    selected, missing = [], set(parts)
    for covered, (made_at, report) in sorted(reports.items(), key=lambda item: item[1][0], reverse=True):
        if covered and missing.issuperset(covered) and at - made_at <= REPORT_TTL:
            missing -= set(covered)
            selected.append(report)
    return selected, tuple(sorted(missing))


def format_event(share: Shard) -> dict[str, Any]:
    """Return the shard as the event of an invocation."""
    fields = {"parts": share.parts, "asked_at": share.asked_at.isoformat(), "fleet": share.fleet}
    return {"share": {**fields, "changed": {str(name): status for name, status in share.changed.items()}}}


def read_shard(event: Mapping[str, Any]) -> Shard | None:
    """Return the shard that the event requests, or None for the schedule's own event; raises BadMessage."""
    if "share" not in event:
        return None
    fields = event["share"]
    try:
        parts = tuple(int(part) for part in fields["parts"])
        changed = {int(name): int(status) for name, status in fields["changed"].items()}
        share = Shard(parts, datetime.fromisoformat(fields["asked_at"]), int(fields["fleet"]), changed)
        is_invalid = share.asked_at.tzinfo is None or not set(parts) <= set(range(PARTITIONS))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadMessage(f"field 'share' cannot be read ({error!r}); only the sweep itself asks for one") from error
    if is_invalid:
        raise BadMessage(
            f"field 'share' is {fields!r:.200}: a time with its zone, and parts from 0 to {PARTITIONS - 1}"
        )
    return share
