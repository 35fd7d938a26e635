"""Change the request of a run's jobs, so that its next attempt has other code, arguments, image or machines."""

import json
from collections.abc import Mapping
from typing import Any

from rerail.model.errors import RequestRefused
from rerail.model.signatures import VARIABLE
from rerail.requests.relaunch import NAMES_OF_TYPES, OURS, POLICY_TAG
from rerail.requests.states import EXECUTION_VARIABLE

# What may change; role, network, encryption, output and checkpoint folder stay those of the run.
WHOLE, MERGED, CHANNELS = "HyperParameters", "Environment", "InputDataConfig"
PARTS: Mapping[str, tuple[str, ...]] = {
    "AlgorithmSpecification": ("TrainingImage", "ContainerEntrypoint", "MetricDefinitions"),
    "ResourceConfig": ("InstanceType", "InstanceCount", "VolumeSizeInGB"),
}
# They say whose job it is, who stops it, and where it saves.
FIXED_VARIABLES = {*OURS, VARIABLE, EXECUTION_VARIABLE, "RERAIL_CHECKPOINTS", "RERAIL_MAILBOX"}


def read_change(text: bytes) -> Mapping[str, Any]:
    """Return the members to change, from their JSON; raise RequestRefused if one of them may not change."""
    try:
        change = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestRefused(f"the change is not valid JSON: {error}") from error
    if not isinstance(change, dict):
        raise RequestRefused("the change is not an object of request members")
    for name, value in change.items():
        if name not in (WHOLE, MERGED, CHANNELS, *PARTS):
            raise RequestRefused(f"member {name!r:.60} may not change; the run keeps it")
        if not isinstance(value, list if name == CHANNELS else dict):
            raise RequestRefused(f"member {name} is not valid")
        if wrong := sorted(set(value) - set(PARTS[name])) if name in PARTS else []:
            raise RequestRefused(f"member {name}.{wrong[0]!s:.60} may not change; the run keeps it")
    if wrong := sorted(set(change.get(MERGED, ())) & FIXED_VARIABLES):
        raise RequestRefused(f"the variable {wrong[0]} may not change; Rerail sets it")
    if not all(isinstance(channel, dict) and "ChannelName" in channel for channel in change.get(CHANNELS, ())):
        raise RequestRefused(f"member {CHANNELS} is not a list of named channels")
    return change


def change_request(request: Mapping[str, Any], change: Mapping[str, Any], policy: str = "") -> dict[str, Any]:
    """Return the request with the change, and with the tag of another policy if one is given."""
    changed = dict(request)
    if WHOLE in change:
        changed[WHOLE] = change[WHOLE]
    if MERGED in change:
        changed[MERGED] = {**request.get(MERGED, {}), **change[MERGED]}
    if CHANNELS in change:
        channels = {channel["ChannelName"]: channel for channel in (*request.get(CHANNELS, ()), *change[CHANNELS])}
        changed[CHANNELS] = list(channels.values())
    for name in PARTS.keys() & change.keys():
        kept = request.get(name, {})
        if "InstanceType" in change[name]:
            kept = {key: value for key, value in kept.items() if key not in NAMES_OF_TYPES}
        changed[name] = {**kept, **change[name]}
    if policy:
        others = [tag for tag in request.get("Tags", ()) if tag["Key"] != POLICY_TAG]
        changed["Tags"] = [*others, {"Key": POLICY_TAG, "Value": policy}]
    return changed


def describe_change(request: Mapping[str, Any], changed: Mapping[str, Any]) -> str:
    """Return what changed, for people; names only, since values may be secret."""
    words = {
        WHOLE: "code or arguments",
        "AlgorithmSpecification": "image",
        "MetricDefinitions": "metrics",
        "ResourceConfig": "machines",
        MERGED: "environment",
        CHANNELS: "inputs",
        "Tags": "policy",
    }
    before, after = _lift_metrics(request), _lift_metrics(changed)
    return ", ".join(word for name, word in words.items() if before.get(name) != after.get(name)) or "nothing"


def _lift_metrics(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request with the metric definitions beside the image and not below it."""
    algorithm = dict(request.get("AlgorithmSpecification", {}))
    metrics = algorithm.pop("MetricDefinitions", [])
    return {**request, "AlgorithmSpecification": algorithm, "MetricDefinitions": metrics}
