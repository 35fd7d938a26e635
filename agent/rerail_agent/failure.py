"""Write why a rank failed, as JSON, to SageMaker's failure file, which becomes the job's FailureReason."""

from __future__ import annotations

import json
import os
import re
import traceback
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from rerail_agent import gpus

LIMIT = 1024  # characters of the file that SageMaker keeps
LAST_LINES = 6


class FailureCause(str, Enum):  # noqa: UP042  (init.py comes here in images whose Python is older than StrEnum)
    """The causes that a container can distinguish; each is a value of rerail.model.causes.Cause."""

    USER_CODE = "user_code"
    OOM = "oom"
    DATA = "data"
    HARDWARE = "hardware"
    HANG = "hang"
    INFRASTRUCTURE = "infrastructure"
    UNKNOWN = "unknown"


class DataError(Exception):
    """The training data cannot be read or is not valid."""


@dataclass
class Position:
    """The position of a rank in its training; the training loop keeps `step` up to date."""

    rank: int
    step: int = 0


# torch's own wording, because most of these are plain RuntimeErrors: (part of the text in lower case, the cause).
# First match wins; causes that name a broken part come before their consequences.
PHRASES = (
    ("uncorrectable ecc error", FailureCause.HARDWARE),
    ("nvlink", FailureCause.HARDWARE),
    ("cuda error: hardware stack error", FailureCause.HARDWARE),
    ("can't allocate memory", FailureCause.OOM),
    ("cannot allocate memory", FailureCause.OOM),
    ("out of memory", FailureCause.OOM),
)
DISTRIBUTED_PHRASES = (
    ("timed out", FailureCause.HANG),
    ("timeout", FailureCause.HANG),
    ("connection closed by peer", FailureCause.INFRASTRUCTURE),
    ("connection reset", FailureCause.INFRASTRUCTURE),
    ("connection refused", FailureCause.INFRASTRUCTURE),
    ("unhandled system error", FailureCause.UNKNOWN),  # the text rules know whether steps came before it
    ("remote process exited", FailureCause.INFRASTRUCTURE),
)
DISTRIBUTED_SIGNS = ("gloo", "nccl", "tcpstore", "smddp", "torch.distributed", "connection closed by peer")
# Each alternative is a whole class name; torch's own (DistBackendError, ...) by name, as torch is not imported here.
HARDWARE_ERRORS = re.compile(r"(?:[\w.]+\.)?HardwareError")
DATA_ERRORS = re.compile(r"(?:rerail_agent\.)?failure\.DataError|(?:builtins\.)?UnicodeDecodeError")
MEMORY_ERRORS = re.compile(r"(?:[\w.]+\.)?(?:MemoryError|OutOfMemoryError)")
DISTRIBUTED_ERRORS = re.compile(r"(?:[\w.:]+[.:])?Dist\w*Error")
CONNECTION_ERRORS = re.compile(r"(?:builtins\.)?(?:RuntimeError|Connection\w*Error|BrokenPipeError)")


def find_cause(error: BaseException) -> FailureCause:
    """Return the cause of an exception; an error in the script if no other cause matches."""
    chain = _chain(error)
    classes = [cls for link in chain for cls in type(link).__mro__]
    text = " ".join(f"{type(link).__name__}: {link}" for link in chain)
    return find_cause_in_text(text, [f"{cls.__module__}.{cls.__name__}" for cls in classes]) or FailureCause.USER_CODE


def find_cause_in_text(text: str, exceptions: Collection[str]) -> FailureCause | None:
    """Return the cause that an error's text names, if any; `exceptions` are the names of its classes."""
    text = text.lower()
    if _has(HARDWARE_ERRORS, exceptions):
        return FailureCause.HARDWARE
    if _has(DATA_ERRORS, exceptions):
        return FailureCause.DATA
    if _has(MEMORY_ERRORS, exceptions):
        return FailureCause.OOM
    named = next((cause for phrase, cause in PHRASES if phrase in text), None)
    return named or _distributed_cause(text, exceptions)


def _distributed_cause(text: str, exceptions: Collection[str]) -> FailureCause | None:
    own = _has(DISTRIBUTED_ERRORS, exceptions)
    plain = _has(CONNECTION_ERRORS, exceptions) and any(sign in text for sign in DISTRIBUTED_SIGNS)
    if not own and not plain:
        return None
    matches = (cause for phrase, cause in DISTRIBUTED_PHRASES if phrase in text)
    return next(matches, FailureCause.INFRASTRUCTURE if own else None)


def _has(kind: re.Pattern[str], exceptions: Collection[str]) -> bool:
    return any(kind.fullmatch(name) for name in exceptions)


def _chain(error: BaseException) -> list[BaseException]:
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in chain:
        chain.append(link)
        link = link.__cause__
    return chain


def describe(error: BaseException, position: Position, *, exit_code: int = 1, gpu: str = "") -> str:
    """Return the failure file's text: valid JSON of at most 1024 characters for any error."""
    return FailureReport(
        cause=find_cause(error),
        error=f"{type(error).__name__}: {error}",
        step=position.step,
        rank=position.rank,
        exit_code=exit_code,
        last_lines="".join(traceback.format_exception(type(error), error, error.__traceback__)).splitlines(),
        gpu=gpu,
    ).text()


@dataclass(frozen=True)
class FailureReport:
    """The content of the failure file; step and rank are None where they are not known."""

    cause: FailureCause
    error: str
    step: int | None
    rank: int | None
    exit_code: int
    last_lines: Sequence[str]
    # The GPU of the rank that failed, where the error concerns one.
    gpu: str = ""

    def text(self) -> str:
        """Return valid JSON of at most 1024 characters: drop the oldest lines first, then shorten the error's text."""
        error, lines = self.error, [line for line in self.last_lines if line.strip()][-LAST_LINES:]
        while len(text := self._json(error, lines)) > LIMIT:
            if lines:
                lines = lines[1:]
            else:
                error = error[: len(error) * 3 // 4]
        return text

    def _json(self, error: str, lines: list[str]) -> str:
        return json.dumps(
            {
                "rerail": 1,
                "cause": self.cause.value,
                **({"gpu": self.gpu} if self.gpu else {}),
                "error": error,
                "step": self.step,
                "rank": self.rank,
                "exit_code": self.exit_code,
                "last_lines": lines,
            }
        )


def write(path: Path, text: str) -> bool:
    """Write the file unless another rank or the script has written it: the first failure is the most informative."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except FileExistsError:
        return False
    with os.fdopen(handle, "w") as file:
        file.write(text)
    return True


@contextmanager
def record_failure(path: Path, *, rank: int) -> Iterator[Position]:
    """Write every exception to the failure file, then raise it again; SystemExit is not a failure."""
    position = Position(rank=rank)
    try:
        yield position
    except Exception as error:
        gpu = gpus.describe_own_gpu(f"{type(error).__name__}: {error}", os.environ)
        write(path, describe(error, position, gpu=gpu))
        raise
