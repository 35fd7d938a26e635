"""Describe, create and stop SageMaker training jobs, with the core's types and errors."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError, ParamValidationError

from rerail.aws.clients import client
from rerail.aws.error_codes import find_code
from rerail.aws.validation import validate
from rerail.decisions.warm_pools import GONE
from rerail.diagnosis.classify import diagnose, with_redaction
from rerail.model.errors import (
    CallFailed,
    CapacityRefused,
    JobExists,
    JobNotFound,
    RequestRefused,
    StateUnknown,
    Throttled,
)
from rerail.model.machines import read_cluster, read_warm_pool
from rerail.model.redaction import find_secrets, redact_secrets, redact_values
from rerail.model.run import Job, JobStatus
from rerail.model.self_repairs import count_repairs
from rerail.requests.identity import COMMAND_SCRIPT, SCRIPT_SETTING
from rerail.requests.relaunch import read_checkpoint_uri

THROTTLING = ("ThrottlingException", "Throttling", "TooManyRequestsException", "RequestLimitExceeded")
CAPACITY_CODES = ("ResourceLimitExceeded", "CapacityError", "InsufficientCapacity")
PERMANENT_CODES = ("ValidationException", "AccessDeniedException", "ResourceNotFound")
PAGE_SIZE = 100
# The usual names of the number of steps in all, without group and hyphens: those of Transformers, Lightning, diffusers,
# Megatron and others.
TOTAL_STEPS = ("maxsteps", "totalsteps", "trainsteps", "numtrainsteps", "maxtrainsteps", "trainiters", "maxiters")
SUBMITTED = re.compile(r"(?!rerail_)[\w./][\w./-]{0,199}(?: --entry \w[\w./-]{0,99}| --command COMMAND)?")
# "You can't override the metric definitions for Amazon SageMaker algorithms."
OWN_METRICS = "override the metric definitions"


class SageMakerJobs:
    """The port `Jobs` on the SageMaker API."""

    def describe(self, job_name: str) -> tuple[Job, Mapping[str, Any]]:
        try:
            description = client("sagemaker").describe_training_job(TrainingJobName=job_name)
            with validate("DescribeTrainingJob"):
                return read_job(description), description
        except (ClientError, BotoCoreError) as error:
            if isinstance(error, ClientError) and _is_missing(error):
                raise JobNotFound(f"SageMaker has no training job {job_name!r}") from error
            raise StateUnknown(f"DescribeTrainingJob {job_name}: {error}") from error

    def tags(self, arn: str) -> Mapping[str, str]:
        try:
            pages = client("sagemaker").get_paginator("list_tags").paginate(ResourceArn=arn)
            with validate("ListTags"):
                return {tag["Key"]: tag["Value"] for page in pages for tag in page["Tags"]}
        except (ClientError, BotoCoreError) as error:
            raise StateUnknown(f"ListTags {arn}: {error}") from error

    def list_capacities(self, plan: str) -> Sequence[tuple[datetime, datetime]]:
        try:
            answer = client("sagemaker").describe_training_plan(TrainingPlanName=plan.rpartition("/")[2])
        except (ClientError, BotoCoreError) as error:
            if find_code(error) in PERMANENT_CODES:
                return ()  # of another account, deleted, or not to be read: the job's end says nothing of it
            raise StateUnknown(f"DescribeTrainingPlan {plan}: {error}") from error
        capacities = answer.get("ReservedCapacitySummaries") or [answer]
        return [(row["StartTime"], row["EndTime"]) for row in capacities if "StartTime" in row and "EndTime" in row]

    def request_members(self) -> Collection[str]:
        operation = client("sagemaker").meta.service_model.operation_model("CreateTrainingJob")
        return frozenset(operation.input_shape.members)

    def changed_since(self, time: datetime) -> Mapping[str, tuple[JobStatus, str]]:
        # StatusEquals filters each page after it is cut (and so misses jobs): the caller filters instead.
        pages = (
            client("sagemaker")
            .get_paginator("list_training_jobs")
            .paginate(LastModifiedTimeAfter=time, PaginationConfig={"PageSize": PAGE_SIZE})
        )
        try:
            with validate("ListTrainingJobs"):
                return {
                    summary["TrainingJobName"]: (
                        JobStatus(summary.get("TrainingJobStatus")),
                        str(summary.get("SecondaryStatus", "")),
                    )
                    for page in pages
                    for summary in page["TrainingJobSummaries"]
                }
        except (ClientError, BotoCoreError) as error:
            raise StateUnknown(f"ListTrainingJobs: {error}") from error

    def create(self, request: Mapping[str, Any]) -> None:
        try:
            _create(request)
        except ClientError as error:
            raise _translate_refusal(error, request) from error
        except ParamValidationError as error:  # rejected by the SDK, so a retry is useless
            raise RequestRefused(redact_values(str(error), request)) from error
        except BotoCoreError as error:
            raise CallFailed(f"CreateTrainingJob: {error}") from error

    def stop(self, job_name: str) -> None:
        try:
            client("sagemaker").stop_training_job(TrainingJobName=job_name)
        except ClientError as error:
            code = error.response["Error"]["Code"]
            if code in THROTTLING:
                raise Throttled(str(error)) from error
            # "The request was rejected because the training job is in status Stopped": it has stopped already.
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
            if code != "ValidationException" and not _is_missing(error):
                raise
            # A ValidationException without a pool means that nothing has to be released. With one, the pool cannot be
            # released right now, and a job created now might be placed on it.
            if not _is_missing(error) and _is_kept(job_name):
                raise Throttled(f"the warm pool of {job_name} cannot be released yet: {error}") from error


def _create(request: Mapping[str, Any]) -> None:
    """Call CreateTrainingJob; the images of AWS's own algorithms have their metrics and take no definitions."""
    try:
        client("sagemaker").create_training_job(**request)
    except ClientError as error:
        algorithm = request.get("AlgorithmSpecification", {})
        if OWN_METRICS not in error.response["Error"]["Message"] or "MetricDefinitions" not in algorithm:
            raise
        others = {name: value for name, value in algorithm.items() if name != "MetricDefinitions"}
        client("sagemaker").create_training_job(**{**request, "AlgorithmSpecification": others})


