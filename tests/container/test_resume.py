"""A resumed run goes on as if nothing had happened, and one that forgot a piece of state would be seen."""

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import checkpoint
import train
from tests.container.hosts import Here, agree


@pytest.fixture
def undisturbed(train_here: Here, tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """The losses of a run that nothing happened to."""
    return train_here(tmp_path_factory.mktemp("undisturbed"))


def weights(base: Path) -> str:
    return checkpoint.fingerprint(torch.load(base / "model" / "model.pt", weights_only=True))


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


def forget_weights(parts: dict[str, Any], fields: dict[str, Any]) -> None:
    torch.manual_seed(99)
    parts["model"]["head.weight"] = torch.randn_like(parts["model"]["head.weight"]) * 0.02


def forget_optimizer(parts: dict[str, Any], fields: dict[str, Any]) -> None:
    parts["optimizer"]["state"] = {}


def forget_random_state(parts: dict[str, Any], fields: dict[str, Any]) -> None:
    torch.manual_seed(2)  # as at the start of the run
    parts["random"][0]["torch"] = torch.get_rng_state()


def forget_data_position(parts: dict[str, Any], fields: dict[str, Any]) -> None:
    fields["consumed_samples"] = 0


def forget_schedule(parts: dict[str, Any], fields: dict[str, Any]) -> None:
    fields["step"] = 30


@pytest.mark.parametrize(
    ("forget", "within"),
    [
        (None, None),
        (forget_weights, 1),
        (forget_optimizer, 2),
        (forget_random_state, 1),
        (forget_data_position, 1),
        (forget_schedule, 2),
    ],
)
def test_each_piece_of_state_matters(
    train_here: Here,
    undisturbed: dict[int, str],
    tmp_path: Path,
    forget: Callable[[dict[str, Any], dict[str, Any]], None] | None,
    within: int | None,
) -> None:
    """With one piece left out, the losses part from the undisturbed ones within two steps; with none, never."""
    train_here(drill="bug:step=21")
    manifest, parts = checkpoint.load(tmp_path / "checkpoints", 20, torch.device("cpu"))
    fields = {key: value for key, value in vars(manifest).items() if key not in ("files", "saved_at")}
    if forget is not None:
        forget(parts, fields)
        checkpoint.drop(tmp_path / "checkpoints" / "step-000000020")
        checkpoint.save(tmp_path / "checkpoints", checkpoint.Manifest(**fields), parts)
    resumed = train_here()
    first = min(resumed)
    shift = first - 21  # a forgotten schedule begins at another step
    different = [step for step in resumed if resumed[step] != undisturbed.get(step - shift)]
    assert different[:1] == ([] if within is None else [first + within - 1])


def test_every_random_generator_is_restored() -> None:
    """Python's, numpy's and torch's go on where they were saved."""

    def draw() -> tuple[float, float, float, float]:
        return random.random(), random.gauss(0, 1), float(np.random.standard_normal()), float(torch.randn(()))

    train.seed_everything(5)
    draw()
    saved = train.random_state()
    expected = [draw() for _ in range(3)]
    train.seed_everything(6)
    train.restore_random_state(saved)
    assert [draw() for _ in range(3)] == expected


def test_a_damaged_checkpoint_is_passed_over_and_healed(
    train_here: Here, undisturbed: dict[int, str], tmp_path: Path
) -> None:
    """The run resumes from the one before, says so, and its replay replaces the damaged one."""
    train_here(drill="bug:step=35")
    shard = tmp_path / "checkpoints" / "step-000000030" / "optimizer.pt"
    shard.write_bytes(shard.read_bytes()[:-1])
    resumed = train_here(attempt=2, resume_at_most=30)
    assert min(resumed) == 21
    assert agree(resumed, undisturbed)
    err = train_here.err
    assert re.search(r"checkpoint step-000000030 is damaged \(optimizer.pt has \d+ bytes instead of \d+\)", err)
    assert "asked to resume from step 30, which is not there whole; taking step 20 instead" in err
    assert checkpoint.verify(shard.parent).attempt == 2


def test_an_attempt_resumes_where_it_is_told(train_here: Here, tmp_path: Path) -> None:
    """Newer checkpoints of earlier attempts are out of its way; without a step the run starts from scratch."""
    train_here(drill="bug:step=35")
    assert min(train_here(attempt=2, resume_at_most=10, drill="bug:step=12")) == 11
    assert min(train_here(attempt=3, resume_at_most=0, drill="bug:step=2")) == 1
    assert checkpoint.steps(tmp_path / "checkpoints") == []
    kept = {path.name for path in (tmp_path / "checkpoints" / "quarantine").iterdir()}
    assert kept == {f"a1-step-{step:09d}" for step in (10, 20, 30)}


def test_a_job_restarted_in_place_keeps_what_it_saved(train_here: Here, tmp_path: Path) -> None:
    """SageMaker repairs hardware and restarts the same job with the same environment: its own newer checkpoint wins."""
    train_here(drill="bug:step=12")
    train_here(attempt=2, resume_at_most=10, drill="bug:step=35")
    assert min(train_here(attempt=2, resume_at_most=10)) == 31


def test_a_request_to_stop_saves_and_ends(train_here: Here, undisturbed: dict[int, str], tmp_path: Path) -> None:
    """The step in progress is finished and saved; the successor goes on after it."""
    stopped = train_here(stop=train.Stop(requested=True))
    manifest = checkpoint.verify(tmp_path / "checkpoints" / "step-000000001")
    assert (list(stopped), manifest.reason) == ([1], "sigterm")
    resumed = train_here()
    assert list(resumed) == list(range(2, 41))
    assert agree(resumed, undisturbed)
    assert checkpoint.verify(tmp_path / "checkpoints" / "step-000000040").reason == "final"


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


def test_the_metric_line_is_as_agreed(capsys: pytest.CaptureFixture[str]) -> None:
    """CloudWatch's regular expressions are written against this line; its loss gives the float32 back."""
    loss = float(torch.tensor(2.3456789))
    state = train.State(model=torch.nn.Identity(), optimizer=None, replica=None, step=60, loss=loss)  # type: ignore[arg-type]
    train.Meter(tokens_per_step=512, steps=1).report(state, grad_norm=float("inf"), learning_rate=0.0003)
    line = capsys.readouterr().out
    assert re.fullmatch(
        r"rerail step=60 loss=2\.34567881 grad_norm=inf lr=0\.0003 tokens_per_s=\d+ nonfinite=1\n", line
    )
    assert float(torch.tensor(float(line.split("loss=")[1].split()[0]))) == loss


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


def test_a_drill_is_limited_to_its_attempt(train_here: Here) -> None:
    """The successor passes the step that its predecessor died at."""
    assert max(train_here(drill="bug:step=15:attempt=1", steps="20")) == 14
    assert max(train_here(drill="bug:step=15:attempt=1", steps="20", attempt=2, resume_at_most=10)) == 20
