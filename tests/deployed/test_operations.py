"""What an operator does to real jobs in the deployed stack: restart drills, a rollback, their logs and the fleet."""

import json
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
from typer.testing import CliRunner

from cli import place
from cli.demo.scripts import OURS
from cli.demo.stage import make_agent_environment
from cli.main import app
from rerail.model.policy import Policy
from rerail.model.signatures import VARIABLE
from rerail.requests.relaunch import POLICY_TAG
from tests.deployed.jobs import BUCKET, MACHINES, ROLE, Account, patient

pytestmark = pytest.mark.slow

PLAIN, OURS_RUN = "plain-run", "run-with-agent"
SCRIPT = Path(__file__).parent / "plain_script.py"
# The jobs never end by themselves.
STEPS, SECONDS_A_STEP = 1_000_000, 0.05


@pytest.fixture(scope="module")
def jobs(account: Account) -> None:
    """Both train meanwhile: a script without an agent, and the project's own, which saves only when it is asked to."""
    account.submit(PLAIN, script=SCRIPT)
    of_script = OURS.make_request(
        steps=STEPS, save_every=10 * STEPS, keep=10, step_seconds=account.pace.real(SECONDS_A_STEP)
    )
    account.sagemaker.create_training_job(
        TrainingJobName=OURS_RUN,
        RoleArn=ROLE,
        AlgorithmSpecification={
            "TrainingImage": "rerail-training:test",
            "TrainingInputMode": "File",
            **of_script["AlgorithmSpecification"],
        },
        HyperParameters=of_script["HyperParameters"],
        ResourceConfig=MACHINES,
        CheckpointConfig={"S3Uri": f"s3://{BUCKET}/{OURS_RUN}"},
        OutputDataConfig={"S3OutputPath": f"s3://{BUCKET}/output/"},
        StoppingCondition={"MaxRuntimeInSeconds": 86400},
        Environment={VARIABLE: token_hex(32), **make_agent_environment(patient(Policy(), account.pace).detection)},
        Tags=[{"Key": POLICY_TAG, "Value": "default"}],
    )


