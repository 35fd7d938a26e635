"""`supervised`: one line, and Rerail would adopt the job and could launch it again."""

import copy
import json
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import boto3
import botocore.session
import pytest
from botocore.validate import ParamValidator

from rerail.aws.sagemaker import read_job
from rerail.decisions.adoption import Adopted, adopt
from rerail.model.actions import CreateJob
from rerail.model.errors import RequestRefused
from rerail.model.metrics import MetricNames, make_definitions, select_names
from rerail.model.policy import Policy
from rerail.model.signatures import VARIABLE
from rerail.requests.relaunch import POLICY_TAG, RUN_TAG, make_request, read_checkpoint_uri, read_signing_key, rebuild
from rerail.requests.supervised import supervised

REQUESTS = Path(__file__).parent / "requests"
OPERATION = botocore.session.get_session().get_service_model("sagemaker").operation_model("CreateTrainingJob")
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
PLAIN = {
    "TrainingJobName": "mnist-1",
    "RoleArn": "arn:aws:iam::111122223333:role/Training",
    "AlgorithmSpecification": {"TrainingImage": "image", "TrainingInputMode": "File"},
    "OutputDataConfig": {"S3OutputPath": "s3://bucket/out"},
    "ResourceConfig": {"InstanceType": "ml.g5.xlarge", "InstanceCount": 1, "VolumeSizeInGB": 30},
    "StoppingCondition": {"MaxRuntimeInSeconds": 86400},
}


WHEEL = "s3://bucket/agent/rerail_agent-0.1.0-py3-none-any.whl"
STOCK = {
    **PLAIN,
    "AlgorithmSpecification": {"TrainingImage": "1.dkr/pytorch-training:2.8", "TrainingInputMode": "File"},
}
CHANNEL = {"ChannelName": "training", "DataSource": {}}


class Policies:
    def get(self, name: str) -> Policy:
        return Policy(name=name)


def complaints(request: dict) -> str:
    return ParamValidator().validate(request, OPERATION.input_shape).generate_report()


def tags_of(request: dict) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in request["Tags"]}


def described(request: dict) -> dict:
    """What DescribeTrainingJob would tell of the job."""
    arn = f"arn:aws:sagemaker:eu-west-1:111122223333:training-job/{request['TrainingJobName']}"
    answer = {"TrainingJobArn": arn, "TrainingJobStatus": "InProgress", "SecondaryStatus": "Training"}
    return {**request, **answer, "CreationTime": NOON}


def adopted(request: dict) -> Adopted:
    description = described(request)
    found = adopt(read_job(description), description, tags_of(request), Policies(), taken=False, at=NOON)
    assert isinstance(found, Adopted), found
    return found


def captured(name: str) -> dict:
    return json.loads((REQUESTS / f"{name}.json").read_text())


def samples() -> list[str]:
    found = sorted(path.stem for path in REQUESTS.glob("*.json"))
    assert found == ["v2_arguments", "v2_estimator", "v2_session", "v3_session", "v3_trainer"]
    return found


@pytest.mark.parametrize("name", ["boto3", *samples()])
def test_rerail_adopts_the_job_and_can_launch_it_again(name):
    """What boto3 and both versions of the SDK send is adopted, and its successor is a request that SageMaker takes."""
    request = supervised(PLAIN, "careful") if name == "boto3" else captured(name)
    assert complaints(request) == ""
    run = adopted(request).run
    assert run.policy == "careful" and not run.observe_only
    assert run.checkpoint_uri.startswith("s3://bucket/")
    rebuilt = rebuild(described(request), tags_of(request), members=frozenset(OPERATION.input_shape.members))
    second = make_request(rebuilt, CreateJob(f"{run.id}-a002", attempt=2, resume_step=100), run=run.id)
    assert complaints(second) == ""
    assert second["Environment"].items() >= {"RERAIL_RUN": run.id, "RERAIL_RESUME_STEP": "100"}.items()
    assert read_checkpoint_uri(second).rstrip("/") == run.checkpoint_uri.rstrip("/")
    for kept in ("AlgorithmSpecification", "ResourceConfig", "RoleArn"):
        assert second[kept] == request[kept]


