"""The incident report as data: summary first, then curves, evidence, cost and timeline."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

from rerail.accounting.goodput import find_incident_dollars
from rerail.decisions.decision import HELD_RESOLUTION
from rerail.incident_report.costs import CostLine, format_length, list_costs, list_time_shares
from rerail.incident_report.curves import (
    EVERYTHING,
    Curve,
    Window,
    began,
    draw_loss,
    draw_loss_by_time,
    draw_progress,
    draw_speed,
    select_window,
)
from rerail.incident_report.evidence import find_evidence, shorten_reason
from rerail.incident_report.facts import Facts, LogLine
from rerail.incident_report.marks import CurveMark, format_kind, list_marks
from rerail.incident_report.recommendations import list_recommendations
from rerail.incident_report.summary import Urgency, make_summary
from rerail.model.formatting import format_dollars
from rerail.model.run import Attempt, Incident, RunState, TimelineEntry
from rerail.model.runbooks import Runbook

# The timeline shows the first decisions and the newest; the tables show the newest attempts and incidents.
OLDEST_DECISIONS, NEWEST_DECISIONS = 5, 150
ATTEMPT_LIMIT, INCIDENT_LIMIT = 60, 8
# Characters of a log line, lines per incident, and metric lines among them: the curves show the rest of those.
LINE, LINE_LIMIT, METRIC_LINE_LIMIT = 400, 60, 5
# Per incident.
DECISION_LIMIT, STACK_LIMIT = 12, 3
# A chart around an incident needs at least so many points.
MIN_CLOSE_POINTS = 10


class Axis(StrEnum):
    """The quantity on a chart's horizontal axis."""

    STEP = "step"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart of a report."""

    name: str  # anchor on the page
    title: str
    caption: str  # caption
    curve: Curve
    axis: Axis = Axis.STEP
    unit: str = ""  # of the values
    logarithmic: bool = False
    window: Window = EVERYTHING  # the steps shown


@dataclass(frozen=True, slots=True)
class IncidentSection:
    """One incident with its evidence."""

    incident: Incident
    state: str = "open"  # open, recovered, held, or closed for another reason
    cost: str = ""  # of machine time without progress; "" if a price is not known
    decisions: tuple[TimelineEntry, ...] = ()
    failure_reason: str = ""  # as reported by SageMaker
    stacks: tuple[str, ...] = ()  # stack traces of the training processes, as reported by the agent
    lines: tuple[LogLine, ...] = ()  # the last lines of the job's log
    left_out: int = 0  # number of log lines left out


@dataclass(frozen=True, slots=True)
class ReportSection:
    """An additional section of a report, such as the setup of a demo."""

    title: str
    rows: tuple[tuple[str, str], ...]  # name and value
    note: str = ""


@dataclass(frozen=True, slots=True)
class IncidentReport:
    """The content of a run's incident report."""

    run: str
    policy: str
    state: RunState
    at: datetime  # when the report was made
    began: datetime  # when the run began
    tone: Urgency
    headline: str
    happened: str
    did: str = ""  # what Rerail did, one line each
    todo: tuple[str, ...] = ()  # what the operator must do, one sentence each
    commands: tuple[str, ...] = ()  # for the terminal
    by: datetime | None = None  # deadline for `todo`
    since: datetime | None = None  # when the problem began
    runbook: Runbook | None = None
    facts: tuple[tuple[str, str], ...] = ()  # name and value of the run's key figures
    charts: tuple[Chart, ...] = ()
    marks: tuple[CurveMark, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    older_attempts: int = 0  # number left out
    endings: tuple[str, ...] = ()  # why each of `attempts` ended: one line of evidence, "" if nothing is known
    cases: tuple[IncidentSection, ...] = ()
    older_cases: int = 0  # number left out
    timeline: tuple[TimelineEntry, ...] = ()
    omitted: int = 0  # number of decisions that the timeline leaves out
    costs: tuple[CostLine, ...] = ()
    seconds: tuple[tuple[str, float], ...] = ()  # seconds of goodput and of each kind of badput
    changes: tuple[str, ...] = ()  # recommendations
    unread: tuple[str, ...] = ()  # what could not be read, with the error
    sections: tuple[ReportSection, ...] = field(default_factory=tuple)


def make_report(known: Facts, *, sections: Sequence[ReportSection] = ()) -> IncidentReport:
    """Return the report of the run. Pure."""
    run = known.run
    kept, omitted = _shorten(known.timeline)
    return IncidentReport(
        run=run.id,
        policy=run.policy + (" (observing only)" if run.observe_only else ""),
        state=run.state,
        at=known.at,
        began=began(known),
        **make_summary(known),
        facts=tuple(_list_facts(known)),
        charts=tuple(chart for chart in _list_charts(known) if chart.curve.is_drawable),
        marks=list_marks(known),
        attempts=run.attempts[-ATTEMPT_LIMIT:],
        older_attempts=max(0, len(run.attempts) - ATTEMPT_LIMIT),
        endings=tuple(find_evidence(attempt, run) for attempt in run.attempts[-ATTEMPT_LIMIT:]),
        cases=tuple(_make_section(known, incident) for incident in reversed(run.incidents[-INCIDENT_LIMIT:])),
        older_cases=max(0, len(run.incidents) - INCIDENT_LIMIT),
        timeline=kept,
        omitted=omitted,
        costs=tuple(list_costs(known)),
        seconds=list_time_shares(known),
        changes=tuple(list_recommendations(known)),
        unread=known.unread,
        sections=tuple(sections),
    )


def _list_facts(known: Facts) -> Iterator[tuple[str, str]]:
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
        format_length((_duration(known) if ends else known.at - began(known)).total_seconds()),
    )
    recovered = sum(incident.recovered for incident in run.incidents)
    yield "incidents", f"{len(run.incidents)}" + (f", {recovered} recovered" if recovered else "")
    yield from ((cost.name, cost.amount) for cost in list(list_costs(known))[:1])


