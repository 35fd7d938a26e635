"""Serialize the core's frozen dataclasses to JSON with a schema version, and read them back."""

import json
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from rerail.model.errors import RerailError
from rerail.model.former_names import translate

# Records of schema 1 have former names.
SCHEMA, FORMER_SCHEMA = 2, 1
LARGEST = 2**63 - 1
# The field of Record, and the most characters of it in one object.
NEWER = "newer_fields"
NEWER_LIMIT = 20_000
NUMBERS = frozenset({int, float})
PLAIN = frozenset({str, int, float, bool, type(None)})
UNIONS = frozenset({types.UnionType, Union})
SCALARS: Mapping[Any, tuple[type, ...]] = {str: (str,), int: (int,), float: (int, float), bool: (bool,)}
T = TypeVar("T")


class BadRecord(RerailError):
    """A stored record cannot be read by this version; the message names the field."""


def dumps(value: Any) -> str:
    """Return a record as JSON text, without fields that have their default value."""
    return json.dumps({"schema": SCHEMA, **to_plain(value)}, separators=(",", ":"))


def loads(cls: type[T], text: str) -> T:
    """Return the record that `dumps` wrote; raise BadRecord if it cannot be read."""
    try:
        table = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRecord(f"a {cls.__name__} that is not JSON: {error!s:.300}") from error
    schema = table.pop("schema", None) if isinstance(table, dict) else None
    if schema == FORMER_SCHEMA:
        table = _translate(cls, table)
    elif schema != SCHEMA:
        raise BadRecord(f"a {cls.__name__} of another schema than {SCHEMA}: deploy the version that wrote it")
    record: T = _read(cls, table, path=cls.__name__, strict=True)
    return record


def from_plain(cls: type[T], table: Any) -> T:
    """Return the record that `plain`, of this or an earlier version, converted to JSON types; raise BadRecord if not.

    The types of scalar values and the time zones of times are not checked; that is up to the caller.
    """
    if not isinstance(table, dict):
        raise BadRecord(f"a {cls.__name__} must be a JSON object")
    record: T = _read(cls, _translate(cls, table), path=cls.__name__, strict=False)
    return record


def _translate(cls: type[Any], table: Any) -> Any:
    try:
        return translate(table)
    except RecursionError as error:
        raise BadRecord(f"a {cls.__name__} is nested too deeply") from error


def to_plain(value: Any) -> Any:
    """Return a value as JSON types: times in ISO 8601, durations in seconds, dataclasses as objects with a `type`."""
    kind = type(value)
    if kind in PLAIN:
        return value
    if is_dataclass(kind):
        rows = ((name, getattr(value, name), default) for name, default in _defaults(kind))
        row = {name: item for name, item, default in rows if item is not default and item != default}
        newer = json.loads(row.pop(NEWER)) if NEWER in row else {}
        return {"type": kind.__name__, **newer, **{name: to_plain(item) for name, item in row.items()}}
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        # A fast path for the detectors' windows: hundreds of numbers, once a minute for every run.
        return list(value) if NUMBERS.issuperset(map(type, value)) else [to_plain(item) for item in value]
    return value


# Types are looked at once, not at each record: a sweep reads and writes the records of every run each minute.
@cache
def _defaults(cls: type[Any]) -> tuple[tuple[str, Any], ...]:
    """Return the name and the default of each field."""
    return tuple((f.name, f.default_factory() if f.default_factory is not MISSING else f.default) for f in fields(cls))


@cache
def _hints(cls: type[Any]) -> dict[str, tuple[Any, frozenset[type]]]:
    """Return by field its type, and the types of values that need no conversion and no check."""
    return {name: (kind, _unchecked(kind)) for name, kind in get_type_hints(cls).items()}


def _unchecked(kind: Any) -> frozenset[type]:
    kinds = [each for each in (get_args(kind) if get_origin(kind) in UNIONS else (kind,)) if each is not type(None)]
    # An int may have too many bits.
    return frozenset(SCALARS.get(kinds[0], ())) - {int} if len(kinds) == 1 else frozenset()


