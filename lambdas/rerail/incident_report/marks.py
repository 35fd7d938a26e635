"""What a curve is marked with: where trouble began, was found, what was saved, and where the run went on."""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from rerail.incident_report.facts import Facts
from rerail.model.finding import Kind
from rerail.model.run import Attempt, Incident, InPlaceRestart, Run, RunState

# Of so many incidents, the newest: more can not be told apart in one picture.
INCIDENTS, WARNINGS = 4, 3

# In the words with which an incident is closed when its run is held.
HELD = "was held"


class MarkKind(StrEnum):
    """What a mark stands for; the value is its label."""

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
    """One moment of the run: at which step and when, as far as each is known; `says` is a sentence about it."""

    sort: MarkKind
    says: str
    step: int | None = None
    at: datetime | None = None


def list_marks(known: Facts) -> tuple[CurveMark, ...]:
    """Those of the newest incidents, in the order in which things happened."""
    run = known.run
    found = [mark for incident in run.incidents[-INCIDENTS:] for mark in _of(known, incident)]
    found += _planned(known, run)
    found += list(_warnings(known))[-WARNINGS:]
    # One whose time is not known happened before the next one of its incident.
    at, dated = known.at, list[tuple[datetime, int, CurveMark]]()
    for mark in reversed(list(dict.fromkeys(found))):
        at = mark.at or at
        dated.append((at, list(MarkKind).index(mark.sort), mark))
    return tuple(mark for _, _, mark in sorted(dated, key=lambda each: each[:2]))


def _of(known: Facts, incident: Incident) -> Iterator[CurveMark]:
    run, number = known.run, incident.attempt
    attempt = run.attempts[number - 1]
    if incident.onset_step is not None:
        began = find_time_of_step(known, number, incident.onset_step)
        yield CurveMark(
            MarkKind.ONSET, f"here the trouble began ({format_kind(incident.kind)})", incident.onset_step, began
        )
    step = incident.step if incident.step is not None else find_step_at(known, number, incident.decided_at)
    sort = MarkKind.FAILED if incident.kind == "job_failed" else MarkKind.FINDING
    says = f"{format_kind(incident.kind)}: {incident.evidence or incident.cause}"
    yield CurveMark(sort, says, step, incident.happened_at if sort is MarkKind.FAILED else incident.decided_at)
    later = run.incidents[incident.number].attempt if incident.number < len(run.incidents) else len(run.attempts)
    for following in run.attempts[number : max(later, number + 1)]:
        yield from _relaunched(known, run.attempts[following.number - 2], following)
    yield from (mark for order in attempt.orders for mark in _in_place(order, incident))
    if incident.closed_at and HELD in incident.resolution:
        yield CurveMark(MarkKind.HELD, "nothing more was tried: a human was asked", step, incident.closed_at)


def _warnings(known: Facts) -> Iterator[CurveMark]:
    """What the detectors said of a run that went on, and that came to no incident."""
    early = known.policy.metrics.period  # a row may be stamped after it was judged
    troubles = [(find_onset_time(known, each) - early, each.closed_at or known.at) for each in known.run.incidents]
    for entry in known.timeline:
        warned = entry.finding in set(Kind) and entry.before is entry.after is RunState.WATCHING
        if not warned or any(start <= entry.at <= end for start, end in troubles):
            continue
        number = max((a.number for a in known.run.attempts if a.created_at and a.created_at <= entry.at), default=1)
        yield CurveMark(MarkKind.WARNED, entry.reason, find_step_at(known, number, entry.at), entry.at)


def find_onset_time(known: Facts, incident: Incident) -> datetime:
    """The time of the onset, where the curve tells, or else what the record says."""
    onset = find_time_of_step(known, incident.attempt, incident.onset_step) if incident.onset_step is not None else None
    return min(onset or incident.happened_at, incident.happened_at)


def _planned(known: Facts, run: Run) -> Iterator[CurveMark]:
    """Relaunches without an incident: an operator asked for them, or the job's time was up."""
    if run.incidents:
        return
    for before, following in zip(run.attempts, run.attempts[1:], strict=False):
        yield from _relaunched(known, before, following)


def _relaunched(known: Facts, before: Attempt, following: Attempt) -> Iterator[CurveMark]:
    if before.ended_at and _was_asked_to_stop(known, before):
        step = before.last_step if before.last_step is not None else find_step_at(known, before.number, before.ended_at)
        yield CurveMark(MarkKind.STOP, f"attempt {before.number} stopped as asked", step, before.ended_at)
    if following.created_at is None:
        return
    start = following.resumed_from_step
    saved = next((c for c in known.checkpoints if c.step == start and start is not None), None)
    if start is not None:
        reason = f" ({saved.reason})" if saved and saved.reason else ""
        says = f"checkpoint of step {start}{reason}, which was resumed from"
        yield CurveMark(MarkKind.SAVED, says, start, saved.saved_at if saved else _reached(known, before, start))
    begins = "from the start" if start is None else f"from step {start}"
    rung = f", rung {following.rung}" if following.rung else ""
    yield CurveMark(MarkKind.RELAUNCH, f"attempt {following.number} {begins}{rung}", start or 0, following.created_at)
    if following.skip_samples and following.skip_samples != before.skip_samples:
        says = f"attempt {following.number} passes over the samples {following.skip_samples}"
        yield CurveMark(
            MarkKind.SKIPPED, says, before.onset_step if before.onset_step is not None else start, following.created_at
        )


def _in_place(order: InPlaceRestart, incident: Incident) -> Iterator[CurveMark]:
    if order.restarted_at and order.asked_at >= incident.happened_at:
        start = "the newest save" if order.resume_step is None else f"step {order.resume_step}"
        says = f"the training processes began again from {start}, in the same job"
        yield CurveMark(MarkKind.RESTART, says, order.resume_step, order.restarted_at)


def _was_asked_to_stop(known: Facts, attempt: Attempt) -> bool:
    named = (
        action.get("job_name")
        for entry in known.timeline
        for action in entry.actions
        if action.get("type") == "StopJob"
    )
    return attempt.job_name in named


def find_time_of_step(known: Facts, attempt: int, step: int) -> datetime | None:
    """When the attempt came to that step, as far as its rows tell."""
    return next((r.at for r in known.series.get(attempt, ()) if r.step is not None and r.step >= step), None)


def _reached(known: Facts, before: Attempt, step: int) -> datetime | None:
    """When the run first came to that step, in this attempt or one before it."""
    times = (find_time_of_step(known, number, step) for number in range(1, before.number + 1))
    return next((at for at in times if at), None)


def find_step_at(known: Facts, attempt: int, at: datetime) -> int | None:
    """Which step the attempt had come to by then, as far as its rows tell."""
    rows = [row for row in known.series.get(attempt, ()) if row.at is not None and row.step is not None]
    index = bisect_right([row.at for row in rows if row.at], at)
    return rows[index - 1].step if index else None


def format_kind(kind: str) -> str:
    """A finding's kind as people say it."""
    return kind.replace("_", " ")
