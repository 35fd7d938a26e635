"""The script's own tracking run: the real libraries, without a network."""

import json
import os
import shutil
import signal
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rerail.model.signatures import VARIABLE
from rerail_agent.tracking import FILE
from tests.agent.test_manifests import snippets
from tests.fakes import KEY

pytestmark = pytest.mark.slow
SECOND = {
    "RERAIL_RUN": "night",
    "RERAIL_ATTEMPT": "2",
    "TRAINING_JOB_NAME": "night-a002",
    "RERAIL_PREVIOUS_CAUSE": "diverged",
    "RERAIL_SKIP_SAMPLES": "20-27",
    "RERAIL_LR_SCALE": "0.9",
}
STARTS = (
    "attempt 1 starts",
    "attempt 2 resumes from step 2 after diverged; samples 20-27 are to be skipped; learning rate x 0.9",
)


@pytest.fixture
def new_attempt(new_guard, bucket, monkeypatch, tmp_path):
    """Makes guards of attempts, each as in a new process; saves are at once in S3."""
    (tmp_path / "checkpoints").mkdir()

    def make(**variables: str) -> Any:
        for name in ("WANDB_RUN_ID", "WANDB_RESUME", "MLFLOW_RUN_ID", "RERAIL_TRACKING"):
            monkeypatch.setenv(name, "")  # what is set from here on is gone after the test
            monkeypatch.delenv(name)
        (text,) = snippets("Weights & Biases and MLflow")
        exec(compile(text, "docs/scripts.md", "exec"), {"os": os})
        tracking = os.environ["RERAIL_TRACKING"]
        return new_guard(bucket, save=lambda reason: "s3://bucket/step-4", RERAIL_TRACKING=tracking, **variables)

    return make


def train(guard: Any, *steps: int, log: Any) -> None:
    for step in steps:
        if step == 4:
            os.kill(os.getpid(), signal.SIGTERM)
        guard.step(step=step, loss=guard.reduce(2.0))
        log(step)
    guard.close()


def test_all_attempts_are_one_run_of_wandb(new_attempt, monkeypatch, tmp_path):
    """With the attempt in its configuration, and an event for each start and emergency checkpoint."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    import wandb

    ids, facts = set(), []
    for variables, steps in (({}, (1, 2)), (SECOND, (3, 4))):
        guard = new_attempt(**variables)
        with wandb.init(project="night") as run:
            train(guard, *steps, log=lambda step, run=run: run.log({"loss": 2.0, "step": step}))
            ids.add(run.id)
            facts.append({name: value for name, value in dict(run.config).items() if name.startswith("rerail/")})
    wandb.teardown()
    assert len(ids) == 1 and ids.pop().startswith("night-")
    assert facts[0] == {"rerail/run": "night", "rerail/attempt": 1, "rerail/resumed_step": 0}
    assert facts[1]["rerail/resumed_step"] == 2 and facts[1]["rerail/previous_cause"] == "diverged"
    written = b"".join(path.read_bytes() for path in tmp_path.glob("wandb/offline-run-*/*.wandb")).decode(
        errors="replace"
    )
    assert all(text in written for text in (*STARTS, "sigterm checkpoint at step 4"))


def test_all_attempts_are_one_run_of_mlflow(new_attempt, monkeypatch, tmp_path):
    """Whose id is kept beside the checkpoints; a store that went with its machine is not looked for."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    import mlflow

    mlflow.set_tracking_uri(f"file://{tmp_path}/mlruns")
    ids = set()
    for variables, steps in (({}, (1, 2)), (SECOND, (3, 4))):
        guard = new_attempt(**variables, **{VARIABLE: KEY})
        with mlflow.start_run() as run:
            train(guard, *steps, log=lambda step: mlflow.log_metric("loss", 2.0, step=step))
            ids.add(run.info.run_id)
    (run_id,) = ids
    tags = mlflow.MlflowClient().get_run(run_id).data.tags
    names = ("run", "attempt", "resumed_step", "previous_cause")
    assert [tags[f"rerail.{name}"] for name in names] == ["night", "2", "2", "diverged"]
    assert [text for name, text in sorted(tags.items()) if name.startswith("rerail.start-")] == [*STARTS]
    assert tags["rerail.checkpoint-002-000000004"] == "sigterm checkpoint at step 4"
    history = mlflow.MlflowClient().get_metric_history(run_id, "rerail.attempt")
    assert [(metric.step, metric.value) for metric in history] == [(1, 1), (3, 2), (4, 2)]

    shutil.rmtree(tmp_path / "mlruns")
    new_attempt(**SECOND, **{VARIABLE: KEY})
    assert "MLFLOW_RUN_ID" not in os.environ


@pytest.mark.parametrize("key", ["", KEY])
@pytest.mark.threat("T32")
def test_an_mlflow_run_that_others_name_is_not_written_to(new_attempt, tmp_path, key):
    """Whoever may write to the checkpoint folder has no key; without one nothing proves whose the file is."""
    left = {"run": "night", "mlflow_run_id": "of-another-team", "uri": "https://mlflow"}
    (tmp_path / "checkpoints" / FILE).write_text(json.dumps(left))
    new_attempt(**SECOND, **{VARIABLE: key})
    assert "MLFLOW_RUN_ID" not in os.environ


def test_training_neither_waits_for_a_tracking_run_nor_fails_with_it(new_attempt, monkeypatch, capsys):
    """Its first call ends only after the training, and fails; the library of the other is not installed."""
    answered = threading.Event()

    def update(*arguments: Any, **settings: Any) -> None:
        answered.wait()
        raise ConnectionError("no route to host")

    broken = SimpleNamespace(run=SimpleNamespace(config=SimpleNamespace(update=update), log=update))
    monkeypatch.setitem(sys.modules, "wandb", broken)
    monkeypatch.setitem(sys.modules, "mlflow", None)
    guard = new_attempt()
    for step in range(1, 6):
        guard.step(step=step, loss=2.0)
    answered.set()
    guard.close()
    assert capsys.readouterr().err.count("fault in the agent: tracking has failed") == 1


def test_nothing_is_tracked_unless_it_is_asked_for(new_guard, bucket, monkeypatch, tmp_path):
    """Nor does a rank other than the first continue a run of which there is one."""
    calls: list[Any] = []
    run = SimpleNamespace(config=SimpleNamespace(update=calls.append), log=calls.append)
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(run=run))
    monkeypatch.delenv("WANDB_RUN_ID", raising=False)
    for variables in ({}, {"RERAIL_TRACKING": "off"}, {"RERAIL_TRACKING": "on", "RANK": "1"}):
        guard = new_guard(bucket, **variables)
        guard.step(step=1, loss=2.0)
        guard.close()
    assert calls == [] and "WANDB_RUN_ID" not in os.environ
    assert list(Path(tmp_path).glob("checkpoints/*")) == []
