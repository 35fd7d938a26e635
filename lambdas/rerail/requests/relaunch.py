"""Build the CreateTrainingJob requests of a run's attempts from the description of its first job."""

import hmac
import json
import math
import re
from collections.abc import Collection, Mapping
from typing import Any

from rerail.model import skipped_samples
from rerail.model.actions import CreateJob, Machines
from rerail.model.agent_settings import MTBF_VARIABLE, make_policy_variables
from rerail.model.checkpoint_intervals import SaveInterval
from rerail.model.errors import RequestRefused
from rerail.model.signatures import KEY, VARIABLE
from rerail.model.thresholds import Thresholds

POLICY_TAG = "rerail:policy"
CLUSTER_TAG = "rerail:cluster"
RUN_TAG = "rerail:run"
ATTEMPT_TAG = "rerail:attempt"
RESERVED_TAG_PREFIX = "aws:"
ENVIRONMENT_LIMIT = 100
TAG_LIMIT = 50
VALUE_LIMIT = 512  # characters of a variable
MICROBATCHES_LIMIT = 10_000  # the agent reads four digits
# Variables for a single attempt, which are not carried over to the next one.
FAILED_GPUS = "RERAIL_FAILED_GPUS"
ORDERED = ("RERAIL_RESUME_STEP", "RERAIL_LR_SCALE", "RERAIL_KEEP_NEWER", "RERAIL_PREVIOUS_CAUSE", FAILED_GPUS)
OURS = ("RERAIL_RUN", "RERAIL_ATTEMPT", "RERAIL_SKIP_SAMPLES", "RERAIL_MICROBATCHES", *ORDERED)
LOCAL_PATH = "/opt/ml/checkpoints"
# Returned by DescribeTrainingJob, refused by CreateTrainingJob.
READ_ONLY_RESOURCE_FIELDS = ("SelectedInstanceType", "SelectedInstanceCount")
NAMES_OF_TYPES = ("InstanceType", "InstancePreferences")
# Names and values chosen by the user, whose empty values must be kept.
VERBATIM = ("HyperParameters", "Environment")
OWNED_BY = {
    "AutoMLJobArn": "an AutoML job",
    "TuningJobArn": "a hyperparameter tuning job",
    "LabelingJobArn": "a labeling job",
}
# In a description, the members inside of the request's structures that the SDK does not know, such as
# `ResourceConfig.InstancePreferences`.
UNKNOWN_MEMBERS = "RerailUnknownMembers"
SERVERLESS = ("ServerlessJobConfig", "ModelPackageConfig")


def find_refusal(description: Mapping[str, Any]) -> str:
    """Return why a job of this kind can never be relaunched, or ""."""
    for name, owner in OWNED_BY.items():
        if description.get(name):
            return f"it belongs to {owner}, which launches its own jobs"
    if any(description.get(name) for name in SERVERLESS):
        return "it is a serverless customization job, whose machines SageMaker manages"
    if unknown := description.get(UNKNOWN_MEMBERS):
        named = ", ".join(unknown)
        return f"the AWS SDK of Rerail's functions does not know {named}, and a relaunch would lack it"
    return ""


def rebuild(description: Mapping[str, Any], tags: Mapping[str, str], *, members: Collection[str]) -> dict[str, Any]:
    """Return the CreateTrainingJob request equivalent to a description.

    `members` are the request members of the operation.
    """
    request = {name: _pruned(value, name) for name, value in description.items() if name in members}
    for name in READ_ONLY_RESOURCE_FIELDS:
        request.get("ResourceConfig", {}).pop(name, None)
    if not {"SecurityGroupIds", "Subnets"} <= set(request.get("VpcConfig") or {}):
        request.pop("VpcConfig", None)
    request["Tags"] = [{"Key": k, "Value": v} for k, v in tags.items() if not k.startswith(RESERVED_TAG_PREFIX)]
    return {name: value for name, value in request.items() if not _is_empty(value)}


def make_request(
    request: Mapping[str, Any],
    action: CreateJob,
    *,
    run: str,
    detection: Thresholds | None = None,
    interval: SaveInterval | None = None,
    mtbf_s: float | None = None,
) -> dict[str, Any]:
    """Return the request of one attempt; raise RequestRefused if there is no room for its variables or tags.

    Rerail's values are passed in Environment: hyperparameters become command-line flags in script mode, and an unknown
    flag would end the script. The agent gets the policy's thresholds and bounds on the checkpoint interval, and the
    run's mean time between failures. What the job sets comes before the policy.
    """
    own = request.get("Environment", {})
    environment = {
        **{k: v for k, v in own.items() if k not in (*ORDERED, MTBF_VARIABLE)},
        "RERAIL_RUN": run,
        "RERAIL_ATTEMPT": str(action.attempt),
        **_variable_for_resume(request, action),
        **_variables_for_script(action, own),
        **_variable_for_tracking(action, own),
    }
    optional = {FAILED_GPUS: ",".join(action.failed_gpus), **make_policy_variables(detection, interval, mtbf_s)}
    for name, value in optional.items():
        # A job without room for them has the policy from the mailbox, and starts on any GPU.
        if value and len(environment) < ENVIRONMENT_LIMIT and len(value) <= VALUE_LIMIT:
            environment.setdefault(name, value)
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
    _set_machines(launched, action.machines)
    _set_runtime_limit(launched, action.max_runtime_s)
    _set_job_name_hyperparameter(launched)
    _add_slash_to_checkpoint_uri(launched)
    return launched


