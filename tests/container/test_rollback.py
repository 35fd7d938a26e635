"""Going back before a fault: what came after it is set aside, and the run goes on as if it had never been."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import checkpoint
import train
from checkpoint import Manifest
from tests.container.hosts import Here, agree
from tests.container.test_checkpoint import Killed, put


class StopAfter(train.Stop):
    """A SIGTERM that comes in the middle of a step."""

    def __init__(self, step: int) -> None:
        self.left = step

    @property
    def requested(self) -> bool:  # type: ignore[override]
        """Asked once a step."""
        self.left -= 1
        return self.left <= 0


def weights(base: Path) -> str:
    return checkpoint.fingerprint(torch.load(base / "model" / "model.pt", weights_only=True))


def attempts(root: Path) -> dict[str, int]:
    """The attempt that saved each checkpoint in a folder; all of them are verified."""
    return {folder.name: checkpoint.verify(folder).attempt for folder in sorted(root.glob("*step-*"))}


def test_a_rolled_back_run_is_the_undisturbed_one(train_here: Here, tmp_path: Path) -> None:
    """Bit for bit from the checkpoint on, with its later steps saved again and the tainted ones kept apart, intact."""
    whole = train_here(tmp_path / "whole", steps="60", keep="10")
    spike = "spike:step=30:attempt=1"
    base, checkpoints = tmp_path / "spiked", tmp_path / "spiked" / "checkpoints"
    spiked = train_here(base, steps="60", keep="10", drill=spike, stop=StopAfter(45))
    assert (max(spiked), spiked[29] == whole[29], spiked[30] == whole[30]) == (45, True, False)
    resumed = train_here(base, steps="60", keep="10", drill=spike, attempt=2, resume_at_most=20)
    assert list(resumed) == list(range(21, 61))
    assert agree(resumed, whole)
    assert weights(base) == weights(tmp_path / "whole")
    tainted = {f"a1-step-{step:09d}": 1 for step in (30, 40, 45)}
    assert attempts(checkpoints / "quarantine") == tainted
    by_step = {10: 1, 20: 1, 30: 2, 40: 2, 50: 2, 60: 2}
    assert attempts(checkpoints) == {checkpoint.folder_name(step): attempt for step, attempt in by_step.items()}
    moved = "step-000000045 of attempt 1 comes after step 20: moved to quarantine/a1-step-000000045"
    assert f"train: {moved}" in train_here.err


def test_a_crash_after_a_rollback_resumes_from_the_mended_run(train_here: Here, tmp_path: Path) -> None:
    """The third attempt takes what the second has saved, and sets nothing aside."""
    whole = train_here(tmp_path / "whole")
    train_here(drill="spike:step=15;bug:step=35")
    train_here(attempt=2, resume_at_most=10, drill="bug:step=33")
    third = train_here(attempt=3, resume_at_most=30)
    assert list(third) == list(range(31, 41))
    assert agree(third, whole)
    assert "moved to quarantine" not in train_here.err


def test_a_restart_in_place_quarantines_nothing_of_its_own(train_here: Here, tmp_path: Path) -> None:
    """The same attempt with the same resume step goes on from its own newer checkpoint."""
    train_here(drill="bug:step=22")
    train_here(attempt=2, resume_at_most=10, drill="bug:step=35")
    resumed = train_here(attempt=2, resume_at_most=10)
    assert (min(resumed), "moved to quarantine" in train_here.err) == (31, False)
    assert attempts(tmp_path / "checkpoints" / "quarantine") == {"a1-step-000000020": 1}


def test_a_first_job_quarantines_nothing(train_here: Here, tmp_path: Path) -> None:
    """It was told of no step."""
    train_here(drill="bug:step=35")
    assert min(train_here()) == 31
    assert not (tmp_path / "checkpoints" / "quarantine").exists()


def set_aside(root: Path, told: list[str] | None = None) -> None:
    def tainted(manifest: Manifest) -> bool:
        return manifest.attempt < 2

    checkpoint.quarantine(root, after=20, tainted=tainted, tell=(told if told is not None else []).append)


def test_only_what_is_tainted_is_moved(tmp_path: Path) -> None:
    """Newer than the step, and of an earlier attempt or, being torn, of nobody knows which."""
    for step, attempt in ((10, 1), (20, 1), (30, 1), (40, 2), (60, 1)):
        put(tmp_path, step, attempt=attempt)
    (put(tmp_path, 50) / "manifest.json").unlink()
    (put(tmp_path, 15) / "manifest.json").unlink()
    (tmp_path / "step-000000060" / "model.pt").unlink()
    told: list[str] = []
    set_aside(tmp_path, told)
    assert checkpoint.steps(tmp_path) == [40, 20, 15, 10]
    moved = {path.name for path in (tmp_path / "quarantine").iterdir()}
    assert moved == {"a1-step-000000030", "aunknown-step-000000050", "a1-step-000000060"}
    assert len(told) == 3
    set_aside(tmp_path, told)
    assert len(told) == 3


def test_nothing_in_quarantine_is_replaced(tmp_path: Path) -> None:
    """A checkpoint that a sync has brought back goes beside the one that was moved before."""
    for _ in range(3):
        put(tmp_path, 30)
        set_aside(tmp_path)
    names = ["a1-step-000000030", "a1-step-000000030-2", "a1-step-000000030-3"]
    assert list(attempts(tmp_path / "quarantine")) == names


def test_pruning_and_resuming_pass_quarantine_by(tmp_path: Path) -> None:
    """It is no place to delete from or to resume from."""
    put(tmp_path, 30)
    set_aside(tmp_path)
    put(tmp_path, 10, attempt=2)
    put(tmp_path, 20, attempt=2)
    checkpoint.prune(tmp_path, keep=1, newest=20)
    assert checkpoint.newest_whole(tmp_path, lambda manifest: True, lambda message: None) == 20
    assert attempts(tmp_path / "quarantine") == {"a1-step-000000030": 1}


def test_a_kill_at_any_moment_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between any two changes of the disk, the next start finishes the move; every checkpoint is still whole."""
    for moment in range(50):
        root = tmp_path / str(moment)
        for step in (20, 30, 40, 50):
            put(root, step)
        with monkeypatch.context() as patched:
            survived = run_until(moment, patched, root)
        assert len(attempts(root)) + len(attempts(root / "quarantine")) == 4
        set_aside(root)
        assert list(attempts(root)) == ["step-000000020"]
        assert list(attempts(root / "quarantine")) == [f"a1-step-{step:09d}" for step in (30, 40, 50)]
        if survived:
            break
    assert survived
    assert moment > 9


def run_until(moment: int, patched: pytest.MonkeyPatch, root: Path) -> bool:
    left = [moment]

    def deadly(original: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **keywords: object) -> object:
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            return original(*args, **keywords)

        return call

    for owner, name in ((os, "fsync"), (Path, "rename"), (Path, "mkdir")):
        patched.setattr(owner, name, deadly(getattr(owner, name)))
    try:
        set_aside(root)
    except Killed:
        return False
    return True
