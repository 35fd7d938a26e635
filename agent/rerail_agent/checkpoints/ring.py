"""Decides who keeps whose shares of a snapshot, and which snapshot the next one may take the place of."""

from collections.abc import Sequence
from dataclasses import dataclass

PATIENCE = 3  # snapshots in a row that nobody could keep whole, until no more are taken


@dataclass(frozen=True)
class Ring:
    """The ranks of each node, in the order of their lowest ranks; each node keeps a copy for the one before it."""

    nodes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, names: Sequence[str]) -> "Ring":
        """From what each rank calls its node."""
        groups: dict[str, list[int]] = {}
        for rank, name in enumerate(names):
            groups.setdefault(name, []).append(rank)
        return cls(tuple(tuple(ranks) for ranks in groups.values()))

    def node_of(self, rank: int) -> int:
        return next(number for number, ranks in enumerate(self.nodes) if rank in ranks)

    def neighbour(self, node: int) -> int | None:
        """The node that keeps a copy of this one's shares; None for a node that is alone."""
        return (node + 1) % len(self.nodes) if len(self.nodes) > 1 else None

    def kept_by(self, node: int) -> tuple[int, ...]:
        """The ranks whose shares this node has: its own, and those of the node before it."""
        if len(self.nodes) == 1:
            return self.nodes[0]
        return tuple(sorted({*self.nodes[node], *self.nodes[node - 1]}))


@dataclass(frozen=True)
class SnapshotMove:
    """What all ranks do when a snapshot is due: take it and spare `keep` meanwhile, or pass it over.

    Rank 0 makes a move for each time that one is due, and all ranks follow the same moves in the same order. Were each
    to act on what it knows itself, one would write over the only snapshot that another still has.
    """

    takes: bool
    keep: str = ""  # the newest snapshot that is whole everywhere; what is taken goes where another one lies
    is_last: bool = False  # no more will be taken


@dataclass
class SnapshotRounds:
    """What rank 0 knows of the snapshots so far; asked once for each move."""

    keep: str = ""
    failures: int = 0

    @property
    def are_over(self) -> bool:
        return self.failures >= PATIENCE

    def ended(self, snapshot: str, *, held: bool, clean: bool) -> SnapshotMove:
        """The move after a snapshot: spared from now on if every rank and every neighbour hold it, and it is clean."""
        self.failures = 0 if held else self.failures + 1
        if held and clean:
            self.keep = snapshot
        return SnapshotMove(takes=not self.are_over, keep=self.keep, is_last=self.are_over)


def choose_slot(keep: str, slots: Sequence[str]) -> int:
    """Which of a rank's slots the next snapshot goes to, given what lies in each: never where the spared one lies."""
    return next(number for number, there in enumerate(slots) if not keep or there != keep)
