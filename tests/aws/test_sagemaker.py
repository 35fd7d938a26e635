"""SageMaker's words and errors in the core's: what each answer of the API means to a run."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from botocore.awsrequest import AWSResponse
from botocore.exceptions import ClientError
from botocore.stub import ANY, Stubber

from rerail.aws.sagemaker import SageMakerJobs, read_job
from rerail.aws.unknown_members import install_unknown_members
from rerail.diagnosis.classify import diagnose
from rerail.model.errors import (
    CallFailed,
    CapacityRefused,
    JobExists,
    JobNotFound,
    RequestRefused,
    RerailError,
    StateUnknown,
    Throttled,
)
from rerail.model.machines import Cluster, WarmPool
from rerail.model.run import Job, JobStatus
from rerail.model.self_repairs import SelfRepair, SelfRepairs
from rerail.requests.relaunch import UNKNOWN_MEMBERS, find_refusal

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
DATA = Path(__file__).parents[1] / "core" / "data"
ARN = "arn:aws:sagemaker:eu-west-1:111122223333:training-job/gpt-7b"
REQUEST = {
    "TrainingJobName": "gpt-7b-a002",
    "RoleArn": "arn:aws:iam::111122223333:role/Training",
    "OutputDataConfig": {"S3OutputPath": "s3://bucket/out/"},
}
REJECTED = "The request was rejected because the training job is in status Stopped."
NOT_FOUND = "Requested resource not found."
NOTHING_TO_UPDATE = (
    "Could not find job to update with name arn:aws:sagemaker:eu-west-1:111122223333:training-job/gpt-7b"
)
# SDKs of other clients read "Throttling", SageMaker itself says "ThrottlingException".
COME_BACK_LATER = ("ThrottlingException", "Throttling", "TooManyRequestsException", "RequestLimitExceeded")


def refuse(api: Stubber, operation: str, code: str, message: str = "no", status: int = 400) -> None:
    api.add_client_error(operation, code, message, http_status_code=status)


def description(name: str = "full") -> dict:
    """A sample answer, as the SDK gives it: times are times."""
    table = json.loads((DATA / f"describe_{name}.json").read_text())
    times = {key: datetime.fromisoformat(value) for key, value in table.items() if key.endswith("Time")}
    return {**table, **times, "SecondaryStatusTransitions": [], "FinalMetricDataList": [FINAL_STEP]}


FINAL_STEP = {"MetricName": "step", "Value": 1100.0, "Timestamp": datetime(2026, 1, 31, 2, 59, tzinfo=UTC)}


def test_a_description_becomes_a_job(api):
    """All that the core asks of a job, and beside it the whole answer."""
    api.add_response("describe_training_job", description(), {"TrainingJobName": "gpt-7b"})
    job, answer = SageMakerJobs().describe("gpt-7b")
    assert job == Job(
        name="gpt-7b",
        arn=ARN,
        status=JobStatus.FAILED,
        secondary="Failed",
        created_at=datetime(2026, 1, 31, 1, tzinfo=UTC),
        training_started_at=datetime(2026, 1, 31, 1, 4, tzinfo=UTC),
        ended_at=datetime(2026, 1, 31, 3, tzinfo=UTC),
        failure_reason="InternalServerError: We encountered an internal error.  Please try again.",
        diagnosis=diagnose("InternalServerError: We encountered an internal error.  Please try again."),
        checkpoint_uri="s3://bucket/checkpoints/gpt-7b",
        keep_alive_seconds=1800,
        metrics={"step": 1100.0},
        defined_metrics=("step",),
        cluster=Cluster(
            role="arn:aws:iam::111122223333:role/Training",
            instance_types=("ml.p4de.24xlarge",),
            count=2,
            volume_gb=500,
            security_groups=("sg-0123456789abcdef0",),
            subnets=("subnet-0123456789abcdef0",),
            encrypted=True,
            prefers=True,
        ),
        pool=WarmPool("Available", 60),
        instance_type="ml.p4de.24xlarge",
        instance_count=2,
        billable_s=6960,
        max_runtime_s=432000,
        artifacts="s3://bucket/out/gpt-7b/output/model.tar.gz",
        script="train.py",
    )
    assert answer["HyperParameters"]["epochs"] == "3"


def test_a_new_job_has_empty_fields():
    table = {**description("script_mode"), "FinalMetricDataList": []}
    job = read_job(table)
    assert (job.training_started_at, job.ended_at, job.failure_reason, job.checkpoint_uri) == (None, None, "", "")
    assert (job.keep_alive_seconds, job.metrics, job.is_training) == (0, {}, True)
    assert read_job({**table, "TrainingJobStatus": "Melting"}).status is JobStatus.UNKNOWN
    programs = (
        "src/fit.py",
        '"entra\\u00eenement.py"',
        "rerail_entry.py",
        "-c",
        "x.py; true",
        "$(true)",
        "[" * 2_500,
        "a" * 201,
        '"rerail_command.sh"',
    )
    scripts = [read_job({**table, "HyperParameters": {"sagemaker_program": program}}).script for program in programs]
    assert scripts == ["src/fit.py", "entraînement.py", *[""] * 6, "FOLDER --command COMMAND"]
    for given in ("fit.py", "../mnist --entry main.py", "/code/mnist --command COMMAND"):
        wrapped = {"sagemaker_program": '"rerail_entry.py"', "sagemaker_rerail_script": json.dumps(given)}
        assert read_job({**table, "HyperParameters": wrapped}).script == given


@pytest.mark.parametrize(
    ("code", "message", "error"),
    [
        ("ValidationException", NOT_FOUND, JobNotFound),
        ("ResourceNotFound", NOT_FOUND, JobNotFound),
        ("ValidationException", "1 validation error detected", StateUnknown),
        ("AccessDeniedException", "not authorized", StateUnknown),
        ("ExpiredTokenException", "expired", StateUnknown),
        ("InternalFailure", "", StateUnknown),
        *((code, "Rate exceeded", StateUnknown) for code in COME_BACK_LATER),
    ],
)
def test_only_a_missing_job_is_gone(api, code, message, error):
    """Whatever else keeps SageMaker from telling, nothing is known then, and nothing is done."""
    refuse(api, "describe_training_job", code, message)
    with pytest.raises(RerailError) as raised:
        SageMakerJobs().describe("gpt-7b")
    assert type(raised.value) is error
    assert "gpt-7b" in str(raised.value)


ALGORITHM = {"TrainingImage": "xgboost:1", "TrainingInputMode": "File"}
DEFINED = {**ALGORITHM, "MetricDefinitions": [{"Name": "loss", "Regex": "x"}]}
WITH_METRICS = {**REQUEST, "AlgorithmSpecification": DEFINED}


@pytest.mark.parametrize(
    ("code", "message", "error"),
    [
        ("ResourceInUse", "Training job names must be unique within an AWS account and region", JobExists),
        ("ResourceLimitExceeded", "The account-level service limit 'ml.p4d.24xlarge for …' is 2", CapacityRefused),
        ("CapacityError", "Unable to provision requested ML compute capacity.", CapacityRefused),
        ("InsufficientCapacity", "no capacity", CapacityRefused),
        ("ValidationException", "training-job/ml.X is not available in this region", RequestRefused),
        ("AccessDeniedException", "not authorized to perform: iam:PassRole", RequestRefused),
        ("ResourceNotFound", NOT_FOUND, RequestRefused),
        ("InternalFailure", "We are sorry", CallFailed),
        ("ServiceUnavailable", "later", CallFailed),
        ("ExpiredTokenException", "expired", CallFailed),
        ("SomethingNew", "what SageMaker will invent", CallFailed),
        *((code, "Rate exceeded", Throttled) for code in COME_BACK_LATER),
    ],
)  # fmt: skip
def test_every_no_to_a_launch_means_one_thing(api, code, message, error):
    """Taken, no room, never, later, or no answer at all: each leads the run elsewhere, and quotes SageMaker."""
    refuse(api, "create_training_job", code, message)
    with pytest.raises(RerailError) as raised:
        SageMakerJobs().create(WITH_METRICS)
    assert type(raised.value) is error
    assert message in str(raised.value)


def test_a_launch_sends_the_request_as_it_is(api):
    api.add_response("create_training_job", {"TrainingJobArn": ARN}, REQUEST)
    assert SageMakerJobs().create(REQUEST) is None


def test_an_image_that_has_its_own_metrics_is_launched_without_definitions(api):
    """SageMaker says so of its algorithms; their descriptions may list definitions that no request may have."""
    message = "You can't override the metric definitions for Amazon SageMaker algorithms. Please retry the request"
    api.add_client_error("create_training_job", "ValidationException", message, expected_params=WITH_METRICS)
    api.add_response("create_training_job", {"TrainingJobArn": ARN}, {**REQUEST, "AlgorithmSpecification": ALGORITHM})
    SageMakerJobs().create(WITH_METRICS)


def test_what_the_sdk_does_not_know_of_a_job_is_named():
    """Inside of a request's structures, however deep: a relaunch would lack it, so the job is not supervised.

    So may a new structure beside them that has the name of a configuration; a new fact about the job may not.
    """
    body = {
        "TrainingJobName": "gpt-7b",
        "ResourceConfig": {"InstanceCount": 1, "Racks": [{"Id": "r1"}]},
        "InputDataConfig": [
            {"ChannelName": "train", "DataSource": {"S3DataSource": {"S3Uri": "s3://b/", "Speed": "x"}}}
        ],
        "HyperParameters": {"anything": "is known"},
        "NewFact": {"A": 1},
        "NewFeatureConfig": {"Enabled": True},
        "UnusedConfig": {},
    }
    sagemaker_client = boto3.client("sagemaker")
    install_unknown_members(sagemaker_client)

    def answer(request: Any, **_: Any) -> AWSResponse:
        raw = SimpleNamespace(stream=lambda *_: iter([json.dumps(body).encode()]))
        return AWSResponse(request.url, 200, {}, raw)

    sagemaker_client.meta.events.register_first("before-send.sagemaker.DescribeTrainingJob", answer)
    description = sagemaker_client.describe_training_job(TrainingJobName="gpt-7b")
    named = ["InputDataConfig.DataSource.S3DataSource.Speed", "NewFeatureConfig", "ResourceConfig.Racks"]
    assert description[UNKNOWN_MEMBERS] == named
    assert f"does not know {', '.join(named)}, and" in find_refusal(description)
    del body["NewFeatureConfig"]
    del body["ResourceConfig"]["Racks"], body["InputDataConfig"][0]["DataSource"]["S3DataSource"]["Speed"]
    assert UNKNOWN_MEMBERS not in sagemaker_client.describe_training_job(TrainingJobName="gpt-7b")


def test_a_request_that_the_sdk_refuses_will_never_be_accepted():
    """A member that is missing or of the wrong type: trying again every minute would be in vain."""
    with pytest.raises(RequestRefused, match="OutputDataConfig"):
        SageMakerJobs().create({"TrainingJobName": "gpt", "RoleArn": 7})


def test_silence_is_no_answer(silent):
    """A time-out says neither yes nor no: looks are blind, and launches stay owed."""
    jobs = SageMakerJobs()
    with pytest.raises(CallFailed):
        jobs.create(REQUEST)
    for look in (
        lambda: jobs.describe("gpt"),
        lambda: jobs.tags(ARN),
        lambda: jobs.changed_since(datetime(2026, 1, 31, tzinfo=UTC)),
    ):
        with pytest.raises(StateUnknown):
            look()


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("ValidationException", REJECTED),
        ("ValidationException", REJECTED.replace("Stopped", "Completed")),
        ("ValidationException", NOT_FOUND),
        ("ValidationException", NOTHING_TO_UPDATE),
        ("ResourceNotFound", NOT_FOUND),
    ],
)
def test_what_has_ended_counts_as_stopped_and_released(api, code, message):
    """Stops and releases may be repeated, also when the job is long gone."""
    refuse(api, "stop_training_job", code, message)
    refuse(api, "update_training_job", code, message)
    if "not found" not in message.lower():  # what is refused otherwise may still be kept: that is asked
        gone = {**description(), "WarmPoolStatus": {"Status": "Terminated"}}
        api.add_response("describe_training_job", gone, {"TrainingJobName": "gpt-7b"})
    SageMakerJobs().stop("gpt-7b")
    SageMakerJobs().release_warm_pool("gpt-7b")


@pytest.mark.parametrize("status", ["InUse", "Available"])
def test_a_pool_that_cannot_be_released_yet_stays_pending(api, status):
    """SageMaker refuses while the job is just leaving them: to call that done would hand the bad node back."""
    refuse(api, "update_training_job", "ValidationException", "can be updated only while the warm pool is Available")
    kept = {**description(), "WarmPoolStatus": {"Status": status}}
    api.add_response("describe_training_job", kept, {"TrainingJobName": "gpt-7b"})
    with pytest.raises(Throttled, match="the warm pool of gpt-7b cannot be released yet"):
        SageMakerJobs().release_warm_pool("gpt-7b")


@pytest.mark.parametrize(
    ("secondary", "message", "lacks"),
    [
        ("Pending", "Training job waiting for capacity", True),
        ("Starting", "Insufficient capacity error from EC2 while launching instances, retrying!", True),
        ("Starting", "Launching requested ML instances.", False),
        ("Training", "Training image download completed. Training in progress.", False),
    ],
)
def test_a_job_without_machines_is_distinguished_from_one_that_starts(secondary, message, lacks):
    """By its status, or by what its start says."""
    transitions = [{"Status": secondary, "StartTime": NOON, "StatusMessage": message}]
    facts = {"TrainingJobStatus": "InProgress", "SecondaryStatus": secondary, "SecondaryStatusTransitions": transitions}
    assert read_job({**description(), **facts}).lacks_machines is lacks


@pytest.mark.parametrize(
    ("changes", "ran_out"),
    [
        ({}, True),
        ({"TrainingEndTime": NOON + timedelta(minutes=59)}, False),
        ({"TrainingStartTime": NOON + timedelta(minutes=1)}, False),
        ({"TrainingJobStatus": "Failed"}, False),
        ({"StoppingCondition": {"MaxRuntimeInSeconds": 60}}, False),
    ],
)
def test_a_stop_by_sagemakers_own_clock_is_no_humans(changes, ran_out):
    """It never had machines, and its MaxPendingTimeInSeconds is over."""
    waited = {
        "TrainingJobStatus": "Stopped",
        "CreationTime": NOON,
        "TrainingStartTime": None,
        "TrainingEndTime": NOON + timedelta(hours=1),
        "StoppingCondition": {"MaxPendingTimeInSeconds": 3600},
    }
    assert read_job({**description(), **waited, **changes}).pending_ran_out is ran_out


@pytest.mark.parametrize(
    ("retries", "kind"), [({"MaximumRetryAttempts": 2}, SelfRepair.RETRY), (None, SelfRepair.CLUSTER)]
)
def test_sagemakers_own_restarts_are_read_from_the_jobs_history(retries, kind):
    """A restart without a word is a retry where the request asks for retries, and else a repair of the cluster."""
    statuses = ("Starting", "Training", "Starting", "Training", "Interrupted", "Starting", "Training")
    minutes = [NOON + number * timedelta(minutes=1) for number in range(len(statuses))]
    steps = [{"Status": s, "StartTime": at, "StatusMessage": ""} for s, at in zip(statuses, minutes, strict=True)]
    job = read_job({**description(), "SecondaryStatusTransitions": steps, "RetryStrategy": retries})
    assert job.repaired == SelfRepairs({kind: 1, SelfRepair.SPOT: 1}, 180.0)


def test_a_stop_names_the_job_and_a_release_ends_its_keep_alive(api):
    """Zero seconds of keep-alive hand the instances back."""
    api.add_response("stop_training_job", {}, {"TrainingJobName": "gpt-7b"})
    expected = {"TrainingJobName": "gpt-7b", "ResourceConfig": {"KeepAlivePeriodInSeconds": 0}}
    api.add_response("update_training_job", {"TrainingJobArn": ARN}, expected)
    SageMakerJobs().stop("gpt-7b")
    SageMakerJobs().release_warm_pool("gpt-7b")


@pytest.mark.parametrize(
    ("code", "error"),
    [
        *((code, Throttled) for code in COME_BACK_LATER),
        ("AccessDeniedException", ClientError),
        ("InternalFailure", ClientError),
    ],
)
def test_a_throttled_stop_stays_pending_and_another_failure_is_an_error(api, code, error):
    """A missing permission must not pass for a stopped job."""
    refuse(api, "stop_training_job", code)
    refuse(api, "update_training_job", code)
    for call in (SageMakerJobs().stop, SageMakerJobs().release_warm_pool):
        with pytest.raises(error, match=code):
            call("gpt-7b")


def test_every_page_of_tags_is_read(api):
    first = {"Tags": [{"Key": "a", "Value": "1"}, {"Key": "b", "Value": ""}], "NextToken": "more"}
    api.add_response("list_tags", first, {"ResourceArn": ARN})
    second = {"Tags": [{"Key": "rerail:policy", "Value": "night"}]}
    api.add_response("list_tags", second, {"ResourceArn": ARN, "NextToken": "more"})
    assert SageMakerJobs().tags(ARN) == {"a": "1", "b": "", "rerail:policy": "night"}


def test_tags_that_cannot_be_read_blind(api):
    """An unread tag must not pass for an absent one: the job would be ignored for an hour."""
    refuse(api, "list_tags", "ThrottlingException")
    with pytest.raises(StateUnknown, match=f"ListTags {ARN}"):
        SageMakerJobs().tags(ARN)


def test_a_plans_capacities_are_read_where_they_may_be(api):
    """Nothing is known of another account's plan or a deleted one; a throttled call is an error."""
    plan = "arn:aws:sagemaker:eu-west-1:111122223333:training-plan/nights"
    about = {"TrainingPlanArn": plan, "TrainingPlanName": "nights", "Status": "Active"}
    capacity = {"ReservedCapacityArn": ARN, "InstanceType": "ml.p4d.24xlarge", "TotalInstanceCount": 1}
    ends = [NOON + timedelta(days=day) for day in (1, 3)]
    listed = [{**capacity, "Status": "Active", "StartTime": end - timedelta(days=1), "EndTime": end} for end in ends]
    api.add_response("describe_training_plan", {**about, "ReservedCapacitySummaries": listed})
    assert [end for _, end in SageMakerJobs().list_capacities(plan)] == ends
    for code in ("AccessDeniedException", "ResourceNotFound"):
        refuse(api, "describe_training_plan", code)
        assert SageMakerJobs().list_capacities(plan) == ()
    refuse(api, "describe_training_plan", "ThrottlingException")
    with pytest.raises(StateUnknown, match="DescribeTrainingPlan"):
        SageMakerJobs().list_capacities(plan)


