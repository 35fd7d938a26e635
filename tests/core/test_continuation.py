"""A held or stopped run goes on with other code, arguments, environment, image, machines or policy."""

import json
from dataclasses import replace
from hashlib import sha256

import pytest

from rerail.messages.messages import CommandReceived, JobStateChanged
from rerail.model.errors import RequestRefused
from rerail.model.mailbox import make_change_key
from rerail.model.policy import Policy
from rerail.model.run import JobStatus, RunState
from rerail.model.signals import OperatorVerb
from rerail.requests.continuation import change_request, describe_change, read_change
from rerail.requests.relaunch import POLICY_TAG
from tests.core.failures import OOM
from tests.fakes import ROLE, World

REQUEST = {
    "RoleArn": ROLE,
    "ResourceConfig": {"InstanceType": "ml.g5.xlarge", "InstanceCount": 1},
    "Environment": {"KEPT": "1"},
    "Tags": [{"Key": POLICY_TAG, "Value": "default"}, {"Key": "team", "Value": "vision"}],
}
CHANGE = {"HyperParameters": {"lr": "0.1"}, "ResourceConfig": {"InstanceType": "ml.g5.12xlarge"}}


@pytest.fixture
def world() -> World:
    world = World().adopt(request=REQUEST)
    world.checkpoints.save(step=100)
    return world


def go_on(world: World, change: object = CHANGE, policy: str = "") -> str:
    """Give the command; return what the timeline says of it."""
    text = json.dumps(change).encode()
    digest = sha256(text).hexdigest()
    world.mailbox.put(make_change_key("gpt", digest), text)
    command = CommandReceived(f"c{digest}", "gpt", OperatorVerb.CONTINUE, "ada", "", change=digest, policy=policy)
    world.supervisor().handle(command)
    return world.runs.timeline[-1].reason


def test_a_held_run_goes_on_with_the_change_from_its_newest_checkpoint(world):
    """The machines of the change count, budgets start again, the new policy applies, and the batch is whole again."""
    world.policies.by_name["careful"] = Policy(name="careful")
    run = world.run()
    world.runs.save(replace(run, attempts=(replace(run.current, microbatches=4),), version=run.version + 1))
    world.sagemaker.fail("gpt", OOM)
    world.supervisor().handle(JobStateChanged("gpt"))
    reason = go_on(world, policy="careful")
    assert reason == (
        "ada said continue, changing code or arguments, machines, policy: creating gpt-a002 from step 100"
    )
    request, run = world.sagemaker.requests["gpt-a002"], world.run()
    assert request["HyperParameters"] == CHANGE["HyperParameters"] and request["RoleArn"] == ROLE
    assert request["ResourceConfig"] == REQUEST["ResourceConfig"] | CHANGE["ResourceConfig"]
    assert "RERAIL_MICROBATCHES" not in request["Environment"] and run.current.microbatches == 1
    assert request["Environment"]["KEPT"] == "1" and request["Environment"]["RERAIL_RESUME_STEP"] == "100"
    assert (run.policy, run.cluster.instance_types, run.ledger.charges) == ("careful", ("ml.g5.12xlarge",), {})
    assert "0.1" not in str(world.runs.timeline)  # values may be secret


def test_image_and_metrics_are_distinguished():
    for member, word in (("TrainingImage", "image"), ("MetricDefinitions", "metrics")):
        assert describe_change({}, {"AlgorithmSpecification": {member: "other"}}) == word


def test_a_run_that_a_person_stopped_goes_on(world):
    world.sagemaker.end("gpt", JobStatus.STOPPED)
    world.supervisor().handle(JobStateChanged("gpt"))
    assert world.run().state is RunState.STOPPED
    assert "creating gpt-a002 from step 100" in go_on(world)


@pytest.mark.parametrize(
    ("status", "words"),
    [(None, "its job gpt is live: `rerail stop gpt` first"), (JobStatus.COMPLETED, "the run has completed")],
)
def test_a_run_with_a_live_job_or_a_completed_one_is_refused(world, status, words):
    before = world.runs.request("gpt")
    if status:
        world.sagemaker.end("gpt", status)
    assert words in go_on(world)
    assert list(world.sagemaker.jobs) == ["gpt"] and world.runs.request("gpt") == before


@pytest.mark.threat("T10")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"RoleArn": "arn:aws:iam::111122223333:role/Admin"}, "member 'RoleArn' may not change"),
        ({"CheckpointConfig": {"S3Uri": "s3://others/"}}, "member 'CheckpointConfig' may not change"),
        ({"ResourceConfig": {"VolumeKmsKeyId": "k"}}, "member ResourceConfig.VolumeKmsKeyId may not change"),
        ({"Environment": {"RERAIL_SEAL_KEY": "x"}}, "the variable RERAIL_SEAL_KEY may not change"),
        ({"Environment": {"RERAIL_CHECKPOINTS": "s3://others/"}}, "the variable RERAIL_CHECKPOINTS may not change"),
        ({"Environment": []}, "member Environment is not valid"),
        ({"InputDataConfig": [{}]}, "member InputDataConfig is not a list of named channels"),
        ({"InputDataConfig": ["training"]}, "member InputDataConfig is not a list of named channels"),
        ({"InputDataConfig": ["ChannelName"]}, "member InputDataConfig is not a list of named channels"),
        ([], "not an object of request members"),
    ],
)
def test_what_decides_on_permissions_cannot_change(world, change, words):
    """The role, network, keys and folders of a run stay; the run stays held, and says why."""
    world.sagemaker.fail("gpt", OOM)
    world.supervisor().handle(JobStateChanged("gpt"))
    assert words in go_on(world, change)
    assert world.run().state is RunState.HELD and list(world.sagemaker.jobs) == ["gpt"]


@pytest.mark.threat("T10")
def test_a_change_is_believed_only_as_the_command_names_it(world):
    """Another writer of the mailbox cannot replace it."""
    world.sagemaker.fail("gpt", OOM)
    world.supervisor().handle(JobStateChanged("gpt"))
    for digest, words in (("0" * 64, "does not exist"), ("1" * 64, "is not what the command names")):
        if digest.startswith("1"):
            world.mailbox.put(make_change_key("gpt", digest), b"{}")
        command = CommandReceived(digest, "gpt", OperatorVerb.CONTINUE, "mallory", "", change=digest)
        world.supervisor().handle(command)
        assert words in world.runs.timeline[-1].reason
    assert world.run().state is RunState.HELD


def test_members_are_merged_by_name():
    channel = {"ChannelName": "training", "DataSource": {"S3DataSource": {"S3Uri": "s3://b/new/"}}}
    request = {**REQUEST, "InputDataConfig": [{"ChannelName": "training"}, {"ChannelName": "labels"}]}
    request["ResourceConfig"] = {"InstancePreferences": [{"InstanceType": "ml.p4d.24xlarge"}], "InstanceCount": 2}
    changed = change_request(request, {**CHANGE, "InputDataConfig": [channel]}, "observe")
    assert changed["InputDataConfig"] == [channel, {"ChannelName": "labels"}]
    assert changed["ResourceConfig"] == {"InstanceCount": 2, "InstanceType": "ml.g5.12xlarge"}
    assert {tag["Key"]: tag["Value"] for tag in changed["Tags"]} == {POLICY_TAG: "observe", "team": "vision"}
    with pytest.raises(RequestRefused, match="not valid JSON"):
        read_change(b"{")
