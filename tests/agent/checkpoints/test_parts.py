"""The parts that decide, without a disk or a process: keys, shares, frames, retention, manifests."""

import io
import json
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch.distributed.checkpoint._nested_dict import flatten_state_dict

from rerail.model.checkpoints import Health, read_manifest
from rerail_agent.checkpoints.file_format import ALIGNMENT, make_frame, make_value_blob
from rerail_agent.checkpoints.manifest import DamagedCheckpoint, dump, parse
from rerail_agent.checkpoints.retention import KeptCheckpoint, choose_deletable
from rerail_agent.checkpoints.staging_memory import Arena
from rerail_agent.checkpoints.state_tree import Tree, flatten
from rerail_agent.checkpoints.write_shares import SMALLEST_PIECE, Piece, assign_pieces
from tests.agent.checkpoints.ranks import manifest, same, state
from tests.examples import count_examples

DTYPES = [getattr(torch, name) for name in ("float32", "bfloat16", "float16", "int64", "uint8", "bool", "complex64")]
DTYPES += [torch.float64, torch.float8_e4m3fn]

leaf_values = st.one_of(st.none(), st.integers(), st.text(max_size=3), st.just(torch.zeros(2)), st.just((1, 2)))
nested = st.recursive(
    leaf_values,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=3),
    max_leaves=12,
)


@settings(max_examples=count_examples(100), deadline=None)
@given(st.dictionaries(st.sampled_from("wxyz"), nested, max_size=4))
def test_the_keys_are_those_of_torch(tree: dict[str, Any]) -> None:
    """Any reader of torch.distributed.checkpoint looks for what it would have called a leaf itself."""
    theirs, paths = flatten_state_dict(tree)
    ours = flatten(tree)
    assert [leaf.key for leaf in ours] == list(theirs)
    assert [leaf.path for leaf in ours] == list(paths.values())
    assert all(leaf.holder[leaf.name] is theirs[leaf.key] for leaf in ours)
    again = Tree(tree).leaves(tree)
    assert again is not None
    assert [id(value) for value in again] == [id(leaf.value) for leaf in ours]
    assert Tree(tree).leaves(tree | {"new": 1}) is None


@st.composite
def holdings(draw: st.DrawFn) -> list[list[Piece]]:
    """What up to five ranks hold: replicated tensors, shards, replicated shards and values."""
    ranks = draw(st.integers(1, 5))
    held: list[list[Piece]] = [[] for _ in range(ranks)]
    for number in range(draw(st.integers(0, 12))):
        rows, width = draw(st.integers(1, 40)), draw(st.sampled_from([1, 3, 1 << 18]))
        holders = draw(st.sets(st.integers(0, ranks - 1), min_size=1))
        whole = Piece(f"t{number}", (0, 0), (rows, width), (rows, width), "float32", rows * width * 4)
        for rank in holders:
            held[rank].append(whole)
    for rank in range(ranks):
        held[rank].append(Piece("value", None))
        held[rank].append(Piece(f"random.{rank}", None))
    return held