@pytest.mark.parametrize("name", samples())
def test_settings_given_to_the_sdk_are_kept(name):
    """The researcher's own tags, environment and metrics, and the code that runs."""
    request = captured(name)
    assert tags_of(request) == {"team": "vision", POLICY_TAG: "careful"}
    assert request["Environment"] == {"NCCL_DEBUG": "WARN"}
    metrics = request["AlgorithmSpecification"]["MetricDefinitions"]
    assert metrics == [{"Name": "accuracy", "Regex": "Accuracy: ([0-9.]+)"}, *make_definitions()]
    assert select_names(MetricNames(), [metric["Name"] for metric in metrics]) == MetricNames()


@pytest.mark.parametrize("name", samples())
def test_two_jobs_of_one_script_do_not_share_a_checkpoint_folder(name):
    """Left to itself each job has a folder with its own name in it."""
    request = captured(name)
    own = request["TrainingJobName"] in request["CheckpointConfig"]["S3Uri"]
    assert own or request["CheckpointConfig"]["S3Uri"] == "s3://bucket/runs/mnist-1/"


def test_a_request_is_not_changed_but_given_back():
    """The one that went in may be used again, and twice supervised is once supervised."""
    before = copy.deepcopy(PLAIN)
    request = supervised(PLAIN, environment={"A": "b"})
    assert before == PLAIN
    assert request["CheckpointConfig"] == {"S3Uri": "s3://bucket/out/mnist-1/checkpoints/"}
    assert request["Environment"] == {"A": "b", VARIABLE: read_signing_key(request)}
    assert supervised(request) == request


@pytest.mark.threat("T3")
def test_every_job_is_given_a_key_of_its_own():
    """So that its agent's first report is signed; a key of the job's own is kept, and it can be left out."""
    keys = {read_signing_key(supervised(PLAIN)) for _ in range(3)}
    assert len(keys) == 3 and "" not in keys
    own = {**PLAIN, "Environment": {VARIABLE: "ab" * 32}}
    assert read_signing_key(supervised(own)) == "ab" * 32
    assert "Environment" not in supervised(PLAIN, signed=False)
    full = {**PLAIN, "Environment": {f"V{number}": "" for number in range(98)}}
    assert read_signing_key(supervised(full)) == ""


@pytest.mark.parametrize("metric", ["loss", "step"])
def test_settings_of_the_job_itself_are_kept(metric):
    """Its checkpoint folder, metrics, environment; a folder is given the slash that keeps others' files out."""
    own = [{"Name": metric, "Regex": "l=([0-9.]+)"}]
    asked = {
        **PLAIN,
        "AlgorithmSpecification": {**PLAIN["AlgorithmSpecification"], "MetricDefinitions": own},
        "CheckpointConfig": {"S3Uri": "s3://mine/a-1", "LocalPath": "/ckpt"},
        "Environment": {"A": "mine"},
    }
    request = supervised(asked, checkpoints="s3://other/", environment={"A": "other", "B": "c"})
    assert request["CheckpointConfig"] == {"S3Uri": "s3://mine/a-1/", "LocalPath": "/ckpt"}
    assert request["AlgorithmSpecification"]["MetricDefinitions"] == own, "ours would never be seen"
    assert request["Environment"] == {"A": "mine", "B": "c", VARIABLE: read_signing_key(request)}


def test_a_script_that_prints_other_lines_gets_no_definitions():
    """What would never be seen is not waited for."""
    assert "MetricDefinitions" not in supervised(PLAIN, metrics=False)["AlgorithmSpecification"]


def test_a_job_that_saves_elsewhere_gets_no_folder():
    asked = {**PLAIN, "Environment": {"RERAIL_CHECKPOINTS": "s3://bucket/direct"}}
    assert "CheckpointConfig" not in supervised(asked)
    assert "CheckpointConfig" not in supervised(PLAIN, environment=asked["Environment"])
    assert adopted(supervised(asked)).run.checkpoint_uri == "s3://bucket/direct"


