"""Checkpoints on disk: a kill at any moment, damage of any kind, and what pruning may delete."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import checkpoint
from checkpoint import DamagedCheckpoint, Manifest


class Killed(BaseException):
    """Stands for a SIGKILL: nothing of the code under test may catch it."""


def manifest(step: int, **changes: object) -> Manifest:
    fields = {"run": "night", "attempt": 1, "consumed_samples": step * 12, "world_size": 1, "loss": 2.5}
    return Manifest(**{**fields, "step": step, "reason": "periodic", **changes})  # type: ignore[arg-type]


def put(root: Path, step: int, **changes: object) -> Path:
    parts = {"model": {"weight": torch.full((4,), float(step))}, "optimizer": {"m": torch.zeros(4)}}
    checkpoint.save(root, manifest(step, **changes), parts)
    return root / checkpoint.folder_name(step)


def newest(root: Path, told: list[str] | None = None) -> int:
    return checkpoint.newest_whole(root, lambda manifest: True, (told if told is not None else []).append)


def test_the_manifest_says_what_the_contract_asks(tmp_path: Path) -> None:
    """Its keys, their types, and file names relative to its folder."""
    folder = put(tmp_path, 60)
    table = json.loads((folder / "manifest.json").read_text())
    assert folder.name == "step-000000060"
    whole_numbers = ("schema", "attempt", "step", "consumed_samples", "world_size")
    texts = ("run", "reason", "health", "saved_at")
    types = {**dict.fromkeys(whole_numbers, int), **dict.fromkeys(texts, str), "loss": float, "files": list}
    assert {key: type(value) for key, value in table.items()} == types
    assert (table["schema"], table["step"], table["consumed_samples"], table["health"]) == (1, 60, 720, "clean")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", table["saved_at"])
    assert [entry["name"] for entry in table["files"]] == ["model.pt", "optimizer.pt"]
    for entry in table["files"]:
        assert entry["bytes"] == (folder / entry["name"]).stat().st_size
        assert re.fullmatch(r"xxh3_64:[0-9a-f]{16}", entry["checksum"])
    assert {path.name for path in folder.iterdir()} == {"model.pt", "optimizer.pt", "manifest.json"}


def flip_a_bit(folder: Path) -> None:
    content = bytearray((folder / "model.pt").read_bytes())
    content[len(content) // 2] ^= 1
    (folder / "model.pt").write_bytes(content)


def cut(folder: Path, name: str) -> None:
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: len(content) // 2])


DAMAGES: dict[str, Callable[[Path], object]] = {
    "a flipped bit": flip_a_bit,
    "a truncated shard": lambda folder: cut(folder, "optimizer.pt"),
    "a missing shard": lambda folder: (folder / "model.pt").unlink(),
    "a truncated manifest": lambda folder: cut(folder, "manifest.json"),
    "an empty manifest": lambda folder: (folder / "manifest.json").write_text(""),
    "a manifest of another shape": lambda folder: (folder / "manifest.json").write_text("[1]"),
    "a manifest that lists nothing": lambda folder: (folder / "manifest.json").write_text(
        (folder / "manifest.json").read_text().replace('"files": [', '"files": [], "x": [')
    ),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_damage_falls_back_and_is_told(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    """The one before is taken, and the damaged one is named."""
    put(tmp_path, 10)
    damage(put(tmp_path, 20))
    told: list[str] = []
    assert newest(tmp_path, told) == 10
    assert len(told) == 1
    assert told[0].startswith("checkpoint step-000000020 is damaged (")


def test_a_folder_without_manifest_is_no_checkpoint(tmp_path: Path) -> None:
    """It is what a killed save leaves: nothing to talk about."""
    put(tmp_path, 10)
    (put(tmp_path, 20) / "manifest.json").unlink()
    told: list[str] = []
    assert newest(tmp_path, told) == 10
    assert told == []


def test_a_whole_checkpoint_is_not_written_again(tmp_path: Path) -> None:
    """A replayed step leaves the older copy as it is."""
    folder = put(tmp_path, 10, attempt=1)
    before = (folder / "manifest.json").read_bytes()
    put(tmp_path, 10, attempt=2)
    assert (folder / "manifest.json").read_bytes() == before


def test_a_damaged_checkpoint_is_replaced(tmp_path: Path) -> None:
    """The replay of its step makes it whole."""
    flip_a_bit(put(tmp_path, 10, attempt=1))
    put(tmp_path, 10, attempt=2)
    assert checkpoint.verify(tmp_path / "step-000000010").attempt == 2


def test_a_kill_at_any_moment_leaves_a_whole_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills the save and the pruning between any two changes of the disk: a resume then works, and so does a save.

    Step 20 exists before, damaged, so that the replacing is killed too.
    """
    outcomes = set()
    for moment in range(200):
        root = tmp_path / str(moment)
        put(root, 10)
        flip_a_bit(put(root, 20))
        with monkeypatch.context() as patched:
            survived = run_until(moment, patched, root)
        outcomes.add(newest(root))
        put(root, 20)
        assert newest(root) == 20
        checkpoint.prune(root, keep=1, newest=20)
        assert [path.name for path in root.iterdir()] == ["step-000000020"]
        shutil.rmtree(root)
        if survived:
            break
    assert survived, "the save has more steps than were tried"
    assert moment > 15
    assert outcomes == {10, 20}


