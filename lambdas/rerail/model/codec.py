"""Serialize the core's frozen dataclasses to JSON with a schema version, and read them back."""

import json
import types
from collections.abc import Callable, Mapping, Sequence
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
# Errors of a value that cannot be read, as constructors and conversions raise them.
ERRORS = (TypeError, ValueError, AttributeError, OverflowError, RecursionError)
T = TypeVar("T")
Convert = Callable[[Any], Any]


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
    record: T = _read(cls, table, strict=True)
    return record


def from_plain(cls: type[T], table: Any) -> T:
    """Return the record that `plain`, of this or an earlier version, converted to JSON types; raise BadRecord if not.

    The types of scalar values and the time zones of times are not checked; that is up to the caller.
    """
    if not isinstance(table, dict):
        raise BadRecord(f"a {cls.__name__} must be a JSON object")
    record: T = _read(cls, _translate(cls, table), strict=False)
    return record


def _translate(cls: type[Any], table: Any) -> Any:
    try:
        return translate(table)
    except RecursionError as error:
        raise BadRecord(f"a {cls.__name__} is nested too deeply") from error


def _read(cls: Any, table: Any, *, strict: bool) -> Any:
    try:
        return _make_reader(cls, strict)(table)
    except ERRORS as error:
        refused = _add_place(cls.__name__, error)
        raise BadRecord(f"{refused.place}: {refused.reason}") from error


def to_plain(value: Any) -> Any:
    """Return a value as JSON types: times in ISO 8601, durations in seconds, dataclasses as objects with a `type`."""
    kind: Any = type(value)
    return value if kind in PLAIN else _make_writer(kind)(value)


# Types are looked at once, not at each record: a sweep reads and writes the records of every run each minute.
@cache
def _make_writer(kind: Any) -> Convert:
    """Return the function that converts values of this type to JSON types."""
    if is_dataclass(kind):
        return _make_record_writer(kind)
    if issubclass(kind, datetime):
        return datetime.isoformat
    if issubclass(kind, timedelta):
        return timedelta.total_seconds
    if issubclass(kind, Mapping):
        return lambda value: {str(key): to_plain(item) for key, item in value.items()}
    if issubclass(kind, Sequence) and not issubclass(kind, str):
        return lambda value: list(value) if PLAIN.issuperset(map(type, value)) else [to_plain(item) for item in value]
    return lambda value: value


def _make_record_writer(kind: Any) -> Convert:
    defaults = [
        (each.name, each.default if each.default_factory is MISSING else each.default_factory())
        for each in fields(kind)
        if each.name != NEWER
    ]

    def write(value: Any) -> dict[str, Any]:
        row = {"type": kind.__name__}
        if newer := getattr(value, NEWER, ""):
            row |= json.loads(newer)
        for name, default in defaults:
            item = getattr(value, name)
            if item is not default and item != default:
                row[name] = item if type(item) in PLAIN else to_plain(item)
        return row

    return write


class _Unreadable(ValueError):
    """A value that cannot be read: its place within the record, and the reason."""

    def __init__(self, reason: str, place: str = "") -> None:
        super().__init__(reason)
        self.reason, self.place = reason, place


def _add_place(place: str, error: Exception) -> _Unreadable:
    """Return the error of a part of the value at this place."""
    if isinstance(error, _Unreadable):
        return _Unreadable(error.reason, place + error.place)
    return _Unreadable(f"{error!s:.300}", place)


