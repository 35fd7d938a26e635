"""Several ranks and one checkpoint: who writes what, and what happens when one of them does not."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from rerail_agent.checkpoints import DamagedCheckpoint, Saver
from rerail_agent.checkpoints.rank_exchange import RanksTimedOut
from tests.agent.checkpoints.ranks import PATIENCE_S, Ranks, manifest, same, settle, state
from tests.agent.checkpoints.test_saver import flip
from tests.raising import raising

pytestmark = pytest.mark.slow


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Ranks]:
    with Ranks([tmp_path] * 3) as ranks:
        yield ranks


def large(seed: int, rank: int = 0) -> dict[str, Any]:
    """Nine megabytes, most of it in one tensor, and something of each rank's own."""
    draw = torch.Generator().manual_seed(seed)
    weights = {"embedding": torch.rand(6000, 300, generator=draw), "head": torch.rand(300, 1500, generator=draw)}
    return {"model": weights, "step": seed, "random": {str(rank): torch.arange(rank + 3) + seed}}


def test_each_rank_stages_its_share(three: Ranks, tmp_path: Path) -> None:
    three.all(lambda saver, rank: saver.prepare(large(1, rank)))
    staged = [saver._plan.staged_bytes for saver in three.savers if saver._plan]
    total = 4 * (6000 * 300 + 300 * 1500) + 8 * (3 + 4 + 5)
    assert sum(staged) == total
    assert max(staged) - min(staged) < 1 << 20
    ended = three.save(10, large)
    assert [[one.error for one in mine] for mine in ended] == [[None]] * 3
    sizes = [(tmp_path / "step-000000010" / f"__{rank}_0.distcp").stat().st_size for rank in range(3)]
    assert sum(sizes) < total + 40_000
    assert three.restored(large) == [(10, True)] * 3


def test_fewer_and_more_ranks_load_it(three: Ranks, tmp_path: Path) -> None:
    """What three ranks wrote, one and two can read, and the other way round."""
    three.save(10, large)

    def take_over(saver: Saver, rank: int) -> tuple[int, bool]:
        found, step = large(99, rank), saver.newest()
        saver.load(found, step)
        return step, same(found["model"], large(step)["model"])

    for step, count in ((10, 1), (11, 2), (12, 4)):
        with Ranks([tmp_path] * count) as ranks:
            assert ranks.all(take_over) == [(step, True)] * count
            ranks.save(step + 1, large)
    assert three.all(take_over) == [(13, True)] * 3


def test_every_rank_gets_the_result_of_the_save(three: Ranks) -> None:
    first, *others = three.save(10)
    assert len(first) == 1
    assert others == [first, first]


def test_a_rank_that_cannot_write_costs_one_checkpoint(three: Ranks, tmp_path: Path) -> None:
    """Every rank learns whose disk it was; nothing is left, and the next save succeeds."""
    three.save(10)

    writer = three.savers[2]._writer
    assert writer is not None
    original, writer.perform = writer.perform, raising(OSError("no space left on device"))  # type: ignore[method-assign]
    for [ended] in three.save(20):
        assert ended.error == "rank 2: no space left on device"
    writer.perform = original  # type: ignore[method-assign]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000000010"]
    assert three.restored() == [(10, True)] * 3
    assert three.save(20)[0][0].error is None
    assert three.restored() == [(20, True)] * 3


def test_a_rank_that_never_reports_costs_one_checkpoint(tmp_path: Path) -> None:
    """After the patience rank 0 gives up; the torn folder is invisible, then gone."""
    with Ranks([tmp_path] * 2) as two:
        two.save(10)
        commit_queue = two.savers[0]._commit_queue
        assert commit_queue
        patience_s, commit_queue.patience_s = commit_queue.patience_s, 1.0
        pid = two.savers[1]._writer.pid if two.savers[1]._writer else None
        assert pid
        os.kill(pid, signal.SIGSTOP)
        two.all(lambda saver, rank: saver.save(state(20, rank), manifest(20, world_size=2)))
        [ended] = two.savers[0].wait(PATIENCE_S)
        commit_queue.patience_s = patience_s
        assert ended.error is not None
        assert "nothing received from rank 1 for 1 s" in ended.error
        assert not (tmp_path / "step-000000020").exists()
        os.kill(pid, signal.SIGCONT)
        two.all(lambda saver, rank: saver.wait(PATIENCE_S))
        assert two.restored() == [(10, True)] * 2
        two.save(30)
        assert two.restored() == [(30, True)] * 2


def test_a_missing_rank_is_named(tmp_path: Path) -> None:
    with (
        Ranks([tmp_path] * 2, patience_s=0.3) as two,
        pytest.raises(RanksTimedOut, match="nothing received from rank 1 for"),
    ):
        two.savers[0].prepare(state(1))