def test_a_session_supervises_every_job_that_boto3_creates():
    """A job with a policy of its own keeps it."""
    session = boto3.Session(aws_access_key_id="x", aws_secret_access_key="x", region_name="eu-west-1")
    sent: list[dict] = []
    session.events.register("before-call.sagemaker.CreateTrainingJob", _keeps(sent))
    assert supervised(session, "careful") is session
    client = session.client("sagemaker")
    client.create_training_job(**PLAIN)
    client.create_training_job(**{**PLAIN, "Tags": [{"Key": POLICY_TAG, "Value": "observe"}]})
    assert [tags_of(request)[POLICY_TAG] for request in sent] == ["careful", "observe"]
    assert sent[0]["CheckpointConfig"]["S3Uri"] == "s3://bucket/out/mnist-1/checkpoints/"


def test_the_jobs_of_a_session_share_no_folder():
    """One is given for all of them, so each has its own below it."""
    session = boto3.Session(aws_access_key_id="x", aws_secret_access_key="x", region_name="eu-west-1")
    sent: list[dict] = []
    session.events.register("before-call.sagemaker.CreateTrainingJob", _keeps(sent))
    client = supervised(session, checkpoints="s3://bucket/all").client("sagemaker")
    for name in ("a", "b"):
        client.create_training_job(**{**PLAIN, "TrainingJobName": name})
    assert [request["CheckpointConfig"]["S3Uri"] for request in sent] == ["s3://bucket/all/a/", "s3://bucket/all/b/"]


def _keeps(sent: list[dict]):
    def answer(params, **_):
        sent.append(json.loads(params["body"]))
        return SimpleNamespace(status_code=200), {"TrainingJobArn": "arn"}

    return answer


def test_an_estimators_arguments_and_the_estimator_give_the_same_request():
    """`PyTorch(**supervised(arguments))` and `supervised(PyTorch(**arguments))`."""
    arguments = {"role": "r", "tags": {"team": "vision"}, "environment": {"A": "b"}}
    answer = supervised(arguments, checkpoints="s3://bucket/a")
    assert read_signing_key({"Environment": answer["environment"]})
    arguments["environment"] = answer["environment"]
    estimator = SimpleNamespace(**arguments, metric_definitions=None, checkpoint_s3_uri=None)
    assert supervised(estimator, checkpoints="s3://bucket/a") is estimator
    assert answer == vars(estimator)
    assert answer["tags"] == [{"Key": "team", "Value": "vision"}, {"Key": POLICY_TAG, "Value": "default"}]
    assert answer["checkpoint_s3_uri"] == "s3://bucket/a/"


def test_sagemakers_own_retries_and_file_systems_are_kept():
    """`retries` fills what is not set; data in a file system is carried as it is."""
    source = {"FileSystemId": "fs-01234567", "FileSystemType": "FSxLustre", "DirectoryPath": "/m/a"}
    source |= {"FileSystemAccessMode": "ro"}
    channel = {"ChannelName": "train", "DataSource": {"FileSystemDataSource": source}}
    request = supervised({**PLAIN, "InputDataConfig": [channel]}, retries=10)
    assert request["RetryStrategy"] == {"MaximumRetryAttempts": 10} and request["InputDataConfig"] == [channel]
    own = {**PLAIN, "RetryStrategy": {"MaximumRetryAttempts": 3}}
    assert supervised(own, retries=10)["RetryStrategy"] == {"MaximumRetryAttempts": 3}
    for kept, retries in ((None, 30), (3, 3)):
        assert supervised({"role": "r", "max_retry_attempts": kept}, retries=30)["max_retry_attempts"] == retries
    assert "RetryStrategy" not in supervised(PLAIN) and "max_retry_attempts" not in supervised({"role": "r"})


