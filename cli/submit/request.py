"""The CreateTrainingJob request of a submission: script mode as AWS's training toolkit wants it, and supervised."""

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cli.submit.channels import FileSystemFolder, check_channels, make_channels
from cli.submit.problem import Problem
from rerail.model.errors import RequestRefused
from rerail.model.policy import DURATION, UNIT_SECONDS
from rerail.requests.supervised import supervised

JOB_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")
WARMEST_S = 21_600  # of the API; a quota may be smaller
MOST_RETRIES = 30


@dataclass(frozen=True, slots=True)
class JobRequest:
    """What the researcher asks for, defaults filled in; times in seconds, `metrics` by name, None: Rerail's own.

    `entrypoint` replaces the image's own; `channels` are S3 folders by name, `agent` is its wheel in S3.
    """

    name: str
    role: str
    region: str
    image: str
    folder: str
    program: str
    code: str
    hyperparameters: Mapping[str, str] = field(default_factory=dict)
    instance_type: str = "ml.m5.xlarge"
    count: int = 1
    volume_gb: int = 30
    policy: str = "default"
    max_runtime_s: int = 86400
    max_wait_s: int = 0
    keep_alive_s: int = 0
    spot: bool = False
    torchrun: bool = False
    checkpoint_path: str = ""
    channels: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, str] | None = None
    agent: str = ""
    entrypoint: Sequence[str] = ()
    # The S3 channels of which each machine gets its share of the objects.
    sharded: Sequence[str] = ()
    file_systems: Mapping[str, FileSystemFolder] = field(default_factory=dict)
    subnets: Sequence[str] = ()
    security_groups: Sequence[str] = ()
    # KMS keys of the machines' volumes and of what is in OutputDataConfig; "" for SageMaker's own.
    volume_key: str = ""
    output_key: str = ""
    # Whether the machines encrypt what they send to each other.
    encrypt_traffic: bool = False
    # How often SageMaker itself tries again after an internal error.
    retries: int = 0


def make_training_request(job: JobRequest) -> dict[str, Any]:
    """Return the request, checked with SageMaker's own model; raise Problem with the field and the remedy."""
    from local.sagemaker.errors import ServiceError
    from local.sagemaker.validation import check_request

    _check(job)
    algorithm: dict[str, Any] = {"TrainingImage": job.image, "TrainingInputMode": "File"}
    if job.entrypoint:
        algorithm["ContainerEntrypoint"] = list(job.entrypoint)
    if job.metrics:
        algorithm["MetricDefinitions"] = [{"Name": name, "Regex": regex} for name, regex in job.metrics.items()]
    request = {
        "TrainingJobName": job.name,
        "RoleArn": job.role,
        "AlgorithmSpecification": algorithm,
        "HyperParameters": {**job.hyperparameters, **_script_mode(job)},
        "InputDataConfig": make_channels(job.channels, job.file_systems, job.sharded),
        "OutputDataConfig": {
            "S3OutputPath": f"{job.folder}output/",
            **({"KmsKeyId": job.output_key} if job.output_key else {}),
        },
        "ResourceConfig": _machines(job),
        "StoppingCondition": {"MaxRuntimeInSeconds": job.max_runtime_s, **_patience(job)},
        "CheckpointConfig": {"S3Uri": f"{job.folder}checkpoints/", **_kept(job)},
        "RetryStrategy": {"MaximumRetryAttempts": job.retries} if job.retries else {},
        "VpcConfig": {"Subnets": [*job.subnets], "SecurityGroupIds": [*job.security_groups]} if job.subnets else {},
        "EnableManagedSpotTraining": job.spot,
        **({"EnableInterContainerTrafficEncryption": True} if job.encrypt_traffic else {}),
        "Environment": dict(job.environment),
        "Tags": [{"Key": key, "Value": value} for key, value in job.tags.items()],
    }
    try:
        request = supervised(request, job.policy, metrics=job.metrics is None, agent=job.agent, signed=False)
        request = {name: value for name, value in request.items() if value not in ({}, [])}
        check_request("CreateTrainingJob", request)
    except RequestRefused as error:
        raise Problem(str(error), "see `rerail submit --help`") from error
    except ServiceError as error:
        raise Problem(
            f"SageMaker would refuse the request: {error.message}", "correct the option that it names"
        ) from error
    return request


