"""Read what `rerail acceptance` has measured in an account, with bounds; nothing of it changes what Rerail may do.

It replaces assumptions of estimates that people read: what a relaunch costs, and how often to save.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from rerail.model.errors import RerailError
from rerail.model.policy import Advice, Policy

# Of the copy that a deployment keeps, below the prefix of its policies; no policy can have this name.
PARAMETER = "acceptance/measured"
SCHEMA = 1
KIND = "rerail acceptance"
# The least and the most of each median in seconds; a value outside of it is a wrong file.
BOUNDS: Mapping[str, tuple[float, float]] = {
    "startup_s": (1.0, 7200.0),
    "warm_startup_s": (1.0, 7200.0),
    "stop_s": (0.0, 3600.0),
    "event_s": (0.0, 3600.0),
    "metric_s": (0.0, 3600.0),
    "upload_s": (0.0, 3600.0),
    "notice_s": (0.0, 3600.0),
}
TEXT_LIMIT = 100_000


class BadMeasurements(RerailError):
    """The text is not what `rerail acceptance` writes; the message names the field and the remedy."""


@dataclass(frozen=True, slots=True)
class Measurements:
    """Medians in seconds by name, and where and when they were measured."""

    region: str
    made_at: datetime
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def source(self) -> str:
        """Return where the values come from, in words."""
        return f"measured by `rerail acceptance` in {self.region} on {self.made_at:%Y-%m-%d}"


def parse_measurements(text: str) -> Measurements:
    """Return the measurements of an acceptance.json, or of the copy that a deployment keeps; raise BadMeasurements."""
    try:
        table = json.loads(text[:TEXT_LIMIT])
    except (ValueError, RecursionError) as error:
        raise _make_error("the text", "is not valid JSON") from error
    if not isinstance(table, dict) or table.get("kind") != KIND:
        raise _make_error("field 'kind'", f"is not {KIND!r}")
    if table.get("schema") != SCHEMA:
        raise _make_error("field 'schema'", f"is {table.get('schema')!r:.40}, this version reads {SCHEMA}")
    if table.get("clock_scale") != 1:
        raise _make_error("field 'clock_scale'", "is not 1: it was measured on the local AWS, not in an account")
    region = table.get("region")
    if not isinstance(region, str) or not 0 < len(region) <= 40 or not region.isprintable():
        raise _make_error("field 'region'", "is not the name of a region")
    return Measurements(region, _read_time(table.get("made_at")), _read_seconds(table.get("measurements")))


def with_measurements(policy: Policy, measured: Measurements) -> Policy:
    """Return the policy with the measured times in place of the assumed ones; what it sets itself stays."""
    advice, assumed = policy.advice, Advice()
    if (advice.startup, advice.upload, advice.source) != (assumed.startup, assumed.upload, assumed.source):
        return policy
    found = {
        name: timedelta(seconds=measured.seconds[key])
        for name, key in (("startup", "startup_s"), ("upload", "upload_s"))
        if key in measured.seconds
    }
    return replace(policy, advice=replace(advice, **found, source=measured.source)) if found else policy


def _read_time(value: Any) -> datetime:
    try:
        made_at = datetime.fromisoformat(value)
    except (TypeError, ValueError) as error:
        raise _make_error("field 'made_at'", "is not a time in ISO 8601") from error
    if made_at.tzinfo is None:
        raise _make_error("field 'made_at'", "has no time zone")
    return made_at


def _read_seconds(measured: Any) -> dict[str, float]:
    if not isinstance(measured, dict):
        raise _make_error("field 'measurements'", "is not an object")
    seconds = {}
    for name, (least, most) in BOUNDS.items():
        if measured.get(name) is None:
            continue
        value = measured[name].get("median") if isinstance(measured[name], dict) else None
        # NaN is not within any bounds.
        if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most:
            raise _make_error(f"field 'measurements.{name}.median'", f"is not a number from {least:g} to {most:g}")
        seconds[name] = float(value)
    return seconds


def _make_error(field_name: str, problem: str) -> BadMeasurements:
    return BadMeasurements(f"{field_name} {problem}; give the acceptance.json that `rerail acceptance` has written")