def run_until(moment: int, patched: pytest.MonkeyPatch, root: Path) -> bool:
    """Saves and prunes; raises Killed at the given change of the disk, and says whether it came to the end."""
    left = [moment]

    def deadly(original: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **keywords: object) -> object:
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            return original(*args, **keywords)

        return call

    for owner, name in ((os, "fsync"), (Path, "rename"), (Path, "mkdir"), (Path, "open"), (Path, "unlink")):
        patched.setattr(owner, name, deadly(getattr(owner, name)))
    for name in ("unlink", "rmdir"):  # what shutil.rmtree calls
        patched.setattr(os, name, deadly(getattr(os, name)))
    patched.setattr(torch, "save", deadly(torch.save))
    try:
        put(root, 20)
        checkpoint.prune(root, keep=1, newest=20)
    except Killed:
        return False
    return True


def test_pruning_keeps_the_last_ones(tmp_path: Path) -> None:
    """The newest `keep` stay, torn ones below them go."""
    for step in (10, 20, 30, 40):
        put(tmp_path, step)
    (put(tmp_path, 25) / "manifest.json").unlink()
    checkpoint.prune(tmp_path, keep=2, newest=40)
    assert checkpoint.steps(tmp_path) == [40, 30]


def test_pruning_leaves_what_is_newer_than_the_last_save(tmp_path: Path) -> None:
    """After a rollback the old attempt's newer checkpoints neither count nor go."""
    for step in (10, 20, 30, 40):
        put(tmp_path, step)
    checkpoint.prune(tmp_path, keep=1, newest=20)
    assert checkpoint.steps(tmp_path) == [40, 30, 20]


def test_pruning_keeps_the_newest_clean_one(tmp_path: Path) -> None:
    """A run that saves one suspect state after the other keeps the one worth going back to."""
    put(tmp_path, 10)
    put(tmp_path, 20)
    for step in (30, 40, 50):
        put(tmp_path, step, loss=None, health="suspect")
    checkpoint.prune(tmp_path, keep=2, newest=50)
    assert checkpoint.steps(tmp_path) == [50, 40, 20]


def test_pruning_never_deletes_the_newest(tmp_path: Path) -> None:
    """keep=0 is a mistake, not a wish."""
    put(tmp_path, 10)
    with pytest.raises(ValueError, match="keep=0"):
        checkpoint.prune(tmp_path, keep=0, newest=10)
    assert newest(tmp_path) == 10


def test_deleting_begins_with_the_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deletion that is killed half way leaves no checkpoint that looks whole."""
    folder = put(tmp_path, 10)

    def kill(path: Path) -> None:
        raise Killed

    monkeypatch.setattr(shutil, "rmtree", kill)
    with pytest.raises(Killed):
        checkpoint.drop(folder)
    assert {path.name for path in folder.iterdir()} == {"model.pt", "optimizer.pt"}
    with pytest.raises(DamagedCheckpoint, match="manifest"):
        checkpoint.verify(folder)


def test_the_fingerprint_sees_one_bit() -> None:
    """Two models are the same only if every bit is."""
    weights = {"a": torch.ones(3), "b": torch.tensor(1.0)}
    same = checkpoint.fingerprint({"b": torch.tensor(1.0), "a": torch.ones(3)})
    assert checkpoint.fingerprint(weights) == same
    weights["a"][1] = torch.nextafter(weights["a"][1], torch.tensor(2.0))
    assert checkpoint.fingerprint(weights) != same
