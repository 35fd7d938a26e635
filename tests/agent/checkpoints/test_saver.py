"""One rank's Saver on a disk: what it writes, what it will not touch, and what it does when something breaks."""

import json
import os
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import checkpoint as dcp

from rerail_agent.checkpoints import CommitResult, DamagedCheckpoint, Saver, UnfitState, open_store, store
from rerail_agent.checkpoints.store import LocalStore
from tests.agent.checkpoints.ranks import LoggedLines, manifest, same, settle, state
from tests.raising import raising

pytestmark = pytest.mark.slow


class Killed(BaseException):
    """Stands for a SIGKILL: nothing of the code under test may catch it."""


@pytest.fixture
def logged() -> LoggedLines:
    return LoggedLines()


@pytest.fixture
def saver(tmp_path: Path, logged: LoggedLines) -> Iterator[Saver]:
    saver = Saver(open_store(tmp_path), log=logged.append)
    yield saver
    saver.close()


def save(saver: Saver, step: int, **changes: Any) -> list[CommitResult]:
    saver.save(state(step), manifest(step, **changes))
    return saver.wait(120)


def restored(saver: Saver, step: int) -> bool:
    found = state(99)
    saver.load(found, step)
    return same(found, state(step))


def files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_a_state_comes_back_bit_for_bit(saver: Saver, tmp_path: Path, logged: LoggedLines) -> None:
    """Tensors of every kind in place, plain values replaced, and the manifest as it was given."""
    [committed] = save(saver, 10, reason="final", health="suspect", loss=float("nan"))
    assert (committed.step, committed.error, committed.durability) == (10, None, "local")
    assert committed.path == str(tmp_path / "step-000000010")
    assert files(tmp_path) == [f"step-000000010/{name}" for name in (".metadata", "__0_0.distcp", "manifest.json")]
    found = state(99)
    weight = found["model"]["layer.1.weight"]
    assert saver.newest() == 10
    loaded = saver.load(found, 10)
    assert same(found, state(10))
    assert found["model"]["layer.1.weight"] is weight
    assert loaded == committed.manifest
    assert loaded.stall_s is not None and loaded.write_s is not None
    assert 0 <= loaded.stall_s <= loaded.write_s
    assert (loaded.reason, loaded.health, loaded.loss, loaded.consumed_samples) == ("final", "suspect", None, 120)
    assert logged == []


def test_any_reader_of_torch_can_load_it(saver: Saver, tmp_path: Path) -> None:
    """torch.distributed.checkpoint takes the folder as one of its own."""
    save(saver, 10)
    found = state(99)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load(found, storage_reader=dcp.FileSystemReader(tmp_path / "step-000000010"))
    assert same(found["model"], state(10)["model"])
    assert (found["step"], found["random"]["0"]["python"]) == (10, state(10)["random"]["0"]["python"])


def test_the_loop_may_go_on_at_once(saver: Saver) -> None:
    """What is changed after save() is not in the checkpoint; saves in a row are committed in order."""
    changing = state(1)
    saver.prepare(changing)
    ends: list[CommitResult] = []
    for step in (1, 2, 3):
        assert saver.save(changing, manifest(step), ends.append)
        changing["model"]["count"].add_(1)
        changing["step"] += 1
    committed = saver.wait(120)
    assert [one.step for one in committed] == [1, 2, 3]
    assert ends == committed
    assert saver.finished() == []
    found = state(99)
    saver.load(found, 2)
    assert (int(found["model"]["count"]), found["step"]) == (2, 2)


def test_a_whole_checkpoint_is_not_written_again(saver: Saver, tmp_path: Path) -> None:
    """A replayed step leaves the older copy as it is, in this process and in the next."""
    save(saver, 10)
    before = (tmp_path / "step-000000010" / "manifest.json").read_bytes()
    assert not saver.save(state(10), manifest(10, attempt=2))
    later = Saver(open_store(tmp_path))
    assert not later.save(state(10), manifest(10, attempt=2))
    later.close()
    assert (tmp_path / "step-000000010" / "manifest.json").read_bytes() == before