@cache
def _shape(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return the generic type and its arguments."""
    return get_origin(kind), get_args(kind)


def _read(kind: Any, value: Any, *, path: str, strict: bool) -> Any:
    if kind in SCALARS:
        if strict and type(value) not in SCALARS[kind]:
            raise BadRecord(f"{path}: {value!r:.40} is not a valid {kind.__name__}")
        if type(value) is int and not -LARGEST <= value <= LARGEST:
            raise BadRecord(f"{path}: a number of more than 64 bits")
        return value
    origin, arguments = _shape(kind)
    if origin in UNIONS:
        return _read_union(arguments, value, path=path, strict=strict)
    if is_dataclass(kind):
        return _read_dataclass(kind, value, path=path, strict=strict)
    if origin is tuple or (isinstance(origin, type) and issubclass(origin, Sequence)):
        if arguments[0] in NUMBERS and NUMBERS.issuperset(map(type, value)):
            return tuple(value)
        if strict and not isinstance(value, list):
            raise BadRecord(f"{path}: {value!r:.40} is not a list")
        return tuple(_read(arguments[0], item, path=f"{path}[{i}]", strict=strict) for i, item in enumerate(value))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        named = {key: _read(arguments[1], item, path=f"{path}.{key}", strict=strict) for key, item in value.items()}
        return {arguments[0](key): item for key, item in named.items()}
    return _read_value(kind, value, path=path, strict=strict)


def _read_value(kind: Any, value: Any, *, path: str, strict: bool) -> Any:
    """Return a time, a duration or a name of an enumeration; any other value as it is."""
    if kind is datetime:
        at = datetime.fromisoformat(value)
        if strict and at.tzinfo is None:
            raise BadRecord(f"{path}: {value!r:.40} has no time zone")
        return at
    if kind is timedelta:
        return timedelta(seconds=value)
    return kind(value) if isinstance(kind, type) and issubclass(kind, StrEnum) else value


def _read_union(kinds: tuple[Any, ...], value: Any, *, path: str, strict: bool) -> Any:
    if value is None and (type(None) in kinds or not strict):
        return None
    kinds = tuple(kind for kind in kinds if kind is not type(None))
    if len(kinds) == 1:
        return _read(kinds[0], value, path=path, strict=strict)
    named = {kind.__name__: kind for kind in kinds}
    tag = value.get("type") if isinstance(value, dict) else None
    if tag not in named:
        raise BadRecord(f"{path}: type {tag!r:.100} is not one of {', '.join(named)}")
    return _read(named[tag], value, path=path, strict=strict)


def _read_dataclass(kind: Any, value: Any, *, path: str, strict: bool) -> Any:
    if not isinstance(value, dict):
        raise BadRecord(f"{path}: {value!r:.40} is not a valid {kind.__name__}")
    hints = _hints(kind)
    known = {name: item for name, item in value.items() if name in hints and name != NEWER}
    try:
        read = {
            name: item
            if type(item) in hints[name][1]
            else _read(hints[name][0], item, path=f"{path}.{name}", strict=strict)
            for name, item in known.items()
        }
        if strict and NEWER in hints and len(known) < len(value):
            read[NEWER] = _keep_newer({name: item for name, item in value.items() if name not in (*hints, "type")})
        return kind(**read)
    except (TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise BadRecord(f"{path}: {error!s:.300}") from error


def _keep_newer(fields_of_newer: Mapping[str, Any]) -> str:
    """Return the fields that this version does not know as JSON; those beyond the limit are lost, the last first."""
    kept, size = {}, 0
    for name, item in fields_of_newer.items():
        size += len(json.dumps({name: item}))
        if size > NEWER_LIMIT:
            break
        kept[name] = item
    return json.dumps(kept, separators=(",", ":")) if kept else ""
