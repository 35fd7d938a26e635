"""Is this a request SageMaker would accept? Checked against botocore's model, then against rules it cannot express."""

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from botocore.model import Shape

from .errors import ServiceError, invalid
from .protocol import operation_model

Request = dict[str, Any]

_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "structure": (dict,),
    "map": (dict,),
    "list": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "long": (int,),
    "float": (int, float),
    "double": (int, float),
    "timestamp": (int, float),
}
_JAVA_CLASSES = {r"\p{L}": r"\w", r"\p{N}": r"\d", r"\p{Z}": r"\s", r"\p{Alnum}": "a-zA-Z0-9"}


def check_request(operation: str, request: Request) -> None:
    """Raise ValidationException with every violation of the model, in SageMaker's words."""
    breaches = list(_breaches(operation_model(operation).input_shape, request, ""))
    if breaches:
        count = f"{len(breaches)} validation error{'s' if len(breaches) > 1 else ''} detected"
        raise invalid(f"{count}: {'; '.join(breaches)}")
    if operation == "CreateTrainingJob":
        for rule in CREATE_RULES:
            if message := rule(request):
                raise invalid(message)


def _breaches(shape: Shape, value: Any, path: str) -> Iterator[str]:
    _check_type(shape, value, path)
    match shape.type_name:
        case "structure":
            yield from _structure_breaches(shape, value, path)
        case "list":
            yield from _size_breaches(shape, value, path)
            for number, item in enumerate(value, start=1):
                yield from _breaches(shape.member, item, f"{path}.{number}.member")
        case "map":
            yield from _map_breaches(shape, value, path)
        case _:
            for constraint in _scalar_breaches(shape, value):
                yield f"Value '{value}' at '{path}' failed to satisfy constraint: {constraint}"


def _check_type(shape: Shape, value: Any, path: str) -> None:
    expected = _PYTHON_TYPES[shape.type_name]
    if not isinstance(value, expected) or (isinstance(value, bool) and bool not in expected):
        message = f"Value at '{path or 'request'}' must be a {shape.type_name}, not {type(value).__name__}"
        raise ServiceError("SerializationException", message)


def _structure_breaches(shape: Shape, value: Request, path: str) -> Iterator[str]:
    given = {key: item for key, item in value.items() if item is not None}
    for key in shape.required_members:
        if key not in given:
            yield f"Value null at '{_below(path, key)}' failed to satisfy constraint: Member must not be null"
    for key, item in given.items():
        if key not in shape.members:
            known = ", ".join(shape.members)
            yield f"Unknown parameter at '{_below(path, key)}': must be one of: {known}"
        else:
            yield from _breaches(shape.members[key], item, _below(path, key))


def _below(path: str, key: str) -> str:
    member = key[0].lower() + key[1:]
    return f"{path}.{member}" if path else member


def _map_breaches(shape: Shape, value: Request, path: str) -> Iterator[str]:
    yield from _size_breaches(shape, value, path)
    shown = "{" + ", ".join(f"{key}={item}" for key, item in value.items()) + "}"
    for side, members in (("key", value.keys()), ("value", value.values())):
        part = getattr(shape, side)
        broken = next(filter(None, (list(_scalar_breaches(part, item)) for item in members)), [])
        if broken:
            constraint = f"Map {side} must satisfy constraint: [{', '.join(broken)}]"
            yield f"Value '{shown}' at '{path}' failed to satisfy constraint: {constraint}"


def _size_breaches(shape: Shape, value: list[Any] | Request, path: str) -> Iterator[str]:
    for constraint in _bounds(shape, len(value), "length"):
        yield f"Value at '{path}' failed to satisfy constraint: {constraint}"


def _scalar_breaches(shape: Shape, value: Any) -> Iterator[str]:
    _check_type(shape, value, shape.name)
    if isinstance(value, str):
        yield from _bounds(shape, len(value), "length")
        pattern = shape.metadata.get("pattern")
        if pattern and not _compiled(pattern).fullmatch(value):
            yield f"Member must satisfy regular expression pattern: {pattern}"
        enum = shape.metadata.get("enum")
        if enum and value not in enum:
            yield f"Member must satisfy enum value set: [{', '.join(enum)}]"
    elif not isinstance(value, bool):
        yield from _bounds(shape, value, "value")


