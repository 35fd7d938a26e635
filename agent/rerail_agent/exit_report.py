"""Answers why a job failed that did not say so itself: from the deaths of its ranks and its last lines on stderr."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rerail_agent.failure import FailureCause, FailureReport, find_cause_in_text
from rerail_agent.stderr_relay import StderrLine

SLACK_S = 0.5  # between a death and the moment its last line has come through the pipe
TRACEBACK_S = 600.0  # Python prints it, and then waits for its threads
WORDS_S = 60.0  # what was printed longer before a death has nothing to do with it

BY_SIGNAL: dict[int, FailureCause] = {
    signal.SIGBUS: FailureCause.OOM,  # a full /dev/shm
    signal.SIGILL: FailureCause.USER_CODE,
    signal.SIGFPE: FailureCause.USER_CODE,
    signal.SIGSEGV: FailureCause.USER_CODE,
    signal.SIGTERM: FailureCause.INFRASTRUCTURE,  # not sent by SageMaker
}
BY_EXIT_CODE = dict.fromkeys((1, 2, 126, 127), FailureCause.USER_CODE)

# What comes before a line: Open MPI's tag, AWS's form of it, torchrun's --tee, torch's own exceptions.
TAG = re.compile(r"\[\d+,(?:mpirank:)?(\d{1,9})(?:,[^\]]*)?\]<std\w+>:\s?|\[(?:default|rank)(\d{1,9})\]:\s?")
BEGIN = "Traceback (most recent call last):"
BECAUSE = "The above exception was the direct cause of the following exception:"
EXCEPTION = re.compile(r"([A-Za-z_][\w.]*)(?::\s|$)")
# Exceptions of launchers and drivers, which say that a rank has failed, and nothing about it.
OF_LAUNCHERS = re.compile(r"(?:.*\.)?(?:ChildFailedError|SignalException|CalledProcessError|ExecuteUserScriptError)")
CHATTER = re.compile(
    r"rerail init: |[EW]\d{4} [\d:.]+ .*torch/distributed/|Sending process \d+ closing signal|^[-=]{10,}$|^\s*\^+\s*$"
)
# Words of programs that die without a traceback.
TELLING = re.compile(
    r"terminate called|what\(\):|Fatal Python error|[Ww]atchdog caught|CUDA error|NCCL (?:WARN|ERROR)|out of memory"
    r"|[Ss]egmentation fault|Bus error|\b[Kk]illed\b|core dumped|^\w*(?:Error|Exception)\b|\[E\d{3}|\bERROR\b|FATAL"
    r"|[Ee]rror: |not found$|^[^\s:]+: (?:No such file or directory|[Pp]ermission denied)$"
)
THROWN = re.compile(r"after throwing an instance of '([\w:]+)'")
FIRST_OF_MPIRUN = (
    re.compile(r"process rank (?P<rank>\d{1,9}) with PID \d+ on node \S+ exited on signal (?P<signal>\d{1,9})\b"),
    re.compile(r"Process name: \[\[\d+,\d+\],\s*(?P<rank>\d{1,9})\]\s+Exit code:\s+(?P<code>\d{1,9})\b"),
)
FIRST_OF_TORCHRUN = re.compile(
    r"Root Cause \(first observed failure\):.*?\brank\s*: (?P<rank>\d{1,9})\b.*?\bexitcode\s*: (?P<code>-?\d{1,9})\b"
)


@dataclass(frozen=True)
class ProcessExit:
    """How and when a process ended: an exit code, a signal's negative number, or None where its parent was quicker.

    `testimony` is torch's error file, if the process left one.
    """

    rank: int | None
    status: int | None
    at: float
    testimony: str = ""

    @property
    def exit_code(self) -> int:
        """As a shell has it."""
        status = 1 if self.status is None else self.status
        return 128 - status if status < 0 else status

    @property
    def spoken(self) -> str:
        who = "the command" if self.rank is None else f"rank {self.rank}"
        if self.status is not None and self.status < 0:
            return f"{who} was killed by {format_signal(-self.status)}"
        return f"{who} ended with exit code {self.exit_code}"


@dataclass(frozen=True)
class PrintedError:
    """An error as it was printed: its text in one line, the classes of its exceptions, and all of its lines."""

    error: str
    exceptions: tuple[str, ...]
    lines: tuple[str, ...]
    rank: int | None = None
    at: float = 0.0

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


def make_report(
    command: ProcessExit, ranks: Sequence[ProcessExit], lines: Sequence[StderrLine], *, oom_killed: bool
) -> FailureReport:
    """The failure file of a job: `command` is what init has started, and `ranks` are those that it saw dying."""
    told = [(line.at, *strip_labels(line.text)) for line in lines]
    first = find_first_failure(ranks, " ".join(text for _, _, text in told)) or replace(command, rank=_only_rank(ranks))
    words = read_error_of_rank(first) or find_printed_error(told, first)
    tail = [text for at, _, text in told if at <= first.at + SLACK_S and not CHATTER.search(text)]
    return FailureReport(
        cause=find_cause(first, words, oom_killed=oom_killed),
        error=_error(first, words),
        step=None,
        rank=first.rank,
        exit_code=first.exit_code,
        last_lines=words.lines if words else tail,
    )


def _error(first: ProcessExit, words: PrintedError | None) -> str:
    if words is None:
        return first.spoken
    signalled = first.status is not None and first.status < 0
    return f"{first.spoken}: {words.error}" if signalled or not words.exceptions else words.error


def _only_rank(ranks: Sequence[ProcessExit]) -> int | None:
    numbers = {death.rank for death in ranks}
    return numbers.pop() if len(numbers) == 1 else None


def find_first_failure(ranks: Sequence[ProcessExit], text: str) -> ProcessExit | None:
    """Who failed first: the others' errors are consequences. By torch's error files, by what init saw, by launchers."""
    testified = [death for death in ranks if death.testimony]
    if testified:
        return min(testified, key=lambda death: (_timestamp(death.testimony), death.at))
    failed = sorted((death for death in ranks if death.status not in (0, None)), key=lambda death: death.at)
    by_itself = [death for death in failed if death.status not in (-signal.SIGTERM, 128 + signal.SIGTERM)]
    return next(iter(by_itself), None) or _named_by_launcher(ranks, text) or next(iter(failed), None)


def _named_by_launcher(ranks: Sequence[ProcessExit], text: str) -> ProcessExit | None:
    for pattern in (*FIRST_OF_MPIRUN, FIRST_OF_TORCHRUN):
        found = pattern.search(text)
        if found:
            table = found.groupdict()
            status = -int(table["signal"]) if "signal" in table else int(table["code"])
            seen = (death.at for death in ranks if death.rank == int(table["rank"]))
            at = next(seen, min((death.at for death in ranks), default=float("inf")))
            return ProcessExit(int(table["rank"]), status, at)
    return None


def find_cause(first: ProcessExit, words: PrintedError | None, *, oom_killed: bool) -> FailureCause:
    """The words speak first, then the way of dying; `oom_killed` is whether the kernel has killed anybody meanwhile."""
    killed = first.status == -signal.SIGKILL or (words is not None and "killed" in words.text.lower())
    spoken = find_cause_in_text(words.text, words.exceptions) if words else None
    if spoken is None and oom_killed and killed:
        return FailureCause.OOM
    if spoken is not None or first.status is None:
        return spoken or FailureCause.UNKNOWN
    if first.status < 0:
        return BY_SIGNAL.get(-first.status, FailureCause.UNKNOWN)
    if words and words.exceptions:
        return FailureCause.USER_CODE
    return BY_EXIT_CODE.get(first.status, FailureCause.UNKNOWN)


def format_signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def read_error_of_rank(death: ProcessExit) -> PrintedError | None:
    """What torch's `@record` has written for the rank."""
    message = _message(death.testimony)
    text = str(message.get("message") or "")
    if not text:
        return None
    extra = message.get("extraInfo")
    stack = str(extra.get("py_callstack") or "") if isinstance(extra, dict) else ""
    name = EXCEPTION.match(text)
    return PrintedError(text, (name[1],) if name else (), tuple(stack.splitlines() or [text]), death.rank, death.at)


