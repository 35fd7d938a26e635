"""Pickle a call so that a job can load it, and name what cannot be pickled."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from .errors import CallRefused

# Packed code may hold 200 MB; a call beyond this is data, which belongs in S3.
MOST_BYTES = 100 * 1024 * 1024
SHOWN = 3


def pickle_call(function: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> bytes:
    """Return function and arguments as bytes; raise CallRefused with the part that is not picklable or too large.

    `function` is a RemoteFunction: one that the job can import is stored by name, any other by value.
    """
    import cloudpickle

    try:
        content: bytes = cloudpickle.dumps((function, tuple(arguments), dict(named)))
    except Exception as error:
        raise CallRefused(_explain_unpicklable(function, arguments, named, error)) from error
    if len(content) > MOST_BYTES:
        parts = sorted(_measure_parts(function, arguments, named), reverse=True)[:SHOWN]
        largest = ", ".join(f"{part} {format_size(size)}" for size, part in parts)
        raise CallRefused(
            f"{function.name}(): the call is {format_size(len(content))} of pickled data, more than "
            f"{format_size(MOST_BYTES)} (the largest: {largest}). Store the data in S3 and pass its address."
        )
    return content


def find_function(module: str, qualified_name: str) -> Callable[..., Any]:
    """Return the function that a packed module defines, without its decorator."""
    found: Any = importlib.import_module(module)
    for part in qualified_name.split("."):
        found = getattr(found, part)
    function: Callable[..., Any] = getattr(found, "function", found)
    return function


def get_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function itself: what a remote function becomes in a job if it was pickled by value."""
    return function


def format_size(size: int) -> str:
    """Return bytes in words."""
    return f"{size / 1e6:.1f} MB" if size >= 100_000 else f"{size / 1e3:.1f} kB"


def _list_parts(function: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield each argument, then each variable that the function captures, with a name for it."""
    try:
        bound = inspect.signature(function.function).bind(*arguments, **named).arguments
    except TypeError:
        bound = dict(named)
    yield from ((f"argument {name!r}", value) for name, value in bound.items())
    if not function.is_imported:
        for name, value in _list_captured(function.function):
            if value is not function:
                yield f"variable {name!r} that the function uses", value


def _list_captured(function: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    """Yield each global and enclosing variable that the function uses; not those that have no value yet."""
    code = function.__code__
    yield from ((name, function.__globals__[name]) for name in code.co_names if name in function.__globals__)
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # assigned after the call
            continue


def _measure_parts(function: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    import cloudpickle

    for part, value in _list_parts(function, arguments, named):
        yield len(cloudpickle.dumps(value)), part


def _explain_unpicklable(function: Any, arguments: Sequence[Any], named: Mapping[str, Any], error: Exception) -> str:
    import cloudpickle

    for part, value in _list_parts(function, arguments, named):
        try:
            cloudpickle.dumps(value)
        except Exception as own:
            kind = f"{type(value).__module__}.{type(value).__qualname__}"
            return (
                f"{function.name}(): {part} ({kind}) cannot be pickled: {own}. "
                "Create it inside the function, or pass what it is made from."
            )
    return f"{function.name}() cannot be pickled: {error}. Create what the message names inside the function."
