"""Find out why a job failed that wrote no failure file, from its ranks' exits and its last lines on stderr."""

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

# Between an exit and the moment its last line has come through the pipe.
SLACK_S = 0.5
# Python prints it, and then waits for its threads.
TRACEBACK_S = 600.0
# Lines printed longer before an exit are unrelated to it.
OUTPUT_WINDOW_S = 60.0

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
# Exceptions of launchers and drivers, which say only that some rank has failed.
LAUNCHER_EXCEPTIONS = re.compile(
    r"(?:.*\.)?(?:ChildFailedError|SignalException|CalledProcessError|ExecuteUserScriptError)"
)
LAUNCHER_OUTPUT = re.compile(
    r"rerail init: |[EW]\d{4} [\d:.]+ .*torch/distributed/|Sending process \d+ closing signal|^[-=]{10,}$|^\s*\^+\s*$"
)
# Messages of programs that end without a traceback.
ERROR_OUTPUT = re.compile(
    r"terminate called|what\(\):|Fatal Python error|[Ww]atchdog caught|CUDA error|NCCL (?:WARN|ERROR)|out of memory"
    r"|[Ss]egmentation fault|Bus error|\b[Kk]illed\b|core dumped|^\w*(?:Error|Exception)\b|\[E\d{3}|\bERROR\b|FATAL"
    r"|[Ee]rror: |not found$|^[^\s:]+: (?:No such file or directory|[Pp]ermission denied)$"
)
THROWN = re.compile(r"after throwing an instance of '([\w:]+)'")
MPIRUN_FIRST_FAILURE = (
    re.compile(r"process rank (?P<rank>\d{1,9}) with PID \d+ on node \S+ exited on signal (?P<signal>\d{1,9})\b"),
    re.compile(r"Process name: \[\[\d+,\d+\],\s*(?P<rank>\d{1,9})\]\s+Exit code:\s+(?P<code>\d{1,9})\b"),
)
TORCHRUN_TITLE, TORCHRUN_CHARACTERS = "Root Cause (first observed failure):", 2_000
TORCHRUN_FIRST_FAILURE = re.compile(r"\brank\s*: (?P<rank>\d{1,9})\b.*?\bexitcode\s*: (?P<code>-?\d{1,9})\b")


@dataclass(frozen=True)
class ProcessExit:
    """The exit status of a process, and when it ended."""

    rank: int | None
    # An exit code, a signal's negative number, or None where its parent read it first.
    status: int | None
    at: float
    # The content of torch's error file, if the process left one.
    error_text: str = ""
    # The variables of its environment about its rank.
    rank_variables: tuple[tuple[str, str], ...] = ()

    @property
    def exit_code(self) -> int:
        """Return the exit code as a shell reports it."""
        status = 1 if self.status is None else self.status
        return 128 - status if status < 0 else status

    @property
    def description(self) -> str:
        """Return how the process ended, for people."""
        who = "the command" if self.rank is None else f"rank {self.rank}"
        if self.status is not None and self.status < 0:
            return f"{who} was killed by {format_signal(-self.status)}"
        return f"{who} ended with exit code {self.exit_code}"


@dataclass(frozen=True)
class PrintedError:
    """An error as it was printed."""

    # Its text in one line.
    error: str
    # The class names of its exceptions.
    exceptions: tuple[str, ...]
    # All of its lines.
    lines: tuple[str, ...]
    rank: int | None = None
    at: float = 0.0

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


def make_report(
    command: ProcessExit, ranks: Sequence[ProcessExit], lines: Sequence[StderrLine], *, oom_killed: bool
) -> FailureReport:
    """Make the failure report of a job; `command` is the process that init started, `ranks` those that it watched."""
    parsed_lines = [(line.at, *strip_labels(line.text)) for line in lines]
    first = find_first_failure(ranks, " ".join(text for _, _, text in parsed_lines)) or replace(
        command, rank=_find_only_rank(ranks)
    )
    printed = read_error_of_rank(first) or find_printed_error(parsed_lines, first)
    tail = [text for at, _, text in parsed_lines if at <= first.at + SLACK_S and not LAUNCHER_OUTPUT.search(text)]
    return FailureReport(
        cause=find_cause(first, printed, oom_killed=oom_killed),
        error=_format_error(first, printed),
        step=None,
        rank=first.rank,
        exit_code=first.exit_code,
        last_lines=printed.lines if printed else tail,
    )