def parse_seconds(option: str, text: str) -> int:
    """Return `90s`, `15m`, `12h` or `5d` in seconds."""
    match = DURATION.fullmatch(text.strip())
    if not match or len(match[1]) > 12:
        raise Problem(f"{option} {text}: not a duration", "write it like 90s, 15m, 12h or 5d")
    return round(float(match[1]) * UNIT_SECONDS[match[2]])


def _check(job: JobRequest) -> None:
    if not JOB_NAME.fullmatch(job.name):
        raise Problem(
            f"--name {job.name}: not a name for a training job", "use 1-63 letters and digits, with single - between"
        )
    types = _instance_types()
    if job.instance_type not in types:
        near = difflib.get_close_matches(job.instance_type, types, n=3)
        likely = f"did you mean {' or '.join(near)}? " if near else "they look like ml.g5.xlarge. "
        raise Problem(
            f"--instance-type {job.instance_type}: SageMaker has no such type for training",
            f"{likely}For a new one, update boto3: pip install -U boto3",
        )
    if job.count < 1:
        raise Problem(f"--count {job.count}: at least one machine is needed", "leave it out for one")
    if job.keep_alive_s > WARMEST_S:
        raise Problem(f"--keep-alive: {job.keep_alive_s} s is more than SageMaker keeps", "at most 6h")
    if job.keep_alive_s and job.spot:
        raise Problem("--keep-alive: SageMaker keeps no spot machines", "leave out --spot or --keep-alive")
    if job.spot and job.max_wait_s < job.max_runtime_s:
        raise Problem("--max-wait: shorter than --max-runtime", "it counts the waiting and the running together")
    if not 0 <= job.retries <= MOST_RETRIES:
        raise Problem(f"--retries {job.retries}: SageMaker takes 1 to {MOST_RETRIES}", "leave it out for none")
    check_channels(job.channels, job.file_systems, job.sharded)
    _check_key("volume_key", job.volume_key, job.role)
    _check_key("output_key", job.output_key, job.role)
    if bool(job.subnets) != bool(job.security_groups):
        raise Problem("--subnet and --security-group: one without the other", "give both, once or more each")
    if job.file_systems and not job.subnets:
        raise Problem(
            f"channel {next(iter(job.file_systems))}: a file system is reached from inside its VPC alone",
            "name its network: --subnet subnet-... --security-group sg-...",
        )
    for name, expression in (job.metrics or {}).items():
        _check_expression(name, expression)


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
        groups = re.compile(expression).groups
    except re.error as error:
        raise Problem(f"--metric {name}: not a regular expression: {error}", "quote it for the shell") from error
    if groups != 1:
        raise Problem(f"--metric {name}: has {groups} groups", "put one ( ) around the number, and (?: ) around others")


def _script_mode(job: JobRequest) -> dict[str, str]:
    """What AWS's training toolkit wants: JSON in every value."""
    settings: dict[str, Any] = {
        "sagemaker_program": job.program,
        "sagemaker_submit_directory": job.code,
        "sagemaker_container_log_level": 20,
        "sagemaker_job_name": job.name,
        "sagemaker_region": job.region,
    }
    if job.torchrun:
        settings |= {"sagemaker_torch_distributed_enabled": True, "sagemaker_instance_type": job.instance_type}
    return {name: json.dumps(value) for name, value in settings.items()}


def _machines(job: JobRequest) -> dict[str, Any]:
    warm = {"KeepAlivePeriodInSeconds": job.keep_alive_s} if job.keep_alive_s else {}
    return {
        "InstanceType": job.instance_type,
        "InstanceCount": job.count,
        "VolumeSizeInGB": job.volume_gb,
        **({"VolumeKmsKeyId": job.volume_key} if job.volume_key else {}),
        **warm,
    }


def _patience(job: JobRequest) -> dict[str, int]:
    return {"MaxWaitTimeInSeconds": job.max_wait_s} if job.spot else {}


def _kept(job: JobRequest) -> dict[str, str]:
    return {"LocalPath": job.checkpoint_path} if job.checkpoint_path else {}