def _message(text: str) -> dict[str, Any]:
    try:
        table = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    message = table.get("message") if isinstance(table, dict) else None
    return message if isinstance(message, dict) else {"message": message}


def _timestamp(text: str) -> float:
    extra = _message(text).get("extraInfo")
    try:
        return float(extra["timestamp"]) if isinstance(extra, dict) else float("inf")
    except (KeyError, TypeError, ValueError, OverflowError):
        return float("inf")


def find_printed_error(told: Sequence[tuple[float, int | None, str]], first: ProcessExit) -> PrintedError | None:
    """The error that the first one to fail has printed on stderr: its traceback, or other telling words."""
    back_s = TRACEBACK_S if first.status in (1, None) else WORDS_S
    mine = [
        words for words in find_tracebacks(told) if words.at >= first.at - back_s and words.rank in (None, first.rank)
    ]
    in_time = [words for words in mine if words.at <= first.at + SLACK_S]
    labelled = [words for words in in_time if words.rank is not None]
    # The last before the death: earlier ones were caught, later ones are the other ranks'.
    chosen = next(iter(labelled[-1:] or in_time[-1:] or mine[:1]), None)
    return chosen or _telling(told, first)


def _telling(told: Sequence[tuple[float, int | None, str]], first: ProcessExit) -> PrintedError | None:
    """Of the words shortly before a death, the first that is an error: what follows it is what it led to."""
    span = (first.at - WORDS_S, first.at + SLACK_S)
    lines = [
        text
        for at, rank, text in told
        if span[0] <= at <= span[1] and rank in (None, first.rank) and TELLING.search(text) and not CHATTER.search(text)
    ]
    if not lines:
        return None
    thrown = THROWN.findall("\n".join(lines))
    names = tuple(name.replace("::", ".") for name in thrown)
    words = PrintedError(lines[0], names, tuple(lines), first.rank, first.at)
    # C++ has no RuntimeError, but a collective that breaks down there speaks of NCCL or gloo all the same.
    by_words = find_cause_in_text(words.text, (*names, "RuntimeError"))
    return replace(words, exceptions=(*names, "RuntimeError")) if by_words else words


