"""Who keeps whose share of a snapshot, which one may be written over, and which one ranks go on from."""

import fcntl
import json
import socket
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from rerail_agent.checkpoints.link import Link, LinkLost, find_own_address
from rerail_agent.checkpoints.ring import MAX_FAILURES, Ring, SnapshotHistory, choose_slot
from rerail_agent.checkpoints.snapshot_choice import KeptShare, choose_snapshot
from rerail_agent.checkpoints.snapshot_label import LARGEST_SHARE, DamagedShare, SnapshotLabel
from rerail_agent.checkpoints.snapshot_memory import OutOfMemory, SnapshotMemory
from tests.agent.checkpoints.ranks import manifest

NAMES = st.lists(st.sampled_from("abcde"), min_size=1, max_size=12)
SIZE = 64


@given(NAMES)
def test_every_share_is_kept_on_two_nodes_if_there_are_two(names):
    """Each node keeps its own shares and its predecessor's: a share lies where its rank is and in one other place."""
    ring = Ring.of(names)
    count = len(set(names))
    homes = {rank: [node for node in range(count) if rank in ring.list_kept_ranks(node)] for rank in range(len(names))}
    assert [ring.find_node(rank) in nodes for rank, nodes in homes.items()] == [True] * len(names)
    assert {len(nodes) for nodes in homes.values()} == {min(2, count)}
    for node in range(count):
        neighbour = ring.find_neighbour(node)
        assert (neighbour is None) == (count == 1)
        assert neighbour is None or set(ring.nodes[node]) <= set(ring.list_kept_ranks(neighbour))


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=30))
def test_the_newest_whole_and_clean_snapshot_is_spared(ends):
    """Whatever fails or is suspect, what is taken next goes elsewhere than the last one that is good everywhere."""
    rounds, slots, good = SnapshotHistory(), ["", ""], ""
    for number, (held, clean) in enumerate(ends):
        where = choose_slot(rounds.keep, slots)
        assert not good or slots[where] != good
        slots[where] = str(number)
        move = rounds.advance(str(number), held=held, clean=clean)
        good = str(number) if held and clean else good
        assert move.keep == good
        assert not good or good in slots
        assert move.is_last == (
            number + 1 >= MAX_FAILURES and not any(each for each, _ in ends[: number + 1][-MAX_FAILURES:])
        )


def label(rank=0, step=1, name="", world_size=1, **changes):
    saved = manifest(step, world_size=world_size, **changes)
    return SnapshotLabel(name or str(step), rank, saved, image=SIZE, values=0, contents=0)


@dataclass
class Node:
    """A memory, and what the ranks of its node have staged in it."""

    number: int
    memory: SnapshotMemory = field(default_factory=lambda: SnapshotMemory(room=lambda: 1 << 20))

    def hold(self, given, keep, *, own):
        """Files a share whose every byte is its step; in a staging slot if it is of a rank of this node."""
        self.memory.drop(given.rank, keep=[keep])
        slot = self.stage(given.rank, keep) if own else self.memory.allocate(given.rank, SIZE)
        slot.view[:SIZE] = bytes([given.manifest.step % 251]) * SIZE
        self.memory.add(given.with_checksum(slot.view), slot)

    def stage(self, rank, keep):
        """Where a rank writes, before it files anything; what lay there is gone."""
        inside = self.memory.allocate_staging(rank, SIZE)
        slot = inside[choose_slot(keep, [name for _, name in inside])][0]
        slot.view[: SIZE // 2] = bytes(SIZE // 2)
        return slot

    def flip(self, rank, snapshot, at):
        share = self.memory._shares.get((rank, snapshot))
        if share is not None:
            share.slot.view[at] ^= 1


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(0, 7), st.integers(0, 7)),  # how many ranks and copies come to their end
        st.tuples(st.just("tear"), st.integers(1, 4)),  # how many ranks are killed while they stage
        st.tuples(st.just("lose"), st.integers(0, 3)),
        st.tuples(st.just("flip"), st.integers(0, 3), st.integers(0, 3), st.integers(0, SIZE - 1)),
    ),
    max_size=14,
)


