"""Plan a save once: which rank writes what, where it is in the file, and the index for readers."""

import io
import pickle
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.tensor import DTensor

from rerail_agent.checkpoints.file_format import align, make_frame, make_value_blob
from rerail_agent.checkpoints.rank_exchange import RankExchange
from rerail_agent.checkpoints.staging_memory import Arena
from rerail_agent.checkpoints.state_tree import Leaf, is_branch
from rerail_agent.checkpoints.write_shares import Piece, assign_pieces

PLAIN = (torch.Tensor, torch.nn.Parameter)

Spot = tuple[int, int]  # offset and length within a file


@dataclass
class PlannedPiece:
    """A piece that this rank stages: rows from `row` on of the tensor `number` of its leaf `leaf`."""

    leaf: int
    number: int
    row: int
    # None for all rows.
    rows: int | None
    dtype: torch.dtype
    sizes: tuple[int, ...]
    # Where its bytes begin in the file.
    payload: int
    spot: Spot
    copy: torch.Tensor = field(default_factory=lambda: torch.empty(0))


@dataclass
class SavePlan:
    """This rank's part of every save of a state of one structure."""

    structure: list[Any]
    parts: list[PlannedPiece]
    # Keys and leaves.
    values: list[tuple[str, int]]
    # Bytes of the file that hold tensors; the values follow.
    image: int
    frames: list[tuple[int, bytes]]
    file_name: str
    # The pieces of `parts`, in the same order.
    pieces: list[Piece] = field(default_factory=list)
    slots: dict[str, int] = field(default_factory=dict)
    remembered: dict[str, tuple[Any, bytes]] = field(default_factory=dict)

    @property
    def staged_bytes(self) -> int:
        """Return the bytes of tensors that this rank copies in a save."""
        return sum(part.copy.nbytes for part in self.parts)

    def lay_out(self, arena: Arena) -> None:
        """Write the frames into the arena, and stage each part between them."""
        for part, copy in zip(self.parts, self.holes(arena), strict=True):
            part.copy = copy

    def holes(self, arena: Arena) -> list[torch.Tensor]:
        """Write the frames into an arena; return the tensors between them, one for each part."""
        for offset, content in self.frames:
            arena.write(offset, content)
        return [arena.tensor(offset=part.payload, sizes=part.sizes, dtype=part.dtype) for part in self.parts]

    def fits(self, leaves: Sequence[Any]) -> bool:
        """Return whether the leaves of a state, in the order of flatten(), have the planned kinds and shapes."""
        return all(map(_has_structure, leaves, self.structure))

    def stage(self, leaves: Sequence[Any], into: Sequence[torch.Tensor] | None = None) -> None:
        """Copy this rank's parts into the arena, or into other tensors; return once the bytes are there."""
        sources = []
        for part in self.parts:
            source = get_local_tensors(leaves[part.leaf])[part.number]
            sources.append(source if part.rows is None else source.narrow(0, part.row, part.rows))
        copies = [part.copy for part in self.parts] if into is None else list(into)
        if not sources:
            return
        devices = {source.device for source in sources if source.device.type == "cuda"}
        for device in devices:
            torch.cuda.synchronize(device)  # another stream may still compute what is to be copied
        with torch.no_grad():
            torch._foreach_copy_(copies, sources, non_blocking=True)
        for device in devices:
            torch.cuda.synchronize(device)

    def make_value_blobs(self, leaves: Sequence[Any]) -> tuple[bytes, dict[str, Spot]]:
        """Return the plain values that this rank writes, and where each is in the file."""
        blobs, spots, offset = io.BytesIO(), {}, self.image
        for key, leaf in self.values:
            blob = self._blob(key, leaves[leaf])
            spots[key] = (offset, len(blob))
            blobs.write(blob)
            offset += len(blob)
        return blobs.getvalue(), spots

    def _blob(self, key: str, value: Any) -> bytes:
        is_simple = value is None or type(value) in (bool, int, float, str)
        if is_simple and key in self.remembered:
            before, blob = self.remembered[key]
            if type(before) is type(value) and before == value:
                return blob
        blob = make_value_blob(value, room=self.slots.get(key, 0))
        self.slots[key] = len(blob)
        if is_simple:
            self.remembered[key] = (value, blob)
        return blob


