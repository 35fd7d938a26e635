"""Snapshots as a training script uses them: with the processes of two nodes, and ranks that start several times."""

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed as dist

from rerail_agent.checkpoints import Saver, Snapshots, open_store
from rerail_agent.checkpoints.link import LinkLost, connect
from rerail_agent.checkpoints.manifest import Manifest
from rerail_agent.checkpoints.snapshot_label import DamagedShare
from rerail_agent.checkpoints.snapshot_memory import SnapshotMemory
from rerail_agent.checkpoints.snapshot_process import MOST_CALLERS, SnapshotProcess
from rerail_agent.checkpoints.snapshots import ResumeLimits
from rerail_agent.snapshot_launch import SnapshotProcessHandle, read_snapshot_steps
from tests.agent.checkpoints.ranks import PATIENCE_S, LoggedLines, manifest, same, settle, state
from tests.agent.checkpoints.test_several_ranks import large

pytestmark = pytest.mark.slow


class Nodes:
    """Snapshot servers in this process, each with some ranks; a start makes new ranks without memory of their own."""

    def __init__(self, root: Path, ranks: int, count: int) -> None:
        self.root, self.size, self.count = root, ranks, count
        self.logged = LoggedLines()
        self.servers: dict[int, SnapshotProcess] = {}
        self.folders: dict[int, Path] = {}
        self._made = 0
        for node in range(count):
            self.renew(node)

    def renew(self, node: int, memory: SnapshotMemory | None = None) -> None:
        """Start an empty server: the node was lost and has been replaced."""
        self._made += 1
        self.folders[node] = self.root / f"k{self._made}"
        self.servers[node] = SnapshotProcess(memory)
        threading.Thread(target=self.servers[node].serve, args=(self.folders[node],), daemon=True).start()

    def start(self, act: Callable[[Saver, Snapshots], Any], **options: Any) -> list[Any]:
        """What act(saver, snapshots) returns on every rank, each a thread."""
        store = dist.HashStore()
        self.logged.clear()
        shared = {"store": store, "log": self.logged.append, "patience_s": PATIENCE_S}

        def one(rank: int) -> Any:
            saver = Saver(open_store(self.root / "durable"), rank=rank, world_size=self.size, **shared)
            folder = self.folders[rank * self.count // self.size]
            snapshots = Snapshots(saver, every=10, **{"folder": folder, **shared, **options})
            try:
                return act(saver, snapshots)
            finally:
                snapshots.close()
                saver.close()

        with ThreadPoolExecutor(self.size) as threads:
            return [reply.result(3 * PATIENCE_S) for reply in [threads.submit(one, rank) for rank in range(self.size)]]

    def take(self, *steps: int, make: Callable[[int, int], dict[str, Any]] = state, **changes: Any) -> list[Any]:
        """Takes a snapshot of each step, and waits for each; what take() said on every rank."""
        resume_limits = changes.pop("resume_limits", None)

        def act(saver: Saver, snapshots: Snapshots) -> list[bool]:
            taken = []
            for step in steps:
                saved = manifest(step, world_size=self.size, **changes)
                taken.append(snapshots.take(make(step, saver.rank), saved))
                assert snapshots.wait(PATIENCE_S)
            return taken

        return self.start(act, resume_limits=resume_limits)

    def restored(
        self,
        make: Callable[[int, int], dict[str, Any]] = state,
        allowed: Callable[[Manifest], bool] = lambda saved: True,
        **options: Any,
    ) -> int | None:
        """The step that all ranks restore, each bit as it was taken; None where none does, and none is changed."""

        def act(saver: Saver, snapshots: Snapshots) -> tuple[int | None, bool]:
            found = make(99, saver.rank)
            taken = snapshots.restore(found, allowed)
            step = taken.step if taken else None
            return step, same(found, make(99 if step is None else step, saver.rank))

        said = set(self.start(act, **options))
        assert len(said) == 1
        step, is_right = said.pop()
        assert is_right
        return step


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    yield Nodes(tmp_path, ranks=4, count=2)


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Nodes]:
    yield Nodes(tmp_path, ranks=2, count=1)