@given(st.integers(1, 4), EVENTS)
def test_never_a_mixed_step_and_never_a_corrupt_byte(count, events):
    """After takes that broke off, halves of shares, lost nodes, flipped bits: what is chosen is one step, unchanged.

    And while no two neighbours are lost and no bit flips, it is at least as new as the last one that was whole.
    """
    nodes = [Node(number) for number in range(count)]
    ring, rounds, least = Ring.of([str(number) for number in range(count)]), SnapshotHistory(), 0
    lost: set[int] = set()
    for step, (kind, *what) in enumerate(events, 1):
        if kind == "take":
            ends = [(rank, node) for rank in range(count) for node in {rank, ring.find_neighbour(rank)} - {None}]
            done = ends[: what[0]] + ends[len(ends) - what[1] :]
            for rank, node in dict.fromkeys(done):
                nodes[node].hold(label(rank, step, world_size=count), rounds.keep, own=rank == node)
            held = len(set(done)) == len(ends)
            rounds.advance(str(step), held=held, clean=True)
            rounds.failures = 0
            if held:
                least, lost = step, set()
        elif kind == "tear":
            for rank in range(min(what[0], count)):
                nodes[rank].stage(rank, rounds.keep)
        elif kind == "lose" and what[0] < count:
            nodes[what[0]] = Node(what[0])
            lost.add(what[0])
            if count == 1 or any({node, ring.find_neighbour(node)} <= lost for node in lost):
                least = 0
        elif kind == "flip" and what[0] < count:
            nodes[what[0]].flip(what[1] % count, rounds.keep, what[2])
            least = 0
    chosen = recalled(nodes)
    assert chosen >= least


def recalled(nodes):
    """Return the step from which a start resumes, every share verified; 0 for none."""
    for node in nodes:
        node.memory.invalidate()
    kept = [KeptShare(node.number, each) for node in nodes for each in node.memory.list_labels()]
    damaged: set[tuple[int, int, str]] = set()
    while True:
        answer = choose_snapshot(kept, allowed=lambda each: True, newer_than=0, damaged=damaged)
        if answer.choice is None:
            return 0
        choice, contents = answer.choice, []
        for rank, holders in enumerate(choice.holders):
            for node in holders:
                try:
                    share = nodes[node].memory.open_verified(rank, choice.snapshot)
                except DamagedShare:
                    damaged.add((node, rank, choice.snapshot))
                else:
                    contents.append(bytes(share.slot.view[:SIZE]))
                    break
        if len(contents) == len(choice.holders):
            assert set(contents) == {bytes([choice.manifest.step % 251]) * SIZE}
            return choice.manifest.step


def test_a_snapshot_that_a_checkpoint_equals_is_not_taken():
    """The durable one wins where it is as new."""
    kept = [KeptShare(0, label(step=7))]
    assert choose_snapshot(kept, allowed=lambda each: True, newer_than=6).choice.manifest.step == 7
    answer = choose_snapshot(kept, allowed=lambda each: True, newer_than=7)
    assert answer.choice is None
    assert answer.reason == "the snapshot of step 7 cannot be used: the checkpoint of step 7 is as new"


def test_an_older_snapshot_serves_where_the_newer_one_may_not_be_used():
    """A suspect one is passed over for the clean one before it, and the answer says why."""
    kept = [KeptShare(0, label(step=7, health="suspect")), KeptShare(0, label(step=6))]
    answer = choose_snapshot(kept, allowed=lambda each: each.manifest.health == "clean", newer_than=0)
    assert answer.choice.manifest.step == 6
    assert "step 7 cannot be used: it is suspect" in answer.reason


def test_a_snapshot_without_the_share_of_one_rank_is_none():
    """What is lacking is named."""
    kept = [KeptShare(0, label(rank, step=7, world_size=3)) for rank in (0, 2)]
    answer = choose_snapshot(kept, allowed=lambda each: True, newer_than=0)
    assert answer.choice is None
    assert "no node has the share of rank 1" in answer.reason


@given(st.integers(0, SIZE - 1), st.integers(0, 7))
def test_any_flipped_bit_is_noticed(at, bit):
    """A label does not fit bytes that differ in one bit, nor does it bear a change of its own."""
    content = bytearray(range(SIZE))
    filed = label().with_checksum(memoryview(content))
    filed.check(memoryview(content))
    assert SnapshotLabel.parse(filed.table()) == filed
    content[at] ^= 1 << bit
    for refuse in (lambda: filed.check(memoryview(content)), lambda: SnapshotLabel.parse({**filed.table(), "rank": 1})):
        try:
            refuse()
        except DamagedShare:
            continue
        raise AssertionError("taken for whole")


