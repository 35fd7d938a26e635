"""The page of all runs: what waits for a person comes first, and nothing that a run contains is markup."""

from dataclasses import replace
from datetime import timedelta

import pytest

from report_page.fleet_page import CURVE_HEIGHT, CURVE_WIDTH, find_tone, make_curve, make_headline, render_fleet_page
from rerail.incident_report.fleet import FleetStatus, find_sort_key, make_row
from rerail.incident_report.summary import Urgency
from rerail.model.policy import Policy
from rerail.model.run import JobStatus, Run, RunState
from tests.report.conftest import BEGAN, HOSTILE, attempt, held

NOW = BEGAN + timedelta(hours=2)


def trains(name: str, **fields: object) -> Run:
    """A run whose first job is in progress."""
    running = replace(attempt(1, ended_at=None, status=JobStatus.IN_PROGRESS), job_name=name)
    return Run(name, "default", RunState.WATCHING, BEGAN, (running,), **fields)  # type: ignore[arg-type]


def fleet(*runs: Run, **fields: object) -> FleetStatus:
    rows = sorted(
        (make_row(run, Policy(), NOW, (1_234, NOW) if run.is_open else None) for run in runs), key=find_sort_key
    )
    return FleetStatus(NOW, "stack Rerail", tuple(rows), False, (), **fields)  # type: ignore[arg-type]


def test_a_run_that_waits_for_a_person_is_first_with_its_command():
    found = fleet(trains("bert"), held().run)
    page = render_fleet_page(found, find_page=lambda run: f"https://reports/{run}")
    assert "2 runs are open, 1 of them waiting for a person" in page
    ended = fleet(replace(trains("done"), state=RunState.COMPLETED)).rows[0]
    assert max(*found.rows, replace(ended, todo="look at it"), key=find_sort_key).run.id == "done"
    assert page.index("rerail release gpt") < page.index("<h2>Runs</h2>") < page.index(">bert</a>")
    assert 'href="https://reports/gpt"' in page and "1,234" in page and "oom: " in page


def test_the_tone_is_that_of_the_run_that_needs_most():
    assert find_tone(fleet(trains("a"))) is Urgency.NONE
    assert find_tone(fleet(trains("a"), replace(trains("b"), state=RunState.STOPPING))) is Urgency.RECOVERING
    assert find_tone(fleet(trains("a"), held().run)) is Urgency.NEEDED
    assert find_tone(replace(fleet(trains("a")), alarms=("no sweep",))) is Urgency.NEEDED
    assert make_headline(fleet()) == "No run is open"
    assert make_headline(fleet(trains("a"))) == "1 run is open, none waiting for a person"


@pytest.mark.threat("T13")
def test_texts_of_runs_are_escaped():
    """Names, advice and errors are text, whatever they contain."""
    hostile = replace(held().run, id=HOSTILE, hold_advice=HOSTILE)
    page = render_fleet_page(fleet(hostile, unread=(HOSTILE,)), find_page=lambda run: "https://x/?a='\"><script>")
    assert "<script" not in page and "<img" not in page and "{{ 7" in page and page.count("</style>") == 1


@pytest.mark.parametrize("losses", [(4.0, 2.0, 1.0), (-1.0, -2.0, -3.0), (2.0, 2.0), (1e-9, 1e9)])
def test_a_curve_fits_its_box(losses):
    points = [tuple(map(float, point.split(","))) for point in make_curve(losses).split()]
    assert len(points) == len(losses)
    assert all(0 <= x <= CURVE_WIDTH and 0 <= y <= CURVE_HEIGHT for x, y in points)
    assert points[0][0] == 0 and points[-1][0] == CURVE_WIDTH


def test_a_single_value_is_no_curve():
    assert make_curve(()) == make_curve((1.0,)) == ""
    page = render_fleet_page(fleet(trains("a"), trains("b")), losses={"a": (4.0, 1.5), "b": (3.0,)})
    assert page.count("<polyline") == 1 and "loss from 4 to 1.5" in page