@settings(max_examples=count_examples(100), deadline=None)
@given(holdings())
def test_every_row_is_staged_once_by_a_rank_that_has_it(held: list[list[Piece]]) -> None:
    """A rank that holds nothing of a tensor writes none of it."""
    shares = assign_pieces(held)
    covered: dict[str, list[tuple[int, int]]] = {}
    for rank, pieces in enumerate(shares):
        keys = {piece.key for piece in held[rank]}
        for piece in pieces:
            assert piece.key in keys
            if piece.offsets is not None:
                assert piece.row == piece.offsets[0]
                assert piece.bytes == piece.sizes[0] * piece.sizes[1] * 4
                covered.setdefault(piece.key, []).append((piece.offsets[0], piece.sizes[0]))
    for piece in {piece.key: piece for pieces in held for piece in pieces if piece.offsets is not None}.values():
        at = 0
        for first, rows in sorted(covered[piece.key]):
            assert first == at
            at += rows
        assert at == piece.sizes[0]
    values = [(rank, piece.key) for rank, pieces in enumerate(shares) for piece in pieces if piece.is_value]
    assert sorted(values) == sorted([(0, "value"), *((rank, f"random.{rank}") for rank in range(len(held)))])
    assert assign_pieces(held) == shares


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_replicas_share_the_work_evenly(ranks: int) -> None:
    """One tensor that is most of the model does not go to one rank."""
    sizes = [(50_000, 1024), *[(4096, 1024)] * 6, *[(1024,)] * 20]
    pieces = [Piece(f"{n}", (0,) * len(s), s, s, "float32", 4 * torch.Size(s).numel()) for n, s in enumerate(sizes)]
    loads = [sum(piece.bytes for piece in share) for share in assign_pieces([pieces] * ranks)]
    assert max(loads) - min(loads) <= max(SMALLEST_PIECE, sum(loads) // (8 * ranks))
    assert sum(loads) == sum(piece.bytes for piece in pieces)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("sizes", [(), (0, 3), (1,), (5, 7), (3000, 11)], ids=str)
def test_a_framed_tensor_is_what_torch_saves(dtype: torch.dtype, sizes: tuple[int, ...]) -> None:
    """Its bytes between the frame's two ends load as that tensor, and lie where torch.save would align them."""
    tensor = torch.rand(sizes).mul(100).to(dtype)
    around = make_frame(dtype, sizes)
    flat = tensor.contiguous().reshape(-1)
    content = bytes(flat.view(torch.uint8).tolist()) if flat.numel() else b""
    loaded = torch.load(io.BytesIO(around.before + content + around.after), weights_only=True)
    assert loaded.dtype == dtype
    assert loaded.shape == tensor.shape
    assert torch.equal(loaded.reshape(-1).view(torch.uint8), flat.view(torch.uint8))
    assert len(around.before) % ALIGNMENT == 0


@pytest.mark.parametrize("value", [5, None, "text", (3, tuple(range(625)), None), {1, 2}, [torch.ones(2)]], ids=repr)
def test_a_value_has_room_to_grow(value: Any) -> None:
    """Filled up to a whole KiB it still loads, in PyTorch's strict mode where that takes such values at all."""
    for room in (0, 8192, 65536):
        blob = make_value_blob(value, room=room)
        assert len(blob) % 1024 == 0
        assert len(blob) >= room
        assert same(torch.load(io.BytesIO(blob), weights_only=False), value)


def test_the_arena_is_there_before_it_is_needed() -> None:
    """Every page of it is in memory once it is made."""
    before = _resident_shared()
    with Arena(32 << 20) as arena:
        assert _resident_shared() - before >= 31 << 20
        tensor = arena.tensor(offset=4096, sizes=(2, 3), dtype=torch.float32)
        tensor.fill_(1.0)
        assert arena.memory[4096 : 4096 + 24] == tensor.numpy().tobytes()
        assert arena.tensor(offset=0, sizes=(0, 4), dtype=torch.int8).shape == (0, 4)
        del tensor
    assert _resident_shared() - before < 16 << 20


def _resident_shared() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("RssShmem"))


def test_the_supervisor_reads_our_manifest() -> None:
    """The manifest is one for rerail.model.checkpoints too, with a few fields more."""
    files = ({"name": ".metadata", "bytes": 3, "checksum": "xxh3_64:00"},)
    text = dump(
        manifest(
            60, files=files, saved_at="2026-01-31T03:00:00Z", health="suspect", restart=2, stall_s=0.5, write_s=2.0
        )
    )
    checkpoint = read_manifest(text, uri="s3://b/step-000000060/manifest.json", sizes={".metadata": 3})
    assert (checkpoint.step, checkpoint.attempt, checkpoint.health) == (60, 1, Health.SUSPECT)
    assert checkpoint.is_whole
    assert (checkpoint.restart, checkpoint.stall_s, checkpoint.write_s) == (2, 0.5, 2.0)
    whole_numbers = ("schema", "attempt", "restart", "step", "consumed_samples", "world_size")
    texts = ("run", "reason", "health", "saved_at", "format", "seal", "signature")
    numbers = ("loss", "stall_s", "write_s")
    types = dict.fromkeys(whole_numbers, int) | dict.fromkeys(texts, str) | dict.fromkeys(numbers, float)
    types["files"] = list
    assert {key: type(value) for key, value in json.loads(text).items()} == types


