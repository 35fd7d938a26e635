"""Calls in an account: what is created there, what is refused before, and how a wait for a run ends."""

import dataclasses
import io
import json
import pickle
import re
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import EndpointConnectionError
from botocore.response import StreamingBody
from moto import mock_aws
from rerail_cli import CallRefused, RemoteError, ResultRefused, RunHeld, RunStopped, attach, remote
from rerail_cli.functions import decorator, future, job
from rerail_cli.functions.envelope import KEY_VARIABLE, make_name, sign
from rerail_cli.functions.service_client import ServiceClient

from cli.place import Place
from cli.remote import observation, service
from cli.submit import delivery
from rerail.aws.clients import client
from rerail.model.run import Attempt, JobStatus, Run, RunState
from rerail.model.signatures import VARIABLE
from tests.aws.places import REGION, make_bucket
from tests.house.sources import ROOT
from tests.raising import raising

ROLE = "arn:aws:iam::123456789012:role/Training"
BUCKET = f"sagemaker-{REGION}-123456789012"
PYTHON = f"py3{sys.version_info.minor}"

NOW = datetime(2026, 11, 24, tzinfo=UTC)


class InProcess(ServiceClient):
    """The service without its process, for an AWS that is in this one."""

    def _exchange(self, request: str) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(json.dumps(service.answer(json.loads(request))))
        return answer


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """An account with SageMaker's usual bucket, and no deployment of Rerail."""
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    monkeypatch.setattr(delivery, "find_deployment", lambda screen: None)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(service, "_places", {})
    client_of_the_test = InProcess(local=False)
    for module in (decorator, future):
        monkeypatch.setattr(module, "find_service", lambda local: client_of_the_test)
    with mock_aws():
        make_bucket(BUCKET)
        environments: dict[str, dict[str, str]] = {}

        def keep(params: dict[str, Any], **_: Any) -> None:
            environments[params["TrainingJobName"]] = params.get("Environment", {})

        def add(parsed: dict[str, Any], **_: Any) -> None:
            parsed["Environment"] = environments.get(parsed.get("TrainingJobName", ""), {})

        events = client("sagemaker").meta.events  # moto keeps no environments
        events.register("before-parameter-build.sagemaker.CreateTrainingJob", keep)
        events.register("after-call.sagemaker.DescribeTrainingJob", add)
        yield
        events.unregister("before-parameter-build.sagemaker.CreateTrainingJob", keep)
        events.unregister("after-call.sagemaker.DescribeTrainingJob", add)


@remote(role=ROLE, source=None)
def double(number: int) -> int:
    return 2 * number


def describe(run: str) -> dict[str, Any]:
    description: dict[str, Any] = client("sagemaker").describe_training_job(TrainingJobName=run)
    return description


def test_the_options_reach_the_job(account, capfd):
    machines = {"instance_type": "ml.g5.xlarge", "volume": 50}
    times = {"max_runtime": "2h", "max_wait": "5h", "environment": {"MODE": "fast"}}
    submitted = double.with_options(**machines, **times, spot=True, policy="observe", tags={"team": "vision"}).submit(4)
    job = describe(submitted.run)
    assert job["ResourceConfig"]["InstanceType"] == "ml.g5.xlarge" and job["ResourceConfig"]["VolumeSizeInGB"] == 50
    assert job["EnableManagedSpotTraining"] and job["StoppingCondition"]["MaxWaitTimeInSeconds"] == 5 * 3600
    assert job["Environment"]["MODE"] == "fast"
    tags = client("sagemaker").list_tags(ResourceArn=job["TrainingJobArn"])["Tags"]
    assert {tag["Key"]: tag["Value"] for tag in tags} == {"team": "vision", "rerail:policy": "observe"}
    assert job["AlgorithmSpecification"]["TrainingImage"].endswith(f"-gpu-{PYTHON}")
    warm = double.with_options(keep_alive="30m").submit(4)
    assert describe(warm.run)["ResourceConfig"]["KeepAlivePeriodInSeconds"] == 1800
    printed = capfd.readouterr()
    assert f"rerail follow {submitted.run}" in printed.err
    assert job["Environment"][VARIABLE] not in printed.err + printed.out
    assert VARIABLE == KEY_VARIABLE


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"role": ""}, r"role=: the job needs a role"),
        ({"instance_type": "ml.g5.xlarg"}, r"instance_type= ml.g5.xlarg: SageMaker has no such type.*ml.g5.xlarge"),
        ({"max_runtime": "long"}, r"max_runtime= long: not a duration. To do: write it like 90s"),
        ({"keep_alive": "30m", "spot": True}, r"keep_alive: SageMaker keeps no spot machines"),
        ({"image": "aws/pytorch-training:2.0-cpu-py39"}, r"has Python 3.9. To do: choose .* by framework_version"),
        ({"source": "nowhere", "dependencies": ["absent.py"]}, r"dependencies= absent.py: there is no such file"),
        ({"bucket": "missing"}, r"bucket= missing: there is no such bucket"),
    ],
)
def test_what_submission_refuses_names_the_option(account, options, match):
    with pytest.raises(CallRefused, match=match):
        double.with_options(**options).submit(4)
    assert client("sagemaker").list_training_jobs()["TrainingJobSummaries"] == []


