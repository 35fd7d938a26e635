"""SageMaker's training jobs: describe, create, stop, in the core's words and errors."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError, ParamValidationError

from rerail.aws.clients import client
from rerail.errors import Blind, CapacityRefused, JobExists, JobNotFound, RequestRefused, Throttled, Unanswered
from rerail.model import Job, JobStatus
from rerail.relaunch import checkpoint_uri

THROTTLING = ("ThrottlingException", "Throttling", "TooManyRequestsException", "RequestLimitExceeded")
NO_ROOM = ("ResourceLimitExceeded", "CapacityError", "InsufficientCapacity")
NEVER = ("ValidationException", "AccessDeniedException", "ResourceNotFound")
PAGE = 100


class SageMakerJobs:
    """The port `Jobs` on the SageMaker API."""

    def describe(self, job_name: str) -> tuple[Job, Mapping[str, Any]]:
        try:
            description = client("sagemaker").describe_training_job(TrainingJobName=job_name)
        except ClientError as error:
            if _is_missing(error):
                raise JobNotFound(f"SageMaker knows no training job {job_name!r}") from error
            raise Blind(f"DescribeTrainingJob {job_name}: {error}") from error
        except BotoCoreError as error:
            raise Blind(f"DescribeTrainingJob {job_name}: {error}") from error
        return job_from(description), description

    def tags(self, arn: str) -> Mapping[str, str]:
        try:
            pages = client("sagemaker").get_paginator("list_tags").paginate(ResourceArn=arn)
            return {tag["Key"]: tag["Value"] for page in pages for tag in page["Tags"]}
        except (ClientError, BotoCoreError) as error:
            raise Blind(f"ListTags {arn}: {error}") from error

    def request_members(self) -> Collection[str]:
        operation = client("sagemaker").meta.service_model.operation_model("CreateTrainingJob")
        return frozenset(operation.input_shape.members)

    def changed_since(self, time: datetime) -> Sequence[str]:
        # StatusEquals would filter each page after it is taken (and so miss jobs): filter here.
        pages = (
            client("sagemaker")
            .get_paginator("list_training_jobs")
            .paginate(LastModifiedTimeAfter=time, PaginationConfig={"PageSize": PAGE})
        )
        try:
            return [
                summary["TrainingJobName"]
                for page in pages
                for summary in page["TrainingJobSummaries"]
                if summary["TrainingJobStatus"] in (JobStatus.IN_PROGRESS, JobStatus.FAILED)
            ]
        except (ClientError, BotoCoreError) as error:
            raise Blind(f"ListTrainingJobs: {error}") from error

    def create(self, request: Mapping[str, Any]) -> None:
        try:
            client("sagemaker").create_training_job(**request)
        except ClientError as error:
            raise _refusal(error) from error
        except ParamValidationError as error:  # never sent, and it never will be
            raise RequestRefused(str(error)) from error
        except BotoCoreError as error:
            raise Unanswered(f"CreateTrainingJob: {error}") from error

    def stop(self, job_name: str) -> None:
        try:
            client("sagemaker").stop_training_job(TrainingJobName=job_name)
        except ClientError as error:
            code = error.response["Error"]["Code"]
            if code in THROTTLING:
                raise Throttled(str(error)) from error
            # "The request was rejected because the training job is in status Stopped": as good as stopped.
            if code != "ValidationException" and not _is_missing(error):
                raise

    def release_warm_pool(self, job_name: str) -> None:
        try:
            client("sagemaker").update_training_job(
                TrainingJobName=job_name, ResourceConfig={"KeepAlivePeriodInSeconds": 0}
            )
        except ClientError as error:
            code = error.response["Error"]["Code"]
            if code in THROTTLING:
                raise Throttled(str(error)) from error
            # No pool was kept for this job, or it is gone: as good as released.
            if code != "ValidationException" and not _is_missing(error):
                raise


def job_from(description: Mapping[str, Any]) -> Job:
    """The job in a DescribeTrainingJob answer."""
    return Job(
        name=description["TrainingJobName"],
        arn=description["TrainingJobArn"],
        status=JobStatus(description["TrainingJobStatus"]),
        secondary=description.get("SecondaryStatus", ""),
        created_at=description["CreationTime"],
        training_started_at=description.get("TrainingStartTime"),
        ended_at=description.get("TrainingEndTime"),
        failure_reason=description.get("FailureReason", ""),
        checkpoint_uri=checkpoint_uri(description),
        keep_alive_seconds=description.get("ResourceConfig", {}).get("KeepAlivePeriodInSeconds", 0),
        defined_metrics=tuple(
            each["Name"] for each in description.get("AlgorithmSpecification", {}).get("MetricDefinitions", [])
        ),
        metrics={metric["MetricName"]: metric["Value"] for metric in description.get("FinalMetricDataList", [])},
    )


def _is_missing(error: ClientError) -> bool:
    code, message = error.response["Error"]["Code"], error.response["Error"]["Message"]
    return code == "ResourceNotFound" or (code == "ValidationException" and "not found" in message.lower())


def _refusal(error: ClientError) -> Exception:
    code, message = error.response["Error"]["Code"], error.response["Error"]["Message"]
    if code == "ResourceInUse":
        return JobExists(message)
    if code in NO_ROOM:
        return CapacityRefused(f"{code}: {message}")
    if code in THROTTLING:
        return Throttled(message)
    if code in NEVER:
        return RequestRefused(f"{code}: {message}")
    return Unanswered(f"CreateTrainingJob: {code}: {message}")
