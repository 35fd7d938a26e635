"""Going back before a fault: what came after it is quarantined, and the run goes on as if it had not happened."""

import json
from pathlib import Path

import pytest
import torch

from replay import fingerprint
from tests.container.hosts import Here, Listening, agree, saved

pytestmark = pytest.mark.slow


def weights(base: Path) -> str:
    return fingerprint(torch.load(base / "model" / "model.pt", weights_only=True))


def attempts(root: Path) -> dict[str, int]:
    """The attempt that each checkpoint in a folder is of, by its manifest."""
    manifests = {folder.name: json.loads((folder / "manifest.json").read_text()) for folder in root.glob("*step-*")}
    return {name: manifest["attempt"] for name, manifest in sorted(manifests.items())}


def test_a_rolled_back_run_is_the_undisturbed_one(train_here: Here, tmp_path: Path) -> None:
    """Bit for bit from the checkpoint on, with its later steps saved again and the tainted ones kept apart, intact."""
    whole = train_here(tmp_path / "whole", steps="60", keep="10")
    spike = "spike:step=30:attempt=1"
    base, checkpoints = tmp_path / "spiked", tmp_path / "spiked" / "checkpoints"
    spiked = train_here(base, steps="60", keep="10", drill=spike, guard=Listening(sigterm_in=45))
    assert (max(spiked), spiked[29] == whole[29], spiked[30] == whole[30]) == (45, True, False)
    resumed = train_here(base, steps="60", keep="10", drill=spike, attempt=2, resume_at_most=20)
    assert list(resumed) == list(range(21, 61))
    assert agree(resumed, whole)
    assert weights(base) == weights(tmp_path / "whole")
    tainted = {f"a1-step-{step:09d}": 1 for step in (30, 35, 40, 45)}  # 35: the detectors have seen the spike
    assert attempts(checkpoints / "quarantine") == tainted
    by_step = {step: manifest.attempt for step, manifest in saved(checkpoints).items()}
    assert by_step == {10: 1, 20: 1, 30: 2, 40: 2, 50: 2, 60: 2}
    moved = "step-000000045 of attempt 1 comes after step 20: moved to quarantine/a1-step-000000045"
    assert f"train: {moved}" in train_here.err


def test_a_crash_after_a_rollback_resumes_from_the_second_attempts_save(train_here: Here, tmp_path: Path) -> None:
    """The third attempt takes what the second has saved, and quarantines nothing."""
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


def test_processes_restarted_in_place_go_back_before_what_their_own_attempt_has_saved(
    train_here: Here, tmp_path: Path
) -> None:
    """By the supervisor's command, in the same job: tainted checkpoints of before are quarantined, the curve is
    the undisturbed one, and a later restart of the same attempt goes on from what was saved since."""
    whole = train_here(tmp_path / "whole")
    drill = "nan:step=25:restart=0;bug:step=35:restart=1"
    poisoned = train_here(drill=drill, guard=Listening(sigterm_in=33))
    assert (max(poisoned), poisoned[24] == whole[24], poisoned[25]) == (33, True, "nan")
    again = train_here(drill=drill, resume_at_most=20, restart=1, rolled_back=1)
    assert list(again) == list(range(21, 35))
    assert "attempt 1, restarted in place (1), of night starts after step 20" in train_here.err
    assert set(attempts(tmp_path / "checkpoints" / "quarantine")) == {"a1-step-000000030", "a1-step-000000033"}
    last = train_here(drill=drill, resume_at_most=20, restart=2, rolled_back=1)
    assert (min(last), "moved to quarantine" in train_here.err) == (31, False)
    assert agree(last | again, whole)
    assert [manifest.restart for _, manifest in sorted(saved(tmp_path / "checkpoints").items())] == [0, 0, 1, 2]


def test_a_restart_drill_quarantines_nothing(train_here: Here, tmp_path: Path) -> None:
    """What was saved after the step is as good: it stays, the steps are trained again with the same losses, and a later
    attempt goes on from the newest of both."""
    first = train_here(drill="bug:step=35")
    again = train_here(attempt=2, resume_at_most=20, keeps_newer=True, drill="bug:step=28")
    assert min(again) == 21 and agree(again, first)
    assert "moved to quarantine" not in train_here.err and not (tmp_path / "checkpoints" / "quarantine").exists()
    assert min(train_here(attempt=3, resume_at_most=30)) == 31
