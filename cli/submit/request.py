"""The CreateTrainingJob request of a submission: script mode as AWS's training toolkit wants it, and supervised."""

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cli.names import ATTEMPT
from cli.submit.channels import make_channels
from cli.submit.problem import Problem
from cli.submit.settings import SubmitSettings
from cli.training_logs.expressions import compile_expression
from rerail.messages.messages import JOB_NAME
from rerail.model.errors import RequestRefused
from rerail.requests.supervised import CHANNEL, supervised

WARMEST_S = 21_600  # of the API; a quota may be smaller
MOST_RETRIES = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """A job with all that was looked up for it: its settings, and what SageMaker is told instead of some of them."""

    name: str
    # The ARN of its role.
    role: str
    region: str
    image: str
    # Its folder in S3, which ends with a slash.
    folder: str
    program: str
    # The archive of its code in S3.
    code: str
    settings: SubmitSettings
    # The script's options by name, as JSON texts.
    hyperparameters: Mapping[str, str] = field(default_factory=dict)
    # The metric definitions by name; None: Rerail's own.
    metrics: Mapping[str, str] | None = None
    # The agent's wheel in S3.
    agent: str = ""
    # Replaces the image's own.
    entrypoint: Sequence[str] = ()

    @property
    def channels(self) -> dict[str, str]:
        """Return the S3 folder of each channel: the given one, or where a local path is uploaded."""
        inputs = self.settings.inputs
        return {name: make_uri(given, f"{self.folder}input/{name}/") for name, given in inputs.items()}

    @property
    def uploads(self) -> dict[str, str]:
        """Return the local files and folders by channel."""
        given = {**self.settings.inputs, **({CHANNEL: self.settings.agent} if self.agent else {})}
        return {name: path for name, path in given.items() if not path.startswith("s3://")}


def make_training_request(job: JobRequest) -> dict[str, Any]:
    """Return the request, checked with SageMaker's own model; raise Problem with the field and the remedy."""
    from local.sagemaker.errors import ServiceError
    from local.sagemaker.validation import check_request

    _check(job)
    settings = job.settings
    tags = {**({"project": settings.project} if settings.project else {}), **settings.tags}
    request = {
        "TrainingJobName": job.name,
        "RoleArn": job.role,
        "AlgorithmSpecification": _make_algorithm(job),
        "HyperParameters": {**job.hyperparameters, **_make_script_mode(job)},
        "InputDataConfig": make_channels(settings, job.channels),
        "OutputDataConfig": {"S3OutputPath": f"{job.folder}output/", **_give(KmsKeyId=settings.output_key)},
        "ResourceConfig": {
            "InstanceType": settings.instance_type,
            "InstanceCount": settings.count,
            "VolumeSizeInGB": settings.volume,
            **_give(VolumeKmsKeyId=settings.volume_key, KeepAlivePeriodInSeconds=settings.keep_alive_s),
        },
        "StoppingCondition": {
            "MaxRuntimeInSeconds": settings.max_runtime_s,
            **_give(MaxWaitTimeInSeconds=settings.spot and settings.max_wait_s),
        },
        "CheckpointConfig": {"S3Uri": f"{job.folder}checkpoints/", **_give(LocalPath=settings.checkpoint_path)},
        "RetryStrategy": _give(MaximumRetryAttempts=settings.retries),
        "VpcConfig": _give(Subnets=settings.subnets, SecurityGroupIds=settings.security_groups),
        "EnableManagedSpotTraining": settings.spot,
        **_give(EnableInterContainerTrafficEncryption=settings.encrypt_traffic),
        "Environment": dict(settings.env),
        "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
    }
    try:
        request = supervised(request, settings.policy, metrics=job.metrics is None, agent=job.agent, signed=False)
        request = {name: value for name, value in request.items() if value not in ({}, [])}
        check_request("CreateTrainingJob", request)
    except RequestRefused as error:
        raise Problem(str(error), "see `rerail submit --help`") from error
    except ServiceError as error:
        raise Problem(
            f"SageMaker would refuse the request: {error.message}", "correct the option that it names"
        ) from error
    return request


def make_uri(given: str, uploaded: str) -> str:
    """Return the given S3 address, or where a local path is uploaded."""
    return uploaded if given and not given.startswith("s3://") else given