def read_checkpoint_uri(request: Mapping[str, Any]) -> str:
    """Return where a job's checkpoints are stored in S3, by its request or description; "" if Rerail cannot read it."""
    config = request.get("CheckpointConfig") or {}
    copied = config.get("LocalPath", LOCAL_PATH).rstrip("/")
    place: str = (request.get("Environment") or {}).get("RERAIL_CHECKPOINTS", "") or copied
    if f"{place}/".startswith(f"{copied}/"):  # SageMaker copies it to S3
        below = place.removeprefix(copied).strip("/")
        return f"{config['S3Uri'].rstrip('/')}/{below}" if below and config else str(config.get("S3Uri", ""))
    return place if place.startswith("s3://") else ""


def read_signing_key(request: Mapping[str, Any]) -> str:
    """Return the signing key in a job's environment; "" if it is missing or malformed."""
    key: str = (request.get("Environment") or {}).get(VARIABLE, "")
    return key if KEY.fullmatch(key) else ""


def is_handed(description: Mapping[str, Any], key: str) -> bool:
    """Return whether the job was launched with this key; True for an empty key.

    Names and tags are not proof, because they are chosen by the creator of a job.
    """
    return not key or hmac.compare_digest(read_signing_key(description), key)


def with_signing_key(request: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the request with a signing key in its environment, or unchanged if there is no room for a variable."""
    environment = {**(request.get("Environment") or {}), VARIABLE: key}
    if not key or len(environment.keys() | set(OURS)) > ENVIRONMENT_LIMIT:
        return dict(request)
    return {**request, "Environment": environment}


def _variable_for_resume(request: Mapping[str, Any], action: CreateJob) -> dict[str, str]:
    """Return the variable with the resume step, 0 if there is no checkpoint.

    If Rerail cannot read the checkpoints, return no variable, and the job searches for itself.
    """
    if action.resume_step is None and not read_checkpoint_uri(request):
        return {}
    return {"RERAIL_RESUME_STEP": str(action.resume_step or 0)}


def _variables_for_script(action: CreateJob, own: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for skipped samples, learning rate and microbatches, combined with the user's own values.

    Malformed values of the user are kept, because the script reports them with a remedy.
    """
    skip, rate = action.skip_samples, action.rate
    try:
        own_rate = float(own.get("RERAIL_LR_SCALE") or 1.0)
        scale = f"{own_rate * rate:.6g}"
    except ValueError:
        own_rate, scale = math.nan, own["RERAIL_LR_SCALE"]
    try:
        skip = skipped_samples.format_ranges(
            (*skipped_samples.parse_ranges(own.get("RERAIL_SKIP_SAMPLES", "")), *skipped_samples.parse_ranges(skip))
        )
    except ValueError:
        skip = f"{own['RERAIL_SKIP_SAMPLES']},{skip}".rstrip(",")
    variables = {"RERAIL_SKIP_SAMPLES": skip} if skip else {}
    variables |= {"RERAIL_LR_SCALE": scale} if (own_rate, rate) != (1.0, 1.0) else {}
    if action.microbatches > 1:
        parts = own.get("RERAIL_MICROBATCHES") or "1"
        if re.fullmatch("[1-9][0-9]{0,3}", parts) and action.microbatches * int(parts) < MICROBATCHES_LIMIT:
            parts = str(action.microbatches * int(parts))
        variables["RERAIL_MICROBATCHES"] = parts
    return variables | ({"RERAIL_KEEP_NEWER": "1"} if action.drill else {})


def _variable_for_tracking(action: CreateJob, own: Mapping[str, str]) -> dict[str, str]:
    """Return the variable with the cause of the restart, for a job whose agent writes it to a tracking run."""
    is_read = bool(own.get("RERAIL_TRACKING")) and bool(action.previous_cause)
    return {"RERAIL_PREVIOUS_CAUSE": str(action.previous_cause)} if is_read else {}


def _set_machines(request: dict[str, Any], machines: Machines | None) -> None:
    """Put other machines into the request: one type, or several of which SageMaker takes the first available."""
    if machines and machines.subnets:
        request["VpcConfig"] = {**request.get("VpcConfig", {}), "Subnets": list(machines.subnets)}
    if not machines or not machines.instance_types:
        return
    others = {k: v for k, v in request.get("ResourceConfig", {}).items() if k not in NAMES_OF_TYPES}
    if len(machines.instance_types) == 1:
        request["ResourceConfig"] = {**others, "InstanceType": machines.instance_types[0]}
    else:
        wanted = [{"InstanceType": instance_type} for instance_type in machines.instance_types]
        request["ResourceConfig"] = {**others, "InstancePreferences": wanted}
    parameters = request.get("HyperParameters", {})
    if "sagemaker_instance_type" in parameters:  # read by SageMaker's own launcher
        first = json.dumps(machines.instance_types[0])
        request["HyperParameters"] = {**parameters, "sagemaker_instance_type": first}


def _set_runtime_limit(request: dict[str, Any], max_runtime_s: int | None) -> None:
    """Limit the run time to what is left, in seconds; the time that spot jobs may wait for machines stays the same."""
    condition = request.get("StoppingCondition") or {}
    first = condition.get("MaxRuntimeInSeconds")
    if max_runtime_s is None or first is None or max_runtime_s >= first:
        return
    left = {**condition, "MaxRuntimeInSeconds": max_runtime_s}
    if "MaxWaitTimeInSeconds" in condition:
        left["MaxWaitTimeInSeconds"] = max(max_runtime_s, condition["MaxWaitTimeInSeconds"] - (first - max_runtime_s))
    request["StoppingCondition"] = left


def _set_job_name_hyperparameter(request: dict[str, Any]) -> None:
    parameters = request.get("HyperParameters", {})
    if "sagemaker_job_name" in parameters:
        request["HyperParameters"] = {**parameters, "sagemaker_job_name": json.dumps(request["TrainingJobName"])}


def _add_slash_to_checkpoint_uri(request: dict[str, Any]) -> None:
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
