"""Decides which snapshot ranks that start again go on from, given what each node still has: all of one, or none."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from rerail_agent.checkpoints.manifest import Manifest
from rerail_agent.checkpoints.snapshot_label import SnapshotLabel


@dataclass(frozen=True)
class KeptShare:
    """A share that a node says it has."""

    node: int
    label: SnapshotLabel


@dataclass(frozen=True)
class SnapshotChoice:
    """One snapshot, whole: for each rank's share the nodes that have it, its own or its neighbour."""

    snapshot: str
    manifest: Manifest
    holders: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class ChoiceResult:
    """What can be taken up, if anything, and why nothing newer."""

    choice: SnapshotChoice | None
    reasons: tuple[str, ...] = ()

    @property
    def reason(self) -> str:
        return "; ".join(self.reasons) or "no node has kept anything"


def choose_snapshot(
    kept: Iterable[KeptShare],
    *,
    allowed: Callable[[SnapshotLabel], bool],
    newer_than: int,
    damaged: Collection[tuple[int, int, str]] = (),
) -> ChoiceResult:
    """The newest snapshot of which every rank's share is somewhere, that may be used, and that no checkpoint equals.

    `newer_than` is the newest durable step; `damaged` names shares that turned out unreadable: node, rank, snapshot.
    Shares of different moments are never put together, for they have different names.
    """
    moments: dict[str, list[KeptShare]] = {}
    for each in kept:
        moments.setdefault(each.label.snapshot, []).append(each)
    reasons: list[str] = []
    for snapshot, those in sorted(moments.items(), key=lambda entry: -entry[1][0].label.manifest.step):
        readable = [each for each in those if (each.node, each.label.rank, snapshot) not in damaged]
        found = _whole(snapshot, readable, allowed, newer_than) if readable else "all of its shares are damaged"
        if isinstance(found, SnapshotChoice):
            return ChoiceResult(found, tuple(reasons))
        reasons.append(f"the snapshot of step {those[0].label.manifest.step} cannot be used: {found}")
    return ChoiceResult(None, tuple(reasons))


def _whole(
    snapshot: str, those: Sequence[KeptShare], allowed: Callable[[SnapshotLabel], bool], newer_than: int
) -> SnapshotChoice | str:
    """The choice, or why it is none."""
    told = min(those, key=lambda each: each.label.rank).label  # rank 0's, which knows how the loss was
    first = told.manifest
    if any(_moment(each.label) != _moment(told) for each in those):
        return "its shares are of different moments"
    holders: list[list[int]] = [[] for _ in range(first.world_size)]
    for each in those:
        if each.label.rank >= len(holders):
            return f"rank {each.label.rank} was not among its {first.world_size}"
        holders[each.label.rank].append(each.node)
    lacking = [str(rank) for rank, nodes in enumerate(holders) if not nodes]
    if lacking:
        return f"nobody has the share of rank {', '.join(lacking[:8])}"
    if first.step <= newer_than:
        return f"the checkpoint of step {newer_than} is as new"
    if not allowed(told):
        return f"it is {first.health}, or newer than this attempt may resume from"
    return SnapshotChoice(snapshot, first, tuple(tuple(sorted(nodes)) for nodes in holders))


def _moment(label: SnapshotLabel) -> tuple[str, int, int, int, int, str]:
    saved = label.manifest
    return saved.run, saved.attempt, saved.step, saved.consumed_samples, saved.world_size, label.orders
