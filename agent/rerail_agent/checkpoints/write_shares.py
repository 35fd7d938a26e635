"""Decide which rank writes which part of a state, so that each part is staged once and all ranks stage alike."""

import heapq
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

# A tensor that every rank holds is cut into rows when it has more bytes than this part of one rank's share ...
PIECES_PER_SHARE = 8
# ... but never into pieces smaller than this: each costs a thousand bytes of file and a line in the index.
SMALLEST_PIECE = 1 << 20


@dataclass(frozen=True)
class Piece:
    """A block of a tensor that a rank holds (`offsets` and `sizes` within the whole), or a value: offsets None."""

    key: str
    offsets: tuple[int, ...] | None
    sizes: tuple[int, ...] = ()
    whole: tuple[int, ...] = ()
    dtype: str = ""
    bytes: int = 0
    # Where the block begins within the rank's tensor, along the first dimension.
    row: int = 0
    # Which of the rank's tensors under this key; nearly always the only one.
    number: int = 0

    @property
    def is_value(self) -> bool:
        return self.offsets is None


def assign_pieces(held: Sequence[Iterable[Piece]]) -> list[list[Piece]]:
    """Return what each rank writes: every piece once, by a rank that has it, with equal numbers of bytes.

    Values go to the lowest rank that has them. The result is the same on every machine: no clock, hash or random number
    is used.
    """
    holders: dict[tuple[str, tuple[int, ...] | None, tuple[int, ...]], list[int]] = {}
    pieces: dict[tuple[str, tuple[int, ...] | None, tuple[int, ...]], Piece] = {}
    for rank, those in enumerate(held):
        for piece in those:
            where = (piece.key, piece.offsets, piece.sizes)
            holders.setdefault(where, []).append(rank)
            pieces.setdefault(where, piece)
    shares: list[list[Piece]] = [[] for _ in held]
    loads = [0] * len(held)
    free: list[tuple[Piece, list[int]]] = []
    for where, piece in pieces.items():
        ranks = holders[where]
        if piece.is_value or len(ranks) == 1:
            shares[ranks[0]].append(piece)
            loads[ranks[0]] += piece.bytes
        else:
            free.append((piece, ranks))
    _balance(free, shares, loads)
    return shares


def _balance(free: list[tuple[Piece, list[int]]], shares: list[list[Piece]], loads: list[int]) -> None:
    """Assign the pieces that several ranks hold, the largest first, each to the least loaded of its holders."""
    total = sum(loads) + sum(piece.bytes for piece, _ in free)
    most = max(SMALLEST_PIECE, total // (PIECES_PER_SHARE * len(shares)))
    cut = [(part, tuple(ranks)) for piece, ranks in free for part in cut_rows(piece, most=most)]
    cut.sort(key=lambda entry: (-entry[0].bytes, entry[0].key, entry[0].offsets))
    queues: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for part, ranks in cut:
        queue = queues.setdefault(ranks, [(loads[rank], rank) for rank in ranks])
        while True:
            load, rank = heapq.heappop(queue)
            if load == loads[rank]:
                break
            heapq.heappush(queue, (loads[rank], rank))  # another group of holders has given it something since
        shares[rank].append(part)
        loads[rank] += part.bytes
        heapq.heappush(queue, (loads[rank], rank))


def cut_rows(piece: Piece, *, most: int) -> Iterator[Piece]:
    """Yield the piece in blocks of rows of about equal size, at most `most` bytes each if its rows allow that."""
    if piece.offsets is None or piece.bytes <= most or not piece.sizes or piece.sizes[0] < 2:
        yield piece
        return
    rows = piece.sizes[0]
    per_row = piece.bytes // rows
    blocks = min(rows, math.ceil(piece.bytes / most))
    bounds = [rows * number // blocks for number in range(blocks + 1)]
    for first, last in zip(bounds, bounds[1:], strict=False):
        yield replace(
            piece,
            offsets=(piece.offsets[0] + first, *piece.offsets[1:]),
            sizes=(last - first, *piece.sizes[1:]),
            bytes=per_row * (last - first),
            row=piece.row + first,
        )
