"""The request that launches a job again: rebuilt from what SageMaker tells of the first, renamed each time."""

import hmac
import json
import math
from collections.abc import Collection, Mapping
from typing import Any

from rerail.model import skipped_samples as skips
from rerail.model.actions import CreateJob, Machines
from rerail.model.errors import RequestRefused
from rerail.model.signatures import KEY, VARIABLE

POLICY_TAG = "rerail:policy"
CLUSTER_TAG = "rerail:cluster"
RUN_TAG = "rerail:run"
ATTEMPT_TAG = "rerail:attempt"
RESERVED_TAG_PREFIX = "aws:"
ENVIRONMENT_LIMIT = 100
TAG_LIMIT = 50
# What an attempt before was told is no news to the next one.
ORDERED = ("RERAIL_RESUME_STEP", "RERAIL_LR_SCALE", "RERAIL_KEEP_NEWER")
OURS = ("RERAIL_RUN", "RERAIL_ATTEMPT", "RERAIL_SKIP_SAMPLES", *ORDERED)
LOCAL_PATH = "/opt/ml/checkpoints"
# Returned by DescribeTrainingJob, refused by CreateTrainingJob.
READ_ONLY_RESOURCE_FIELDS = ("SelectedInstanceType", "SelectedInstanceCount")
NAMES_OF_TYPES = ("InstanceType", "InstancePreferences")
# A user's own names and values: an empty value means something here.
VERBATIM = ("HyperParameters", "Environment")
OWNED_BY = {
    "AutoMLJobArn": "an AutoML job",
    "TuningJobArn": "a hyperparameter tuning job",
    "LabelingJobArn": "a labeling job",
}
SERVERLESS = ("ServerlessJobConfig", "ModelPackageConfig")


def reason_to_refuse(description: Mapping[str, Any]) -> str:
    """Why a job of this kind can never be relaunched, or nothing."""
    for name, owner in OWNED_BY.items():
        if description.get(name):
            return f"it belongs to {owner}, which launches its own jobs"
    if any(description.get(name) for name in SERVERLESS):
        return "it is a serverless customization job, whose machines SageMaker manages"
    return ""


def rebuild(description: Mapping[str, Any], tags: Mapping[str, str], *, members: Collection[str]) -> dict[str, Any]:
    """A CreateTrainingJob request that says the same as the description; `members` are those the operation takes."""
    request = {name: _pruned(value, name) for name, value in description.items() if name in members}
    for name in READ_ONLY_RESOURCE_FIELDS:
        request.get("ResourceConfig", {}).pop(name, None)
    if not {"SecurityGroupIds", "Subnets"} <= set(request.get("VpcConfig") or {}):
        request.pop("VpcConfig", None)
    request["Tags"] = [{"Key": k, "Value": v} for k, v in tags.items() if not k.startswith(RESERVED_TAG_PREFIX)]
    return {name: value for name, value in request.items() if not _is_empty(value)}


def make_request(request: Mapping[str, Any], action: CreateJob, *, run: str) -> dict[str, Any]:
    """The request of one attempt. What it has to know travels in Environment: hyperparameters become command-line
    flags in script mode, and an unknown flag ends the script."""
    own = request.get("Environment", {})
    environment = {
        **{k: v for k, v in own.items() if k not in ORDERED},
        "RERAIL_RUN": run,
        "RERAIL_ATTEMPT": str(action.attempt),
        **_resume_step(request, action),
        **_orders(action, own),
    }
    if len(environment) > ENVIRONMENT_LIMIT:
        raise RequestRefused(
            f"Environment would have {len(environment)} variables, at most {ENVIRONMENT_LIMIT} are allowed; remove some"
        )
    tags = {tag["Key"]: tag["Value"] for tag in request.get("Tags", [])}
    if len(tags.keys() | {RUN_TAG, ATTEMPT_TAG}) > TAG_LIMIT:
        raise RequestRefused(f"the job has {len(tags)} tags, at most {TAG_LIMIT - 2} leave room for ours; remove some")
    tags |= {RUN_TAG: run, ATTEMPT_TAG: str(action.attempt)}
    launched = {
        **request,
        "TrainingJobName": action.job_name,
        "Environment": environment,
        "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
    }
    _move(launched, action.machines)
    _allot(launched, action.max_runtime_s)
    _rename_in_hyperparameters(launched)
    _end_with_slash(launched)
    return launched


def checkpoint_uri(request: Mapping[str, Any]) -> str:
    """Where in S3 a job's checkpoints come to lie, by its request or its description; "" where Rerail cannot look."""
    config = request.get("CheckpointConfig") or {}
    copied = config.get("LocalPath", LOCAL_PATH).rstrip("/")
    place: str = (request.get("Environment") or {}).get("RERAIL_CHECKPOINTS", "") or copied
    if f"{place}/".startswith(f"{copied}/"):  # SageMaker copies it to S3
        below = place.removeprefix(copied).strip("/")
        return f"{config['S3Uri'].rstrip('/')}/{below}" if below and config else str(config.get("S3Uri", ""))
    return place if place.startswith("s3://") else ""


