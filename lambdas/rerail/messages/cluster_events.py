"""Parse SageMaker HyperPod events into the condition of the parts of a cluster.

Three kinds of event arrive on the default bus (SageMaker developer guide, "SageMaker HyperPod cluster events
reference"). Each may be repeated, late or lost. Names, times and a few known values are parsed; the rest is shown to
people as shortened text. Unknown values are ignored.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from rerail.model.cluster_names import CLUSTER_ARN, CLUSTER_NAME
from rerail.model.errors import BadMessage
from rerail.model.mailbox import EARLIEST, LATEST

STATE_CHANGE = "SageMaker HyperPod Cluster State Change"
NODE_HEALTH = "SageMaker HyperPod Cluster Node Health Event"
CLUSTER_EVENT = "SageMaker HyperPod Cluster Event"
NODE = re.compile(r"i-[a-z0-9]{8,32}")
WORDS_LIMIT, GROUPS_LIMIT = 500, 100
WHOLE = "cluster"
# Errors with these words need an operator.
HOPELESS = ("replacement", "reboot", "terminate")


class Condition(StrEnum):
    """The condition of a part of a cluster, for a run that needs it."""

    HEALTHY = "healthy"
    NOTED = "noted"  # a warning that can wait
    RECOVERING = "recovering"  # HyperPod is repairing it
    BROKEN = "broken"  # it needs an operator
    LEAVING = "leaving"  # the cluster is being deleted


@dataclass(frozen=True, slots=True)
class ConditionChange:
    """The condition of one part of a cluster, as reported by an event."""

    # "cluster", "group NAME" or "node ID".
    part: str
    condition: Condition
    # The predicate of a sentence about the part, such as "has failed".
    what: str
    # HyperPod's own message.
    message: str = ""


@dataclass(frozen=True, slots=True)
class ClusterEventReceived:
    """An event of a HyperPod cluster."""

    id: str
    cluster: str
    arn: str
    # When it happened, by HyperPod's clock.
    at: datetime
    signs: tuple[ConditionChange, ...]


STATES: Mapping[str, tuple[Condition, str]] = {
    "InService": (Condition.HEALTHY, "is in service"),
    "Failed": (Condition.BROKEN, "has failed"),
    "RollingBack": (Condition.RECOVERING, "is being rolled back"),
    "Deleting": (Condition.LEAVING, "is being deleted"),
}
GROUP_STATES: Mapping[str, tuple[Condition, str]] = {
    "InService": (Condition.HEALTHY, "is in service"),
    "Failed": (Condition.BROKEN, "has failed"),
    "Degraded": (Condition.RECOVERING, "is degraded"),
}
REPAIRS = {"replace": "being replaced", "reboot": "being rebooted"}


def is_hyperpod(detail_type: Any) -> bool:
    """Return whether a SageMaker event is about a HyperPod cluster."""
    return detail_type in (STATE_CHANGE, NODE_HEALTH, CLUSTER_EVENT)


def read_hyperpod(envelope: Mapping[str, Any], detail: Mapping[str, Any]) -> ClusterEventReceived:
    """Return the parsed event; raise BadMessage that names the field if it is malformed."""
    kind = envelope.get("detail-type")
    if kind == CLUSTER_EVENT:
        detail = require_object(detail.get("EventDetails"), "field 'detail.EventDetails'")
    cluster, arn = detail.get("ClusterName"), detail.get("ClusterArn")
    if not isinstance(cluster, str) or not CLUSTER_NAME.fullmatch(cluster):
        raise BadMessage(f"field 'ClusterName' is {cluster!r:.100}; it must be the name of a HyperPod cluster")
    if not isinstance(arn, str) or not CLUSTER_ARN.fullmatch(arn):
        raise BadMessage(f"field 'ClusterArn' is {arn!r:.200}; it must be the ARN of a HyperPod cluster")
    read = {STATE_CHANGE: _read_state, NODE_HEALTH: _read_health, CLUSTER_EVENT: _read_event}[str(kind)]
    id = detail.get("EventId") or envelope.get("id")
    return ClusterEventReceived(clean_text(id), cluster, arn, _read_time(envelope, detail), tuple(read(detail)))


def clean_text(value: Any, limit: int = WORDS_LIMIT) -> str:
    """Return external text on one line, shortened to `limit` characters; "" if it is not text."""
    if not isinstance(value, str):
        return ""
    line = " ".join("".join(c if c.isprintable() else " " for c in value).split())
    return line if len(line) <= limit else f"{line[: limit - 3]}..."


def _read_state(detail: Mapping[str, Any]) -> Iterator[ConditionChange]:
    if known := STATES.get(str(detail.get("ClusterStatus"))):
        yield ConditionChange(WHOLE, *known, message=clean_text(detail.get("FailureMessage")))
    groups = detail.get("InstanceGroups")
    for group in groups[:GROUPS_LIMIT] if isinstance(groups, list) else ():
        if isinstance(group, dict) and (known := GROUP_STATES.get(str(group.get("Status")))):
            name, now, wanted = clean_text(group.get("InstanceGroupName"), 63), *_read_counts(group)
            yield ConditionChange(f"group {name}", *known, message=f"it has {now} of {wanted} instances")


def _read_health(detail: Mapping[str, Any]) -> Iterator[ConditionChange]:
    summary = require_object(detail.get("HealthSummary"), "field 'detail.HealthSummary'")
    status, repair = (clean_text(summary.get(name), 40) for name in ("HealthStatus", "RepairAction"))
    message = " ".join(filter(None, (clean_text(summary.get(key)) for key in ("HealthStatusReason", "Recommendation"))))
    part = f"node {_read_node(detail)}"
    if status.lower() == "healthy":
        yield ConditionChange(part, Condition.HEALTHY, "is healthy", message)
    elif status.lower() == "unhealthy" and repair.lower() in ("", "none"):
        yield ConditionChange(part, Condition.BROKEN, "is unhealthy, and HyperPod does not repair it", message)
    elif status.lower() == "unhealthy":
        doing = REPAIRS.get(repair.lower(), f"being repaired ({repair})")
        yield ConditionChange(part, Condition.RECOVERING, f"is unhealthy and {doing} by HyperPod", message)


def _read_event(detail: Mapping[str, Any]) -> Iterator[ConditionChange]:
    level, message, part = detail.get("EventLevel"), clean_text(detail.get("Description")), _read_part(detail)
    if level == "Error":
        hopeless = part.startswith("node") and any(word in message.lower() for word in HOPELESS)
        condition = Condition.BROKEN if hopeless or part == WHOLE else Condition.NOTED
        yield ConditionChange(part, condition, "has an error", " ".join(filter(None, (message, _find_failure(detail)))))
    elif level == "Warn":
        yield ConditionChange(part, Condition.NOTED, "has a warning", message)
    elif "completed successfully" in message:
        yield ConditionChange(part, Condition.HEALTHY, "is well", message)
    elif part.startswith("node") and message.startswith("Termination of EC2 Instance"):
        yield ConditionChange(part, Condition.HEALTHY, "has left the cluster", message)


def _read_part(detail: Mapping[str, Any]) -> str:
    match detail.get("ResourceType"):
        case "Instance" if detail.get("InstanceId"):
            return f"node {_read_node(detail)}"
        case "Instance" | "InstanceGroup":
            return f"group {clean_text(detail.get('InstanceGroupName'), 63)}"
        case _:
            return WHOLE


def _find_failure(detail: Mapping[str, Any]) -> str:
    """Return the failure message in an event's metadata, or ""."""
    value: Any = detail
    for name in ("EventDetails", "EventMetadata", str(detail.get("ResourceType")), "FailureMessage"):
        value = value.get(name) if isinstance(value, dict) else None
    return clean_text(value)


