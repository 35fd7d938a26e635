"""Choose the snapshot from which restarted ranks continue, given the shares of each node: all of one, or none."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from rerail_agent.checkpoints.manifest import Manifest
from rerail_agent.checkpoints.snapshot_label import SnapshotLabel


@dataclass(frozen=True)
class KeptShare:
    """A share that a node reports to have."""

    node: int
    label: SnapshotLabel


@dataclass(frozen=True)
class SnapshotChoice:
    """One complete snapshot."""

    snapshot: str
    manifest: Manifest
    # For each rank's share the nodes that have it, its own or its neighbour.
    holders: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class ChoiceResult:
    """The chosen snapshot, if any, and why no newer one was chosen."""

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
    """Return the newest allowed snapshot whose shares all exist, and that is newer than any checkpoint.

    `newer_than` is the newest durable step. `damaged` names shares that turned out unreadable: node, rank, snapshot.
    Shares of different moments are never combined, because they have different names.
    """
    moments: dict[str, list[KeptShare]] = {}
    for share in kept:
        moments.setdefault(share.label.snapshot, []).append(share)
    reasons: list[str] = []
    for snapshot, those in sorted(moments.items(), key=lambda entry: -entry[1][0].label.manifest.step):
        readable = [share for share in those if (share.node, share.label.rank, snapshot) not in damaged]
        found = _whole(snapshot, readable, allowed, newer_than) if readable else "all of its shares are damaged"
        if isinstance(found, SnapshotChoice):
            return ChoiceResult(found, tuple(reasons))
        reasons.append(f"the snapshot of step {those[0].label.manifest.step} cannot be used: {found}")
    return ChoiceResult(None, tuple(reasons))


def _whole(
    snapshot: str, those: Sequence[KeptShare], allowed: Callable[[SnapshotLabel], bool], newer_than: int
) -> SnapshotChoice | str:
    """Return the choice, or why the snapshot cannot be chosen."""
    first_label = min(those, key=lambda share: share.label.rank).label  # rank 0's, which knows the health of the loss
    first = first_label.manifest
    if any(_identify_moment(share.label) != _identify_moment(first_label) for share in those):
        return "its shares are of different moments"
    holders: list[list[int]] = [[] for _ in range(first.world_size)]
    for share in those:
        if share.label.rank >= len(holders):
            return f"rank {share.label.rank} was not among its {first.world_size}"
        holders[share.label.rank].append(share.node)
    lacking = [str(rank) for rank, nodes in enumerate(holders) if not nodes]
    if lacking:
        return f"no node has the share of rank {', '.join(lacking[:8])}"
    if first.step <= newer_than:
        return f"the checkpoint of step {newer_than} is as new"
    if not allowed(first_label):
        return f"it is {first.health}, or newer than this attempt may resume from"
    return SnapshotChoice(snapshot, first, tuple(tuple(sorted(nodes)) for nodes in holders))


def _identify_moment(label: SnapshotLabel) -> tuple[str, int, int, int, int, str]:
    saved = label.manifest
    return saved.run, saved.attempt, saved.step, saved.consumed_samples, saved.world_size, label.orders