def read_signing_key(request: Mapping[str, Any]) -> str:
    """The key that a job's environment hands to its agent; nothing where there is none, or none that is one."""
    key: str = (request.get("Environment") or {}).get(VARIABLE, "")
    return key if KEY.fullmatch(key) else ""


def is_handed(description: Mapping[str, Any], key: str) -> bool:
    """The job was launched with this key: a name and tags are given by whoever creates a job. True without a key."""
    return not key or hmac.compare_digest(read_signing_key(description), key)


def with_signing_key(request: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The request with a key for the agents of the jobs that are made from it; as it is, where there is no room."""
    environment = {**(request.get("Environment") or {}), VARIABLE: key}
    if not key or len(environment.keys() | set(OURS)) > ENVIRONMENT_LIMIT:
        return dict(request)
    return {**request, "Environment": environment}


def _resume_step(request: Mapping[str, Any], action: CreateJob) -> dict[str, str]:
    """Nothing that may be resumed from is step 0; where Rerail cannot look, nothing is said, and the job looks."""
    if action.resume_step is None and not checkpoint_uri(request):
        return {}
    return {"RERAIL_RESUME_STEP": str(action.resume_step or 0)}


def _orders(action: CreateJob, own: Mapping[str, str]) -> dict[str, str]:
    """What the script is asked to do otherwise than at first, on top of what its owner asked of it. What of that cannot
    be read stays as it is: the script says so, and what is to be done about it."""
    skip, rate = action.skip_samples, action.rate
    try:
        asked = float(own.get("RERAIL_LR_SCALE") or 1.0)
        scale = f"{asked * rate:.6g}"
    except ValueError:
        asked, scale = math.nan, own["RERAIL_LR_SCALE"]
    try:
        skip = skips.format_ranges((*skips.parse_ranges(own.get("RERAIL_SKIP_SAMPLES", "")), *skips.parse_ranges(skip)))
    except ValueError:
        skip = f"{own['RERAIL_SKIP_SAMPLES']},{skip}".rstrip(",")
    told = {"RERAIL_SKIP_SAMPLES": skip} if skip else {}
    told |= {"RERAIL_LR_SCALE": scale} if (asked, rate) != (1.0, 1.0) else {}
    return told | ({"RERAIL_KEEP_NEWER": "1"} if action.drill else {})


def _move(request: dict[str, Any], machines: Machines | None) -> None:
    """Other machines than the request's own: one type, or several of which SageMaker takes the first that it has."""
    if machines and machines.subnets:
        request["VpcConfig"] = {**request.get("VpcConfig", {}), "Subnets": list(machines.subnets)}
    if not machines or not machines.instance_types:
        return
    others = {k: v for k, v in request.get("ResourceConfig", {}).items() if k not in NAMES_OF_TYPES}
    if len(machines.instance_types) == 1:
        request["ResourceConfig"] = {**others, "InstanceType": machines.instance_types[0]}
    else:
        wanted = [{"InstanceType": each} for each in machines.instance_types]
        request["ResourceConfig"] = {**others, "InstancePreferences": wanted}
    parameters = request.get("HyperParameters", {})
    if "sagemaker_instance_type" in parameters:  # what SageMaker's own launcher is told
        first = json.dumps(machines.instance_types[0])
        request["HyperParameters"] = {**parameters, "sagemaker_instance_type": first}


def _allot(request: dict[str, Any], max_runtime_s: int | None) -> None:
    """What is left of the run's time; spot jobs wait for machines as long as before, beside what they may train."""
    condition = request.get("StoppingCondition") or {}
    first = condition.get("MaxRuntimeInSeconds")
    if max_runtime_s is None or first is None or max_runtime_s >= first:
        return
    left = {**condition, "MaxRuntimeInSeconds": max_runtime_s}
    if "MaxWaitTimeInSeconds" in condition:
        left["MaxWaitTimeInSeconds"] = max(max_runtime_s, condition["MaxWaitTimeInSeconds"] - (first - max_runtime_s))
    request["StoppingCondition"] = left


def _rename_in_hyperparameters(request: dict[str, Any]) -> None:
    parameters = request.get("HyperParameters", {})
    if "sagemaker_job_name" in parameters:
        request["HyperParameters"] = {**parameters, "sagemaker_job_name": json.dumps(request["TrainingJobName"])}


def _end_with_slash(request: dict[str, Any]) -> None:
    # S3Uri is a bare prefix: without the slash `runs/a-1` would also restore every checkpoint of `runs/a-10`.
    config = request.get("CheckpointConfig")
    if config and not config["S3Uri"].endswith("/"):
        request["CheckpointConfig"] = {**config, "S3Uri": config["S3Uri"] + "/"}


def _pruned(value: Any, name: str = "") -> Any:
    if name in VERBATIM:
        return value
    if isinstance(value, Mapping):
        pruned = {key: _pruned(item, key) for key, item in value.items()}
        return {key: item for key, item in pruned.items() if not _is_empty(item)}
    if isinstance(value, list):
        return [_pruned(item) for item in value]
    return value


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, str | Mapping | list) and not value)
