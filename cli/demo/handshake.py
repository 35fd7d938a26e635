"""Summarize each request for an emergency checkpoint from a run's timeline: sent, acknowledged, committed, stopped."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rerail.model.mailbox import CommandKind, ReportKind
from rerail.model.run import TimelineEntry

STEP = re.compile(r"emergency checkpoint of step (\d+)")


def find_handshakes(timeline: Sequence[TimelineEntry]) -> Iterator[dict[str, Any]]:
    """Yield a summary of each request, oldest first; seconds count from the request, None if it did not happen."""
    for number, asked in enumerate(timeline):
        for command in _find_checkpoint_commands(asked):
            yield _summarize(asked, command, timeline[number + 1 :])


def _find_checkpoint_commands(entry: TimelineEntry) -> Iterator[Mapping[str, Any]]:
    for action in entry.actions:
        if action.get("type") == "PostCommand" and action["command"].get("kind") == CommandKind.CHECKPOINT:
            yield action["command"]


def _summarize(asked: TimelineEntry, command: Mapping[str, Any], later: Sequence[TimelineEntry]) -> dict[str, Any]:
    answers = {kind: _first(entry for entry in later if _is_report_of(entry, kind, command)) for kind in ReportKind}
    committed = answers[ReportKind.CHECKPOINT]
    stopped = _first(entry for entry in later if any(action.get("type") == "StopJob" for action in entry.actions))
    return {
        "attempt": command["attempt"],
        "asked_at": asked.at.isoformat(),
        "reason": command.get("reason", ""),
        "heard_after_s": _seconds(asked, answers[ReportKind.ACKNOWLEDGED]),
        "committed_after_s": _seconds(asked, committed),
        "step": committed.signal["report"].get("step") if committed else _step_in(stopped),
        "refused": (answers[ReportKind.REFUSED] or asked).signal.get("report", {}).get("reason", ""),
        "stop_called_after_s": _seconds(asked, stopped),
        "stopped_because": stopped.reason if stopped else "",
    }


def _step_in(stopped: TimelineEntry | None) -> int | None:
    """Of a checkpoint that was seen in S3 before anybody reported it."""
    match = STEP.search(stopped.reason) if stopped else None
    return int(match[1]) if match else None


def _is_report_of(entry: TimelineEntry, kind: ReportKind, command: Mapping[str, Any]) -> bool:
    report = entry.signal.get("report", {})
    return (report.get("kind"), report.get("command")) == (kind, command["id"])


def _first(entries: Iterator[TimelineEntry]) -> TimelineEntry | None:
    return next(entries, None)


def _seconds(asked: TimelineEntry, then: TimelineEntry | None) -> float | None:
    return None if then is None else round((then.at - asked.at).total_seconds(), 3)