def read_job(description: Mapping[str, Any]) -> Job:
    """Return the job in a DescribeTrainingJob response, without secrets in its failure reason."""
    reason, resources, diagnosis = description.get("FailureReason", ""), description.get("ResourceConfig", {}), None
    if reason:
        # Removing the secrets first would hide words of the error that a secret happens to equal.
        secrets = find_secrets(description)
        secondary, hosts = description.get("SecondaryStatus", ""), read_cluster(description).count
        diagnosis = diagnose(reason, secondary_status=secondary, hosts=hosts)
        reason, diagnosis = redact_secrets(reason, secrets), with_redaction(diagnosis, secrets)
    return Job(
        name=description["TrainingJobName"],
        arn=description["TrainingJobArn"],
        status=JobStatus(description["TrainingJobStatus"]),
        secondary=description.get("SecondaryStatus", ""),
        created_at=description["CreationTime"],
        training_started_at=description.get("TrainingStartTime"),
        ended_at=description.get("TrainingEndTime"),
        failure_reason=reason,
        diagnosis=diagnosis,
        checkpoint_uri=read_checkpoint_uri(description),
        keep_alive_seconds=resources.get("KeepAlivePeriodInSeconds", 0),
        defined_metrics=tuple(
            metric["Name"] for metric in description.get("AlgorithmSpecification", {}).get("MetricDefinitions", [])
        ),
        # A cluster of several types has no single price.
        instance_type=str(resources.get("SelectedInstanceType") or resources.get("InstanceType") or ""),
        instance_count=int(resources.get("SelectedInstanceCount") or resources.get("InstanceCount") or 1),
        billable_s=description.get("BillableTimeInSeconds"),
        max_runtime_s=description.get("StoppingCondition", {}).get("MaxRuntimeInSeconds"),
        metrics={metric["MetricName"]: metric["Value"] for metric in description.get("FinalMetricDataList", [])},
        cluster=read_cluster(description),
        pool=read_warm_pool(description),
        lacks_machines=_lacks_machines(description),
        artifacts=description.get("ModelArtifacts", {}).get("S3ModelArtifacts", ""),
        script=_read_script(description.get("HyperParameters", {})),
        planned_steps=_read_planned_steps(description.get("HyperParameters", {})),
        pending_ran_out=_pending_ran_out(description),
        repaired=count_repairs(
            description.get("SecondaryStatusTransitions", []), retries=bool(description.get("RetryStrategy"))
        ),
    )