def a_summary(name: str, status: str) -> dict:
    time = datetime(2026, 1, 31, tzinfo=UTC)
    return {"TrainingJobName": name, "TrainingJobArn": ARN, "CreationTime": time, "TrainingJobStatus": status}


def test_a_list_is_read_to_its_end(api):
    """SageMaker's own filter is applied to each page after it is taken; an empty page is not the last."""
    since = datetime(2026, 1, 31, tzinfo=UTC)
    pages = [
        [a_summary("done", "Completed"), a_summary("runs", "InProgress")],
        [],
        [a_summary("died", "Failed"), a_summary("ended", "Stopped"), a_summary("ends", "Stopping")],
    ]
    for number, page in enumerate(pages):
        answer = {"TrainingJobSummaries": page} | ({"NextToken": str(number)} if number < 2 else {})
        asked = {"LastModifiedTimeAfter": since, "MaxResults": 100} | ({"NextToken": ANY} if number else {})
        api.add_response("list_training_jobs", answer, asked)
    statuses = {"done": "Completed", "runs": "InProgress", "died": "Failed", "ended": "Stopped", "ends": "Stopping"}
    assert {name: status for name, (status, _) in SageMakerJobs().changed_since(since).items()} == statuses


def test_a_list_that_breaks_off_blinds(api):
    api.add_response("list_training_jobs", {"TrainingJobSummaries": [], "NextToken": "more"})
    refuse(api, "list_training_jobs", "ThrottlingException")
    with pytest.raises(StateUnknown, match="ListTrainingJobs"):
        SageMakerJobs().changed_since(datetime(2026, 1, 31, tzinfo=UTC))


