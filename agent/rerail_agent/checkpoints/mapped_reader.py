"""Read shares of a snapshot from memory, as torch.distributed.checkpoint reads a checkpoint's files."""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.futures import Future

from rerail_agent.checkpoints.plan import FileIndex, SavePlan, Spot
from rerail_agent.checkpoints.write_shares import Piece


@dataclass(frozen=True)
class PiecePosition:
    """The position of a piece's bytes within a share, with their shape and type."""

    at: int
    sizes: tuple[int, ...]
    dtype: torch.dtype


def describe_contents(plan: SavePlan) -> str:
    """Return the positions of all pieces in a share that is staged by a plan, as the beginning of a JSON text."""
    pieces = [
        [piece.key, piece.offsets, piece.sizes, piece.whole, piece.dtype, *part.spot, part.payload]
        for piece, part in zip(plan.pieces, plan.parts, strict=True)
    ]
    return json.dumps({"file": plan.file_name, "pieces": pieces})[:-1]


def add_values(contents: str, spots: Mapping[str, Spot]) -> bytes:
    """Return the whole text, with the positions of the plain values."""
    return f'{contents}, "values": {json.dumps(spots)}}}'.encode()


@dataclass(frozen=True)
class SnapshotIndex:
    """All shares of one snapshot together: the index that readers know, and the position of each piece."""

    metadata: Metadata
    holes: Mapping[tuple[str, tuple[int, ...]], PiecePosition]
    # The rank whose share a file's name stands for.
    ranks: Mapping[str, int]

    @classmethod
    def of(cls, contents: Sequence[bytes]) -> "SnapshotIndex":
        """Make the index from the contents of each share, in the order of the ranks."""
        tables = [json.loads(text) for text in contents]
        shares: list[list[Piece]] = []
        files: list[tuple[str, list[Spot]]] = []
        holes: dict[tuple[str, tuple[int, ...]], PiecePosition] = {}
        for table in tables:
            pieces, spots = [], []
            for key, offsets, sizes, whole, dtype, start, length, payload in table["pieces"]:
                piece = Piece(key, tuple(offsets), tuple(sizes), tuple(whole), dtype)
                holes[key, tuple(offsets)] = PiecePosition(payload, piece.sizes, getattr(torch, dtype))
                pieces.append(piece)
                spots.append((start, length))
            shares.append(pieces)
            files.append((table["file"], spots))
        values = [{key: (spot[0], spot[1]) for key, spot in table["values"].items()} for table in tables]
        metadata = FileIndex(shares, {}, files).metadata(values)
        return cls(metadata, holes, {name: rank for rank, (name, _) in enumerate(files)})


class ShareSurvey:
    """A reader that reads no bytes, and records whose shares a load would read."""

    def __init__(self, catalogue: SnapshotIndex) -> None:
        self.catalogue = catalogue
        self.ranks: set[int] = set()

    def read_metadata(self) -> Metadata:
        return self.catalogue.metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool) -> None:
        """Do nothing: no storage is needed."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        self.ranks |= {self.find_rank(item) for item in plan.items}
        return _done()

    def find_rank(self, item: ReadItem) -> int:
        return self.catalogue.ranks[self.catalogue.metadata.storage_data[item.storage_index].relative_path]


class MappedReader(ShareSurvey):
    """Read from shares that are mapped into this process, with one copy from there into the state."""

    def __init__(self, catalogue: SnapshotIndex, memory: Mapping[int, memoryview]) -> None:
        super().__init__(catalogue)
        self.memory = memory

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        for item in plan.items:
            memory = self.memory[self.find_rank(item)]
            if item.type == LoadItemType.BYTE_IO:
                spot = self.catalogue.metadata.storage_data[item.storage_index]
                planner.load_bytes(item, io.BytesIO(memory[spot.offset : spot.offset + spot.length]))
            else:
                self._copy(item, memory, planner)
        return _done()

    def _copy(self, item: ReadItem, memory: memoryview, planner: LoadPlanner) -> None:
        where = tuple(item.storage_index.offset or ())
        hole = self.catalogue.holes[item.storage_index.fqn, where]
        source = _tensor(memory, hole)
        for dimension, (start, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
            source = source.narrow(dimension, start, length)
        target = planner.resolve_tensor(item).detach()
        target.copy_(source)
        planner.commit_tensor(item, target)


def _tensor(memory: Any, hole: PiecePosition) -> torch.Tensor:
    count = torch.Size(hole.sizes).numel()
    if count == 0:
        return torch.empty(hole.sizes, dtype=hole.dtype)
    width = torch.empty((), dtype=hole.dtype).element_size()
    flat = torch.frombuffer(memory, dtype=torch.uint8, offset=hole.at, count=count * width)
    return flat.view(hole.dtype).view(hole.sizes)


def _done() -> Future[None]:
    future: Future[None] = Future()
    future.set_result(None)
    return future
