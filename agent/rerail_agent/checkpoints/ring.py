"""Decide which node holds a copy of whose shares, and which snapshot the next one may replace."""

from collections.abc import Sequence
from dataclasses import dataclass

# Snapshots in a row that could not be held completely, until no more are taken.
MAX_FAILURES = 3


@dataclass(frozen=True)
class Ring:
    """The ranks of each node, in the order of their lowest ranks; each node holds a copy for the one before it."""

    nodes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, names: Sequence[str]) -> "Ring":
        """Make the ring from the node name of each rank."""
        groups: dict[str, list[int]] = {}
        for rank, name in enumerate(names):
            groups.setdefault(name, []).append(rank)
        return cls(tuple(tuple(ranks) for ranks in groups.values()))

    def find_node(self, rank: int) -> int:
        return next(number for number, ranks in enumerate(self.nodes) if rank in ranks)

    def find_neighbour(self, node: int) -> int | None:
        """Return the node that holds a copy of this one's shares; None for a single node."""
        return (node + 1) % len(self.nodes) if len(self.nodes) > 1 else None

    def list_kept_ranks(self, node: int) -> tuple[int, ...]:
        """Return the ranks whose shares this node has: its own, and those of the node before it."""
        if len(self.nodes) == 1:
            return self.nodes[0]
        return tuple(sorted({*self.nodes[node], *self.nodes[node - 1]}))


@dataclass(frozen=True)
class SnapshotMove:
    """The decision of all ranks when a snapshot is due: take it without replacing `keep`, or skip it.

    Rank 0 makes a move each time that one is due, and all ranks follow the same moves in the same order. If each acted
    on its own knowledge, one could overwrite the only snapshot that another still has.
    """

    takes: bool
    # The newest snapshot that is complete everywhere; the new one replaces another one.
    keep: str = ""
    # Whether no more will be taken.
    is_last: bool = False


@dataclass
class SnapshotHistory:
    """The snapshots that rank 0 has been told about; used once for each move."""

    keep: str = ""
    failures: int = 0

    @property
    def has_given_up(self) -> bool:
        return self.failures >= MAX_FAILURES

    def advance(self, snapshot: str, *, held: bool, clean: bool) -> SnapshotMove:
        """Return the move after a snapshot, which is kept if all ranks and neighbours hold it and it is clean."""
        self.failures = 0 if held else self.failures + 1
        if held and clean:
            self.keep = snapshot
        return SnapshotMove(takes=not self.has_given_up, keep=self.keep, is_last=self.has_given_up)


def choose_slot(keep: str, slots: Sequence[str]) -> int:
    """Return the slot for the next snapshot, given the content of each: never the slot of the kept one."""
    return next(number for number, there in enumerate(slots) if not keep or there != keep)
