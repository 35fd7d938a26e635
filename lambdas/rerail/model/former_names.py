"""Names that earlier versions used in records and messages, and their translation to the present ones."""

from collections.abc import Mapping
from typing import Any

# Types, by their former name.
TYPES = {
    "AsideRefused": "QuarantineRefused",
    "Climb": "RungTaken",
    "Commanded": "OperatorCommand",
    "Done": "ActionsDone",
    "Found": "FindingsObserved",
    "HyperPodMemory": "ClusterRecord",
    "JobSeen": "JobObserved",
    "Judges": "Detectors",
    "Label": "HealthLabel",
    "LastBeat": "LastHeartbeat",
    "Lowest": "RunningMinimum",
    "MailRefused": "ReportInvalid",
    "Memory": "RunDetection",
    "Order": "InPlaceRestart",
    "Overtaken": "RecordOutdated",
    "Page": "OpenPage",
    "Part": "ClusterPart",
    "Pulse": "Liveness",
    "Repaired": "SelfRepairs",
    "Reported": "AgentReported",
    "Rise": "LossRise",
    "RoundReport": "SweepReport",
    "SetAside": "QuarantineCheckpoints",
    "Share": "Shard",
    "Silence": "LossSilence",
    "Stop": "PlannedStop",
    "Tell": "Notify",
    "Told": "ShardReport",
    "Trouble": "OpenFinding",
    "Watch": "DetectorState",
}
# Fields, by present type and former field.
FIELDS: Mapping[str, Mapping[str, str]] = {
    "Account": {"mended": "recovered"},
    "Attempt": {"orders": "in_place_restarts", "is_littered": "has_stale_checkpoints"},
    "ClusterPart": {"heard_at": "received_at", "told_at": "notified_at"},
    "ClusterRecord": {"told": "notified"},
    "Command": {"wish": "kind"},
    "DetectorState": {"judges": "detectors", "pulse": "liveness"},
    "Incident": {"mended": "recovered"},
    "Liveness": {"heard_at": "received_at"},
    "Divergence": {"mended": "recovered_level", "mended_row": "recovered_row"},
    "LossRise": {"told": "is_reported"},
    "LossSilence": {"loss_heard": "loss_received", "sound_to": "complete_to"},
    "NonFinite": {"told": "reported_level"},
    "OpenPage": {"tell": "notice", "told_at": "notified_at"},
    "PlannedStop": {"put_off": "is_deferred", "heard_at": "acknowledged_at", "moves": "changes_machines"},
    "Plateau": {"told": "is_reported"},
    "Report": {"told": "kind", "sealed": "is_signed"},
    "Run": {
        "climbs": "rungs_taken",
        "kept_back": "blocked_by",
        "seal_key": "signing_key",
        "seals": "requires_signature",
    },
    "RunDetection": {"beat": "heartbeat", "watch": "detectors", "troubles": "open_findings"},
    "Sample": {"sound_to": "complete_to"},
    "SweepReport": {
        "beating": "with_heartbeat",
        "blind": "unknown",
        "garbled": "bad_heartbeats",
        "watched": "monitored",
    },
}
CHECKS = {
    "kill switch": "pause",
    "money of the run": "run cost",
    "money of the incident": "incident cost",
    "brake": "rate limit",
    "": None,
}
# Runbooks, by their former name: their addresses are in notices and records.
RUNBOOKS = {"not-set-aside": "not-quarantined", "relaunch-brake": "relaunch-rate-limit"}
# Values of text fields, by present type and present field.
VALUES: Mapping[str, Mapping[str, Mapping[str, str | None]]] = {
    "ClusterPart": {"condition": {"going": "leaving", "mending": "recovering", "well": "healthy"}},
    "Finding": {"level": {"mended": "recovered"}},
    "Notify": {"until": {"mended": "recovered"}},
    "Proposal": {"awaits": CHECKS},
    "Report": {"kind": {"heard": "acknowledged"}},
    "Run": {"blocked_by": CHECKS},
}


def translate(value: Any) -> Any:
    """Return JSON data of an earlier version with the present names; the data itself is not changed.

    Every object that stands for a dataclass names its type, so that no other object is changed.
    """
    if isinstance(value, list):
        return [translate(item) for item in value]
    if not isinstance(value, dict):
        return value
    tag = value.get("type")
    if not isinstance(tag, str):
        return {key: translate(item) for key, item in value.items()}
    tag = TYPES.get(tag, tag)
    fields, values = FIELDS.get(tag, {}), VALUES.get(tag, {})
    present = {fields.get(key, key): translate(item) for key, item in value.items()}
    for name, words in values.items():
        if isinstance(present.get(name), str):
            present[name] = words.get(present[name], present[name])
    return {**present, "type": tag}


def with_former_names(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message with its fields under their former names too, for receivers of an earlier version."""
    tag = table.get("type", "")
    values = {name: {new: old for old, new in words.items()} for name, words in VALUES.get(tag, {}).items()}
    former = {
        old: values.get(new, {}).get(table[new], table[new]) for old, new in FIELDS.get(tag, {}).items() if new in table
    }
    return {**former, **table}
