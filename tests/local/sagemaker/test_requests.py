"""The API's manners: what it accepts, refuses, returns and lists."""

import time
from datetime import UTC, datetime, timedelta

import pytest
from botocore.exceptions import ClientError

from local.sagemaker.errors import ServiceError
from local.sagemaker.job import LocalJob, Status
from local.sagemaker.listing import list_page
from local.sagemaker.search import search_page
from local.sagemaker.validation import check_request
from tests.local.sagemaker.local_api import ROLE, LocalApi

pytestmark = pytest.mark.slow

VALID = {
    "TrainingJobName": "job",
    "RoleArn": ROLE,
    "AlgorithmSpecification": {"TrainingImage": "image", "TrainingInputMode": "File"},
    "OutputDataConfig": {"S3OutputPath": "s3://bucket/out"},
    "ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 10},
    "StoppingCondition": {"MaxRuntimeInSeconds": 60},
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"TrainingJobName": "a_b"},
            "1 validation error detected: Value 'a_b' at 'trainingJobName' failed to satisfy constraint: "
            "Member must satisfy regular expression pattern: [a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}",
        ),
        ({"TrainingJobName": "ends-with-"}, "at 'trainingJobName'"),
        ({"TrainingJobName": "a" * 64}, "2 validation errors detected"),
        ({"RoleArn": None}, "Value null at 'roleArn' failed to satisfy constraint: Member must not be null"),
        ({"ResourceConfig": {"InstanceType": "ml.huge", "InstanceCount": 1}}, "at 'resourceConfig.instanceType'"),
        ({"ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": -1}}, "value greater than or equal to"),
        (
            {"ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 0}},
            "needs InstanceType with InstanceCount",
        ),
        ({"RetryStrategy": {"MaximumRetryAttempts": 31}}, "Member must have value less than or equal to 30"),
        ({"Environment": {"K": "v" * 513}}, "Map value must satisfy constraint: [Member must have length less than"),
        ({"Environment": {"1K": "v"}}, "Map key must satisfy constraint"),
        ({"Tags": [{"Key": "k", "Value": "a?"}]}, "at 'tags.1.member.value'"),
        ({"Tags": [{"Key": "aws:k", "Value": "v"}]}, "reserved for AWS"),
        ({"Surprise": 1}, "Unknown parameter at 'surprise'"),
        ({"EnableManagedSpotTraining": True}, "MaxWaitTimeInSeconds must be present"),
        ({"AlgorithmSpecification": {"TrainingInputMode": "File"}}, "exactly one of TrainingImage and AlgorithmName"),
        (
            {"ResourceConfig": {**VALID["ResourceConfig"], "SelectedInstanceType": "ml.m5.large"}},
            "SelectedInstanceType and SelectedInstanceCount are not accepted",
        ),
        (
            {
                "EnableManagedSpotTraining": True,
                "StoppingCondition": {"MaxRuntimeInSeconds": 60, "MaxWaitTimeInSeconds": 60},
                "ResourceConfig": {**VALID["ResourceConfig"], "KeepAlivePeriodInSeconds": 60},
            },
            "not supported with managed spot",
        ),
    ],
)
def test_refused(change, message):
    """A request that breaks the model, or a rule beyond it, is refused with its field named."""
    with pytest.raises(ServiceError) as refusal:
        check_request("CreateTrainingJob", {**VALID, **change})
    assert refusal.value.code == "ValidationException"
    assert message in refusal.value.message


def test_accepted():
    """A plain request, and one with the tags and environment of a successor, are sound."""
    check_request("CreateTrainingJob", VALID)
    tags = [{"Key": "rerail:run", "Value": "run-1"}, {"Key": "Größe", "Value": "a b/c@d"}]
    check_request("CreateTrainingJob", {**VALID, "Tags": tags, "Environment": {"RERAIL_RESUME_STEP": ""}})


def test_refusals_reach_the_client(api: LocalApi):
    """boto3 sees the code, the message and the HTTP status; an unknown operation is named."""
    request = api.request(ResourceConfig={"InstanceType": "ml.huge"})
    with pytest.raises(ClientError) as refusal:
        api.sagemaker.create_training_job(**request)
    assert refusal.value.response["Error"]["Code"] == "ValidationException"
    assert refusal.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400
    with pytest.raises(ClientError, match="UnknownOperationException.*ListModels"):
        api.sagemaker.list_models()


def test_name_reuse(api: LocalApi):
    """A name serves once; after DeleteTrainingJob it is free again."""
    request = api.request()
    api.sagemaker.create_training_job(**request)
    with pytest.raises(api.sagemaker.exceptions.ResourceInUse, match="must be unique"):
        api.sagemaker.create_training_job(**request)
    api.ended(request["TrainingJobName"])
    api.sagemaker.delete_training_job(TrainingJobName=request["TrainingJobName"])
    with pytest.raises(api.sagemaker.exceptions.ResourceNotFound):
        api.describe(request["TrainingJobName"])
    api.sagemaker.create_training_job(**request)
    api.ended(request["TrainingJobName"])


def test_describe_returns_the_request(api: LocalApi):
    """Describe gives back what was asked for, without the tags, with defaults that a copied request must cope with."""
    request = api.request(Environment={"A": "b"}, RetryStrategy={"MaximumRetryAttempts": 2})
    api.sagemaker.create_training_job(**{**request, "Tags": [{"Key": "k", "Value": "v"}]})
    described = api.ended(request["TrainingJobName"])
    for key, value in request.items():
        if key != "OutputDataConfig":
            assert described[key] == value
    assert described["OutputDataConfig"]["KmsKeyId"] == ""
    assert described["EnableManagedSpotTraining"] is False
    assert "Tags" not in described
    assert isinstance(described["CreationTime"], datetime)