def _format_error(first: ProcessExit, printed: PrintedError | None) -> str:
    if printed is None:
        return first.description
    signalled = first.status is not None and first.status < 0
    return f"{first.description}: {printed.error}" if signalled or not printed.exceptions else printed.error


def _find_only_rank(ranks: Sequence[ProcessExit]) -> int | None:
    numbers = {process_exit.rank for process_exit in ranks}
    return numbers.pop() if len(numbers) == 1 else None


def find_first_failure(ranks: Sequence[ProcessExit], text: str) -> ProcessExit | None:
    """Return the exit of the rank that failed first; the other ranks' errors are consequences.

    The evidence is torch's error files, then what init saw, then what launchers print.
    """
    with_error_file = [process_exit for process_exit in ranks if process_exit.error_text]
    if with_error_file:
        return min(
            with_error_file, key=lambda process_exit: (_read_timestamp(process_exit.error_text), process_exit.at)
        )
    failed = sorted(
        (process_exit for process_exit in ranks if process_exit.status not in (0, None)),
        key=lambda process_exit: process_exit.at,
    )
    by_itself = [
        process_exit for process_exit in failed if process_exit.status not in (-signal.SIGTERM, 128 + signal.SIGTERM)
    ]
    return next(iter(by_itself), None) or _find_first_named_by_launcher(ranks, text) or next(iter(failed), None)


def _find_first_named_by_launcher(ranks: Sequence[ProcessExit], text: str) -> ProcessExit | None:
    # The time of this pattern grows with the square of its text.
    torchrun = TORCHRUN_FIRST_FAILURE.search(text.partition(TORCHRUN_TITLE)[2][:TORCHRUN_CHARACTERS])
    for found in (*(pattern.search(text) for pattern in MPIRUN_FIRST_FAILURE), torchrun):
        if found:
            table = found.groupdict()
            status = -int(table["signal"]) if "signal" in table else int(table["code"])
            times = (process_exit.at for process_exit in ranks if process_exit.rank == int(table["rank"]))
            at = next(times, min((process_exit.at for process_exit in ranks), default=float("inf")))
            return ProcessExit(int(table["rank"]), status, at)
    return None


def find_cause(first: ProcessExit, printed: PrintedError | None, *, oom_killed: bool) -> FailureCause:
    """Return the cause by the printed error, else by the exit status.

    `oom_killed`: the kernel has killed a process for its memory in the meantime.
    """
    killed = first.status == -signal.SIGKILL or (printed is not None and "killed" in printed.text.lower())
    cause = find_cause_in_text(printed.text, printed.exceptions) if printed else None
    if cause is None and oom_killed and killed:
        return FailureCause.OOM
    if cause is not None or first.status is None:
        return cause or FailureCause.UNKNOWN
    if first.status < 0:
        return BY_SIGNAL.get(-first.status, FailureCause.UNKNOWN)
    if printed and printed.exceptions:
        return FailureCause.USER_CODE
    return BY_EXIT_CODE.get(first.status, FailureCause.UNKNOWN)


def format_signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def read_error_of_rank(process_exit: ProcessExit) -> PrintedError | None:
    """Return the error that torch's `@record` has written for the rank."""
    message = _read_message(process_exit.error_text)
    text = str(message.get("message") or "")
    if not text:
        return None
    extra = message.get("extraInfo")
    stack = str(extra.get("py_callstack") or "") if isinstance(extra, dict) else ""
    name = EXCEPTION.match(text)
    return PrintedError(
        text, (name[1],) if name else (), tuple(stack.splitlines() or [text]), process_exit.rank, process_exit.at
    )


def _read_message(text: str) -> dict[str, Any]:
    try:
        table = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    message = table.get("message") if isinstance(table, dict) else None
    return message if isinstance(message, dict) else {"message": message}


