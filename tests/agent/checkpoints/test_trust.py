"""What others write into a job's checkpoint folder runs no code in the job, and is not taken for the run's own."""

import json
import pickle
import shutil
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributed as dist
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING

from rerail_agent import manifests
from rerail_agent.checkpoints import DamagedCheckpoint, Saver, open_store, rank_exchange
from rerail_agent.checkpoints.commit_queue import CommitResult
from rerail_agent.checkpoints.manifest import MANIFEST, METADATA, UNREADABLE, dump, parse
from rerail_agent.checkpoints.rank_exchange import RankExchange
from rerail_agent.checkpoints.restore import UnfitState
from rerail_agent.checkpoints.safe_load import load_metadata
from rerail_agent.checkpoints.store import compute_checksum
from rerail_agent.checkpoints.trust import ManifestTrust
from tests.agent.checkpoints.ranks import manifest, settle

pytestmark = pytest.mark.slow

KEY, ANOTHER = "ab" * 32, "cd" * 32


class Payload:
    """A pickle of it creates a file when it is loaded."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


@pytest.fixture
def as_attempt(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """The environment of one attempt of the run, with the key or without."""

    def enter(attempt: int, key: str = KEY) -> None:
        monkeypatch.setenv("TRAINING_JOB_NAME", "gpt")
        monkeypatch.setenv("RERAIL_RUN", "gpt")
        monkeypatch.setenv("RERAIL_ATTEMPT", str(attempt))
        monkeypatch.setenv("RERAIL_SEAL_KEY", key)

    return enter


def save(root: Path, *steps: int, attempt: int = 1, **values: Any) -> str:
    """Save these steps; return what was logged."""
    log: list[str] = []
    saver = Saver(open_store(root), log=log.append)
    for step in steps:
        state = {"w": torch.full((4,), float(step)), "step": step, **values}
        assert saver.save(state, manifest(step, run="gpt", attempt=attempt))
    saver.wait()
    saver.close()
    return "\n".join(log)


def restored(root: Path, **values: Any) -> tuple[int, list[str]]:
    """The step that is restored, and what was logged."""
    log: list[str] = []
    saver = Saver(open_store(root), log=log.append)
    state = {"w": torch.zeros(4), "step": 0, **values}
    found = saver.restore(state)
    saver.close()
    assert found is None or state["w"][0] == state["step"] == found.step
    return found.step if found else 0, log


def change_files(folder: Path, **files: bytes) -> None:
    """Replace files as one would who may write there: with a manifest whose checksums are right."""
    names = {"metadata": METADATA, "shard": "__0_0.distcp"}
    for name, content in files.items():
        (folder / names[name]).write_bytes(content)
    table = json.loads((folder / MANIFEST).read_bytes())
    for entry in table["files"]:
        path = folder / entry["name"]
        entry |= {"bytes": path.stat().st_size, "checksum": compute_checksum(path)}
        entry.pop("sha256", None)
    table.pop("seal")
    read = parse(dump(replace(manifest(table["step"], run="gpt"), files=tuple(table["files"]))), folder=folder.name)
    (folder / MANIFEST).write_bytes(dump(replace(read, attempt=table["attempt"])))


@pytest.mark.threat("T25")
def test_a_value_of_the_store_is_decompressed_to_its_limit_only(monkeypatch) -> None:
    monkeypatch.setattr(rank_exchange, "MOST_BYTES", 1 << 16)
    exchange = RankExchange(rank=0, world_size=2, store=dist.HashStore())
    exchange.post("index", index := list(range(1 << 12)))
    exchange.post("bomb", bytes(1 << 16))
    assert exchange.read("index") == index
    with pytest.raises(ValueError, match="bomb: cut off, or more than 65536 bytes"):
        exchange.read("bomb")


@pytest.mark.threat("T25")
@pytest.mark.parametrize("where", ["metadata", "value", "store"])
def test_a_checkpoint_runs_no_code(tmp_path: Path, where: str) -> None:
    """Neither its index nor a plain value nor what the ranks exchange about it, also in a run without a key."""
    mark, root = tmp_path / "ran", tmp_path / "checkpoints"
    if where == "value":
        said = save(root, 10, evil=Payload(mark))
        assert "step-000000010" not in said and "the plain value evil" in said, "the one who saves it is told at once"
        with pytest.raises(UnfitState, match=r"the plain value evil .*add_safe_globals"):
            restored(root, evil=None)
    elif where == "store":
        (store := dist.HashStore()).set("spread-0", zlib.compress(pickle.dumps([Payload(mark), print, UnfitState(3)])))
        evil, function, own = RankExchange(rank=1, world_size=2, store=store).broadcast(None)
        assert isinstance(evil, RuntimeError) and function is RuntimeError and isinstance(own, UnfitState)
        # The name of a class that our module reaches, but does not define: its constructor opens a file.
        path = b"rerail_agent.checkpoints.file_format", b"torch.distributed.elastic.multiprocessing.ProcessFailure"
        texts = b"".join(b"X" + len(text).to_bytes(4, "little") + text for text in path)
        store.set("reached", zlib.compress(b"\x80\x04" + texts + b"\x93."))
        assert RankExchange(rank=1, world_size=2, store=store).read("reached") is RuntimeError
    else:
        save(root, 10)
        save(root, 20)
        change_files(root / "step-000000020", metadata=pickle.dumps(Payload(mark)))
        with pytest.raises(DamagedCheckpoint):
            load_metadata(pickle.dumps(Payload(mark)))
        assert restored(root)[0] == 10
    assert not mark.exists()


@pytest.mark.threat("T25")
@pytest.mark.parametrize(
    "content",
    [
        b"cposix\nsystem\n(S'true'\ntR.",
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"ctorch\nload\n(S'x'\ntR.",
        b"ctorch.serialization\nload\n(S'x'\ntR.",
        b"ctorch.distributed.checkpoint.metadata\nos.system\n(S'true'\ntR.",
        b"\x80\x04\x8c\x05torch\x8c\nhub.load_x\x93.",
        b"cbuiltins\ngetattr\n(ctorch.serialization\n_get_layout\nS'__globals__'\ntR.",
        b"cbuiltins\ngetattr\n(ctorch.distributed.checkpoint.metadata\n_MEM_FORMAT_ENCODING\nS'__init__'\ntR.",
        pickle.dumps({"no": "index"}),
        b"",
        b"\x80\x04N.",
    ],
)
def test_an_index_names_only_the_types_of_an_index(content: bytes) -> None:
    """Dotted names, functions of listed modules and other objects are refused."""
    with pytest.raises(DamagedCheckpoint, match=METADATA):
        load_metadata(content)


@pytest.mark.threat("T25")
def test_an_index_names_no_file_outside_of_its_folder(tmp_path: Path) -> None:
    """The reader would read any file that the job may read."""
    save(tmp_path, 10)
    content = (tmp_path / "step-000000010" / METADATA).read_bytes()
    assert load_metadata(content)
    with pytest.raises(DamagedCheckpoint, match="outside"):
        load_metadata(content.replace(b"__0_0.distcp", b"../../passwd"))


@pytest.mark.threat("T15")
def test_a_manifest_names_no_file_with_a_line_of_its_own(tmp_path: Path) -> None:
    save(tmp_path, 10)  # what is missing of one is printed into the job's log, which is read for errors
    found = parse((tmp_path / "step-000000010" / MANIFEST).read_bytes(), folder="step-000000010")
    text = dump(replace(found, files=(*found.files, {"name": "a\nCUDA error", "bytes": 1, "checksum": ""})))
    with pytest.raises(DamagedCheckpoint, match="cannot be read"):
        parse(text, folder="step-000000010")


def test_an_index_of_an_early_python_3_11_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its enums are pickled as a call of getattr, as Debian 12's Python 3.11.2 does."""
    with monkeypatch.context() as early:
        early.setattr(_MEM_FORMAT_ENCODING, "__reduce_ex__", lambda own, protocol: (getattr, (type(own), own.name)))
        save(tmp_path, 10)
    assert b"getattr" in (tmp_path / "step-000000010" / METADATA).read_bytes()
    assert restored(tmp_path)[0] == 10


