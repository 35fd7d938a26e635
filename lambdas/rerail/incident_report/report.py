"""What an incident report says, as data: what a person needs first, then curves, evidence, cost and timeline."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from rerail.incident_report.costs import CostLine, format_length, list_costs, list_time_shares
from rerail.incident_report.curves import (
    EVERYTHING,
    Curve,
    Window,
    began,
    loss,
    loss_by_time,
    progress,
    select_window,
    speed,
)
from rerail.incident_report.facts import Facts, LogLine
from rerail.incident_report.marks import CurveMark, format_kind, list_marks
from rerail.incident_report.recommendations import list_recommendations
from rerail.incident_report.summary import Urgency, make_summary
from rerail.model.run import Attempt, Incident, RunState, TimelineEntry
from rerail.model.runbooks import Runbook

# Of all decisions, the first few and the newest; of all attempts and incidents the newest.
FIRST, NEWEST = 5, 150
ATTEMPTS, INCIDENTS = 60, 8
# A line of a log, and how many are shown of an incident: metric lines are in the curves, a few of them give the place.
LINE, LINES, METRIC_LINES = 400, 60, 5
DECISIONS, STACKS = 12, 3
# With fewer points there is nothing to be seen close by.
FEW_POINTS = 10


class Axis(StrEnum):
    """What lies along a chart's foot."""

    STEP = "step"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Chart:
    """One picture: `name` is for links, `says` for people; `unit` is that of its values, `window` what it shows."""

    name: str
    title: str
    says: str
    curve: Curve
    axis: Axis = Axis.STEP
    unit: str = ""
    logarithmic: bool = False
    window: Window = EVERYTHING