def find_tracebacks(told: Iterable[tuple[float, int | None, str]]) -> list[PrintedError]:
    """Python's tracebacks, oldest first, those of one rank apart from those of another where lines are labelled."""
    found: list[PrintedError] = []
    open_: dict[int | None, list[str]] = {}
    because: dict[int | None, list[str]] = {}
    causes: dict[int | None, PrintedError] = {}
    for at, rank, text in told:
        if text == BEGIN:
            open_[rank] = [*because.pop(rank, []), text]
        elif text == BECAUSE and rank in causes:
            because[rank] = [*causes[rank].lines, text]
        elif rank in open_:
            open_[rank].append(text)
            if not text.startswith((" ", "\t")) and text:
                words = _traceback(open_.pop(rank), rank, at)
                if words:
                    causes[rank] = words
                    found.append(words)
    return found


def _traceback(lines: list[str], rank: int | None, at: float) -> PrintedError | None:
    said = [line for line in lines if line not in (BEGIN, BECAUSE)]
    names = [name[1] for line in said if (name := EXCEPTION.match(line))]
    if not names or OF_LAUNCHERS.fullmatch(names[-1]):
        return None
    return PrintedError(lines[-1], tuple(names), tuple(lines), rank, at)


def strip_labels(text: str) -> tuple[int | None, str]:
    """A line without its labels, and the rank that they name."""
    rank = None
    while found := TAG.match(text):
        rank = int(found[1] or found[2])
        text = text[found.end() :]
    return rank, text


def read_error_file(path: str) -> str:
    """torch's error file; empty where there is none."""
    try:
        return Path(path).read_text(errors="replace")[:100_000] if path else ""
    except OSError:
        return ""