def test_values_that_training_scripts_save_are_restored(tmp_path: Path) -> None:
    """Random states of Python and NumPy, numbers, texts, nested lists and tuples, and arrays."""
    values = {
        "random": (3, (1, 2, 3), None),
        "numpy": {"keys": np.arange(3), "mean": np.float64(0.5), "flags": np.array([True, False])},
        "nested": {"names": ["a", "b"], "pair": (1, 2.5, None, b"x"), "dtype": torch.bfloat16},
    }
    save(tmp_path, 10, **values)
    saver = Saver(open_store(tmp_path))
    state: dict[str, Any] = {
        "w": torch.zeros(4),
        "step": 0,
        "random": None,
        "numpy": {"keys": None, "mean": None, "flags": None},
        "nested": {"names": None, "pair": None, "dtype": None},
    }
    assert saver.restore(state)
    saver.close()
    assert state["random"] == values["random"]
    assert state["nested"] == values["nested"]
    assert state["numpy"]["keys"].tolist() == [0, 1, 2]
    assert state["numpy"]["mean"] == 0.5


@pytest.mark.threat("T25")
@pytest.mark.parametrize("key", ["", ANOTHER])
def test_a_checkpoint_that_others_add_is_passed_over(tmp_path: Path, as_attempt: Callable[..., None], key: str) -> None:
    """A run that signs takes neither an unsigned checkpoint nor another run's for its own."""
    as_attempt(1)
    save(tmp_path, 10, 20)
    as_attempt(1, key)
    save(tmp_path, 30)
    as_attempt(2)
    step, logged = restored(tmp_path)
    assert step == 20
    assert "not signed with the run's key" in "".join(logged)
    as_attempt(2, "")
    assert restored(tmp_path)[0] == 30, "a job without a key cannot tell"