def _read_timestamp(text: str) -> float:
    extra = _read_message(text).get("extraInfo")
    try:
        return float(extra["timestamp"]) if isinstance(extra, dict) else float("inf")
    except (KeyError, TypeError, ValueError, OverflowError):
        return float("inf")


def find_printed_error(
    parsed_lines: Sequence[tuple[float, int | None, str]], first: ProcessExit
) -> PrintedError | None:
    """Return the error that the first failed rank printed on stderr: a traceback, or another message."""
    back_s = TRACEBACK_S if first.status in (1, None) else OUTPUT_WINDOW_S
    mine = [
        printed
        for printed in find_tracebacks(parsed_lines)
        if printed.at >= first.at - back_s and printed.rank in (None, first.rank)
    ]
    in_time = [printed for printed in mine if printed.at <= first.at + SLACK_S]
    labelled = [printed for printed in in_time if printed.rank is not None]
    # The last one before the exit: earlier ones were caught, later ones are the other ranks'.
    chosen = next(iter(labelled[-1:] or in_time[-1:] or mine[:1]), None)
    return chosen or _find_error_output(parsed_lines, first)


def _find_error_output(
    parsed_lines: Sequence[tuple[float, int | None, str]], first: ProcessExit
) -> PrintedError | None:
    """Return the first error message shortly before an exit; the messages after it are consequences."""
    span = (first.at - OUTPUT_WINDOW_S, first.at + SLACK_S)
    lines = [
        text
        for at, rank, text in parsed_lines
        if span[0] <= at <= span[1]
        and rank in (None, first.rank)
        and ERROR_OUTPUT.search(text)
        and not LAUNCHER_OUTPUT.search(text)
    ]
    if not lines:
        return None
    thrown = THROWN.findall("\n".join(lines))
    names = tuple(name.replace("::", ".") for name in thrown)
    printed = PrintedError(lines[0], names, tuple(lines), first.rank, first.at)
    # C++ has no RuntimeError, but the message of a failed collective names NCCL or gloo all the same.
    cause = find_cause_in_text(printed.text, (*names, "RuntimeError"))
    return replace(printed, exceptions=(*names, "RuntimeError")) if cause else printed


def find_tracebacks(parsed_lines: Iterable[tuple[float, int | None, str]]) -> list[PrintedError]:
    """Return Python's tracebacks, oldest first; where lines are labelled, those of each rank apart."""
    found: list[PrintedError] = []
    open_: dict[int | None, list[str]] = {}
    because: dict[int | None, list[str]] = {}
    causes: dict[int | None, PrintedError] = {}
    for at, rank, text in parsed_lines:
        if text == BEGIN:
            open_[rank] = [*because.pop(rank, []), text]
        elif text == BECAUSE and rank in causes:
            because[rank] = [*causes[rank].lines, text]
        elif rank in open_:
            open_[rank].append(text)
            if not text.startswith((" ", "\t")) and text:
                printed = _parse_traceback(open_.pop(rank), rank, at)
                if printed:
                    causes[rank] = printed
                    found.append(printed)
    return found


def _parse_traceback(lines: list[str], rank: int | None, at: float) -> PrintedError | None:
    messages = [line for line in lines if line not in (BEGIN, BECAUSE)]
    names = [name[1] for line in messages if (name := EXCEPTION.match(line))]
    if not names or LAUNCHER_EXCEPTIONS.fullmatch(names[-1]):
        return None
    return PrintedError(lines[-1], tuple(names), tuple(lines), rank, at)


def strip_labels(text: str) -> tuple[int | None, str]:
    """Return the rank that a line's labels name, and the line without its labels."""
    rank = None
    while found := TAG.match(text):
        rank = int(found[1] or found[2])
        text = text[found.end() :]
    return rank, text


def read_error_file(path: str) -> str:
    """Return the content of torch's error file; empty if there is none."""
    try:
        return Path(path).read_text(errors="replace")[:100_000] if path else ""
    except OSError:
        return ""