def _read_node(detail: Mapping[str, Any]) -> str:
    id = detail.get("InstanceId")
    if not isinstance(id, str) or not NODE.fullmatch(id):
        raise BadMessage(f"field 'InstanceId' is {id!r:.100}; it must be the id of an EC2 instance")
    return id


def _read_counts(group: Mapping[str, Any]) -> tuple[str, str]:
    now, wanted = (group.get(name) for name in ("CurrentCount", "TargetCount"))
    return (str(now) if isinstance(now, int) else "?", str(wanted) if isinstance(wanted, int) else "?")


def _read_time(envelope: Mapping[str, Any], detail: Mapping[str, Any]) -> datetime:
    """Return when the event happened, to the millisecond if the event contains its own time."""
    exact = detail.get("EventTime")
    try:
        if isinstance(exact, int | float) and not isinstance(exact, bool):
            at = datetime.fromtimestamp(exact / 1000, UTC)
        else:
            at = datetime.fromisoformat(str(envelope.get("time")))
            at = at if at.tzinfo else at.replace(tzinfo=UTC)
        if not EARLIEST <= at < LATEST:
            raise ValueError("the time is out of range")
    except (ValueError, OverflowError, OSError) as error:
        given = envelope.get("time") if exact is None else exact
        range = f"between {EARLIEST:%Y} and {LATEST:%Y}"
        raise BadMessage(f"field 'time' is {given!r:.60}; it must be a time in ISO 8601 {range}") from error
    return at


def require_object(value: Any, name: str) -> Mapping[str, Any]:
    """Return the value if it is a JSON object; raise BadMessage with this name otherwise."""
    if not isinstance(value, dict):
        raise BadMessage(f"{name} must be a JSON object")
    return value