@pytest.mark.threat("T25")
def test_a_changed_checkpoint_is_passed_over(tmp_path: Path, as_attempt: Callable[..., None]) -> None:
    """Its manifest is rewritten with the right checksums of other files, its signature kept, or its index replaced."""
    as_attempt(1)
    save(tmp_path, 10, 20, 30, 40)
    table = json.loads((tmp_path / "step-000000020" / MANIFEST).read_bytes())
    index = (tmp_path / "step-000000010" / METADATA).read_bytes()
    as_attempt(1, "")
    change_files(tmp_path / "step-000000040", metadata=index)
    (tmp_path / "step-000000030" / MANIFEST).write_text(json.dumps(table))
    (tmp_path / "step-000000020" / METADATA).write_bytes(index + b" ")
    as_attempt(2)
    assert restored(tmp_path)[0] == 10


@pytest.mark.threat("T25")
def test_a_checkpoint_that_changes_after_it_was_chosen_is_not_loaded(
    tmp_path: Path, as_attempt: Callable[..., None]
) -> None:
    """Between the look at its signature and the loading."""
    as_attempt(1)
    save(tmp_path, 10)
    saver = Saver(open_store(tmp_path))
    assert saver.newest() == 10
    as_attempt(1, "")
    change_files(tmp_path / "step-000000010", metadata=(tmp_path / "step-000000010" / METADATA).read_bytes())
    as_attempt(1)
    with pytest.raises(DamagedCheckpoint, match="changed"):
        saver.load({"w": torch.zeros(4), "step": 0}, 10)
    saver.close()


