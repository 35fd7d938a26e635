"""List the events to mark on a curve: onsets, findings, failures, checkpoints, stops and relaunches."""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from rerail.decisions.decision import HELD_RESOLUTION, format_start
from rerail.decisions.start_check import format_ordered
from rerail.incident_report.curves import find_first_step
from rerail.incident_report.facts import Facts
from rerail.model.finding import Kind
from rerail.model.run import Attempt, Incident, InPlaceRestart, Run, RunState

# Limits, for the newest: more marks cannot be distinguished in one chart.
INCIDENT_LIMIT, WARNING_LIMIT = 4, 3


class MarkKind(StrEnum):
    """The event that a mark shows; the value is its label."""

    WARNED = "warned"
    ONSET = "onset"
    FINDING = "found"
    FAILED = "failed"
    SAVED = "saved"
    STOP = "stopped"
    RELAUNCH = "relaunched"
    RESTART = "restarted in place"
    SKIPPED = "data skipped"
    HELD = "held"


@dataclass(frozen=True, slots=True)
class CurveMark:
    """One event of the run, to be marked on its curves."""

    kind: MarkKind
    text: str  # one sentence of description
    step: int | None = None  # None if not known
    at: datetime | None = None  # None if not known


def list_marks(known: Facts) -> tuple[CurveMark, ...]:
    """Return the marks of the newest incidents and warnings, in order of time."""
    run = known.run
    marks = [mark for incident in run.incidents[-INCIDENT_LIMIT:] for mark in _list_incident_marks(known, incident)]
    marks += _list_planned_relaunches(known, run)
    marks += list(_list_warnings(known))[-WARNING_LIMIT:]
    # A mark without a time is placed at the time of the next mark of its incident.
    at, dated = known.at, list[tuple[datetime, int, CurveMark]]()
    for mark in reversed(list(dict.fromkeys(marks))):
        at = mark.at or at
        dated.append((at, list(MarkKind).index(mark.kind), mark))
    return tuple(mark for _, _, mark in sorted(dated, key=lambda entry: entry[:2]))


def _list_incident_marks(known: Facts, incident: Incident) -> Iterator[CurveMark]:
    run, number = known.run, incident.attempt
    attempt = run.attempts[number - 1]
    if incident.onset_step is not None:
        onset = find_time_of_step(known, number, incident.onset_step)
        yield CurveMark(MarkKind.ONSET, f"onset of {format_kind(incident.kind)}", incident.onset_step, onset)
    step = incident.step if incident.step is not None else find_step_at(known, number, incident.decided_at)
    sort = MarkKind.FAILED if incident.kind == "job_failed" else MarkKind.FINDING
    text = f"{format_kind(incident.kind)}: {incident.evidence or incident.cause}"
    yield CurveMark(sort, text, step, incident.happened_at if sort is MarkKind.FAILED else incident.decided_at)
    later = run.incidents[incident.number].attempt if incident.number < len(run.incidents) else len(run.attempts)
    for following in run.attempts[number : max(later, number + 1)]:
        yield from _list_relaunch_marks(known, run.attempts[following.number - 2], following)
    yield from (mark for order in attempt.in_place_restarts for mark in _list_restart_marks(order, incident))
    if incident.closed_at and HELD_RESOLUTION in incident.resolution:
        yield CurveMark(MarkKind.HELD, "the run was held for an operator", step, incident.closed_at)


def _list_warnings(known: Facts) -> Iterator[CurveMark]:
    """Yield the findings that led to no action and belong to no incident."""
    margin = known.policy.metrics.period  # a row may be timestamped after it was evaluated
    incidents = [
        (find_onset_time(known, incident) - margin, incident.closed_at or known.at) for incident in known.run.incidents
    ]
    for entry in known.timeline:
        warned = entry.finding in set(Kind) and entry.before is entry.after is RunState.WATCHING
        if not warned or any(start <= entry.at <= end for start, end in incidents):
            continue
        number = max((a.number for a in known.run.attempts if a.created_at and a.created_at <= entry.at), default=1)
        yield CurveMark(MarkKind.WARNED, entry.reason, find_step_at(known, number, entry.at), entry.at)