@given(st.lists(st.integers(1, 40_000), min_size=1, max_size=10))
def test_a_memory_has_two_slots_for_a_rank(sizes):
    """Whatever becomes of the size, what was put last stays until it is dropped, and soon there are two slots again."""
    memory = SnapshotMemory()
    for step, size in enumerate([*sizes, *sizes[-1:] * 2], 1):
        inside = memory.allocate_staging(0, size)
        assert [slot.size >= size for slot, _ in inside] == [True, True]
        keep = str(step - 1)
        slot = inside[choose_slot(keep, [name for _, name in inside])][0]
        memory.drop(0, keep=[keep])
        filed = replace(label(step=step), image=size)
        memory.add(filed.with_checksum(slot.view), slot)
        assert {each.snapshot for each in memory.list_labels()} == {str(step), keep} - {"0"}
        assert len(memory._slots[0]) <= 4  # two of the size before, while something lies in them
    assert len(memory._slots[0]) == 2


def test_nothing_is_filed_in_a_place_that_was_given_up():
    """A share whose memory has gone back meanwhile is refused: its file's number may be that of another one."""
    memory = SnapshotMemory()
    (slot, _), _ = memory.allocate_staging(0, SIZE)
    filed = label().with_checksum(slot.view)
    memory.retain("", [])
    try:
        memory.add(filed, slot)
    except DamagedShare:
        assert (memory.list_labels(), slot.file) == ([], -1)
    else:
        raise AssertionError("filed where nothing is")


def test_a_full_machine_is_reported():
    """More than there is room for is refused with the figures, and what is kept stays."""
    memory = SnapshotMemory(room=lambda: 5000)
    memory.allocate(0, 4000)
    try:
        memory.allocate_staging(1, 6000)
    except OutOfMemory as error:
        assert str(error) == "6000 bytes are wanted for a share of rank 1, 5000 are free"
    else:
        raise AssertionError("it had no room")


def test_only_the_agreed_snapshots_shares_of_the_ranks_remain():
    """A share must be of that snapshot and of one of those ranks."""
    memory = SnapshotMemory()
    for rank in (0, 1):
        for step, (slot, _) in enumerate(memory.allocate_staging(rank, SIZE), 1):
            memory.add(label(rank, step=step).with_checksum(slot.view), slot)
    memory.retain("2", [0])
    assert [(each.rank, each.snapshot) for each in memory.list_labels()] == [(0, "2")]


def label_table(**changes) -> dict[str, Any]:
    """Return a label's table with other values and a checksum that fits them."""
    table = {**label().table(), **changes}
    del table["seal"]
    text = json.dumps(table, sort_keys=True, separators=(",", ":"))
    return {**table, "seal": f"xxh3_64:{xxhash.xxh3_64_hexdigest(text.encode())}"}


@pytest.mark.parametrize("name", ["rank", "image", "values", "contents"])
@pytest.mark.parametrize("value", [-1, 1.5, True, "1", None])
def test_a_label_with_an_invalid_number_is_refused(name, value):
    with pytest.raises(DamagedShare, match=r"cannot be read: \w+: \S"):
        SnapshotLabel.parse(label_table(**{name: value}))


def test_a_label_of_the_largest_share_is_read_and_of_a_larger_one_is_not():
    assert SnapshotLabel.parse(label_table(image=LARGEST_SHARE)).bytes == LARGEST_SHARE
    with pytest.raises(DamagedShare, match="sizes must be whole numbers"):
        SnapshotLabel.parse(label_table(image=LARGEST_SHARE, contents=1))


def test_the_order_of_a_labels_fields_does_not_matter():
    table = label().table()
    assert SnapshotLabel.parse(dict(reversed(table.items()))) == label()


def test_a_node_is_reached_at_the_address_of_the_jobs_interface(monkeypatch):
    """The third field of the kernel's answer is a socket address, whose third field is the IP address."""
    interface = socket.if_nameindex()[0][1]
    answer = interface.encode().ljust(20, b"\0") + bytes([10, 1, 2, 3]) + bytes(232)
    monkeypatch.setattr(fcntl, "ioctl", lambda *_: answer)
    assert find_own_address(interface, "127.0.0.1") == "10.1.2.3"
    assert find_own_address("none", "127.0.0.1") == "127.0.0.1"


def test_a_share_whose_sender_goes_away_in_the_middle_is_not_received():
    here, there = socket.socketpair()
    there.sendall(b"half")
    there.close()
    with pytest.raises(LinkLost, match="gone in the middle"):
        Link(here, timeout_s=None).receive_body(memoryview(bytearray(8)))