@cache
def _make_reader(kind: Any, strict: bool) -> Convert:
    """Return the function that reads JSON types as a value of this type."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind in SCALARS:
        return _make_scalar_reader(kind, strict)
    if origin in UNIONS:
        return _make_union_reader(arguments, strict)
    if is_dataclass(kind):
        return _make_record_reader(kind, strict)
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return _make_sequence_reader(arguments[0], strict)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _make_mapping_reader(arguments[0], arguments[1], strict)
    if kind is datetime:
        return _read_time if strict else datetime.fromisoformat
    if kind is timedelta:
        return lambda value: timedelta(seconds=value)
    return kind if isinstance(kind, type) and issubclass(kind, StrEnum) else lambda value: value


def _make_scalar_reader(kind: type[Any], strict: bool) -> Convert:
    kinds = SCALARS[kind]

    def read(value: Any) -> Any:
        if strict and type(value) not in kinds:
            raise _Unreadable(f"{value!r:.40} is not a valid {kind.__name__}")
        if type(value) is int and not -LARGEST <= value <= LARGEST:
            raise _Unreadable("a number of more than 64 bits")
        return value

    return read


def _read_time(value: Any) -> datetime:
    at = datetime.fromisoformat(value)
    if at.tzinfo is None:
        raise _Unreadable(f"{value!r:.40} has no time zone")
    return at


def _make_union_reader(kinds: Sequence[Any], strict: bool) -> Convert:
    is_optional = type(None) in kinds
    named = {kind.__name__: _make_reader(kind, strict) for kind in kinds if kind is not type(None)}
    only = next(iter(named.values())) if len(named) == 1 else None

    def read(value: Any) -> Any:
        if value is None and is_optional:
            return None
        if only:
            return only(value)
        tag = value.get("type") if isinstance(value, dict) else None
        if tag not in named:
            raise _Unreadable(f"type {tag!r:.100} is not one of {', '.join(named)}")
        return named[tag](value)

    return read


def _make_record_reader(kind: Any, strict: bool) -> Convert:
    hints = get_type_hints(kind)
    keeps_newer = strict and hints.pop(NEWER, None) is not None
    readers = {name: (_list_unchecked(hint), _make_reader(hint, strict)) for name, hint in hints.items()}

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _Unreadable(f"{value!r:.40} is not a valid {kind.__name__}")
        known, newer, name = {}, {}, ""
        try:
            for name, item in value.items():
                if name in readers:
                    unchecked, convert = readers[name]
                    known[name] = item if type(item) in unchecked else convert(item)
                elif keeps_newer and name not in ("type", NEWER):
                    newer[name] = item
        except ERRORS as error:
            raise _add_place(f".{name}", error) from error
        if newer:
            known[NEWER] = _keep_newer(newer)
        return kind(**known)

    return read


def _list_unchecked(kind: Any) -> frozenset[type]:
    """Return the types of values that need no conversion and no check."""
    kinds = get_args(kind) if get_origin(kind) in UNIONS else (kind,)
    others = [each for each in kinds if each is not type(None)]
    # An int may have too many bits.
    scalars = {*SCALARS.get(others[0], ())} - {int} if len(others) == 1 else set()
    return frozenset(scalars | {type(None)} if len(others) < len(kinds) else scalars)


def _make_sequence_reader(kind: Any, strict: bool) -> Convert:
    # A fast path for the detectors' windows: hundreds of numbers, once a minute for every run.
    unchecked = NUMBERS if kind in NUMBERS else _list_unchecked(kind)
    convert = _make_reader(kind, strict)

    def read(value: Any) -> tuple[Any, ...]:
        if strict and not isinstance(value, list):
            raise _Unreadable(f"{value!r:.40} is not a list")
        if unchecked.issuperset(map(type, value)):
            return tuple(value)
        items: list[Any] = []
        try:
            for item in value:
                items.append(convert(item))
        except ERRORS as error:
            raise _add_place(f"[{len(items)}]", error) from error
        return tuple(items)

    return read


def _make_mapping_reader(key_kind: Convert, kind: Any, strict: bool) -> Convert:
    convert = _make_reader(kind, strict)

    def read(value: Any) -> dict[Any, Any]:
        read, key = {}, ""
        try:
            for key, item in value.items():
                read[key_kind(key)] = convert(item)
        except ERRORS as error:
            raise _add_place(f".{key:.40}", error) from error
        return read

    return read


def _keep_newer(fields_of_newer: Mapping[str, Any]) -> str:
    """Return the fields that this version does not know as JSON; those beyond the limit are lost, the last first."""
    kept, size = {}, 0
    for name, item in fields_of_newer.items():
        size += len(json.dumps({name: item}))
        if size > NEWER_LIMIT:
            break
        kept[name] = item
    return json.dumps(kept, separators=(",", ":")) if kept else ""
