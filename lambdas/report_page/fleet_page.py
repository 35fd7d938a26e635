"""Render all runs as one self-contained HTML page: what waits for a person, and a row for each run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import log

from report_page.page import render_template
from rerail.incident_report.fleet import FleetRow, FleetStatus, describe_incident, describe_state
from rerail.incident_report.summary import Urgency
from rerail.model.run import RunState

# States in which a run is between two jobs, or about to be.
RECOVERING = (RunState.SAVING, RunState.STOPPING, RunState.WAITING, RunState.RESTARTING)
CURVE_WIDTH, CURVE_HEIGHT = 60.0, 20.0  # pixels


@dataclass(frozen=True, slots=True)
class _PageRow:
    """A row of the table."""

    row: FleetRow
    state: str
    incident: tuple[str, str]  # cause, and how it ended; empty for none
    page: str  # address of the run's report; "" for none
    curve: str  # points of its loss as an SVG polyline; "" for none
    losses: tuple[float, ...]  # the first and the last of the curve


def render_fleet_page(
    fleet: FleetStatus,
    *,
    find_page: Callable[[str], str] = lambda run: "",
    losses: Mapping[str, Sequence[float]] | None = None,
) -> str:
    """Return the page as HTML.

    `find_page` returns the address of a run's report, "" for none. `losses` are the recent losses of runs, oldest
    first; it may lack runs."""
    losses = losses or {}
    return render_template(
        "fleet.html",
        fleet=fleet,
        todos=[row for row in fleet.rows if row.todo],
        tone=find_tone(fleet),
        headline=make_headline(fleet),
        rows=[_make_row(row, find_page(row.run.id), losses.get(row.run.id, ())) for row in fleet.rows],
        width=CURVE_WIDTH,
        height=CURVE_HEIGHT,
    )


def find_tone(fleet: FleetStatus) -> Urgency:
    """Return the party that has to act for any of the runs."""
    if fleet.alarms or any(row.todo for row in fleet.rows):
        return Urgency.NEEDED
    return Urgency.RECOVERING if any(row.run.state in RECOVERING for row in fleet.rows) else Urgency.NONE


def make_headline(fleet: FleetStatus) -> str:
    """Return the page's headline."""
    total, waiting = sum(row.is_open for row in fleet.rows), sum(bool(row.todo) for row in fleet.rows)
    if not total:
        return "No run is open"
    runs = "1 run is" if total == 1 else f"{total:,} runs are"
    return f"{runs} open, {f'{waiting:,} of them' if waiting else 'none'} waiting for a person"


def _make_row(row: FleetRow, page: str, losses: Sequence[float]) -> _PageRow:
    incident = describe_incident(row.run.incidents[-1]) if row.run.incidents else ("", "")
    ends = (losses[0], losses[-1]) if len(losses) > 1 else ()
    return _PageRow(row, describe_state(row.run), incident, page, make_curve(losses), ends)


def make_curve(losses: Sequence[float]) -> str:
    """Return the points of an SVG polyline: logarithmic if all values are above 0; "" for fewer than two values."""
    if len(losses) < 2:
        return ""
    heights = [log(loss) for loss in losses] if min(losses) > 0 else list(losses)
    low, span = min(heights), (max(heights) - min(heights)) or 1.0
    step = CURVE_WIDTH / (len(heights) - 1)
    return " ".join(
        f"{index * step:.1f},{CURVE_HEIGHT * (1 - (height - low) / span):.1f}" for index, height in enumerate(heights)
    )
