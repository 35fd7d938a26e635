"""The settings of a policy for the agent: as variables of a relaunch, and in each command to a job that lacks them."""

import json
from dataclasses import asdict, fields
from datetime import timedelta
from typing import Any

from rerail.model.checkpoint_intervals import SaveInterval
from rerail.model.mailbox import LIMITS
from rerail.model.policy import Advice, Policy
from rerail.model.thresholds import PlannedChange, Thresholds

DETECTION_VARIABLE = "RERAIL_DETECTION"
INTERVAL_VARIABLE = "RERAIL_SAVE_INTERVAL"
MTBF_VARIABLE = "RERAIL_MTBF_SECONDS"


def make_policy_variables(
    detection: Thresholds | None, interval: SaveInterval | None, mtbf_s: float | None
) -> dict[str, str]:
    """Return the variables of what differs from the agent's defaults; `mtbf_s` are seconds between failures."""
    thresholds, interval = _format_differences(detection or Thresholds()), interval or SaveInterval()
    bounds = _format_differences(interval)
    return {
        **({DETECTION_VARIABLE: thresholds} if thresholds else {}),
        **({INTERVAL_VARIABLE: bounds if interval.automatic else "off"} if bounds else {}),
        **({} if mtbf_s is None else {MTBF_VARIABLE: f"{mtbf_s:.0f}"}),
    }


def format_settings(policy: Policy, *, machines: int) -> str:
    """Return what the policy sets for the agent of a job with so many machines, as JSON; "" for the defaults."""
    own = policy.advice.machine_mtbf != Advice().machine_mtbf
    mtbf_s = policy.advice.machine_mtbf.total_seconds() / max(1, machines) if own else None
    variables = make_policy_variables(policy.detection, policy.interval, mtbf_s)
    text = json.dumps(variables, separators=(",", ":")) if variables else ""
    return text if len(text) <= LIMITS["settings"] else ""


def _format_differences(values: Thresholds | SaveInterval) -> str:
    """Return the fields that differ from the defaults as a JSON object, durations in seconds; "" if none does."""
    different = {f.name: value for f in fields(values) if (value := getattr(values, f.name)) != f.default}
    return json.dumps(different, separators=(",", ":"), default=_to_json) if different else ""


def _to_json(value: timedelta | PlannedChange) -> Any:
    return value.total_seconds() if isinstance(value, timedelta) else asdict(value)