def test_ranks_that_start_again_go_on_from_the_newest_snapshot(nodes: Nodes) -> None:
    """What they restore is what was taken, on every rank, and nothing has been written to disk."""
    assert nodes.take(10, 20, 30) == [[True] * 3] * 4
    assert nodes.restored() == 30
    assert nodes.logged == []
    assert list((nodes.root / "durable").glob("*")) == []
    assert nodes.restored() == 30  # as often as they start


def test_a_lost_node_comes_back_with_what_its_neighbour_has(nodes: Nodes) -> None:
    """Either of two nodes may go, one after the other: with the restore there are two copies again."""
    nodes.take(10, 20, make=large)
    for lost in (0, 1, 0):
        nodes.renew(lost)
        assert nodes.restored(large) == 20
    assert nodes.logged == []


def test_two_lost_neighbours_cost_the_snapshots_and_one_line(nodes: Nodes) -> None:
    nodes.take(10)
    nodes.renew(0)
    nodes.renew(1)
    assert nodes.restored() is None
    assert nodes.logged == []


def test_a_missing_share_sends_all_ranks_to_the_checkpoint(tmp_path: Path) -> None:
    """Of three nodes two are lost that were neighbours: a line names the share, and no rank takes a snapshot up."""
    three = Nodes(tmp_path, ranks=3, count=3)
    three.take(10)
    three.renew(1)
    three.renew(2)
    assert three.restored() is None
    assert three.logged == [
        "no snapshot to go on from: the snapshot of step 10 cannot be used: no node has the share of rank 1;"
        " taking the newest checkpoint"
    ]


def test_one_machine_restarts_from_its_own_memory(alone: Nodes) -> None:
    """There is no neighbour, and a restart in place needs none."""
    alone.take(10, 20)
    assert alone.restored() == 20
    alone.renew(0)
    assert alone.restored() is None


def test_a_newer_or_equal_checkpoint_wins(nodes: Nodes) -> None:
    """A snapshot is for the steps after the newest durable save, and for no others."""

    def save(step: int) -> None:
        def act(saver: Saver, snapshots: Snapshots) -> None:
            saver.save(state(step, saver.rank), manifest(step, world_size=4))
            assert [each.error for each in saver.wait(PATIENCE_S)] == [None]

        nodes.start(act)

    save(10)
    nodes.take(20)
    assert nodes.restored() == 20
    save(20)
    assert nodes.restored() is None
    assert "the checkpoint of step 20 is as new" in nodes.logged[0]


def test_what_the_job_does_not_trust_is_not_taken_up(nodes: Nodes) -> None:
    """A suspect snapshot does not push the clean one before it out, and that one is restored."""

    def act(saver: Saver, snapshots: Snapshots) -> None:
        for step, health in ((10, "clean"), (20, "suspect"), (30, "suspect")):
            assert snapshots.take(state(step, saver.rank), manifest(step, world_size=4, health=health))
            assert snapshots.wait(PATIENCE_S)

    nodes.start(act)
    assert nodes.restored(allowed=lambda saved: saved.health == "clean") == 10


@pytest.mark.parametrize(
    ("resume_limits", "found"),
    [
        (ResumeLimits(100), 120),  # the same start again, as SageMaker does after a repair: what came since is its own
        (ResumeLimits(None, "1"), 120),
        (ResumeLimits(120, "1"), 120),
        (ResumeLimits(119, "1"), None),  # commanded to go back to before it
        (ResumeLimits(100, "1"), None),
        (ResumeLimits(0), None),
    ],
    ids=str,
)
def test_an_order_to_go_back_is_obeyed(alone: Nodes, resume_limits: ResumeLimits, found: int | None) -> None:
    """A snapshot that is newer than the step to resume from serves only ranks that had the same limits when it was
    taken."""
    alone.take(120, resume_limits=ResumeLimits(100))
    assert alone.restored(resume_limits=resume_limits) == found