def test_the_sdk_knows_what_a_launch_takes(api):
    """The members are the model's own, so that a newer SDK carries newer members along."""
    members = SageMakerJobs().request_members()
    assert {"TrainingJobName", "Tags", "Environment", "CheckpointConfig", "InfraCheckConfig"} <= set(members)
    assert not {"TrainingJobStatus", "SecondaryStatus", "CreationTime"} & set(members)


@pytest.mark.parametrize(
    ("hyperparameters", "steps"),
    [
        ({"max_steps": '"10000"', "epochs": "3"}, 10_000),
        ({"train-iters": "500", "trainer.max_steps_per_epoch": "7"}, 500),
        ({"trainer.max_steps": "70"}, 70),
        ({"max-steps": "500", "max_train_steps": "500"}, 500),
        ({"max-steps": "500", "total_steps": "900"}, None),
        ({"max_steps": "-1"}, None),
        ({"max_steps": "0"}, None),
        ({"max_steps": "1e4", "save-steps": "500", "warmup_steps": "10"}, None),
        ({"max_steps": "9" * 4_000}, None),
        ({}, None),
    ],
)
def test_the_steps_that_the_arguments_ask_for_are_read(hyperparameters, steps):
    table = {**description("script_mode"), "HyperParameters": hyperparameters}
    assert read_job(table).planned_steps == steps