@dataclass(frozen=True, slots=True)
class IncidentSection:
    """One incident with what was known when it was decided, and what the job printed last; `left_out` counts lines.

    `stacks` are where its processes stood, as the agent has written that down."""

    incident: Incident
    decisions: tuple[TimelineEntry, ...] = ()
    failure_reason: str = ""
    stacks: tuple[str, ...] = ()
    lines: tuple[LogLine, ...] = ()
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class ReportSection:
    """Facts that somebody adds to a report: a title, and rows of a name and what there is to say."""

    title: str
    rows: tuple[tuple[str, str], ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class IncidentReport:
    """An incident report. `todo` are sentences in the imperative, `commands` what one would type; `by` is until when.

    `facts` are the run in a few words, `omitted` counts the decisions that the timeline leaves out."""

    run: str
    policy: str
    state: RunState
    at: datetime
    began: datetime
    tone: Urgency
    headline: str
    happened: str
    did: str = ""
    todo: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    by: datetime | None = None
    since: datetime | None = None
    runbook: Runbook | None = None
    facts: tuple[tuple[str, str], ...] = ()
    charts: tuple[Chart, ...] = ()
    marks: tuple[CurveMark, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    older_attempts: int = 0
    cases: tuple[IncidentSection, ...] = ()
    older_cases: int = 0
    timeline: tuple[TimelineEntry, ...] = ()
    omitted: int = 0
    costs: tuple[CostLine, ...] = ()
    seconds: tuple[tuple[str, float], ...] = ()
    changes: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    sections: tuple[ReportSection, ...] = field(default_factory=tuple)


def make_report(known: Facts, *, sections: Sequence[ReportSection] = ()) -> IncidentReport:
    """The story of the run as it is known; pure."""
    run = known.run
    kept, omitted = _shortened(known.timeline)
    return IncidentReport(
        run=run.id,
        policy=run.policy + (" (observing only)" if run.observe_only else ""),
        state=run.state,
        at=known.at,
        began=began(known),
        **make_summary(known),
        facts=tuple(_facts(known)),
        charts=tuple(chart for chart in _charts(known) if chart.curve.is_drawable),
        marks=list_marks(known),
        attempts=run.attempts[-ATTEMPTS:],
        older_attempts=max(0, len(run.attempts) - ATTEMPTS),
        cases=tuple(_case(known, incident) for incident in reversed(run.incidents[-INCIDENTS:])),
        older_cases=max(0, len(run.incidents) - INCIDENTS),
        timeline=kept,
        omitted=omitted,
        costs=tuple(list_costs(known)),
        seconds=list_time_shares(known),
        changes=tuple(list_recommendations(known)),
        unread=known.unread,
        sections=tuple(sections),
    )


def _facts(known: Facts) -> Iterator[tuple[str, str]]:
    run = known.run
    attempt = run.current
    farthest = max(
        [a.last_step for a in run.attempts if a.last_step is not None]
        + [row.step for rows in known.series.values() for row in rows[-1:] if row.step is not None],
        default=None,
    )
    yield "attempt", f"{attempt.number}" + (f" ({attempt.rung})" if attempt.rung else "")
    if farthest is not None:
        yield "step", f"{farthest:,}"
    losses = [row.loss for row in known.series.get(attempt.number, ()) if row.loss is not None]
    if losses:
        yield "loss", f"{losses[-1]:.4g}"
    if attempt.instance_type:
        yield "machines", f"{attempt.instance_count} x {attempt.instance_type}"
    ends = run.state.is_end
    yield (
        "lasted" if ends else "age",
        format_length((_lasted(known) if ends else known.at - began(known)).total_seconds()),
    )
    mended = sum(incident.mended for incident in run.incidents)
    yield "incidents", f"{len(run.incidents)}" + (f", {mended} mended" if mended else "")
    yield from ((cost.name, cost.amount) for cost in list(list_costs(known))[:1])


def _lasted(known: Facts) -> timedelta:
    ends = [attempt.ended_at for attempt in known.run.attempts if attempt.ended_at]
    return max(ends, default=known.at) - began(known)


def _charts(known: Facts) -> Iterator[Chart]:
    run, by_step = known.run, loss(known)
    solid = "Solid is what the run stands on, dashed what it went back behind."
    if by_step.is_drawable:
        logarithmic = all(y > 0 for line in by_step.lines for _, y in line.points)
        yield Chart("loss", "Loss by step", solid, by_step, logarithmic=logarithmic)
        if window := select_window(known):
            title, near = f"Loss around incident {run.incidents[-1].number}", loss(known, window)
            if sum(len(line.points) for line in near.lines) >= FEW_POINTS:
                says = "The same, close by."
                yield Chart("close", title, says, near, logarithmic=logarithmic, window=window)
    else:
        yield Chart("loss", "Loss over time", "The job logs no steps.", loss_by_time(known), Axis.TIME)
    rate, unit = speed(known)
    yield Chart("speed", "Throughput by step", "", rate, unit=unit)
    says = "What is flat is lost time, what falls back is lost work."
    yield Chart("progress", "Progress over time", says, progress(known), Axis.TIME, unit="step")


def _case(known: Facts, incident: Incident) -> IncidentSection:
    lines = known.lines.get(incident.number, ())
    shown = _telling(lines)
    end = incident.closed_at or known.at
    decisions = [
        entry
        for entry in known.timeline
        if incident.happened_at <= entry.at <= end and (entry.inputs or entry.actions) and entry.reason
    ]
    attempt = known.run.attempts[min(incident.attempt, len(known.run.attempts)) - 1]
    return IncidentSection(
        incident,
        tuple(decisions[:DECISIONS]),
        attempt.failure_reason,
        tuple(_stacks(known, incident, end))[:STACKS],
        shown,
        len(lines) - len(shown),
    )


def _stacks(known: Facts, incident: Incident, end: datetime) -> Iterator[str]:
    """What the agent's reports of that time say beyond their numbers, each once."""
    during = (entry for entry in known.timeline if incident.happened_at <= entry.at <= end)
    yield from dict.fromkeys(text for entry in during if (text := _evidence(entry)))


def _evidence(entry: TimelineEntry) -> str:
    report = entry.signal.get("report")
    return str(report.get("evidence", "")) if isinstance(report, Mapping) else ""


def _telling(lines: Sequence[LogLine]) -> tuple[LogLine, ...]:
    """The newest lines, in which metric lines do not drown the others."""
    metric = [number for number, line in enumerate(lines) if "rerail step=" in line.text]
    dropped = set(metric[:-METRIC_LINES])
    return tuple(line for number, line in enumerate(lines) if number not in dropped)[-LINES:]


def _shortened(timeline: Sequence[TimelineEntry]) -> tuple[tuple[TimelineEntry, ...], int]:
    if len(timeline) <= FIRST + NEWEST:
        return tuple(timeline), 0
    return (*timeline[:FIRST], *timeline[-NEWEST:]), len(timeline) - FIRST - NEWEST


def format_title(incident: Incident) -> str:
    """What an incident was, in a few words."""
    kind = format_kind(incident.kind)
    return f"{kind}: {incident.cause.value.replace('_', ' ')}" if incident.kind == "job_failed" else kind