def _read_script(hyperparameters: Mapping[str, str]) -> str:
    """Return what was given to `rerail submit`, or the job's script; "" for Rerail's own, and for what needs quotes."""
    program = hyperparameters.get(SCRIPT_SETTING) or hyperparameters.get("sagemaker_program", "")
    try:
        name = str(json.loads(program))
    except (ValueError, RecursionError):
        name = program
    if name == COMMAND_SCRIPT:  # the command itself would need quotes
        return "FOLDER --command COMMAND"
    return name if SUBMITTED.fullmatch(name) else ""


def _read_planned_steps(hyperparameters: Mapping[str, str]) -> int | None:
    """Return the number of steps that the arguments ask for; None where they name none, or several numbers."""
    named = {re.sub(r".*\.|[-_]", "", name).lower(): text.strip('" ') for name, text in hyperparameters.items()}
    found = {int(text) for name, text in named.items() if name in TOTAL_STEPS and text.isdecimal() and len(text) < 12}
    return found.pop() or None if len(found) == 1 else None


def _is_kept(job_name: str) -> bool:
    try:
        job, _ = SageMakerJobs().describe(job_name)
    except JobNotFound:
        return False
    return job.pool is not None and job.pool.status not in GONE


def _lacks_machines(description: Mapping[str, Any]) -> bool:
    """Return whether the job still waits for machines: status `Pending`, or a start whose message text so.

    The message is only a hint, for jobs without a status of their own while SageMaker retries EC2."""
    transitions = description.get("SecondaryStatusTransitions") or [{}]
    text = "insufficient capacity" in transitions[-1].get("StatusMessage", "").lower()
    secondary = description.get("SecondaryStatus", "")
    return secondary == "Pending" or (secondary in ("Starting", "LaunchingMLInstances") and text)


def _pending_ran_out(description: Mapping[str, Any]) -> bool:
    """Return whether SageMaker stopped the job because it waited for machines for `MaxPendingTimeInSeconds`.

    No status text so; without this check it would look like an operator's stop."""
    limit = description.get("StoppingCondition", {}).get("MaxPendingTimeInSeconds")
    ended = description.get("TrainingEndTime") or description.get("LastModifiedTime")
    if description["TrainingJobStatus"] != JobStatus.STOPPED or description.get("TrainingStartTime"):
        return False
    return bool(limit and ended and (ended - description["CreationTime"]).total_seconds() >= limit)


def _is_missing(error: ClientError) -> bool:
    code, message = error.response["Error"]["Code"], error.response["Error"]["Message"]
    return code == "ResourceNotFound" or (code == "ValidationException" and "not found" in message.lower())


def _translate_refusal(error: ClientError, request: Mapping[str, Any]) -> Exception:
    code, message = error.response["Error"]["Code"], redact_values(error.response["Error"]["Message"], request)
    if code == "ResourceInUse":
        return JobExists(message)
    if code in CAPACITY_CODES:
        return CapacityRefused(f"{code}: {message}")
    if code in THROTTLING:
        return Throttled(message)
    if code in PERMANENT_CODES:
        return RequestRefused(f"{code}: {message}")
    return CallFailed(f"CreateTrainingJob: {code}: {message}")
