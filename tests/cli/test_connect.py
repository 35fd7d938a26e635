"""`rerail connect`: the job is changed only after asking, and nobody is sent to a door that is shut."""

import json
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from cli import connect as connecting
from cli import place
from cli.main import app
from cli.place import Place, now
from rerail.aws import sagemaker
from rerail.model.run import Attempt, JobStatus, Run, RunState
from tests.cli.cloud import Cloud, Deployed, denied, refused

JOB: dict[str, Any] = {
    "TrainingJobName": "gpt-a002",
    "TrainingJobArn": "arn:aws:sagemaker:eu-west-1:1:training-job/gpt-a002",
    "TrainingJobStatus": "InProgress",
    "SecondaryStatus": "Training",
    "CreationTime": now(),
    "RoleArn": "arn:aws:iam::1:role/MySageMakerRole",
    "ResourceConfig": {"InstanceType": "ml.p4d.24xlarge", "InstanceCount": 2},
}
RUN = Run(
    id="gpt",
    policy="default",
    state=RunState.WATCHING,
    created_at=now(),
    attempts=(
        Attempt(number=1, job_name="gpt", status=JobStatus.FAILED),
        Attempt(number=2, job_name="gpt-a002", status=JobStatus.IN_PROGRESS),
    ),
)
TARGET = "sagemaker-training-job:gpt-a002_algo-1"


@pytest.fixture
def world(monkeypatch):
    """A run whose second job trains; `describe` changes that job, `cloud` is what was asked of it."""

    class World:
        def __init__(self) -> None:
            self.cloud = Cloud({"sagemaker.describe_training_job": JOB, "sagemaker.update_training_job": {}})
            self.run = RUN

        def describe(self, **changes: Any) -> None:
            self.cloud.answers["sagemaker.describe_training_job"] = {**JOB, **changes}

        @property
        def changed(self) -> list[dict[str, Any]]:
            return [request for name, request in self.cloud.asked if name == "sagemaker.update_training_job"]

    world = World()
    where = Deployed(world.cloud)
    monkeypatch.setattr(place, "find", lambda *, local: where)
    monkeypatch.setattr(sagemaker, "client", where.client)
    monkeypatch.setattr(Place, "runs", property(lambda self: type("Runs", (), {"load": lambda self, run: world.run})()))
    return world


def call(*words: str, typed: str = "") -> Result:
    return CliRunner().invoke(app, ["connect", "gpt", *words], input=typed)


def test_a_job_that_lets_people_in_is_not_changed(world):
    """The command is printed to stdout alone, what is needed for it to stderr."""
    world.describe(RemoteDebugConfig={"EnableRemoteDebug": True})
    answer = call("--print", "--host", "algo-2")
    assert answer.stdout == f"aws ssm start-session --target {TARGET[:-1]}2 --region eu-west-1\n"
    assert "ssmmessages:OpenDataChannel" in answer.stderr and "session-manager-plugin" in answer.stderr
    assert world.changed == []


def test_remote_debugging_is_switched_on_after_asking(world, monkeypatch):
    """No is an answer; what is asked goes to stderr."""
    monkeypatch.setattr(connecting, "_is_somebody_there", lambda: True)
    refused = call("--print", typed="n\n")
    assert (refused.exit_code, world.changed) == (2, []) and "nothing was changed" in refused.stderr
    agreed = call("--print", typed="y\n")
    assert agreed.exit_code == 0 and "aws ssm start-session" in agreed.stdout
    assert world.changed == [{"TrainingJobName": "gpt-a002", "RemoteDebugConfig": {"EnableRemoteDebug": True}}]


def test_without_a_yes_nothing_is_changed(world):
    """Nobody sits at the keyboard, or a program asks: the way to say yes is named."""
    for words in (("--print",), ("--json",)):
        answer = call(*words)
        assert answer.exit_code == 2 and "--yes" in answer.stderr and answer.stdout == ""
    assert world.changed == []


def test_json_has_all_facts(world):
    printed = json.loads(call("--json", "--yes").stdout)
    assert (printed["job"], printed["target"], printed["switched_on"]) == ("gpt-a002", TARGET, True)
    assert printed["command"][:4] == ["aws", "ssm", "start-session", "--target"]
    assert printed["role_needs"][0] == "ssmmessages:CreateControlChannel"


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"TrainingJobStatus": "Failed", "SecondaryStatus": "Failed"}, "does not run"),
        ({"SecondaryStatus": "Pending"}, "no session can be opened yet"),
        ({"EnableNetworkIsolation": True}, "EnableNetworkIsolation"),
    ],
)
def test_an_impossible_connection_is_named_and_not_tried(world, changes, words):
    world.describe(**changes)
    answer = call("--yes")
    assert answer.exit_code == 2 and words in answer.stderr and "to do:" in answer.stderr
    assert world.changed == []


@pytest.mark.parametrize("host", ["algo-3", "algo-0", "node", "algo-x", "algo-1; rm"])
def test_a_machine_that_is_not_there_is_named(world, host):
    answer = call("--host", host, "--yes")
    assert answer.exit_code == 2 and "algo-1 to algo-2" in answer.stderr


def test_a_missing_permission_to_change_the_job_is_named(world):
    world.cloud.answers["sagemaker.update_training_job"] = denied("sagemaker:UpdateTrainingJob")
    answer = call("--yes")
    assert answer.exit_code == 2 and "sagemaker:EnableRemoteDebug" in answer.stderr


def test_a_missing_job_is_reported(world):
    world.cloud.answers["sagemaker.describe_training_job"] = refused("ValidationException", "not found")
    answer = call()
    assert answer.exit_code == 2 and "gpt-a002 is gone" in answer.stderr


def test_the_shell_is_opened_where_the_aws_cli_is(world, monkeypatch):
    """Name the AWS CLI where it is missing; the CLI itself reports a missing plugin."""
    world.describe(RemoteDebugConfig={"EnableRemoteDebug": True})
    opened: list[list[str]] = []

    def run(program: str, command: list[str]) -> None:
        if opened:
            raise FileNotFoundError(program)
        opened.append(command)

    monkeypatch.setattr(connecting.os, "execvp", run)
    assert call().exit_code == 0
    assert opened == [["aws", "ssm", "start-session", "--target", TARGET, "--region", "eu-west-1"]]
    answer = call()
    assert answer.exit_code == 2 and "the AWS CLI (aws) is not installed" in answer.stderr