def test_a_flipped_bit_is_never_restored(nodes: Nodes) -> None:
    """With one copy damaged the other one serves; with both damaged there is no such snapshot."""
    nodes.take(10, make=large)

    def flip(node: int, rank: int) -> None:
        for (owner, _), share in nodes.servers[node].memory._shares.items():
            if owner == rank:
                share.slot.view[share.label.bytes // 2] ^= 4

    flip(0, 1)
    assert nodes.restored(large) == 10
    flip(0, 3)
    flip(1, 3)
    assert nodes.restored(large) is None
    assert "no node has the share of rank 3" in nodes.logged[0]


def test_a_snapshot_is_passed_over_while_one_is_on_its_way(nodes: Nodes) -> None:
    """Every rank passes over the same one, and the training does not wait."""
    held = threading.Event()
    put = nodes.servers[1]._local_handlers["put"]

    def slowly(link: Any, message: Any) -> None:
        assert held.wait(PATIENCE_S)
        put(link, message)

    nodes.servers[1]._local_handlers["put"] = slowly

    def act(saver: Saver, snapshots: Snapshots) -> list[bool]:
        taken = [snapshots.take(state(step, saver.rank), manifest(step, world_size=4)) for step in (10, 20)]
        held.set()
        assert snapshots.wait(PATIENCE_S)
        return [*taken, snapshots.take(state(30, saver.rank), manifest(30, world_size=4)), snapshots.wait(PATIENCE_S)]

    assert nodes.start(act) == [[True, False, True, True]] * 4
    assert nodes.restored() == 30
    assert nodes.logged == []


def test_a_rank_that_closes_waits_for_no_other(alone: Nodes) -> None:
    """The other rank has gone on to its end, and never posts its part of the snapshot."""

    def act(saver: Saver, snapshots: Snapshots) -> bool:
        for step in (10, 20)[: 2 - saver.rank]:
            assert snapshots.wait(PATIENCE_S)
            snapshots.take(state(step, saver.rank), manifest(step, world_size=2))
        assert saver.rank == 0 or snapshots.wait(PATIENCE_S)
        snapshots.close()
        assert snapshots._thread is not None
        return snapshots._thread.is_alive()

    assert alone.start(act) == [False, False]


def test_a_keeper_that_goes_away_costs_snapshots_and_nothing_else(nodes: Nodes) -> None:
    """After three failures no more are taken, and a line says so. What every rank still has itself is whole."""
    put = nodes.servers[1]._peer_handlers["store"]

    def act(saver: Saver, snapshots: Snapshots) -> list[bool]:
        taken = []
        for step in range(10, 70, 10):
            if step == 20 and saver.rank == 0:
                nodes.servers[1]._peer_handlers["store"] = lambda link, message: link.close()
            taken.append(snapshots.take(state(step, saver.rank), manifest(step, world_size=4)))
            assert snapshots.wait(PATIENCE_S)
        return taken

    assert nodes.start(act) == [[True, True, True, True, False, False]] * 4
    assert nodes.logged.containing("no more snapshots: the last 3 could not be kept")
    assert nodes.logged.containing("the snapshot process of the next node cannot be reached")
    nodes.servers[1]._peer_handlers["store"] = put
    assert nodes.restored() == 40


def test_a_state_that_grows_finds_room(alone: Nodes) -> None:
    """Other tensors, or plain values that outgrow their memory: prepared again; the newest complete one is restored."""

    def grown(seed: int, rank: int = 0) -> dict[str, Any]:
        return {**state(seed, rank), "more": torch.full((seed * 1000,), float(seed))}

    def act(saver: Saver, snapshots: Snapshots) -> None:
        for step in (10, 20):
            assert snapshots.take(grown(step, saver.rank), manifest(step, world_size=2))
            assert snapshots.wait(PATIENCE_S)

    alone.start(act)

    def again(saver: Saver, snapshots: Snapshots) -> tuple[int, bool]:
        found = grown(20, saver.rank)
        taken = snapshots.restore(found)
        assert taken is not None
        return taken.step, same(found, grown(20, saver.rank))

    assert alone.start(again) == [(20, True)] * 2
    assert alone.logged.containing("no snapshot") == []


def test_a_full_machine_trains_without_snapshots(alone: Nodes) -> None:
    alone.renew(0, SnapshotMemory(room=lambda: 1000))
    assert alone.take(10) == [[False]] * 2
    assert alone.logged.containing("1000 are free")
    assert alone.restored() is None


def test_without_a_keeper_there_are_no_snapshots(alone: Nodes) -> None:
    assert alone.restored(folder="") is None
    remedy = "RERAIL_SNAPSHOT_STEPS needs rerail_agent.init around the job on every node"
    assert alone.logged == [f"no snapshots: rank 0: has no snapshot process; {remedy}"]


def test_a_state_of_another_shape_is_left_as_it_is(alone: Nodes) -> None:
    """The code has changed: the checkpoint's loader is the one to complain."""
    alone.take(10)
    other = {"model": {"weight": torch.ones(3)}, "random": {}}

    def act(saver: Saver, snapshots: Snapshots) -> bool:
        mine = {"model": {"weight": torch.ones(3)}, "random": {}}
        return snapshots.restore(mine) is None and same(mine, other)

    assert alone.start(act) == [True, True]
    assert alone.logged.containing("taking the newest checkpoint")


def test_late_messages_of_killed_ranks_are_refused(alone: Nodes) -> None:
    """Killed as they handed a snapshot over, ranks are heard when others write in the same place: it is refused."""
    late, both = threading.Event(), threading.Barrier(2)
    said: list[Any] = []
    received: list[Any] = []
    put = alone.servers[0]._local_handlers["put"]

    def slowly(link: Any, message: Any) -> None:
        said.append(message)
        late.wait(PATIENCE_S)
        with suppress(DamagedShare, LinkLost):
            put(link, message)
        received.append(message)

    def killed(saver: Saver, snapshots: Snapshots) -> None:
        assert snapshots.take(state(10, saver.rank), manifest(10, world_size=2))
        assert snapshots.wait(PATIENCE_S)
        both.wait(PATIENCE_S)
        alone.servers[0]._local_handlers["put"] = slowly
        both.wait(PATIENCE_S)
        assert snapshots.take(state(20, saver.rank), manifest(20, world_size=2))
        assert settle(lambda: len(said) == 2)
        snapshots._closing = True
        snapshots._thread = None  # not to be waited for

    def next_ones(saver: Saver, snapshots: Snapshots) -> int:
        found = state(99, saver.rank)
        taken = snapshots.restore(found)
        assert taken is not None
        saver.prepare(found)
        snapshots.prepare(found)  # stages once, where the snapshot of step 20 lies
        return taken.step

    alone.start(killed)
    assert alone.start(next_ones) == [10, 10]
    late.set()
    assert settle(lambda: len(received) == 2)
    assert alone.restored() == 10


def test_a_client_without_the_secret_gets_nothing_from_a_keeper(nodes: Nodes) -> None:
    """A client without the secret of this start is refused, and silent ones do not block the run's nodes."""
    nodes.take(10)
    door = nodes.servers[0]._listener
    assert door is not None
    with pytest.raises(LinkLost, match="not of this run"):
        connect(door.getsockname()[:2], b"guessed", timeout_s=60)
    silent = [socket.create_connection(door.getsockname()[:2]) for _ in range(MOST_CALLERS)]
    assert settle(lambda: len(nodes.servers[0]._unproven) == len(silent))
    nodes.take(20)
    assert list(nodes.logged) == [] and nodes.restored() == 20


def test_steps_that_cannot_be_read_mean_no_snapshots() -> None:
    """A mistyped setting is logged with its remedy, and the job trains."""
    logged = LoggedLines()
    assert read_snapshot_steps({"RERAIL_SNAPSHOT_STEPS": "often"}, logged.append) == 0
    assert logged == [
        "RERAIL_SNAPSHOT_STEPS='often': must be a whole number of steps, 0 for no snapshots; there are none now"
    ]
    assert read_snapshot_steps({"RERAIL_SNAPSHOT_STEPS": "20"}, logged.append) == 20
    assert SnapshotProcessHandle.start({}, logged.append) is None