def flip(folder: Path, name: str) -> None:
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)


def cut(folder: Path, name: str) -> None:
    (folder / name).write_bytes((folder / name).read_bytes()[:-1])


def zero(folder: Path, name: str) -> None:
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(bytes(min(512, len(content))) + content[512:])


def rewrite(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    table = json.loads((folder / "manifest.json").read_text())
    change(table)
    (folder / "manifest.json").write_text(json.dumps(table))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "a flipped bit in the tensors": lambda folder: flip(folder, "__0_0.distcp"),
    "a flipped bit in the index": lambda folder: flip(folder, ".metadata"),
    "a flipped bit in the manifest": lambda folder: flip(folder, "manifest.json"),
    "a block of zeros": lambda folder: zero(folder, "__0_0.distcp"),
    "a truncated file": lambda folder: cut(folder, "__0_0.distcp"),
    "a missing file": lambda folder: (folder / "__0_0.distcp").unlink(),
    "a missing index": lambda folder: (folder / ".metadata").unlink(),
    "a truncated manifest": lambda folder: cut(folder, "manifest.json"),
    "an empty manifest": lambda folder: (folder / "manifest.json").write_text(""),
    "a manifest of another shape": lambda folder: (folder / "manifest.json").write_text("[1]"),
    "another number in the manifest": lambda folder: rewrite(folder, lambda table: table.update(consumed_samples=1)),
    "a manifest that lists nothing": lambda folder: rewrite(folder, lambda table: table.update(files=[])),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_damage_is_reported_and_the_checkpoint_before_is_taken(
    saver: Saver, tmp_path: Path, logged: LoggedLines, damage: Callable[[Path], object]
) -> None:
    """The one before is taken, the damaged one is named, and a replay of its step makes it whole."""
    save(saver, 10)
    save(saver, 20)
    damage(tmp_path / "step-000000020")
    assert saver.newest() == 10
    assert len(logged) == 1
    assert logged[0].startswith("checkpoint step-000000020 is damaged (")
    assert restored(saver, 10)
    [committed] = save(saver, 20, attempt=2)
    assert committed.error is None
    assert saver.newest() == 20
    assert restored(saver, 20)


def test_a_checkpoint_that_does_not_load_counts_as_damaged(saver: Saver, tmp_path: Path, logged: LoggedLines) -> None:
    """Whole by its checksums and still unreadable: it is passed over from then on."""
    save(saver, 10)
    [committed] = save(saver, 20)
    folder = tmp_path / "step-000000020"
    index = store.write_file(folder / ".metadata", [memoryview(b"no pickle")], total=9)
    entries = (*(entry for entry in committed.manifest.files if entry["name"] != ".metadata"), index)
    (folder / "manifest.json").write_bytes(store.dump(manifest(20, files=entries)))
    assert saver.newest() == 20
    found = state(99)
    with pytest.raises(DamagedCheckpoint, match="cannot load"):
        saver.load(found, 20)
    assert saver.newest() == 10
    restored_one = saver.restore(found)
    assert restored_one is not None
    assert restored_one.step == 10
    assert same(found, state(10))


def test_what_was_passed_over_is_remembered_with_its_attempt(saver: Saver, tmp_path: Path) -> None:
    """Another content than listed is certain; what cannot be loaded may be loaded another time."""
    _, [committed], _ = (save(saver, step) for step in (10, 20, 30))
    torn = tmp_path / "step-000000030" / ".metadata"
    torn.write_bytes(b"x" * torn.stat().st_size)
    folder = tmp_path / "step-000000020"
    index = store.write_file(folder / ".metadata", [memoryview(b"no pickle")], total=9)
    entries = (*(entry for entry in committed.manifest.files if entry["name"] != ".metadata"), index)
    (folder / "manifest.json").write_bytes(store.dump(manifest(20, files=entries)))
    restored_one = saver.restore(state(99))
    assert restored_one is not None
    assert restored_one.step == 10
    known = {step: (refusal.attempt, refusal.is_certain) for step, refusal in saver.refusals.items()}
    assert known == {30: (1, True), 20: (1, False)}


def test_only_what_is_allowed_is_found(saver: Saver, tmp_path: Path, logged: LoggedLines) -> None:
    """Without a manifest there is nothing to talk about; what is not allowed is not mentioned either."""
    for step in (10, 20, 30):
        save(saver, step)
    (tmp_path / "step-000000030" / "manifest.json").unlink()
    assert saver.newest() == 20
    assert saver.newest(lambda found: found.step < 20) == 10
    assert saver.newest(lambda found: False) == 0
    assert logged == []


def test_a_state_of_another_shape_is_no_damage(saver: Saver) -> None:
    """The message names what does not fit, and the checkpoint stays what it was."""
    save(saver, 10)
    larger, smaller, other, kind = state(1), state(1), state(1), state(1)
    larger["model"]["new"] = torch.ones(1)
    del smaller["model"]["count"]
    other["model"]["count"] = torch.zeros(2)
    kind["step"] = torch.tensor(1)
    for unfit, words in (
        (larger, "nothing for model.new"),
        (smaller, "no place for model.count"),
        (other, r"model.count is \(2,\)"),
        (kind, "step is a tensor"),
    ):
        with pytest.raises(UnfitState, match=words):
            saver.load(unfit, 10)
    assert saver.newest() == 10
    saver.load(smaller, 10, partial=True)
    assert same(smaller["model"]["half"], state(10)["model"]["half"])


def test_random_states_of_other_ranks_are_passed_over(saver: Saver) -> None:
    """A rank that was not there when the checkpoint was written keeps the random state it has."""
    save(saver, 10)
    found = state(99, rank=3)
    saver.load(found, 10)
    assert same(found["random"], state(99, rank=3)["random"])
    assert same(found["model"], state(10)["model"])


def test_a_state_may_change_its_structure(saver: Saver, logged: LoggedLines) -> None:
    """The next save is prepared again, logs this, and holds the new state."""
    save(saver, 10)
    grown = state(20)
    grown["model"]["new"] = torch.arange(200_000)
    grown["optimizer"]["state"][1]["flags"] = torch.ones(9)
    saver.save(grown, manifest(20))
    assert saver.wait(120)[0].error is None
    assert len(logged.containing("changed its structure")) == 1
    found = state(99)
    found["model"]["new"] = torch.zeros(200_000, dtype=torch.int64)
    found["optimizer"]["state"][1]["flags"] = torch.zeros(9)
    saver.load(found, saver.newest())
    assert same(found, grown)


def test_values_may_grow(saver: Saver) -> None:
    for step, length in ((1, 3), (2, 30_000), (3, 200_000), (4, 5)):
        changing = state(step) | {"note": "x" * length, "list": list(range(length))}
        saver.save(changing, manifest(step))
        assert saver.wait(120)[0].error is None
        found = state(99) | {"note": "", "list": []}
        saver.load(found, step)
        assert same(found, changing)


def test_a_later_save_takes_up_no_more_than_the_state(saver: Saver, tmp_path: Path) -> None:
    wide = torch.arange(1_000_000).view(1000, 1000)
    seen = {"column": wide[:, 3], "turned": wide[:30, :20].t(), "part": wide[5:9]}
    saver.save(seen, manifest(1))
    assert saver.wait(120)[0].error is None
    assert (tmp_path / "step-000000001" / "__0_0.distcp").stat().st_size < 60_000
    found = {name: torch.zeros_like(tensor) for name, tensor in seen.items()}
    saver.load(found, 1)
    assert same(found, {name: tensor.contiguous() for name, tensor in seen.items()})


def test_what_cannot_be_saved_is_named(saver: Saver) -> None:
    """At prepare(), and not on the night of the first save."""
    with pytest.raises(TypeError, match=r"rows\.sparse"):
        saver.prepare({"rows": {"sparse": torch.ones(3, 3).to_sparse()}})
    with pytest.raises(ValueError, match=r"a\.b: two places"):
        saver.prepare({"a": {"b": 1}, "a.b": 2})


def test_the_writer_may_die(saver: Saver, logged: LoggedLines) -> None:
    """Between saves or in one: the save succeeds all the same, in a thread, and one line says so."""
    saver.prepare(state(1))
    assert saver._writer is not None
    assert saver._writer.pid is not None
    os.kill(saver._writer.pid, signal.SIGKILL)
    for step in (10, 20):
        assert save(saver, step)[0].error is None
        assert restored(saver, step)
    assert len(logged) == 1
    assert "a thread of the training process does its work" in logged[0]


def test_the_writer_may_be_stopped_in_the_middle(saver: Saver, logged: LoggedLines) -> None:
    """Killed while it holds half a file, it leaves nothing behind that the thread would trip over."""
    saver.prepare(state(1))
    assert saver._writer is not None
    assert saver._writer.pid is not None
    os.kill(saver._writer.pid, signal.SIGSTOP)
    saver.save(state(10), manifest(10))
    assert saver.wait(0.2) == []
    os.kill(saver._writer.pid, signal.SIGKILL)
    assert saver.wait(120)[0].error is None
    assert restored(saver, 10)


def test_the_writer_outlives_the_signals_of_a_stop(saver: Saver, logged: LoggedLines) -> None:
    """A launcher that signals every process it finds must not cost the last checkpoint its writer."""
    saver.prepare(state(1))
    assert saver._writer is not None
    assert saver._writer.pid is not None
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        os.kill(saver._writer.pid, number)
    assert save(saver, 10, reason="sigterm")[0].error is None
    assert logged == []


def test_the_writer_dies_with_its_rank(tmp_path: Path) -> None:
    """Killed or just gone: no process writes on beside a successor."""
    code = (
        "import os, sys; from rerail_agent.checkpoints.staging_memory import Arena;"
        "from rerail_agent.checkpoints.writer import Writer; arena = Arena(4096);"
        "print(Writer(arena.file, arena.memory).pid, flush=True); sys.stdin.read()"
    )
    path = os.pathsep.join(entry for entry in sys.path if entry)
    rank = subprocess.Popen(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": path}, stdin=-1, stdout=subprocess.PIPE, text=True
    )
    assert rank.stdout is not None
    writer = Path("/proc") / rank.stdout.readline().strip()
    assert settle(lambda: b"writer" in (writer / "cmdline").read_bytes())
    rank.kill()
    rank.communicate()
    assert settle(lambda: not writer.exists() or "State:\tZ" in (writer / "status").read_text())


def test_a_disk_that_takes_no_more(saver: Saver, tmp_path: Path, logged: LoggedLines) -> None:
    """The save ends with the reason, nothing is left of it, and the next one succeeds."""
    save(saver, 10)
    (tmp_path / ".saving-step-000000020" / "__0_0.distcp").mkdir(parents=True)
    [failed] = save(saver, 20)
    assert failed.error is not None
    assert "rank 0" in failed.error
    assert not (tmp_path / ".saving-step-000000020").exists()
    assert saver.newest() == 10
    assert save(saver, 20)[0].error is None
    assert saver.newest() == 20


def test_an_after_that_raises_costs_nothing(saver: Saver, logged: LoggedLines) -> None:
    """The caller's mistake is logged, and the next save is written."""

    saver.save(state(1), manifest(1), raising(ValueError("oops")))
    assert saver.wait(120)[0].error is None
    assert len(logged.containing("oops")) == 1
    assert save(saver, 2)[0].error is None


def test_quarantine_moves_what_is_tainted(saver: Saver, tmp_path: Path, logged: LoggedLines) -> None:
    """Later ones of earlier attempts and torn ones go, and nothing in quarantine is replaced."""
    for step in (10, 20, 30, 40):
        save(saver, step, attempt=1 + (step == 40))
    (tmp_path / "step-000000030" / "manifest.json").unlink()
    (tmp_path / "quarantine" / "a1-step-000000020").mkdir(parents=True)
    saver.quarantine(after=10, tainted=lambda found: found.attempt == 1)
    assert sorted(path.name for path in (tmp_path / "quarantine").iterdir()) == [
        "a1-step-000000020",
        "a1-step-000000020-2",
        "aunknown-step-000000030",
    ]
    assert logged.containing("step-000000020 of attempt 1 comes after step 10: moved to quarantine/a1-step-000000020-2")
    assert saver.newest() == 40
    assert save(saver, 20, attempt=2)[0].error is None


def test_pruning_follows_each_commit(saver: Saver, tmp_path: Path) -> None:
    """The last ones stay, torn ones go, newer ones of another attempt and the newest clean one are left alone."""
    (tmp_path / "step-000000015").mkdir()
    save(saver, 10)
    save(saver, 90, attempt=0)
    saver.prune(keep=2, doublings=0)
    for step in (20, 30):
        save(saver, step, health="suspect")
    save(saver, 40, health="suspect")
    wanted = ["step-000000010", "step-000000030", "step-000000040", "step-000000090"]
    assert settle(lambda: sorted(path.name for path in tmp_path.iterdir()) == wanted)
    with pytest.raises(ValueError, match="keep=0"):
        saver.prune(keep=0)


def test_what_a_killed_save_left_is_swept_up(saver: Saver, tmp_path: Path) -> None:
    (tmp_path / ".saving-step-000000010").mkdir()
    (tmp_path / ".saving-step-000000010" / "__0_0.distcp").write_text("half")
    assert saver.newest() == 0
    assert list(tmp_path.iterdir()) == []


def test_a_kill_between_any_two_changes_of_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills the commit and a deletion at each of their steps: a whole checkpoint is always there."""
    seed = tmp_path / "seed"
    first = Saver(open_store(seed))
    for step in (10, 20):
        save(first, step)
    first.close()
    outcomes = set()
    for moment in range(200):
        root = tmp_path / str(moment)
        shutil.copytree(seed, root)
        with monkeypatch.context() as patched:
            survived = _until(moment, patched, LocalStore(str(root)))
        logged = LoggedLines()
        reader = Saver(open_store(root), log=logged.append)
        step = reader.newest()
        assert step in (20, 30)
        assert logged == []
        outcomes.add(step)
        assert [path.name for path in root.iterdir() if path.name.startswith(".saving")] == []
        shutil.rmtree(root)
        if survived:
            break
    assert survived, "there are more steps than were tried"
    assert moment > 15
    assert outcomes == {20, 30}


def _until(moment: int, patched: pytest.MonkeyPatch, place: LocalStore) -> bool:
    """Commits step 30 and deletes step 10; raises Killed at the given change of the disk, and says how it ended."""
    left = [moment]

    def deadly(original: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **keywords: object) -> object:
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            return original(*args, **keywords)

        return call

    for owner, name in ((os, "fsync"), (os, "write"), (Path, "rename"), (Path, "mkdir"), (Path, "unlink")):
        patched.setattr(owner, name, deadly(getattr(owner, name)))
    for name in ("unlink", "rmdir"):  # what shutil.rmtree calls
        patched.setattr(os, name, deadly(getattr(os, name)))
    try:
        entry = place.write(30, "__0_0.distcp", [memoryview(b"tensors")], total=7)
        place.commit(manifest(30, files=(entry,)), b"index")
        place.drop(10)
    except Killed:
        return False
    return True


def test_nothing_whole_is_written_over(tmp_path: Path) -> None:
    """Even when another process has committed the same step meanwhile."""
    one, other = Saver(open_store(tmp_path)), Saver(open_store(tmp_path))
    one.prepare(state(1))
    other.prepare(state(1))
    assert save(one, 10)[0].error is None
    [failed] = save(other, 10, attempt=2)
    assert failed.error is not None
    assert "a complete checkpoint is never replaced" in failed.error
    assert other.newest() == 10
    assert other.load(state(1), 10).attempt == 1
    one.close()
    other.close()


def test_where_checkpoints_go() -> None:
    assert open_store("/some/where/").uri == "/some/where"
    assert open_store("s3://bucket/a/b/").uri == "s3://bucket/a/b/"
    assert open_store("s3://bucket").uri == "s3://bucket/"
    for wrong in ("gs://bucket/a", "s3:///a"):
        with pytest.raises(ValueError, match="s3://bucket/prefix"):
            open_store(wrong)