def test_update(api: LocalApi):
    """Remote debugging can be switched while Training, a warm pool's period only while it is Available."""
    job = api.create("sleep 600")
    api.training(job)
    api.sagemaker.update_training_job(TrainingJobName=job, RemoteDebugConfig={"EnableRemoteDebug": True})
    after = api.describe(job)
    assert after["RemoteDebugConfig"] == {"EnableRemoteDebug": True}
    assert after["LastModifiedTime"] > after["SecondaryStatusTransitions"][-1]["StartTime"]
    with pytest.raises(ClientError, match="only while the warm pool is Available"):
        api.sagemaker.update_training_job(TrainingJobName=job, ResourceConfig={"KeepAlivePeriodInSeconds": 0})
    api.stop(job)
    api.ended(job)


NOW = time.time()


def made(name: str, age: float, status: Status = Status.COMPLETED) -> LocalJob:
    job = LocalJob({**VALID, "TrainingJobName": name}, arn=f"arn/{name}", changed=lambda job: None)
    job.created = job.modified = NOW - age
    job.status = status
    return job


JOBS = [made("a-1", 50), made("a-2", 40, Status.IN_PROGRESS), made("b-1", 30), made("b-2", 20, Status.IN_PROGRESS)]


def names(**request) -> list[str]:
    return [summary["TrainingJobName"] for summary in list_page(JOBS, request)["TrainingJobSummaries"]]


def test_list_filters_after_paging():
    """StatusEquals thins out the page that MaxResults took, so a page can be empty and have a successor."""
    first = list_page(JOBS, {"MaxResults": 1, "StatusEquals": "Completed"})
    assert first["TrainingJobSummaries"] == []
    second = list_page(JOBS, {"MaxResults": 1, "StatusEquals": "Completed", "NextToken": first["NextToken"]})
    assert [summary["TrainingJobName"] for summary in second["TrainingJobSummaries"]] == ["b-1"]


def test_list_order_and_filters():
    """Newest first by default; names and times are filtered before paging."""
    assert names() == ["b-2", "b-1", "a-2", "a-1"]
    assert names(SortBy="Name", SortOrder="Ascending") == ["a-1", "a-2", "b-1", "b-2"]
    assert names(NameContains="b-", MaxResults=1) == ["b-2"]
    assert names(CreationTimeAfter=NOW - 45, CreationTimeBefore=NOW - 25) == ["b-1", "a-2"]
    assert names(LastModifiedTimeAfter=NOW - 25) == ["b-2"]
    assert names(WarmPoolStatusEquals="Available") == []


def searched(*filters: tuple[str, str, str], **request) -> list[str]:
    wanted = [dict(zip(("Name", "Operator", "Value"), one, strict=True)) for one in filters]
    page = search_page(SEARCHED, {"Resource": "TrainingJob", "SearchExpression": {"Filters": wanted}, **request})
    return [result["TrainingJob"]["TrainingJobName"] for result in page["Results"]]


def with_request(name: str, age: float, **changes) -> LocalJob:
    job = LocalJob({**VALID, "TrainingJobName": name, **changes}, arn=f"arn/{name}", changed=lambda job: None)
    job.created = job.modified = NOW - age
    return job


CHANNEL = {
    "ChannelName": "train",
    "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": "s3://b/digits/"}},
}
SEARCHED = [
    with_request("a-1", 50, HyperParameters={"lr": "0.5"}, Tags=[{"Key": "team", "Value": "vision"}]),
    with_request("a-2", 40, HyperParameters={"lr": "0.05"}, InputDataConfig=[CHANNEL]),
    with_request("b-1", 30, HyperParameters={"lr": '"auto"'}),
]


def test_search_filters_and_sorts_by_properties_arguments_and_tags():
    """Numbers are compared as numbers; a job without the property fits no filter on it and sorts last."""
    assert searched() == ["b-1", "a-2", "a-1"]
    assert searched(("HyperParameters.lr", "LessThan", "0.1")) == ["a-2"]
    assert searched(("Tags.team", "Equals", "vision")) == ["a-1"]
    assert searched(("TrainingJobName", "Contains", "a-"), SortBy="TrainingJobName") == ["a-2", "a-1"]
    assert searched(("Metrics.loss", "NotExists", "")) == ["b-1", "a-2", "a-1"]
    since = datetime.fromtimestamp(NOW - 45, UTC).isoformat()
    assert searched(("CreationTime", "GreaterThan", since)) == ["b-1", "a-2"]
    nested = {"Name": "InputDataConfig.DataSource.S3DataSource.S3Uri", "Operator": "Contains", "Value": "digits"}
    expression = {"NestedFilters": [{"NestedPropertyName": "InputDataConfig", "Filters": [nested]}]}
    assert searched(SearchExpression=expression) == ["a-2"]
    first = search_page(SEARCHED, {"Resource": "TrainingJob", "MaxResults": 2})
    assert searched(NextToken=first["NextToken"], MaxResults=2) == ["a-1"]
    with pytest.raises(ServiceError, match="training jobs, not Endpoint"):
        search_page(SEARCHED, {"Resource": "Endpoint"})


def test_list_by_client(api: LocalApi):
    """The paginator walks all pages, and time filters travel well."""
    jobs = {api.create() for _ in range(3)}
    since = datetime.now(UTC) - timedelta(minutes=5)
    pages = api.sagemaker.get_paginator("list_training_jobs").paginate(
        CreationTimeAfter=since, PaginationConfig={"PageSize": 2}
    )
    found = {summary["TrainingJobName"] for page in pages for summary in page["TrainingJobSummaries"]}
    assert jobs <= found
    for job in jobs:
        api.ended(job)