@pytest.mark.threat("T25")
def test_checkpoints_from_before_the_first_key_are_restored(tmp_path: Path, as_attempt: Callable[..., None]) -> None:
    """The first job had no key, its successor has: nothing is lost, also when it goes back behind its own."""
    as_attempt(1, "")
    save(tmp_path, 10, 20)
    as_attempt(2)
    assert restored(tmp_path)[0] == 20
    save(tmp_path, 30, attempt=2)
    assert restored(tmp_path)[0] == 30
    saver = Saver(open_store(tmp_path))
    assert saver.newest(lambda manifest: manifest.step <= 20) == 20
    saver.close()
    as_attempt(2, "")
    save(tmp_path, 25, attempt=2)
    save(tmp_path, 40)
    as_attempt(3)
    assert restored(tmp_path)[0] == 30


def add_nothing(root: Path) -> None:
    """The unsigned checkpoint alone."""


def add_files(root: Path) -> None:
    """Files where the agent expects folders."""
    shutil.rmtree(root / "step-000000020")
    for name in ("step-000000020", ".saving-step-000000020", "quarantine"):
        (root / name).write_text("x")


def add_folder(root: Path) -> None:
    """A folder where the agent expects a file."""
    (root / "step-000000020" / MANIFEST).unlink()
    (root / "step-000000020" / MANIFEST / "x").mkdir(parents=True)


def add_names(root: Path) -> None:
    """Folders whose names are read as steps, and that no save creates."""
    for name in ("step-0000000010", "step-0000000030", f"step-{'9' * 250}", f"step-{chr(0x661) * 9}"):
        (root / name).mkdir()


@pytest.mark.threat("T25")
@pytest.mark.parametrize("add", [add_nothing, add_files, add_folder, add_names])
def test_a_checkpoint_that_others_add_keeps_none_from_being_saved(
    tmp_path: Path, as_attempt: Callable[..., None], add: Callable[[Path], None]
) -> None:
    """It stands where the run is about to save: it is replaced, and does not make room for itself either."""
    as_attempt(1)
    save(tmp_path, 10)
    as_attempt(1, "")
    save(tmp_path, 20)
    add(tmp_path)
    as_attempt(1)
    save(tmp_path, 20)
    assert restored(tmp_path)[0] == 20
    saver = Saver(open_store(tmp_path))
    saver.quarantine(after=10, tainted=lambda manifest: True)
    saver.close()
    assert restored(tmp_path)[0] == 10


@pytest.mark.threat("T19")
@pytest.mark.parametrize("keys", [(KEY, ANOTHER), ("", "")])
def test_runs_that_share_a_folder_delete_nothing_of_each_other(
    tmp_path: Path, as_attempt: Callable[..., None], keys: tuple[str, str]
) -> None:
    """Neither what the other run has saved, nor the shards of a save that it has not finished.

    One run had saved before both began, and both save step 25.
    """
    as_attempt(1, keys[1])
    before = Saver(open_store(tmp_path))
    assert before.save({"w": torch.zeros(4)}, manifest(12, run="run-2"))
    before.wait()
    before.close()
    savers = []
    for key in keys:
        as_attempt(1, key)
        savers.append(Saver(open_store(tmp_path)))
        savers[-1].prune(keep=2, doublings=0)
    (tmp_path / "step-000000005").mkdir()
    for number, steps in ((1, (15, 25, 35)), (0, (10, 20, 25, 30, 40))):
        as_attempt(1, keys[number])
        for step in steps:
            savers[number].save({"w": torch.zeros(4)}, manifest(step, run=f"run-{number}"))
            savers[number].wait()
    assert settle(lambda: sorted(int(path.name[-9:]) for path in tmp_path.iterdir()) == [5, 12, 25, 30, 35, 40])
    for saver in savers:
        saver.close()
    later = Saver(open_store(tmp_path))  # where another run had saved before this start
    as_attempt(1, keys[0])
    assert later.save({"w": torch.zeros(4)}, manifest(35, run="run-0")) == bool(keys[0])
    later.wait()
    later.close()
    places = tmp_path.rglob(f"*step-000000035/{MANIFEST}")
    found = [parse(path.read_bytes(), folder="step-000000035").run for path in places]
    assert found.count("run-1") == 1, "it is in quarantine, or where it was"


