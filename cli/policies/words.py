"""A policy's values as people write them in TOML: durations as text, fields by their dotted names."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import timedelta
from enum import Enum
from typing import Any

from rerail.model.policy import UNIT_SECONDS, Policy


def list_rows(policy: Policy) -> Iterator[tuple[str, Any]]:
    """Every field but the name, in the order of the code, with its value as JSON and TOML both take it."""
    for field in fields(policy):
        if field.name != "name":
            yield from _below(field.name, getattr(policy, field.name))


def _below(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from _below(f"{path}.{field.name}", getattr(value, field.name))
    elif isinstance(value, Mapping):
        yield path, dict(value)
    else:
        yield path, make_plain(value)


def make_plain(value: Any) -> Any:
    """A value as it stands in a file."""
    if isinstance(value, timedelta):
        return write_duration(value)
    if isinstance(value, Enum):
        return value.value
    return list(value) if isinstance(value, tuple) else value


def write_duration(value: timedelta) -> str:
    """The greatest unit that says it in a whole number: "90m", "12h", "1500ms"."""
    seconds = value.total_seconds()
    if not seconds:
        return "0s"
    for unit in ("d", "h", "m", "s"):
        if seconds % UNIT_SECONDS[unit] == 0:
            return f"{seconds / UNIT_SECONDS[unit]:.0f}{unit}"
    return f"{seconds * 1000:.3f}".rstrip("0").rstrip(".") + "ms"
