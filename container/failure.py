"""Says why a rank failed, as JSON in SageMaker's failure file, which becomes the job's FailureReason."""

import json
import os
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

LIMIT = 1024  # characters of the file that SageMaker keeps
LAST_LINES = 6


class Cause(StrEnum):
    """Rerail's causes, as far as a container can tell them apart."""

    USER_CODE = "user_code"
    OOM = "oom"
    DATA = "data"
    HARDWARE = "hardware"
    HANG = "hang"
    INFRASTRUCTURE = "infrastructure"
    UNKNOWN = "unknown"


class DataError(Exception):
    """The training data cannot be read, or is not what it should be."""


@dataclass
class Position:
    """Where the rank is; the training loop keeps `step` up to date."""

    rank: int
    step: int = 0


# torch's own wording, because most of these are plain RuntimeErrors: (a piece of the text, in lower case, the cause).
# First match wins; causes that name a broken part come before their consequences.
PHRASES = (
    ("uncorrectable ecc error", Cause.HARDWARE),
    ("nvlink", Cause.HARDWARE),
    ("cuda error: hardware stack error", Cause.HARDWARE),
    ("can't allocate memory", Cause.OOM),
    ("cannot allocate memory", Cause.OOM),
    ("out of memory", Cause.OOM),
)
DISTRIBUTED_PHRASES = (
    ("timed out", Cause.HANG),
    ("timeout", Cause.HANG),
    ("connection closed by peer", Cause.INFRASTRUCTURE),
    ("connection reset", Cause.INFRASTRUCTURE),
    ("connection refused", Cause.INFRASTRUCTURE),
    ("unhandled system error", Cause.INFRASTRUCTURE),
    ("remote process exited", Cause.INFRASTRUCTURE),
)
DISTRIBUTED_SIGNS = ("gloo", "nccl", "tcpstore", "smddp", "torch.distributed", "connection closed by peer")


def cause_of(error: BaseException) -> Cause:
    """The cause that an exception speaks for; a mistake in the script is what is left when nothing else fits."""
    chain = _chain(error)
    if any(isinstance(link, DataError | UnicodeDecodeError) for link in chain):
        return Cause.DATA
    text = " ".join(f"{type(link).__name__}: {link}" for link in chain).lower()
    if any(isinstance(link, MemoryError) or type(link).__name__ == "OutOfMemoryError" for link in chain):
        return Cause.OOM
    for phrase, cause in PHRASES:
        if phrase in text:
            return cause
    return _distributed_cause(chain, text) or Cause.USER_CODE


def _distributed_cause(chain: list[BaseException], text: str) -> Cause | None:
    # torch's own classes (DistBackendError, DistNetworkError, ...) by their names: launch.py comes here without torch.
    own = any(re.fullmatch(r"Dist\w*Error", cls.__name__) for link in chain for cls in type(link).__mro__)
    plain = any(isinstance(link, RuntimeError | ConnectionError) for link in chain)
    if not own and not (plain and any(sign in text for sign in DISTRIBUTED_SIGNS)):
        return None
    matches = (cause for phrase, cause in DISTRIBUTED_PHRASES if phrase in text)
    return next(matches, Cause.INFRASTRUCTURE if own else None)


def _chain(error: BaseException) -> list[BaseException]:
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in chain:
        chain.append(link)
        link = link.__cause__
    return chain


def describe(error: BaseException, position: Position, *, exit_code: int = 1) -> str:
    """The failure file's text: valid JSON of at most 1024 characters, whatever the error says."""
    lines = "".join(traceback.format_exception(error)).splitlines()
    report = {
        "rerail": 1,
        "cause": cause_of(error),
        "error": f"{type(error).__name__}: {error}",
        "step": position.step,
        "rank": position.rank,
        "exit_code": exit_code,
        "last_lines": [line for line in lines if line.strip()][-LAST_LINES:],
    }
    return _shortened(report)


def _shortened(report: dict[str, Any]) -> str:
    """Drops the oldest lines first, then the tail of the error text, until the JSON fits."""
    while len(text := json.dumps(report)) > LIMIT:
        if report["last_lines"]:
            report["last_lines"] = report["last_lines"][1:]
        else:
            report["error"] = report["error"][: len(report["error"]) * 3 // 4]
    return text


def write(path: Path, text: str) -> bool:
    """Writes the file unless another rank (or the script) was first: the first failure is the one that tells most."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except FileExistsError:
        return False
    with os.fdopen(handle, "w") as file:
        file.write(text)
    return True


@contextmanager
def recorded(path: Path, *, rank: int) -> Iterator[Position]:
    """Lets every exception pass, after writing it to the failure file. An exit on purpose (SystemExit) says nothing."""
    position = Position(rank=rank)
    try:
        yield position
    except Exception as error:
        write(path, describe(error, position))
        raise