def find_onset_time(known: Facts, incident: Incident) -> datetime:
    """Return when the incident began, according to the curve, or the recorded time if that is earlier."""
    onset = find_time_of_step(known, incident.attempt, incident.onset_step) if incident.onset_step is not None else None
    return min(onset or incident.happened_at, incident.happened_at)


def _list_planned_relaunches(known: Facts, run: Run) -> Iterator[CurveMark]:
    """Yield relaunches without an incident: requested by an operator, or after the job's time limit."""
    if run.incidents:
        return
    for before, following in zip(run.attempts, run.attempts[1:], strict=False):
        yield from _list_relaunch_marks(known, before, following)


def _list_relaunch_marks(known: Facts, before: Attempt, following: Attempt) -> Iterator[CurveMark]:
    if before.ended_at and _was_asked_to_stop(known, before):
        step = before.last_step if before.last_step is not None else find_step_at(known, before.number, before.ended_at)
        yield CurveMark(MarkKind.STOP, f"attempt {before.number} stopped as requested", step, before.ended_at)
    if following.created_at is None:
        return
    start = following.resumed_from_step
    checkpoint = next((c for c in known.checkpoints if c.step == start and start is not None), None)
    if start is not None:
        reason = f" ({checkpoint.reason})" if checkpoint and checkpoint.reason else ""
        text = f"checkpoint of step {start}{reason}, from which the run resumed"
        saved_at = checkpoint.saved_at if checkpoint else _find_first_time_of_step(known, before, start)
        yield CurveMark(MarkKind.SAVED, text, start, saved_at)
    began = known.run.find_start(following)
    begins = format_start(known.run, start if began is None else began) + format_ordered(following)
    rung = f", rung {following.rung}" if following.rung else ""
    yield CurveMark(
        MarkKind.RELAUNCH,
        f"attempt {following.number} {begins}{rung}",
        find_first_step(known, following) or 0,
        following.created_at,
    )
    if following.skip_samples and following.skip_samples != before.skip_samples:
        text = f"attempt {following.number} skips the samples {following.skip_samples}"
        yield CurveMark(
            MarkKind.SKIPPED, text, before.onset_step if before.onset_step is not None else start, following.created_at
        )


def _list_restart_marks(order: InPlaceRestart, incident: Incident) -> Iterator[CurveMark]:
    if order.restarted_at and order.asked_at >= incident.happened_at:
        start = "the newest checkpoint" if order.began_step is None else f"step {order.began_step}"
        text = f"the training processes restarted from {start}{format_ordered(order)}, in the same job"
        yield CurveMark(MarkKind.RESTART, text, order.began_step, order.restarted_at)


def _was_asked_to_stop(known: Facts, attempt: Attempt) -> bool:
    stopped_jobs = (
        action.get("job_name")
        for entry in known.timeline
        for action in entry.actions
        if action.get("type") == "StopJob"
    )
    return attempt.job_name in stopped_jobs


def find_time_of_step(known: Facts, attempt: int, step: int) -> datetime | None:
    """Return when the attempt reached the step, or None if its rows do not show that."""
    return next((r.at for r in known.series.get(attempt, ()) if r.step is not None and r.step >= step), None)


def _find_first_time_of_step(known: Facts, last: Attempt, step: int) -> datetime | None:
    """Return when the run first reached the step, in the attempts up to `last`; None if that is not known."""
    times = (find_time_of_step(known, number, step) for number in range(1, last.number + 1))
    return next((at for at in times if at), None)


def find_step_at(known: Facts, attempt: int, at: datetime) -> int | None:
    """Return the step that the attempt had reached at that time, or None if its rows do not show that."""
    rows = [row for row in known.series.get(attempt, ()) if row.at is not None and row.step is not None]
    index = bisect_right([row.at for row in rows if row.at], at)
    return rows[index - 1].step if index else None


def format_kind(kind: str) -> str:
    """Return a finding's kind with spaces for underscores."""
    return kind.replace("_", " ")