@pytest.mark.parametrize(("late", "method"), [(2, "_first_damage"), (0, "_drop")])
def test_a_rank_that_is_late_costs_one_save_and_leaves_the_ranks_in_step(
    tmp_path: Path, late: int, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it reads a damaged checkpoint or deletes it; the others, which waited for it, end their save too."""
    with Ranks([tmp_path] * 3) as ranks:
        ranks.save(10)
        flip(tmp_path / "step-000000010", "__0_0.distcp")
        do = getattr(ranks.savers[late], method)
        monkeypatch.setattr(ranks.savers[late], method, lambda *given: time.sleep(1.5) or do(*given))
        for saver in ranks.savers:
            saver.exchange.patience_s = 0.5
        errors = [ended.error for mine in ranks.save(10) for ended in mine]
        assert all(error and "nothing received from rank" in error for error in errors) and len(errors) == 3
        monkeypatch.setattr(ranks.savers[late], method, do)
        for saver in ranks.savers:
            saver.exchange.patience_s = PATIENCE_S
        for step in (10, 20):
            assert [[ended.error for ended in mine] for mine in ranks.save(step)] == [[None]] * 3
        assert ranks.restored() == [(20, True)] * 3


def test_any_rank_finds_the_damage(three: Ranks, tmp_path: Path) -> None:
    """Each reads a part of the files; what one finds counts for all, and is logged once."""
    for step in (10, 20, 30):
        three.save(step)
    flip(tmp_path / "step-000000030", "__0_0.distcp")
    flip(tmp_path / "step-000000020", "__2_0.distcp")
    assert three.restored() == [(10, True)] * 3
    assert len(three.logged) == 2


def test_a_rank_that_cannot_load_fails_the_load_on_all(three: Ranks) -> None:
    """No rank goes on with a checkpoint that another could not take."""
    for step in (10, 20):
        three.save(step)

    def load(saver: Saver, rank: int) -> str:
        if rank == 1:
            saver.place = _Unreadable(saver.place)  # type: ignore[assignment]
        try:
            saver.load(state(99, rank), saver.newest())
        except DamagedCheckpoint as damage:
            return str(damage)
        return ""

    assert three.all(load) == ["rank 1 cannot load it: OSError: bad sector"] * 3
    assert three.all(lambda saver, rank: saver.newest()) == [10] * 3


class _Unreadable:
    def __init__(self, place: Any) -> None:
        self._place = place

    def __getattr__(self, name: str) -> Any:
        return getattr(self._place, name)

    def reader(self, step: int) -> Any:
        raise OSError("bad sector")


def test_a_lost_network_is_no_damage(three: Ranks) -> None:
    """What keeps a rank from reading is raised on every rank, instead of throwing a good checkpoint away."""
    three.save(10)
    lost = three.savers[2].place.__class__

    class Lost(lost):  # type: ignore[misc, valid-type]
        def check(self, step: int, entry: dict[str, Any]) -> None:
            raise ConnectionError("no route")

    three.savers[2].place = Lost(three.savers[2].place.root)  # type: ignore[attr-defined]

    def newest(saver: Saver, rank: int) -> str:
        try:
            saver.newest()
        except ConnectionError as error:
            return str(error)
        return ""

    assert three.all(newest) == ["no route"] * 3


def test_a_whole_checkpoint_is_not_written_again_by_anyone(three: Ranks) -> None:
    """All ranks agree that it is there, without having seen it themselves."""
    three.save(10)
    assert three.all(lambda saver, rank: saver.save(state(10, rank), manifest(10))) == [False] * 3


def test_nodes_with_disks_of_their_own(tmp_path: Path) -> None:
    """Each node keeps its ranks' files; the manifest comes when all are in place, and names them all."""
    near, far = tmp_path / "near", tmp_path / "far"
    with Ranks([near, near, far, far]) as ranks:
        [ended] = ranks.save(10, large)[0]
        assert ended.error is None
        assert len(ended.manifest.files) == 5
        assert _names(near) == [".metadata", "__0_0.distcp", "__1_0.distcp", "manifest.json"]
        assert _names(far) == ["__2_0.distcp", "__3_0.distcp"]
        # Not whole on either disk: no rank may start from it, and none does.
        assert ranks.restored(large) == [(0, False)] * 4
        assert ranks.logged.containing("not on the disk of every node")
        for folder, other in ((near, far), (far, near)):  # what an upload and a start from S3 do
            for path in (other / "step-000000010").iterdir():
                (folder / "step-000000010" / path.name).write_bytes(path.read_bytes())
        assert ranks.restored(large) == [(10, True)] * 4
        ranks.all(lambda saver, rank: saver.prune(keep=1, doublings=0))
        ranks.save(20, large)
        gone = [folder / "step-000000010" for folder in (near, far)]
        assert settle(lambda: not any(path.exists() for path in gone))


def test_a_failure_on_a_far_disk_leaves_nothing(tmp_path: Path) -> None:
    """Neither node keeps a part of a checkpoint that will not be."""
    near, far = tmp_path / "near", tmp_path / "far"
    with Ranks([near, far]) as ranks:
        ranks.all(lambda saver, rank: saver.prepare(state(1, rank)))
        far.mkdir(exist_ok=True)
        (far / "step-000000010").mkdir()
        (far / "step-000000010" / "manifest.json").write_text("another's")
        [ended] = ranks.save(10)[0]
        assert ended.error is not None
        assert "rank 1" in ended.error
        assert not (near / "step-000000010").exists()


def _names(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "step-000000010").iterdir())