class FileIndex:
    """The layout of all files on rank 0: enough for `.metadata`, which is pickled once and used many times."""

    def __init__(self, shares: Sequence[Sequence[Piece]], paths: Mapping[str, Any], files: Sequence[Any]) -> None:
        self._shares = shares
        self._paths = dict(paths)
        self._files = files  # for each rank its file's name and the spots of its pieces of tensors
        self._values: list[dict[str, Spot]] = []
        self._pickled = b""

    def content(self, values: Sequence[dict[str, Spot]]) -> bytes:
        """Return the bytes of `.metadata`, given the positions of each rank's values, which rarely change.

        Pickling takes 20 microseconds a piece and holds the GIL, so it is not done in every save.
        """
        if not self._pickled or list(values) != self._values:
            self._values = list(values)
            self._pickled = pickle.dumps(self.metadata(values))
        return self._pickled

    def metadata(self, values: Sequence[dict[str, Spot]]) -> Metadata:
        """Return the index as readers use it."""
        described: dict[str, Any] = {}
        stored: dict[MetadataIndex, Any] = {}
        for pieces, (name, spots), own in zip(self._shares, self._files, values, strict=True):
            tensors = (piece for piece in pieces if piece.offsets is not None)
            for piece, (offset, length) in zip(tensors, spots, strict=True):
                empty = TensorStorageMetadata(TensorProperties(dtype=_dtype(piece.dtype)), torch.Size(piece.whole), [])
                known = described.setdefault(piece.key, empty)
                index = MetadataIndex(piece.key, piece.offsets, len(known.chunks))
                known.chunks.append(ChunkStorageMetadata(torch.Size(piece.offsets or ()), torch.Size(piece.sizes)))
                stored[index] = filesystem._StorageInfo(name, offset, length)
            for key, (offset, length) in own.items():
                described[key] = BytesStorageMetadata()
                stored[MetadataIndex(key)] = filesystem._StorageInfo(name, offset, length)
        metadata = Metadata(described, planner_data=self._paths, storage_data=stored, storage_meta=StorageMeta())
        if hasattr(filesystem, "CURRENT_DCP_VERSION"):
            metadata.version = filesystem.CURRENT_DCP_VERSION
        return metadata


def make_plan(leaves: Sequence[Leaf], exchange: RankExchange, *, file_name: str) -> tuple[SavePlan, FileIndex | None]:
    """Agree with the other ranks on who writes what; only rank 0 gets the index. Collective."""
    twice = [key for key, count in Counter(leaf.key for leaf in leaves).items() if count > 1]
    if twice:
        raise ValueError(f"{twice[0]}: two places of the state have this key; rename one of them")
    held = list_pieces(leaves)
    everything = exchange.gather((held, {leaf.key: leaf.path for leaf in leaves}))
    shares = assign_pieces([pieces for pieces, _ in everything]) if everything else None
    mine: list[Piece] = exchange.scatter(shares)
    plan = _lay_out(mine, held, leaves, file_name)
    files = exchange.gather((file_name, [part.spot for part in plan.parts]))
    if shares is None or everything is None or files is None:
        return plan, None
    paths = {key: path for _, those in reversed(everything) for key, path in those.items()}
    return plan, FileIndex(shares, paths, files)