def _duration(known: Facts) -> timedelta:
    ends = [attempt.ended_at for attempt in known.run.attempts if attempt.ended_at]
    return max(ends, default=known.at) - began(known)


def _list_charts(known: Facts) -> Iterator[Chart]:
    run, by_step = known.run, draw_loss(known)
    solid = "Dashed parts were rolled back."
    if by_step.is_drawable:
        logarithmic = all(y > 0 for line in by_step.lines for _, y in line.points)
        yield Chart("loss", "Loss by step", solid, by_step, logarithmic=logarithmic)
        if window := select_window(known):
            title, close = f"Loss around incident {run.incidents[-1].number}", draw_loss(known, window)
            if sum(len(line.points) for line in close.lines) >= MIN_CLOSE_POINTS:
                caption = "A detail of the chart above."
                yield Chart("close", title, caption, close, logarithmic=logarithmic, window=window)
    else:
        yield Chart("loss", "Loss over time", "The job logs no steps.", draw_loss_by_time(known), Axis.TIME)
    rate, unit = draw_speed(known)
    yield Chart("speed", "Throughput by step", "", rate, unit=unit)
    caption = "Flat parts are lost time, drops are lost work."
    yield Chart("progress", "Progress over time", caption, draw_progress(known), Axis.TIME, unit="step")


def _make_section(known: Facts, incident: Incident) -> IncidentSection:
    lines = known.lines.get(incident.number, ())
    shown = _select_lines(lines)
    end = incident.closed_at or known.at
    decisions = [
        replace(entry, inputs={name: value for name, value in entry.inputs.items() if name != "failure_reason"})
        for entry in known.timeline
        if incident.happened_at <= entry.at <= end and (entry.inputs or entry.actions) and entry.reason
    ]
    attempt = known.run.attempts[min(incident.attempt, len(known.run.attempts)) - 1]
    dollars = find_incident_dollars(known.run, incident, known.at, known.policy.prices)
    return IncidentSection(
        incident,
        _format_state(incident),
        "" if dollars is None else format_dollars(dollars),
        tuple(decisions[:DECISION_LIMIT]),
        shorten_reason(attempt.failure_reason),
        tuple(_list_stacks(known, incident, end))[:STACK_LIMIT],
        shown,
        len(lines) - len(shown),
    )


def _format_state(incident: Incident) -> str:
    if incident.recovered:
        return "recovered"
    return "held" if HELD_RESOLUTION in incident.resolution else "closed" if incident.closed_at else "open"


def _list_stacks(known: Facts, incident: Incident, end: datetime) -> Iterator[str]:
    """Yield each distinct stack trace in the agent's reports during the incident."""
    during = (entry for entry in known.timeline if incident.happened_at <= entry.at <= end)
    yield from dict.fromkeys(text for entry in during if (text := _find_evidence(entry)))


def _find_evidence(entry: TimelineEntry) -> str:
    report = entry.signal.get("report")
    return str(report.get("evidence", "")) if isinstance(report, Mapping) else ""


def _select_lines(lines: Sequence[LogLine]) -> tuple[LogLine, ...]:
    """Return the newest lines, with all but the last few metric lines left out."""
    metric = [number for number, line in enumerate(lines) if "rerail step=" in line.text]
    dropped = set(metric[:-METRIC_LINE_LIMIT])
    return tuple(line for number, line in enumerate(lines) if number not in dropped)[-LINE_LIMIT:]


def _shorten(timeline: Sequence[TimelineEntry]) -> tuple[tuple[TimelineEntry, ...], int]:
    if len(timeline) <= OLDEST_DECISIONS + NEWEST_DECISIONS:
        return tuple(timeline), 0
    omitted = len(timeline) - OLDEST_DECISIONS - NEWEST_DECISIONS
    return (*timeline[:OLDEST_DECISIONS], *timeline[-NEWEST_DECISIONS:]), omitted


def format_title(incident: Incident) -> str:
    """Return a short title of the incident."""
    kind = format_kind(incident.kind)
    return f"{kind}: {incident.cause.value.replace('_', ' ')}" if incident.kind == "job_failed" else kind