def test_a_manifest_knows_its_own_content() -> None:
    """Whatever bit of it flips: it reads the same or not at all."""
    files = ({"name": ".metadata", "bytes": 3, "checksum": "xxh3_64:00"},)
    whole = manifest(60, files=files, saved_at="2026-01-31T03:00:00Z")
    text = dump(whole)
    assert parse(text, folder="step-000000060") == parse(text, folder="a1-step-000000060") == whole
    survived = 0
    for position in range(8 * len(text)):
        flipped = bytearray(text)
        flipped[position // 8] ^= 1 << position % 8
        try:
            assert parse(bytes(flipped), folder="step-000000060") == whole
            survived += 1
        except DamagedCheckpoint:
            continue
    assert survived < len(text)  # of white space
    with pytest.raises(DamagedCheckpoint):
        parse(text, folder="step-000000061")


@settings(max_examples=count_examples(120), deadline=None)
@given(
    gaps=st.lists(st.integers(1, 60), min_size=1, max_size=120),
    unclean=st.sets(st.integers(0, 119)),
    keep=st.integers(1, 5),
    doublings=st.integers(1, 6),
)
def test_what_a_rollback_needs_is_there(gaps: list[int], unclean: set[int], keep: int, doublings: int) -> None:
    """Pruned after every save, whatever the intervals: no onset costs a rollback more than twice its age and a gap.

    That holds up to the ladder's end, against the clean checkpoints that ever were.
    """
    ever: list[int] = []
    there: list[KeptCheckpoint] = []
    step, end = 0, 1
    for number, gap in enumerate(gaps):
        step += gap
        there.append(KeptCheckpoint(step, number not in unclean))
        ever += [step] if there[-1].is_clean else []
        gone = choose_deletable(there, newest=step, keep=keep, doublings=doublings)
        assert not gone & {entry.step for entry in there[-keep:]}
        there = [entry for entry in there if entry.step not in gone]
        clean = [entry.step for entry in there if entry.is_clean]
        assert clean[-1:] == ever[-1:]
        reach = (step - there[-keep:][0].step) * 2**doublings
        end = max(end, step - reach)  # of the ladder, so far: what lay beyond it once may be gone
        for onset in range(end, step + 1):
            best = max((s for s in ever if s < onset), default=0)
            left = max((s for s in clean if s < onset), default=0)
            after = min((s for s in clean if s >= onset), default=step)
            assert left == best or after - left <= step - after, (onset, best, left, after)
    assert len(there) <= keep + 2 * (doublings + 1) + 2 + len(unclean)


def test_retention_leaves_alone_what_is_not_its_own() -> None:
    """Newer steps are another attempt's; one being restored is spared; keep=0 is a mistake, not a wish."""
    saved = [KeptCheckpoint(step) for step in (10, 20, 30, 40, 50)]
    assert choose_deletable(saved, newest=30, keep=1, doublings=0) == {10, 20}
    assert choose_deletable(saved, newest=30, keep=1, doublings=0, spared=[20]) == {10}
    suspects = [KeptCheckpoint(10), KeptCheckpoint(20, is_clean=False), KeptCheckpoint(30, is_clean=False)]
    assert choose_deletable(suspects, newest=30, keep=1, doublings=0) == {20}
    with pytest.raises(ValueError, match="keep=0"):
        choose_deletable(saved, newest=30, keep=0, doublings=0)


def test_states_of_the_tests_are_compared_bit_for_bit() -> None:
    """What the other tests rely on."""
    assert same(state(1), state(1))
    assert not same(state(1), state(2))
    assert not same({"a": torch.ones(1)}, {"a": torch.ones(1).double()})


def test_the_ladder_has_one_rung_beyond_its_reach() -> None:
    """A rollback to the end of the reach has to start somewhere."""
    saved = [KeptCheckpoint(step) for step in range(1, 101)]
    kept = set(range(1, 101)) - choose_deletable(saved, newest=100, keep=2, doublings=3)
    assert kept == {100, 99, 98, 96, 92, 84}