def _lay_out(mine: Iterable[Piece], held: Iterable[Piece], leaves: Sequence[Leaf], file_name: str) -> SavePlan:
    origins = {(piece.key, piece.offsets): (piece.number, piece.sizes) for piece in held}
    places = {leaf.key: place for place, leaf in enumerate(leaves)}
    plan = SavePlan([_describe_structure(leaf.value) for leaf in leaves], [], [], 0, [], file_name)
    for piece in mine:
        if piece.offsets is None:
            plan.values.append((piece.key, places[piece.key]))
            continue
        origin = (piece.offsets[0] - piece.row, *piece.offsets[1:]) if piece.offsets else ()
        number, sizes = origins[piece.key, origin]
        dtype = _dtype(piece.dtype)
        around = make_frame(dtype, piece.sizes)
        start = align(plan.image)
        payload = start + len(around.before)
        end = payload + piece.bytes + len(around.after)
        rows = None if piece.sizes == sizes else piece.sizes[0]
        spot = (start, end - start)
        plan.parts.append(PlannedPiece(places[piece.key], number, piece.row, rows, dtype, piece.sizes, payload, spot))
        plan.pieces.append(piece)
        plan.frames += [(start, around.before), (payload + piece.bytes, around.after)]
        plan.image = end
    return plan


def list_pieces(leaves: Sequence[Leaf]) -> list[Piece]:
    """Return what this rank could write: each tensor that it holds, or its part of it, and each value."""
    return [piece for leaf in leaves for piece in (_boxes(leaf) if leaf.is_tensor else (Piece(leaf.key, None),))]


def _boxes(leaf: Leaf) -> Iterable[Piece]:
    whole = tuple(leaf.value.shape)
    for number, (offsets, tensor) in enumerate(zip(_offsets(leaf), get_local_tensors(leaf.value), strict=True)):
        if tensor.layout != torch.strided or tensor.is_quantized:
            raise TypeError(f"{leaf.key}: a {tensor.layout} tensor of {tensor.dtype} cannot be saved; densify it first")
        if tensor.numel() == 0 and 0 not in whole:
            continue  # an uneven split that leaves this rank without a row
        sizes = tuple(tensor.shape)
        yield Piece(leaf.key, offsets, sizes, whole, _name(tensor.dtype), tensor.nbytes, number=number)


def _offsets(leaf: Leaf) -> list[tuple[int, ...]]:
    value = leaf.value
    if isinstance(value, DTensor):
        if value.device_mesh.get_coordinate() is None:
            return []
        if any(placement.is_partial() for placement in value.placements):
            raise TypeError(f"{leaf.key}: a DTensor with partial sums cannot be saved; redistribute it first")
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

        _, offsets = compute_local_shape_and_global_offset(value.shape, value.device_mesh, value.placements)
        return [tuple(int(offset) for offset in offsets)]
    if hasattr(value, "local_shards"):
        return [tuple(shard.metadata.shard_offsets) for shard in value.local_shards()]
    return [(0,) * value.dim()]


def get_local_tensors(value: torch.Tensor) -> list[torch.Tensor]:
    """Return what this rank holds of a tensor: itself, or the local part of a DTensor or a ShardedTensor."""
    if type(value) in PLAIN:
        return [value]
    if isinstance(value, DTensor):
        # Not to_local(), which is an autograd function and takes 20 microseconds.
        return [] if value.device_mesh.get_coordinate() is None else [value._local_tensor]
    if hasattr(value, "local_shards"):
        return [shard.tensor for shard in value.local_shards()]
    return [value]


def _describe_structure(value: Any) -> Any:
    """Return what must stay the same of a leaf for a plan to be valid; None for a plain value."""
    if not isinstance(value, torch.Tensor):
        return None
    return [(tensor.dtype, tensor.shape) for tensor in get_local_tensors(value)]


def _has_structure(value: Any, likeness: Any) -> bool:
    if type(value) in PLAIN:
        return bool(likeness == [(value.dtype, value.shape)])
    if likeness is None:
        return not isinstance(value, torch.Tensor) and not is_branch(value)
    return isinstance(value, torch.Tensor) and bool(likeness == _describe_structure(value))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype
