"""A researcher's night: a script that knows nothing of Rerail is submitted, killed, mended and downloaded."""

import json
import subprocess
from pathlib import Path

import pytest

from rerail.model.run import Run, RunState
from tests.deployed.jobs import RERAIL, ROOT, Account, rerail

pytestmark = pytest.mark.slow

NAME = "digits"
SUBMIT = ["submit", "local/examples/mnist", "--local", "--json", "--name", NAME]
WATCH = ["--metric", "step=Step: ([0-9]+)", "--metric", r"loss=\bLoss: ([-+.0-9eE]+)"]
SCRIPT = ["--epochs", "4", "--save-interval", "10", "--nesterov"]
STEP_SECONDS, KILLED_AT = 0.06, 20
STEPS = 4 * (2000 // 64)


def test_a_script_that_knows_nothing_of_rerail_is_killed_and_still_delivers(
    account: Account, environment: dict[str, str], tmp_path: Path
):
    """Its logs are followed over both attempts, and its model and outputs are those of a whole training."""
    account.inject_at_step(NAME, "kill", at_step=KILLED_AT)
    script = [*SCRIPT, "--step-seconds", str(account.pace.real(STEP_SECONDS))]
    command = [*RERAIL, *SUBMIT, *WATCH, "--download", str(tmp_path), "--", *script]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert printed["state"] == "completed" and printed["attempts"] == [NAME, f"{NAME}-a002"]

    followed = [line.partition(" | ") for line in done.stderr.splitlines() if " | " in line]
    first = [text for source, _, text in followed if source == f"{NAME} algo-1"]
    second = [text for source, _, text in followed if source == f"{NAME}-a002 algo-1"]
    resumed = next(int(text.rpartition(" ")[2]) for text in second if text.startswith("resumed from step"))
    assert resumed >= 10
    assert any("Step: 10" in text for text in first) and not any("Step: 10\t" in text for text in second)
    assert f"{NAME} completed" in done.stderr

    result = json.loads((tmp_path / "output" / "result.json").read_text())
    assert result["steps"] == STEPS and len(result["losses"]) == STEPS - resumed
    assert result["accuracy"] > 0.7
    assert (tmp_path / "model" / "model.pt").stat().st_size > 10_000

    again = rerail(environment, *SUBMIT)
    assert again.returncode == 2 and f"--name {NAME}: a job of that name exists" in again.stderr


def test_a_held_run_is_continued_with_other_arguments(account: Account, environment: dict[str, str]):
    """Its configurator takes `--key=value` alone, so the words arrive as typed, in every attempt."""
    watch = ["--metric", "step=iter ([0-9]+)", "--metric", r"loss=\bloss ([-+.0-9eE]+)"]
    pace = f"--step_seconds={account.pace.real(0.05)}"
    typed = ["--out_dir=/opt/ml/checkpoints", "auto.py", pace]
    first = rerail(
        environment, "submit", "tests/deployed/nano", "--local", "--name", "nano", *watch, "--", *typed, "--crash_at=25"
    )
    assert first.returncode == 0, first.stderr

    def held() -> Run | None:
        run = account.runs.load("nano")
        return run if run and run.state is RunState.HELD else None

    assert "rerail submit tests/deployed/nano --continue nano" in account.wait("the hold", held).hold_advice

    again = ["submit", "tests/deployed/nano", "--local", "--continue", "nano"]
    live = rerail(environment, *again, "--name", "other")
    assert live.returncode == 2 and "--name with --continue" in live.stderr
    same = rerail(environment, *again, "--dry-run")
    assert f"train.py {' '.join(typed)} --crash_at=25" in same.stderr
    fixed = [*typed[:2], f"--step_seconds={account.pace.real(0.2)}", "--crash_at=-1"]
    on = rerail(environment, *again, "--json", "--env", "FIXED=1", "--", *fixed)
    assert on.returncode == 0, on.stderr
    assert "changing code or arguments, environment" in json.loads(on.stdout)["decision"]
    assert f"command line: train.py {' '.join(fixed)}" in on.stderr
    account.wait("the fault", lambda: rerail(environment, "local", "break", "nano", "--fault", "kill").returncode == 0)
    done = rerail(environment, "follow", "nano", "--local", "--json")
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert printed["state"] == "completed" and printed["attempts"][-1] == "nano-a004"
    last = account.sagemaker.describe_training_job(TrainingJobName=printed["attempts"][-1])
    assert last["Environment"]["FIXED"] == "1" and last["Environment"]["RERAIL_RUN"] == "nano"
    assert f"{printed['attempts'][-1]} algo-1 | Resuming training from" in done.stderr

    over = rerail(environment, *again)
    assert over.returncode == 2 and "the run has completed" in over.stderr


def test_a_shell_command_begins_with_the_checkpoint_of_another_run(
    account: Account, environment: dict[str, str], tmp_path: Path
):
    """Its machines share the data among them, it fails once and is relaunched, and it is found by what it is."""
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text(name)
    command = (
        'set -e; cp helpers.txt $SM_MODEL_DIR/; ls $SM_CHANNEL_START > "$SM_MODEL_DIR/start"; '
        'cat $SM_CHANNEL_PARTS/* > "$SM_OUTPUT_DATA_DIR/part-$SM_CURRENT_HOST"; '
        "test -e /opt/ml/checkpoints/tried || { touch /opt/ml/checkpoints/tried; exit 1; }"
    )
    (tmp_path / "helpers.txt").write_text("packed")
    settings = tmp_path.with_name("settings.toml")
    settings.write_text('[submit]\nproject = "shell"\nshard = ["parts"]\nexclude = ["*.txt"]\n')
    words = ["submit", "tests/deployed/nano", "--local", "--json", "--name", "prepare", "--settings", str(settings)]
    words += ["--command", command, "--dependency", str(tmp_path / "helpers.txt"), "--count", "2"]
    words += ["--input", f"parts={tmp_path}", "--start-from", NAME]
    submitted = rerail(environment, *words, "--exclude", "!helpers.txt", "--download", str(tmp_path / "left"))
    assert submitted.returncode == 0, submitted.stderr
    printed = json.loads(submitted.stdout)
    assert printed["state"] == "completed" and printed["attempts"] == ["prepare", "prepare-a002"], submitted.stderr
    assert (tmp_path / "left" / "model" / "helpers.txt").read_text() == "packed"
    assert (tmp_path / "left" / "model" / "start").read_text().split()
    parts = sorted(path.read_text() for path in (tmp_path / "left" / "output").glob("part-*"))
    assert "".join(sorted("".join(parts))) == "".join(sorted("ab" + "packed")) and len(parts) == 2
    found = rerail(environment, "search", "project=shell", "status=Completed", "--local", "--json")
    assert [job["job"] for job in json.loads(found.stdout)] == ["prepare-a002"], found.stderr
