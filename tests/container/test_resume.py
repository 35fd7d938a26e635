"""A resumed run goes on as if nothing had happened, and one that forgot a piece of state would be seen."""

import json
import math
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import random_state
import train
from replay import fingerprint
from rerail.model.finding import Kind, Level
from tests.container.hosts import Here, Listening, agree, saved

pytestmark = pytest.mark.slow


@pytest.fixture
def undisturbed(train_here: Here, tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """The losses of a run that nothing happened to."""
    return train_here(tmp_path_factory.mktemp("undisturbed"))


def weights(base: Path) -> str:
    return fingerprint(torch.load(base / "model" / "model.pt", weights_only=True))


def test_an_interrupted_run_has_the_same_losses_and_weights(train_here: Here, tmp_path: Path) -> None:
    """Two failures at odd steps change nothing, bit for bit."""
    whole = train_here(tmp_path / "whole")
    parts = [
        train_here(tmp_path / "parts", drill="bug:step=17"),
        train_here(tmp_path / "parts", drill="bug:step=33"),
        train_here(tmp_path / "parts"),
    ]
    assert list(whole) == list(range(1, 41))
    assert [(min(part), max(part)) for part in parts] == [(1, 16), (11, 32), (31, 40)]
    assert all(agree(part, whole) for part in parts)
    assert weights(tmp_path / "parts") == weights(tmp_path / "whole")


def forget(piece: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have train.py leave a piece of state out of every resume."""
    resume, schedule = train.resume, train.compute_learning_rate

    def forgetful(run: train.TrainingRun) -> None:
        resume(run)
        if not run.step:
            return
        match piece:
            case "random numbers":
                random_state.seed_everything(run.options.seed + 1 + run.layout.data_rank)
            case "data position":
                run.consumed_samples = 0
            case "optimizer":
                for moments in run.optimizer.state.values():
                    for tensor in moments.values():
                        tensor.zero_()
            case "schedule":
                monkeypatch.setattr(
                    train,
                    "compute_learning_rate",
                    lambda step, options, begun=run.step: schedule(step - begun, options),
                )

    monkeypatch.setattr(train, "resume", forgetful)


@pytest.mark.parametrize("piece", [None, "random numbers", "data position", "optimizer", "schedule"])
def test_a_resume_that_forgets_something_is_reported_within_three_steps(
    train_here: Here, monkeypatch: pytest.MonkeyPatch, piece: str | None
) -> None:
    """One line and one finding, and training goes on; a resume that forgets nothing is not reported."""
    train_here(drill="bug:step=25")
    if piece:
        forget(piece, monkeypatch)
    guard = Listening()
    resumed = train_here(guard=guard)
    logged = re.findall(r"the resume has forgotten something: loss \S+ at step (\d+), but .* before", train_here.err)
    assert list(resumed) == list(range(21, 41))
    if piece is None:
        assert (logged, guard.findings) == ([], [])
        assert "the losses of steps 21 to 23 are those of before the resume, bit for bit" in train_here.err
        return
    [finding] = guard.findings
    assert (finding.kind, finding.level, finding.step) == (Kind.RESUME_MISMATCH, Level.WARN, int(logged[0]))
    assert finding.step in (21, 22, 23)


def test_a_resume_under_other_conditions_is_not_compared(train_here: Here) -> None:
    """A successor with another learning rate has other losses, and nothing is wrong with that."""
    train_here(drill="bug:step=25")
    guard = Listening()
    train_here(guard=guard, learning_rate="0.001")
    assert guard.findings == []
    assert "not compared: learning_rate was 0.003, it is 0.001" in train_here.err


def test_skipped_samples_are_never_read(train_here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """A successor with samples to skip reads all others, once and in order, and compares only those."""
    read: list[int] = []
    original = train.data.TextCorpus.batch

    def batch(corpus: train.data.TextCorpus, ids: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        read.extend(ids)
        return original(corpus, ids)

    train_here(drill="bug:step=15", checkpoint_every="5", steps="20")
    monkeypatch.setattr(train.data.TextCorpus, "batch", batch)
    skipped = (range(130, 150), range(200, 203))
    losses = train_here(attempt=2, resume_at_most=10, skipped=skipped, steps="20")
    assert list(losses) == list(range(11, 21))
    left = [sample for sample in range(120, 300) if not any(sample in gap for gap in skipped)]
    assert read[1:] == left[:120]  # the first batch of all is the rehearsal
    assert train_here.run is not None
    assert train_here.run.consumed_samples == left[119] + 1
    assert "not compared: skipped was [], it is [[130, 149], [200, 202]]" in train_here.err


def test_every_random_generator_is_restored() -> None:
    """Python's, numpy's and torch's go on where they were saved."""

    def draw() -> tuple[float, float, float, float]:
        return random.random(), random.gauss(0, 1), float(np.random.standard_normal()), float(torch.randn(()))

    random_state.seed_everything(5)
    draw()
    kept = random_state.capture()
    expected = [draw() for _ in range(3)]
    random_state.seed_everything(6)
    random_state.restore(kept)
    assert [draw() for _ in range(3)] == expected


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "has \\d+ bytes instead of \\d+": lambda content: content[:-1],
    "does not match its checksum": lambda content: bytes([content[0] ^ 1]) + content[1:],
}


@pytest.mark.parametrize(("complaint", "damage"), DAMAGES.items())
def test_a_damaged_checkpoint_is_passed_over_and_healed(
    train_here: Here, undisturbed: dict[int, str], tmp_path: Path, complaint: str, damage: Callable[[bytes], bytes]
) -> None:
    """The run resumes from the one before, says so and reports it, and its replay replaces the damaged one."""
    train_here(drill="bug:step=35")
    shard = tmp_path / "checkpoints" / "step-000000030" / "__0_0.distcp"
    shard.write_bytes(damage(shard.read_bytes()))
    guard = Listening()
    resumed = train_here(attempt=2, resume_at_most=30, guard=guard)
    assert min(resumed) == 21
    assert agree(resumed, undisturbed)
    assert guard.refused == [(30, True, 1)]
    err = train_here.err
    assert re.search(rf"checkpoint step-000000030 is damaged \(__0_0.distcp {complaint}\)", err)
    assert "asked to resume from step 30, which is missing or incomplete; taking step 20 instead" in err
    assert saved(shard.parent.parent)[30].attempt == 2


def test_an_attempt_resumes_at_the_step_it_is_given(train_here: Here, tmp_path: Path) -> None:
    """Newer checkpoints of earlier attempts are out of its way; without a step the run starts from scratch."""
    train_here(drill="bug:step=35")
    assert min(train_here(attempt=2, resume_at_most=10, drill="bug:step=12")) == 11
    assert min(train_here(attempt=3, resume_at_most=0, drill="bug:step=2")) == 1
    assert saved(tmp_path / "checkpoints") == {}
    kept = {path.name for path in (tmp_path / "checkpoints" / "quarantine").iterdir()}
    assert kept == {f"a1-step-{step:09d}" for step in (10, 20, 30)}


def test_a_request_to_stop_saves_and_ends(train_here: Here, undisturbed: dict[int, str], tmp_path: Path) -> None:
    """The step in progress is finished and saved; the successor goes on after it."""
    stopped = train_here(guard=Listening(sigterm_in=7))
    manifests = saved(tmp_path / "checkpoints")
    assert (list(stopped), {step: each.reason for step, each in manifests.items()}) == ([*range(1, 8)], {7: "sigterm"})
    assert "stopped as asked after step 7" in train_here.err
    resumed = train_here()
    assert list(resumed) == list(range(8, 41))
    assert agree(resumed | stopped, undisturbed)
    assert saved(tmp_path / "checkpoints")[40].reason == "final"


def test_what_is_known_at_the_end_is_kept(train_here: Here, tmp_path: Path) -> None:
    """A run that is stopped a step after a save leaves that one loss to compare with."""
    train_here(guard=Listening(sigterm_in=11))
    shutil.rmtree(tmp_path / "checkpoints" / "step-000000011")
    train_here(steps="40")
    assert "the losses of steps 11 to 11 are those of before the resume, bit for bit" in train_here.err


def test_outdated_checkpoints_go(train_here: Here, tmp_path: Path) -> None:
    """The last ones stay, and ever fewer of the older ones, for a rollback."""
    train_here(steps="60", checkpoint_every="3", keep="2", step_seconds="0.02")
    steps = list(saved(tmp_path / "checkpoints"))
    assert steps[-2:] == [57, 60]
    assert len(steps) < 20  # that many were saved; they are deleted in the pauses between saves


def test_a_finished_run_has_nothing_left_to_do(train_here: Here) -> None:
    """Started again, it ends at once."""
    train_here(steps="10")
    assert train_here(steps="10") == {}


def test_a_loss_that_is_no_number_is_flagged(train_here: Here, tmp_path: Path) -> None:
    """The metric line says so, the manifest has no loss and calls the state suspect."""
    options = {"learning_rate": "1e30", "clip": "1e30", "checkpoint_every": "20"}
    assert train_here(steps="20", **options)[20] == "nan"
    table = json.loads((tmp_path / "checkpoints" / "step-000000020" / "manifest.json").read_text())
    assert (table["loss"], table["health"]) == (None, "suspect")


def test_the_metric_line_is_as_agreed(train_here: Here) -> None:
    """CloudWatch's regular expressions are written against this line; its loss gives the float32 back."""
    train_here(steps="3", skip_bad_updates="nonfinite")
    lines = train_here.out.splitlines()
    rest = r"grad_norm=\S+ lr=\S+( tokens_per_s=\d+)? nonfinite=0 skipped=0"
    assert len(lines) == 3
    assert all(re.fullmatch(rf"rerail step=\d loss=\d\.\d+ {rest}", line) for line in lines)
    assert train_here.run is not None
    assert float(torch.tensor(float(lines[-1].split("loss=")[1].split()[0]))) == train_here.run.loss


def test_bad_updates_are_left_out_and_counted(train_here: Here) -> None:
    """The count is in the metric line, and a resume goes on with it; from a suspect one, for want of a clean one."""
    train_here(skip_bad_updates="nonfinite", drill="nan:step=15;bug:step=25", checkpoint_every="20")
    assert _skipped(train_here.out)[13:] == list(range(11))
    train_here(skip_bad_updates="nonfinite", steps="25")
    assert _skipped(train_here.out) == list(range(7, 12))


def test_a_suspect_checkpoint_is_passed_over_for_a_clean_one(train_here: Here) -> None:
    """What was saved while the loss was no number is no place to go on from, in the same attempt or a later one."""
    train_here(drill="nan:step=15;bug:step=25", keep="9")
    losses = train_here(steps="25")
    assert min(losses) == 11
    assert all(math.isfinite(float(loss)) for loss in losses.values())


def test_a_suspect_checkpoint_that_the_supervisor_names_is_taken(train_here: Here) -> None:
    """It knows by now that the loss had recovered; for others their manifests count."""
    train_here(drill="nan:step=15;bug:step=25", keep="9")
    assert min(train_here(attempt=2, resume_at_most=25, drill="bug:step=15")) == 11
    assert min(train_here(attempt=2, resume_at_most=20)) == 21


def _skipped(out: str) -> list[int]:
    return [int(count) for count in re.findall(r" skipped=(\d+)$", out, re.MULTILINE)]


@pytest.mark.parametrize(
    ("drill", "cause", "error"),
    [("bug", "user_code", "ValueError: matmul: Input operand 1"), ("oom", "oom", "RuntimeError: ")],
)
def test_a_drill_fails_for_real(train_here: Here, tmp_path: Path, drill: str, cause: str, error: str) -> None:
    """numpy and torch themselves raise, and the failure file tells cause, step and rank."""
    assert max(train_here(drill=f"{drill}:step=4")) == 3
    report = json.loads((tmp_path / "output" / "failure").read_text())
    assert (report["cause"], report["step"], report["rank"], report["exit_code"]) == (cause, 4, 0, 1)
    assert report["error"].startswith(error)