def _check(job: JobRequest) -> None:
    if ATTEMPT.search(job.name):
        raise Problem(f"--name {job.name}: relaunches have such names", "leave out the -a and digits at its end")
    if not JOB_NAME.fullmatch(job.name):
        raise Problem(
            f"--name {job.name}: not a name for a training job", "use 1-63 letters and digits, with single - between"
        )
    _check_compute(job.settings)
    settings = job.settings
    _check_key("volume_key", settings.volume_key, job.role)
    _check_key("output_key", settings.output_key, job.role)
    if bool(settings.subnets) != bool(settings.security_groups):
        raise Problem("subnets and security_groups: one without the other", "give both")
    for name, expression in (job.metrics or {}).items():
        _check_expression(name, expression)


def _check_compute(settings: SubmitSettings) -> None:
    types = _instance_types()
    if settings.instance_type not in types:
        near = difflib.get_close_matches(settings.instance_type, types, n=3)
        likely = f"did you mean {' or '.join(near)}? " if near else "they look like ml.g5.xlarge. "
        raise Problem(
            f"--instance-type {settings.instance_type}: SageMaker has no such type for training",
            f"{likely}For a new one, update boto3: pip install -U boto3",
        )
    if settings.count < 1:
        raise Problem(f"--count {settings.count}: at least one machine is needed", "leave it out for one")
    if settings.keep_alive_s > WARMEST_S:
        raise Problem(f"keep_alive: {settings.keep_alive_s} s is more than SageMaker keeps", "at most 6h")
    if settings.keep_alive_s and settings.spot:
        raise Problem("keep_alive: SageMaker keeps no spot machines", "leave out --spot or keep_alive")
    if settings.spot and settings.max_wait_s < settings.max_runtime_s:
        raise Problem("max_wait: shorter than --max-runtime", "it counts the waiting and the running together")
    if not 0 <= settings.retries <= MOST_RETRIES:
        raise Problem(f"retries {settings.retries}: SageMaker takes 1 to {MOST_RETRIES}", "leave it out for none")


def _check_key(name: str, key: str, role: str) -> None:
    """Raise Problem for a key of another account, whose owner could make what the job writes unreadable."""
    parts = key.split(":")
    if len(parts) > 4 and parts[4] not in role.split(":"):
        raise Problem(f"{name} = {key!r:.200}: it is not in the role's account", "use a key of that account")


def _instance_types() -> Sequence[str]:
    from local.sagemaker.protocol import operation_model

    shape: Any = operation_model("CreateTrainingJob").input_shape
    found: list[str] = shape.members["ResourceConfig"].members["InstanceType"].enum
    return found


def _check_expression(name: str, expression: str) -> None:
    try:
        groups = compile_expression(expression).groups
    except re.error as error:
        raise Problem(f"--metric {name}: not a regular expression: {error}", "correct it, and quote it") from error
    if groups != 1:
        raise Problem(f"--metric {name}: has {groups} groups", "put one ( ) around the number, and (?: ) around others")


def _make_algorithm(job: JobRequest) -> dict[str, Any]:
    definitions = [{"Name": name, "Regex": regex} for name, regex in (job.metrics or {}).items()]
    return {
        "TrainingImage": job.image,
        "TrainingInputMode": "File",
        **_give(ContainerEntrypoint=list(job.entrypoint), MetricDefinitions=definitions),
    }


def _make_script_mode(job: JobRequest) -> dict[str, str]:
    """What AWS's training toolkit wants: JSON in every value."""
    settings: dict[str, Any] = {
        "sagemaker_program": job.program,
        "sagemaker_submit_directory": job.code,
        "sagemaker_container_log_level": 20,
        "sagemaker_job_name": job.name,
        "sagemaker_region": job.region,
    }
    if job.settings.torchrun:
        settings["sagemaker_torch_distributed_enabled"] = True
        settings["sagemaker_instance_type"] = job.settings.instance_type
    return {name: json.dumps(value) for name, value in settings.items()}


def _give(**values: Any) -> dict[str, Any]:
    """Return the fields that are set."""
    return {name: value for name, value in values.items() if value}