def _bounds(shape: Shape, size: float, what: str) -> Iterator[str]:
    least, most = shape.metadata.get("min"), shape.metadata.get("max")
    if most is not None and size > most:
        yield f"Member must have {what} less than or equal to {most}"
    if least is not None and size < least:
        yield f"Member must have {what} greater than or equal to {least}"


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    for java, python in _JAVA_CLASSES.items():
        pattern = pattern.replace(java, python)
    return re.compile(pattern)


def _algorithm_named(request: Request) -> str | None:
    algorithm = request.get("AlgorithmSpecification")
    if algorithm is None:
        return "AlgorithmSpecification is required."
    if ("TrainingImage" in algorithm) == ("AlgorithmName" in algorithm):
        return "You must specify exactly one of TrainingImage and AlgorithmName in AlgorithmSpecification."
    return None


def _regexes_compile(request: Request) -> str | None:
    for definition in request["AlgorithmSpecification"].get("MetricDefinitions", []):
        try:
            re.compile(definition["Regex"])
        except re.error as error:
            return f"MetricDefinition {definition['Name']} has a regular expression that does not compile: {error}"
    return None


def _cluster_described(request: Request) -> str | None:
    resources = request.get("ResourceConfig")
    if resources is None:
        return "ResourceConfig is required."
    if "SelectedInstanceType" in resources or "SelectedInstanceCount" in resources:
        return "SelectedInstanceType and SelectedInstanceCount are not accepted in CreateTrainingJob requests."
    homogeneous = "InstanceType" in resources and resources.get("InstanceCount", 0) > 0
    several = [key for key in ("InstanceGroups", "InstancePreferences") if key in resources]
    if homogeneous == bool(several) and not ("InstancePreferences" in several and "InstanceCount" in resources):
        return "ResourceConfig needs InstanceType with InstanceCount, or InstanceGroups, or InstancePreferences."
    return None


def _run_time_bounded(request: Request) -> str | None:
    return None if "StoppingCondition" in request else "StoppingCondition is required."


def _spot_waits(request: Request) -> str | None:
    stopping = request["StoppingCondition"]
    wait = stopping.get("MaxWaitTimeInSeconds")
    if not request.get("EnableManagedSpotTraining"):
        return "MaxWaitTimeInSeconds is only for managed spot training." if wait is not None else None
    if wait is None or wait < stopping.get("MaxRuntimeInSeconds", 86400):
        return "MaxWaitTimeInSeconds must be present and not below MaxRuntimeInSeconds when EnableManagedSpotTraining."
    return None


def _pool_allowed(request: Request) -> str | None:
    resources = request["ResourceConfig"]
    if not resources.get("KeepAlivePeriodInSeconds"):
        return None
    if request.get("EnableManagedSpotTraining"):
        return "KeepAlivePeriodInSeconds is not supported with managed spot training."
    return "KeepAlivePeriodInSeconds is not supported with InstanceGroups." if "InstanceGroups" in resources else None


def _tags_sound(request: Request) -> str | None:
    return tags_refused(request.get("Tags", []))


def tags_refused(tags: list[dict[str, str]]) -> str | None:
    keys = [tag["Key"] for tag in tags]
    if len(set(keys)) < len(keys):
        return "Duplicate tag keys found. Please note that Tag keys are case insensitive."
    if any(key.lower().startswith("aws:") for key in keys):
        return "Tag keys with the prefix aws: are reserved for AWS."
    return None


def debug_refused(request: Request) -> str | None:
    """Refuse remote debugging with network isolation: a shell needs network access."""
    if (request.get("RemoteDebugConfig") or {}).get("EnableRemoteDebug") and request.get("EnableNetworkIsolation"):
        return "Remote debugging is not supported when EnableNetworkIsolation is true."
    return None


def _channels_unique(request: Request) -> str | None:
    names = [channel["ChannelName"] for channel in request.get("InputDataConfig", [])]
    return "Channel names must be unique." if len(set(names)) < len(names) else None


CREATE_RULES = (
    _algorithm_named,
    _regexes_compile,
    _cluster_described,
    _run_time_bounded,
    _spot_waits,
    _pool_allowed,
    _tags_sound,
    _channels_unique,
    debug_refused,
)