@pytest.mark.threat("T19")
@pytest.mark.parametrize("refused", ["quarantine", "steps", "manifest"])
def test_a_step_that_cannot_be_replaced_fails_its_save_and_nothing_else(
    tmp_path: Path, as_attempt: Callable[..., None], monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    """S3 does not answer, or does not let the job read or copy what lies there: that stays, and training goes on."""
    as_attempt(1, ANOTHER)
    save(tmp_path, 10)
    as_attempt(1)
    place, ended = open_store(tmp_path), list[CommitResult]()
    saver = Saver(place)
    saver.newest()

    def refuse(*arguments: object) -> None:
        raise DamagedCheckpoint(UNREADABLE) if refused == "manifest" else OSError("AccessDenied")

    monkeypatch.setattr(type(place), refused, refuse)
    state = {"w": torch.zeros(4)}
    assert saver.save(state, manifest(10, run="gpt"), ended.append)
    assert (result := ended[0]).error and result.step == 10 and [*saver.wait()] == ended
    monkeypatch.undo()
    as_attempt(1)
    assert (tmp_path / "step-000000010" / MANIFEST).exists()
    assert saver.save(state, manifest(20, run="gpt"))
    assert [result.error for result in saver.wait()] == [None]
    saver.close()


@pytest.mark.threat("T25")
def test_folders_of_frameworks_are_signed_too(tmp_path: Path, as_attempt: Callable[..., None]) -> None:
    """A folder that Hugging Face or a script has written: its manifest says whose it is."""
    for step, key in ((1, KEY), (2, KEY), (3, "")):
        as_attempt(1, key)
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        (folder / "weights").write_bytes(b"w")
        manifests.commit(folder, step=step)
    as_attempt(2)
    found = manifests.find_newest_whole(tmp_path, lambda manifest: True, lambda line: None)
    assert found and found.name == "checkpoint-2"


@pytest.mark.threat("T25")
@pytest.mark.parametrize("has_manifest", [True, False])
def test_another_folder_of_a_signed_step_is_not_loaded(
    tmp_path: Path, as_attempt: Callable[..., None], has_manifest: bool
) -> None:
    """Nor does it hide the signed one, or have it deleted."""
    for name, key in (("checkpoint-4", KEY), ("checkpoint-5", KEY), ("step-5", ""), ("step-6", "")):
        as_attempt(1, key)
        folder = tmp_path / name
        folder.mkdir()
        (folder / "weights").write_bytes(b"w")
        if key or has_manifest:
            manifests.commit(folder, step=int(name[-1]))
    as_attempt(2)
    assert manifests.resume_from(tmp_path) == tmp_path / "checkpoint-5"
    listed = manifests.select_trusted(manifests.read_all(tmp_path)).values()
    assert manifests.choose_kept(listed, keep=2, newest=7) == {4, 5}


@pytest.mark.threat("T25")
def test_who_wrote_a_manifest_is_judged_by_its_signature_and_place() -> None:
    """Unsigned ones are trusted below the first signed step, and never of this attempt or a later one."""
    trust = ManifestTrust(has_key=True, run="gpt", attempt=2)
    listed = [
        manifest(1, run="gpt", attempt=1),
        manifest(2, run="gpt", attempt=2),
        manifest(3, run="another", attempt=9),
        replace(manifest(5, run="gpt", attempt=2), signature="right"),
        manifest(6, run="gpt", attempt=1),
    ]
    assert trust.find_untrusted(listed) == {2, 6}
    assert trust.find_untrusted(listed[:3]) == {2}
    assert trust.find_untrusted(listed, signs_all=False) == {6}
    assert replace(trust, has_key=False).find_untrusted(listed) == set()