@pytest.mark.parametrize(
    ("job", "options", "words"),
    [
        (PLAIN, {"retries": 31}, "retries 31: SageMaker takes 1 to 30"),
        (PLAIN, {"policy": "no good"}, "policy 'no good': must be 1-63 letters"),
        (PLAIN, {"checkpoints": "/opt/ml/checkpoints"}, "must be a folder in S3"),
        ({**PLAIN, "Tags": [{"Key": POLICY_TAG, "Value": "observe"}]}, {}, "already, not default; name one"),
        ({**PLAIN, "Tags": [{"Key": RUN_TAG, "Value": "other"}]}, {}, "only relaunches may have; remove it"),
        ({**PLAIN, "Tags": [{"Key": str(n), "Value": ""} for n in range(48)]}, {}, "48 tags.*remove some"),
        ({**PLAIN, "Environment": {str(n): "" for n in range(99)}}, {}, "99 variables.*remove some"),
        ({"role": "r", "source_code": "x"}, {}, "source_code belongs to a ModelTrainer"),
        ({"role": "r"}, {"agent": WHEEL}, "an Estimator has no field for it.*the boto3 session"),
        (PLAIN, {"agent": "rerail_agent.whl"}, "must be the agent's wheel in S3"),
        (PLAIN, {"agent": WHEEL}, "what the image starts is not known; name it in ContainerEntrypoint"),
        ({**STOCK, "InputDataConfig": [CHANNEL] * 20}, {"agent": WHEEL}, "one more than 20; join some"),
    ],
)
def test_what_could_not_be_launched_again_is_refused_at_once(job, options, words):
    """Not when the first machine fails, at night."""
    with pytest.raises(RequestRefused, match=words):
        supervised(job, **options)
    tags, channels = [{"Key": str(n), "Value": ""} for n in range(47)], [CHANNEL] * 19
    full = {**STOCK, "Tags": tags, "Environment": {str(n): "" for n in range(98)}, "InputDataConfig": channels}
    assert len(supervised(full, agent=WHEEL)["InputDataConfig"]) == 20


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "command"),
    [
        ({}, ["bash", "-m", "start_with_right_hostname.sh", "train"]),
        ({"ContainerArguments": ["serve"]}, ["bash", "-m", "start_with_right_hostname.sh", "serve"]),
        ({"ContainerEntrypoint": ["/bin/bash"], "ContainerArguments": ["-c", "x"]}, ["/bin/bash", "-c", "x"]),
        ({"ContainerEntrypoint": ["python", "train.py"]}, ["python", "train.py"]),
    ],
)
def test_the_agents_init_comes_in_front_of_what_the_container_runs(asked, command):
    """In a stock image too, from the wheel in a channel; said twice it is there once, and a relaunch has it again."""
    request = {**STOCK, "AlgorithmSpecification": {**STOCK["AlgorithmSpecification"], **asked}}
    answer = supervised(request, agent=WHEEL)
    algorithm = answer["AlgorithmSpecification"]
    assert complaints(answer) == "" and supervised(answer, agent=WHEEL) == answer
    assert algorithm["ContainerArguments"] == command
    shell, option, line, wheel = algorithm["ContainerEntrypoint"]
    assert (shell, option, wheel) == ("/bin/sh", "-c", f"/opt/ml/input/data/rerail/{WHEEL.rpartition('/')[2]}")
    assert answer["InputDataConfig"][-1]["DataSource"]["S3DataSource"]["S3Uri"] == WHEEL
    shown = [
        "/bin/sh",
        "-c",
        line.replace("exec python -m rerail_agent.init", "printf '%s\n' $PYTHONPATH"),
        "w.whl",
        *command,
    ]
    ran = subprocess.run(shown, env={"PYTHONPATH": "there"}, capture_output=True, text=True, check=True, timeout=1800)
    assert ran.stdout.splitlines() == ["w.whl:there", *command]
    rebuilt = rebuild(described(answer), tags_of(answer), members=frozenset(OPERATION.input_shape.members))
    second = make_request(rebuilt, CreateJob("mnist-1-a002", attempt=2, resume_step=1), run="mnist-1")
    assert second["AlgorithmSpecification"] == algorithm and second["InputDataConfig"] == answer["InputDataConfig"]


def test_too_many_metrics_are_refused():
    many = [{"Name": f"m{n}", "Regex": "(x)"} for n in range(36)]
    asked = {**PLAIN, "AlgorithmSpecification": {**PLAIN["AlgorithmSpecification"], "MetricDefinitions": many}}
    with pytest.raises(RequestRefused, match="41 metric definitions are too many"):
        supervised(asked)


def test_any_other_argument_is_an_error_that_names_the_accepted_types():
    with pytest.raises(TypeError, match=re.escape("not a str")):
        supervised("mnist-1")