@pytest.fixture(autouse=True)
def desk(account: Account, jobs: None, state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands look at this account."""
    monkeypatch.setattr(place, "LOCAL_STATE", state_dir)
    monkeypatch.setenv("COLUMNS", "160")


def rerail(*words: str) -> Any:
    """As an operator types it."""
    return CliRunner().invoke(app, [*words, "--local"])


def keys(account: Account, run: str) -> list[str]:
    """What lies in the run's checkpoint folder."""
    listed = account.aws.client("s3").list_objects_v2(Bucket=BUCKET, Prefix=f"{run}/")
    return [item["Key"] for item in listed["Contents"]]


def test_a_drill_proves_that_a_script_without_an_agent_can_be_restarted(account: Account):
    """From its own newest save: what it had trained since is trained again, with the same losses."""
    account.has_saved(PLAIN, steps=40)
    account.run_in(PLAIN, "watching")
    done = rerail("drill", PLAIN, "--steps", "5", "--yes", "--json")
    if "its very end" in done.output:  # stopped as it saved, so that nothing could be compared
        account.run_in(PLAIN, "watching")
        done = rerail("drill", PLAIN, "--steps", "5", "--yes", "--json")
    assert done.exit_code == 0, done.output
    proof = json.loads(done.stdout)
    assert proof["proven"] and not proof["forced"] and proof["from_step"] % 40 == 0
    # A script that saves meanwhile moves the start, and leaves fewer steps to compare.
    assert 1 <= proof["steps_compared"] <= 5
    assert proof["largest_difference"] == 0.0


def test_a_job_is_rolled_back_to_the_step_that_was_named(account: Account):
    """Stopped, and relaunched from there; what it had saved since lies where it lay, and is not resumed from."""
    account.has_saved(PLAIN, steps=120)
    before = account.run_in(PLAIN, "watching")
    refused = rerail("rollback", PLAIN, "--to", "39")
    assert refused.exit_code == 2
    assert (
        "nothing clean was saved at or before step 39" in refused.stderr and "clean are 40, 80, 120" in refused.stderr
    )
    asked = rerail("rollback", PLAIN, "--to", "99", "--why", "bad data")
    assert asked.exit_code == 0, asked.output
    assert f"{PLAIN} starts again from step 80" in " ".join(asked.stdout.split())
    number = before.current.number + 1
    account.wait(
        "the relaunch", lambda: (now := account.runs.load(PLAIN)).current.number == number and now.current.exists
    )
    run = account.run_in(PLAIN, "watching")
    assert account.jobs(PLAIN) == [PLAIN, *(f"{PLAIN}-a{later:03}" for later in range(2, number + 1))]
    assert (run.current.resumed_from_step, run.ledger.charges, run.incidents) == (80, {}, ())
    shown = json.loads(rerail("show", PLAIN, "--json").stdout)
    assert any("said rollback to step 99 (bad data)" in entry["reason"] for entry in shown["timeline"])
    printed = lambda: rerail("logs", PLAIN, "--attempt", str(number), "--grep", "rerail step=", "--json").stdout  # noqa: E731
    assert json.loads(account.wait("a line", printed).splitlines()[0])["text"].startswith("rerail step=81 ")
    account.sagemaker.stop_training_job(TrainingJobName=run.current.job_name)
    account.run_in(PLAIN, "stopped")


def test_a_drill_proves_that_a_run_with_an_agent_can_be_restarted(account: Account):
    """Saved when it was asked to, trained on, stopped, relaunched from that save: the same losses to the last digit."""
    account.wait("an agent", lambda: (run := account.runs.load(OURS_RUN)) and run.current.agent)
    account.run_in(OURS_RUN, "watching")
    done = rerail("drill", OURS_RUN, "--steps", "5", "--yes", "--json")
    assert done.exit_code == 0, done.output
    proof = json.loads(done.stdout)
    print(proof)
    run = account.run_in(OURS_RUN, "watching")
    assert proof["proven"] and proof["jobs"] == [OURS_RUN, f"{OURS_RUN}-a002"]
    assert (proof["forced"], proof["steps_compared"], proof["largest_difference"]) == (True, 5, 0.0)
    assert proof["lost_steps"] >= 5 and proof["mttr_s"] > 0
    assert (run.current.resumed_from_step, run.current.drill) == (proof["from_step"], True)
    assert (run.labels, run.incidents, run.ledger.charges) == ((), (), {})
    assert len([key for key in keys(account, OURS_RUN) if key.endswith("manifest.json")]) == 2, "the other at SIGTERM"
    assert not [key for key in keys(account, OURS_RUN) if "quarantine" in key], "nothing was moved aside"
    assert any(entry.reason.startswith("restart drill: ") for entry in account.runs.timeline(OURS_RUN))


def test_status_shows_the_step_of_a_run(account: Account):
    """By its heartbeat, a moment ago; its logs carry the attempt."""
    account.run_in(OURS_RUN, "watching")

    def beating() -> dict[str, Any] | None:
        fleet = json.loads(rerail("status", "--state", "watching", "--json").stdout)
        row = next(row for row in fleet["runs"] if row["id"] == OURS_RUN)
        return {**row, "paused": fleet["paused"]} if row["step_at"] else None

    row = account.wait("a heartbeat of the second attempt", beating)
    assert row["attempt"] == 2 and row["step"] > 5 and row["paused"] is False
    lines = rerail("logs", OURS_RUN, "--since", "1h").stdout.splitlines()
    assert {line.split(" | ")[0].split()[-1] for line in lines} == {"1/algo-1", "2/algo-1"}
    account.sagemaker.stop_training_job(TrainingJobName=f"{OURS_RUN}-a002")
    account.run_in(OURS_RUN, "stopped")
