"""Turn unreadable responses of AWS into errors that the adapters handle like a missing response.

Without this, a response that is not JSON or XML, or that lacks a member or has one of the wrong type, would raise an
arbitrary Python error and abort the sweep for all other runs."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError

from rerail.model.codec import LARGEST

PROBLEM_LIMIT, MESSAGE_LIMIT = 300, 1_500  # in characters
# Operations whose responses are type-checked in full: the SDK checks only lists and structures.
CHECKED_OPERATIONS = ("DescribeTrainingJob", "ListTags", "ListTrainingJobs")
PYTHON_TYPES: Mapping[str, Any] = {
    "string": str,
    "integer": int,
    "long": int,
    "boolean": bool,
    "double": (int, float),
    "float": (int, float),
    "timestamp": datetime,
    "structure": dict,
    "list": list,
    "map": dict,
}
# RuntimeError is raised for an invalid time and for data nested too deeply.
PARSE_ERRORS = (ResponseParserError, LookupError, TypeError, ValueError, AttributeError, OverflowError, RuntimeError)


class InvalidResponse(BotoCoreError):  # type: ignore[misc]
    """A response of AWS that cannot be read."""

    fmt = "{what}: the response cannot be read ({problem}); if this persists, deploy a newer version"


def truncate(text: str, most: int = PROBLEM_LIMIT) -> str:
    """Return at most `most` characters, without lone surrogates, which logs and messages reject."""
    return text[:most].encode(errors="replace").decode()


@contextmanager
def validate(what: str) -> Iterator[None]:
    """Raise InvalidResponse for any error while a response is read; errors of AWS and of the SDK pass through."""
    try:
        yield
    except (ClientError, BotoCoreError):
        raise
    except PARSE_ERRORS as error:
        problem = " ".join(f"{type(error).__name__}: {error}".split())
        raise InvalidResponse(what=what, problem=truncate(problem)) from error


def find_wrong_type(value: Any, shape: Any, path: str = "") -> str:
    """Describe the first member whose type differs from the service's model; return "" if there is none."""
    types = PYTHON_TYPES.get(shape.type_name)
    if types and (not isinstance(value, types) or (isinstance(value, bool) and shape.type_name != "boolean")):
        return f"{path or 'it'} is {value!r:.60}, not a valid {shape.type_name}"
    if type(value) is int and not -LARGEST <= value <= LARGEST:
        return f"{path or 'it'} is a number of more than 64 bits"
    if isinstance(value, datetime) and value.tzinfo is None:
        return f"{path or 'it'} is {value}, without a time zone"
    inner: Iterable[tuple[Any, Any, str]] = ()
    if shape.type_name == "structure":
        inner = ((value[name], member, f"{path}.{name}") for name, member in shape.members.items() if name in value)
    elif shape.type_name == "list":
        inner = ((item, shape.member, f"{path}[{number}]") for number, item in enumerate(value))
    elif shape.type_name == "map":
        inner = ((item, shape.value, f"{path}.{key!s:.60}") for key, item in value.items())
    return next(filter(None, (find_wrong_type(item, member, where) for item, member, where in inner)), "")


def _shorten_error(error: ClientError) -> ClientError | None:
    """Return the error with a printable message, None if it needs no change: a proxy may answer with a whole page."""
    details = error.response.get("Error", {})
    code, message = (" ".join(str(details.get(name, "Unknown")).split()) for name in ("Code", "Message"))
    code, message = (truncate(text, MESSAGE_LIMIT) for text in (code, message))
    if (code, message) == (details.get("Code"), details.get("Message")):
        return None
    brief = {**error.response, "Error": {**details, "Code": code, "Message": message}}
    return type(error)(brief, error.operation_name)


class Reader:
    """Base class of every client that validates responses; the SDK's own parsers trust them."""

    def _make_api_call(self, operation_name: str, api_params: Any) -> Any:
        with validate(operation_name):
            try:
                answer = super()._make_api_call(operation_name, api_params)  # type: ignore[misc]
            except ClientError as error:
                if brief := _shorten_error(error):
                    raise brief from error
                raise
            if operation_name in CHECKED_OPERATIONS:
                model = self.meta.service_model.operation_model(operation_name)  # type: ignore[attr-defined]
                if problem := find_wrong_type(answer, model.output_shape):
                    raise TypeError(problem)
            return answer


def install_validation(base_classes: list[type], **_: Any) -> None:
    """Handle the SDK's event `creating-client-class`: add Reader to the base classes of the client."""
    base_classes.insert(0, Reader)