def test_no_call_has_the_name_of_a_relaunch(account, monkeypatch):
    """Submission refuses such names, and the end of a name is drawn."""
    monkeypatch.setattr("secrets.token_hex", lambda size: "a248" * (size // 2))
    assert double.submit(4).run.endswith("-g248")


def test_a_job_of_another_kind_cannot_be_attached_to(account):
    submitted = double.submit(4)
    request = {key: describe(submitted.run)[key] for key in ("AlgorithmSpecification", "OutputDataConfig")}
    request |= {key: describe(submitted.run)[key] for key in ("RoleArn", "ResourceConfig", "StoppingCondition")}
    client("sagemaker").create_training_job(TrainingJobName="plain", **request)
    with pytest.raises(CallRefused, match="plain is not one of a remote function"):
        attach("plain")
    service._places[True] = (Place("local AWS", {}, is_local=True), 0.0)
    with pytest.raises(CallRefused, match="`rerail follow plain --local` follows it"):
        InProcess(local=True).ask("find", run="plain")
    again = attach(submitted.run)
    assert vars(again) == vars(submitted)


class Runs:
    """The supervisor's table with one run."""

    def __init__(self, run: Any) -> None:
        self.run = run

    def load(self, name: str) -> Any:
        return self.run


@pytest.fixture
def place_of(monkeypatch: pytest.MonkeyPatch):
    """Has the deployment know this run."""

    def know(run: Any) -> None:
        monkeypatch.setattr(Place, "runs", property(lambda self: Runs(run)))
        service._places[False] = (Place("stack Rerail", {}), 0.0)

    return know


def make_run(name: str, state: RunState = RunState.WATCHING, **facts: Any) -> Run:
    status = JobStatus.FAILED if state.is_end else JobStatus.IN_PROGRESS
    return Run(name, "default", state, NOW, (Attempt(1, name, status=status),), **facts)


def test_a_held_run_raises_what_to_do_with_the_last_exception_as_its_cause(account, place_of):
    submitted = double.submit(4)
    header = {"kind": "exception", "final": False, "traceback": "Traceback: in double"}
    name = make_name("result", submitted.run, submitted._call, submitted.run)
    body = sign(header, pickle.dumps(ConnectionError("gone")), name, submitted._key)
    client("s3").put_object(Bucket=BUCKET, Key=f"rerail/{submitted.run}/results/{submitted.run}", Body=body)
    place_of(make_run(submitted.run, RunState.HELD, hold_reason="the retries of infrastructure are spent"))
    assert not submitted.done()
    with pytest.raises(RunHeld, match=f"run {submitted.run} is held after 1 attempts: the retries") as raised:
        submitted.result()
    assert f"`rerail release {submitted.run}`" in str(raised.value) and "attach(" in str(raised.value)
    assert isinstance(raised.value.__cause__, ConnectionError)


def test_a_stopped_and_a_lost_result_say_where_to_look(account, place_of):
    submitted = double.submit(4)
    place_of(make_run(submitted.run, RunState.STOPPED))
    with pytest.raises(RunStopped, match=f"run {submitted.run} has been stopped.*`rerail logs {submitted.run}`"):
        submitted.result()
    lost = double.submit(4)
    place_of(make_run(lost.run, RunState.COMPLETED))
    with pytest.raises(RemoteError, match=r"has completed, and its result cannot be read \(nothing is stored\)"):
        lost.result()


@pytest.mark.threat("T31")
def test_a_result_without_end_fills_no_disk(account, place_of, monkeypatch, tmp_path):
    """Test that no object is downloaded above the limit, also where another writer replaces it between two requests."""
    monkeypatch.setattr(observation, "RESULT_LIMIT", 1000)
    submitted, s3, writer = double.submit(4), client("s3"), boto3.client("s3", region_name=REGION)
    place = {"Bucket": BUCKET, "Key": f"rerail/{submitted.run}/results/{submitted.run}"}
    writer.put_object(**place, Body=b"x")
    place_of(make_run(submitted.run, RunState.COMPLETED))
    event, grow = "before-call.s3.GetObject", lambda **_: writer.put_object(**place, Body=b"x" * 1001) and None
    s3.meta.events.register(event, grow)
    try:
        with pytest.raises(RemoteError, match=r"the stored result has 1,001 bytes, more than 1,000: write large"):
            submitted.result()
    finally:
        s3.meta.events.unregister(event, grow)


def test_a_result_that_breaks_off_while_it_is_read_is_read_again(account, place_of, monkeypatch):
    """As while AWS cannot be reached: the run may go on meanwhile."""
    submitted, s3 = double.submit(4), client("s3")
    place = {"Bucket": BUCKET, "Key": f"rerail/{submitted.run}/results/{submitted.run}"}
    name = make_name("result", submitted.run, submitted._call, submitted.run)
    s3.put_object(**place, Body=sign({"kind": "value", "final": True}, pickle.dumps(8), name, submitted._key))
    place_of(make_run(submitted.run, RunState.COMPLETED))
    broken = {"Body": StreamingBody(io.BytesIO(b"x"), 100), "ContentLength": 100, "ETag": "x"}
    with monkeypatch.context() as patched:
        patched.setattr(s3, "get_object", lambda **_: broken)
        assert not submitted.done()
    assert submitted.result() == 8


@pytest.mark.threat("T31")
def test_what_others_store_while_a_call_runs_does_not_end_it(account, place_of):
    """The job stores its result over it; until then it is downloaded once."""
    submitted, s3 = double.submit(4), client("s3")
    place = {"Bucket": BUCKET, "Key": f"rerail/{submitted.run}/results/{submitted.run}"}
    s3.put_object(**place, Body=b"of another")
    place_of(make_run(submitted.run))
    read: list[Any] = []
    s3.meta.events.register("after-call.s3.GetObject", lambda http_response, **_: read.append(http_response), "read")
    is_done = [submitted.done(), submitted.done()]
    s3.meta.events.unregister("after-call.s3.GetObject", unique_id="read")
    assert is_done == [False, False]
    assert [answer.status_code for answer in read] == [200, 304]
    place_of(make_run(submitted.run, RunState.COMPLETED))
    with pytest.raises(ResultRefused, match="Another writer has changed"):
        attach(submitted.run).result()
    name = make_name("result", submitted.run, submitted._call, submitted.run)
    s3.put_object(**place, Body=sign({"kind": "value", "final": True}, pickle.dumps(8), name, submitted._key))
    assert submitted.result() == 8


def test_a_job_stores_its_result_in_a_bucket_of_its_account_alone(account, monkeypatch):
    """The environment of the job names the bucket."""
    asked = []
    client_of_the_job = boto3.client("s3", region_name=REGION)
    client_of_the_job.meta.events.register("before-parameter-build.s3", lambda params, **_: asked.append(dict(params)))
    monkeypatch.setattr(boto3, "client", lambda service: client_of_the_job)
    monkeypatch.setenv("TRAINING_JOB_ARN", "arn:aws:sagemaker:eu-west-1:123456789012:training-job/gpt")
    job._store(f"s3://{BUCKET}/results/gpt", b"")
    assert [params["ExpectedBucketOwner"] for params in asked] == ["123456789012"]


def test_an_interrupted_wait_leaves_the_run_alone(account, place_of, monkeypatch, capsys):
    submitted = double.submit(4)
    run = make_run(submitted.run)
    second = Attempt(2, f"{submitted.run}-a002", status=JobStatus.IN_PROGRESS)
    place_of(dataclasses.replace(run, attempts=(*run.attempts, second)))

    monkeypatch.setattr(time, "sleep", raising(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        submitted.result()
    said = capsys.readouterr().err
    assert f"{submitted.run} goes on as {submitted.run}-a002, attempt 2" in said
    assert f'{submitted.run} goes on: `rerail_cli.attach("{submitted.run}").result()`' in said
    assert f"`rerail stop {submitted.run}` ends it" in said


def test_a_network_that_is_down_does_not_end_a_wait_at_once(account, place_of, monkeypatch):
    submitted = double.submit(4)
    place_of(make_run(submitted.run))
    clock = iter(range(0, 10_000, 400))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)

    monkeypatch.setattr(observation, "_fetch", raising(EndpointConnectionError(endpoint_url="https://dynamodb")))
    with pytest.raises(RemoteError, match="cannot be observed: Could not connect"):
        submitted.result()
    assert len(slept) >= 2


def test_the_page_names_every_option():
    text = (ROOT / "docs" / "remote.md").read_text()
    named = set(re.findall(r"`(\w+)`", text)) | set(re.findall(r"(\w+)=", text))
    assert {field.name for field in dataclasses.fields(decorator.RemoteOptions)} <= named
