"""How one round is shared out: which parts of the index of open runs another invocation of the sweep looks after.

One invocation reads part after part until it has enough to do, and hands on the parts that are left. A small fleet is
swept by one invocation, as if there were no parts."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar
from zlib import crc32

from rerail.model.errors import BadMessage

# Parts of the index of open runs: each run belongs to one, by its name. Stored with the runs, so never changed.
PARTITIONS = 8
# Runs after which an invocation reads no further part: with half a gigabyte Lambda gives a third of a core, and a
# minute of that is some 4,000 runs' worth (bench/scale.py).
ENOUGH = 1000
# A share that was asked for longer ago is worthless: the next one is there already.
FRESH_FOR = timedelta(minutes=1)
# Of parts that were handed on a report must have come within this time; it is a minute old at best.
HEARD_WITHIN = timedelta(minutes=3)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Shard:
    """What one more invocation is asked for: to sweep these parts of a fleet of some `fleet` open runs. `changed` are
    the marks of the jobs that SageMaker lists as changed lately, each with that of what it lists them as."""

    parts: tuple[int, ...]
    asked_at: datetime
    fleet: int
    changed: Mapping[int, int] = field(default_factory=dict)

    def is_stale(self, at: datetime) -> bool:
        """Whether it comes too late to be of use."""
        return at - self.asked_at > FRESH_FOR


class Shards(Protocol):
    """The way to other invocations of the sweep, and what they had to say."""

    def hand_on(self, share: Shard, *, to: str) -> None:
        """Have the function of that name sweep the share, and do not wait for it; raises CallFailed."""

    def keep(self, parts: Sequence[int], report: Any, *, at: datetime) -> None:
        """Store what was seen in these parts."""

    def reports(self) -> Mapping[tuple[int, ...], tuple[datetime, Any]]:
        """The last report of each share, by its parts, and when it was made."""


def partition_of(run_id: str) -> int:
    """The part of the index that an open run belongs to."""
    return crc32(run_id.encode()) % PARTITIONS


def hash_name(job_name: str, *status: str) -> int:
    """A job's name as a number, or with its status: ten thousand of them are one small message. Two names may share
    one, which costs a call to SageMaker."""
    return crc32(" ".join((job_name, *status)).encode())


def fan_out(*, runs: int, read: int, left: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """The parts that are left, in groups that are each enough for one invocation, where `runs` were found in the `read`
    parts so far."""
    each = max(1, ENOUGH * read // max(1, runs))
    for start in range(0, len(left), each):
        yield tuple(left[start : start + each])


def select_newest(
    reports: Mapping[tuple[int, ...], tuple[datetime, T]], parts: Iterable[int], *, at: datetime
) -> tuple[list[T], tuple[int, ...]]:
    """The newest reports about these parts, none of which is told of twice, and the parts of which none is heard."""
    found, wanted = [], set(parts)
    for told, (then, report) in sorted(reports.items(), key=lambda each: each[1][0], reverse=True):
        if told and wanted.issuperset(told) and at - then <= HEARD_WITHIN:
            wanted -= set(told)
            found.append(report)
    return found, tuple(sorted(wanted))


def as_event(share: Shard) -> dict[str, Any]:
    """The share as the event of an invocation."""
    asked = {"parts": share.parts, "asked_at": share.asked_at.isoformat(), "fleet": share.fleet}
    return {"share": {**asked, "changed": {str(name): status for name, status in share.changed.items()}}}


def read_shard(event: Mapping[str, Any]) -> Shard | None:
    """The share that the event asks for, None where it is the schedule's; raises BadMessage."""
    if "share" not in event:
        return None
    asked = event["share"]
    try:
        parts = tuple(int(part) for part in asked["parts"])
        changed = {int(name): int(status) for name, status in asked["changed"].items()}
        share = Shard(parts, datetime.fromisoformat(asked["asked_at"]), int(asked["fleet"]), changed)
        strange = share.asked_at.tzinfo is None or not set(parts) <= set(range(PARTITIONS))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadMessage(f"field 'share' cannot be read ({error!r}); only the sweep itself asks for one") from error
    if strange:
        raise BadMessage(f"field 'share' is {asked!r:.200}: a time with its zone, and parts from 0 to {PARTITIONS - 1}")
    return share
