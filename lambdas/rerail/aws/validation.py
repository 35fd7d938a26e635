"""An answer that cannot be read counts as none: a service that is broken, or newer than this version, did not answer.

What is no JSON or XML, lacks a member, or has it in another form than the service's model says would else end in any
error of Python's, and keep a round from all the runs of which nothing was wrong."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError

from rerail.model.codec import LARGEST

PROBLEM_LIMIT, WORDS_LIMIT = 300, 1_500
# What is asked of jobs, and believed member by member: the SDK looks at the form of lists and structures alone.
CHECKED = ("DescribeTrainingJob", "ListTags", "ListTrainingJobs")
KINDS: Mapping[str, Any] = {
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
# RuntimeError: of a time that is none, and of what is nested too deeply.
UNREAD = (ResponseParserError, LookupError, TypeError, ValueError, AttributeError, OverflowError, RuntimeError)


class InvalidResponse(BotoCoreError):  # type: ignore[misc]
    """AWS has answered, and nobody can tell what."""

    fmt = "{what}: the answer cannot be read ({problem}); if it lasts, deploy a newer version"


def truncate(text: str, most: int = PROBLEM_LIMIT) -> str:
    """A beginning of the text, without half characters, which no log and no message takes."""
    return text[:most].encode(errors="replace").decode()


@contextmanager
def validated(what: str) -> Iterator[None]:
    """Whatever goes wrong while an answer is read is the answer's fault: raises Illegible, which says of what."""
    try:
        yield
    except (ClientError, BotoCoreError):
        raise
    except UNREAD as error:
        problem = " ".join(f"{type(error).__name__}: {error}".split())
        raise InvalidResponse(what=what, problem=truncate(problem)) from error


def find_wrong_type(value: Any, shape: Any, path: str = "") -> str:
    """The first member of an answer that is not of the type that the service's model says; "" where all are."""
    kinds = KINDS.get(shape.type_name)
    if kinds and (not isinstance(value, kinds) or (isinstance(value, bool) and shape.type_name != "boolean")):
        return f"{path or 'it'} is {value!r:.60}, no {shape.type_name}"
    if type(value) is int and not -LARGEST <= value <= LARGEST:
        return f"{path or 'it'} is a number of more than 64 bits"
    if isinstance(value, datetime) and value.tzinfo is None:
        return f"{path or 'it'} is {value}, without its time zone"
    inner: Iterable[tuple[Any, Any, str]] = ()
    if shape.type_name == "structure":
        inner = ((value[name], member, f"{path}.{name}") for name, member in shape.members.items() if name in value)
    elif shape.type_name == "list":
        inner = ((each, shape.member, f"{path}[{number}]") for number, each in enumerate(value))
    elif shape.type_name == "map":
        inner = ((each, shape.value, f"{path}.{key!s:.60}") for key, each in value.items())
    return next(filter(None, (find_wrong_type(each, member, where) for each, member, where in inner)), "")


def _said_briefly(error: ClientError) -> ClientError | None:
    """The refusal in words that can be shown, where it is not: what stands before a service may answer with a page."""
    told = error.response.get("Error", {})
    code, message = (" ".join(str(told.get(name, "Unknown")).split()) for name in ("Code", "Message"))
    code, message = (truncate(text, WORDS_LIMIT) for text in (code, message))
    if (code, message) == (told.get("Code"), told.get("Message")):
        return None
    brief = {**error.response, "Error": {**told, "Code": code, "Message": message}}
    return type(error)(brief, error.operation_name)


class Reader:
    """What every client inherits: the SDK's own parsers trust that an answer is as its model says."""

    def _make_api_call(self, operation_name: str, api_params: Any) -> Any:
        with validated(operation_name):
            try:
                answer = super()._make_api_call(operation_name, api_params)  # type: ignore[misc]
            except ClientError as error:
                if brief := _said_briefly(error):
                    raise brief from error
                raise
            if operation_name in CHECKED:
                model = self.meta.service_model.operation_model(operation_name)  # type: ignore[attr-defined]
                if problem := find_wrong_type(answer, model.output_shape):
                    raise TypeError(problem)
            return answer


def install_validation(base_classes: list[type], **_: Any) -> None:
    """The SDK's event `creating-client-class`: its client becomes a Reader."""
    base_classes.insert(0, Reader)
