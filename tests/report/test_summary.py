"""What a report says: first what a person needs, then where things happened, within bounds whatever the run was."""

import math
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from report_page.page import render_page
from rerail.incident_report.curves import (
    CHART_POINT_LIMIT,
    LINE_POINT_LIMIT,
    draw_loss,
    draw_progress,
    draw_speed,
    thin_points,
)
from rerail.incident_report.facts import Facts
from rerail.incident_report.marks import MarkKind, list_marks
from rerail.incident_report.report import INCIDENT_LIMIT, IncidentReport, make_report
from rerail.incident_report.summary import Urgency
from rerail.model.run import AfterStop, Attempt, InPlaceRestart, PlannedStop, Proposal, RunState
from rerail.model.run import ProposedAction as Planned
from rerail.model.runbooks import Runbook
from rerail.model.sample import Sample
from tests.report.conftest import BEGAN, attempt, held, immense, rows
from tests.timing import cpu_seconds

MOST_BYTES = 3_000_000
points = st.lists(st.tuples(st.floats(0, 1e6), st.floats(-1e6, 1e6, allow_nan=False)), min_size=1, max_size=400).map(
    sorted
)


def test_a_held_run_asks_for_a_human_with_what_to_do_and_by_when():
    """The page that stands is what is quoted, with its runbook, its deadline and the words for a terminal."""
    report = make_report(held())
    assert (report.tone, report.headline) == (Urgency.NEEDED, "Held: waiting for an operator")
    assert report.todo == ("Make the batch smaller.", "Then release the run.")
    assert report.runbook is Runbook.OUT_OF_MEMORY
    assert report.by == held().at + timedelta(hours=4)
    assert report.commands == ("rerail release gpt", "rerail show gpt")
    assert "smaller batches" in " ".join(report.changes)


def test_a_held_run_of_an_older_version_asks_all_the_same():
    """Its record knows no pages: the reason for the hold is quoted."""
    known = held()
    report = make_report(replace(known, run=replace(known.run, pages=())))
    assert report.tone is Urgency.NEEDED
    assert report.happened.startswith("attempt 1 failed: oom")
    assert report.todo == ("Fix the problem named above, then release the run.",)


def test_a_run_that_an_operator_holds_names_no_problem():
    """Nothing is wrong, so there is nothing to fix."""
    known = held()
    run = replace(known.run, pages=(), incidents=(), hold_reason="ada said hold", hold_advice="", held_by="ada")
    report = make_report(replace(known, run=run))
    assert report.todo == ("Release the run when Rerail is to supervise it again: ada holds it.",)


def test_a_proposal_is_shown_with_both_commands_and_its_deadline():
    """Whoever is asked sees what for, until when, and how to answer."""
    known = held()
    proposal = Proposal("p1", Planned.LAUNCH, 2, "launch attempt 2", "it failed", BEGAN, BEGAN + timedelta(hours=1))
    run = replace(known.run, state=RunState.WAITING, pages=(), proposal=proposal)
    report = make_report(replace(known, run=run))
    assert (report.tone, report.headline) == (Urgency.NEEDED, "Waiting for your approval")
    assert report.by == BEGAN + timedelta(hours=1)
    assert report.commands[:2] == ("rerail approve gpt --proposal p1", "rerail deny gpt --proposal p1")


def test_a_run_that_a_person_stops_is_not_said_to_recover():
    """The headline names the person."""
    stop = PlannedStop(AfterStop.END, "ada said stop", BEGAN, BEGAN, approved_by="ada")
    run = replace(held().run, state=RunState.SAVING, pages=(), stop=stop)
    assert make_report(replace(held(), run=run)).headline == "Being stopped by ada"


def test_a_recovered_run_asks_for_nothing(recorded: Facts):
    """The recorded run: the notice's own words, and how it ended."""
    report = make_report(recorded)
    assert (report.tone, report.headline) == (Urgency.NONE, "Completed after 1 incident: nothing to do")
    assert report.todo == ("Nothing.",)
    assert "loss has been" in report.happened
    held_too = (replace(recorded.run.incidents[0], recovered=False, resolution="the run was held"),)
    run = replace(recorded.run, incidents=held_too + recorded.run.incidents)
    assert make_report(replace(recorded, run=run)).headline == "Completed after 2 incidents: nothing to do"
    assert "recovered: attempt 2 committed a new checkpoint" in report.did


def test_a_hold_that_has_ended_promises_nothing():
    """No job was launched while the run was held; once it goes on, that sentence is not true."""
    known = held()
    notice = {"type": "Notify", "key": "gpt/held-1", "did": "no other job is launched, until you release the run"}
    known = replace(known, timeline=(replace(known.timeline[0], actions=(notice,)),))
    for state, did in ((RunState.HELD, f"{notice['did']}\nthe run was held"), (RunState.COMPLETED, "the run was held")):
        assert make_report(replace(known, run=replace(known.run, state=state, pages=()))).did == did


@pytest.mark.parametrize(
    ("key", "recovered", "hours"), [("gpt/held-1", False, 0), ("gpt/held-1", False, 2), ("gpt/proposal-p9", True, 0)]
)
def test_an_operators_answer_stands_with_what_became_of_it(key, recovered, hours):
    """After an answer, "nothing yet" is not shown; a command that changed nothing is not an answer."""
    known = held()
    (first,) = known.timeline
    closed_at = first.at + timedelta(hours=hours)
    ended = replace(known.run.incidents[0], recovered=recovered, closed_at=closed_at, resolution="how it ended")
    run = replace(known.run, state=RunState.WATCHING, pages=(), incidents=(ended,))
    asked = replace(first, actions=({"type": "Notify", "key": key, "did": "nothing yet: proposal p9"},))
    said = {"at": first.at + timedelta(hours=1), "signal": {"type": "OperatorCommand"}, "before": RunState.HELD}
    answers = (
        replace(first, **said, after=after, reason=f"ada said {verb}")
        for verb, after in (("hold", RunState.HELD), ("release", RunState.STARTING))
    )
    report = make_report(replace(known, run=run, timeline=(asked, *answers)))
    lines = ["ada said release", "how it ended"]
    assert report.did.split("\n") == (lines if recovered or hours else lines[::-1])
    waits = Proposal("p9", Planned.LAUNCH, 2, "launch attempt 2", "it failed", BEGAN, BEGAN + timedelta(hours=1))
    waiting = make_report(replace(known, run=replace(run, proposal=waits), timeline=(asked,)))
    assert waiting.did.startswith("nothing yet") is recovered


def test_a_doubtful_end_names_what_to_check():
    """Its headline asks for a check: what happened at the end is named, and not an earlier incident."""
    known = held()
    notice = {"type": "Notify", "key": "gpt/completed", "body": "the last loss was nan", "todo": "Check the result"}
    run = replace(known.run, state=RunState.COMPLETED, pages=(), warnings=("loss-at-end",))
    ends = replace(known.timeline[0], actions=(notice,))
    report = make_report(replace(known, run=run, timeline=(*known.timeline, ends)))
    assert (report.happened, report.did, report.todo) == ("the last loss was nan", "", ("Check the result",))


def test_a_run_without_any_trouble_has_a_report_too():
    """Somebody may ask before anything has happened, even before the first job trains."""
    run = replace(held().run, state=RunState.STARTING, incidents=(), pages=(), attempts=(Attempt(1, "gpt"),))
    report = make_report(Facts(run, BEGAN))
    assert report.happened == "No incident so far."
    assert report.charts == ()
    assert "No incident so far." in render_page(report)


def test_the_recorded_rollback_is_marked_where_it_happened(recorded: Facts):
    """Saved before the onset, found after it, stopped, relaunched from the save: in the order in which it happened."""
    found = {mark.kind: mark for mark in list_marks(recorded)}
    assert [mark.kind for mark in list_marks(recorded)] == [
        *(MarkKind.SAVED, MarkKind.ONSET, MarkKind.FINDING, MarkKind.STOP, MarkKind.RELAUNCH)
    ]
    assert found[MarkKind.SAVED].step == found[MarkKind.RELAUNCH].step == recorded.run.attempts[1].resumed_from_step
    steps = [found[sort].step or 0 for sort in (MarkKind.SAVED, MarkKind.ONSET, MarkKind.FINDING, MarkKind.STOP)]
    assert steps == sorted(steps)
    times = [mark.at for mark in list_marks(recorded)]
    assert None not in times


def test_skipped_data_and_a_restart_in_place_are_marked():
    """What the next attempt passes over, and processes that began again within their job."""
    known = held()
    order = InPlaceRestart(
        1, "c", "r", known.at, known.at, resume_step=600, restarted_at=known.at + timedelta(minutes=1)
    )
    first = replace(known.run.current, in_place_restarts=(order,), onset_step=640)
    run = replace(known.run, attempts=(first, attempt(2, start=600, skip_samples="10240-13439")))
    sorts = {mark.kind: mark for mark in list_marks(replace(known, run=run))}
    assert sorts[MarkKind.SKIPPED].step == 640
    assert "10240-13439" in sorts[MarkKind.SKIPPED].text
    assert sorts[MarkKind.RESTART].step == 600
    assert "Look at the samples 10240-13439" in " ".join(make_report(replace(known, run=run)).changes)


def test_stacks_that_the_agent_wrote_down_are_evidence():
    """A hang's report says where each rank stands: once, however often it was filed."""
    known = held()
    (entry,) = known.timeline
    report = {"report": {"kind": "findings", "evidence": "rank 0: all_reduce (train.py:88)"}}
    entries = tuple(replace(entry, version=n, signal=report) for n in range(3))
    made = make_report(replace(known, timeline=entries))
    assert made.cases[0].stacks == ("rank 0: all_reduce (train.py:88)",)
    assert render_page(made).count("rank 0: all_reduce") == 1


def test_a_warning_is_marked_where_it_came_to_nothing(recorded: Facts):
    """One that led to the incident is in the incident; a run that mended itself, or was held, shows that too."""
    assert MarkKind.WARNED not in {mark.kind for mark in list_marks(recorded)}
    alone = replace(recorded, run=replace(recorded.run, incidents=()))
    warned = [mark for mark in list_marks(alone) if mark.kind is MarkKind.WARNED]
    assert 0 < len(warned) <= 3
    assert all(mark.step and 600 < mark.step < 720 and mark.text.startswith("warning: ") for mark in warned)
    assert [mark.kind for mark in list_marks(held())] == [MarkKind.FAILED, MarkKind.HELD]


def test_each_rung_that_was_tried_is_shown():
    """Two relaunches for one incident: where each began; the checkpoint that both resumed from is marked once."""
    known = held()
    tries = (attempt(2, start=600, last=710, rung="replay"), attempt(3, start=600, rung="skip"))
    run = replace(known.run, attempts=(known.run.current, *tries), state=RunState.WATCHING, pages=())
    report = make_report(replace(known, run=run))
    assert "relaunched 2 times: attempt 2 from step 600 (replay), then 3 from step 600 (skip)" in report.did
    assert [mark.step for mark in report.marks if mark.kind is MarkKind.SAVED] == [600]


def test_rolled_back_steps_are_distinguished_from_kept_ones(recorded: Facts):
    """The first attempt's curve is kept up to the resumed step, and given up beyond it."""
    back = recorded.run.attempts[1].resumed_from_step
    lines = draw_loss(recorded).lines
    assert [(line.attempt, line.kept) for line in lines] == [(1, True), (1, False), (2, True)]
    assert lines[0].points[-1][0] == lines[1].points[0][0] == back


def test_only_the_steps_that_are_trained_again_are_rolled_back():
    """Points by the minute are far apart: of a line to step 60 the part beyond step 59 is dashed."""
    known = held()
    again = attempt(2, first_step=60)
    run = replace(known.run, attempts=(known.run.current, again))
    series = {1: (*rows(1, 27, 27), *rows(1, 60, 60)), 2: rows(2, 60, 80)}
    first, lost, second = draw_loss(replace(known, run=run, series=series)).lines
    assert [(line.attempt, line.kept) for line in (first, lost, second)] == [(1, True), (1, False), (2, True)]
    assert [x for x, _ in first.points] == [27, 59] and [x for x, _ in lost.points] == [59, 60]


@pytest.mark.parametrize(("began", "split"), [(401, 400), (1, 0), (None, 410)])
def test_a_curve_is_split_where_its_step_falls(began, split):
    """After a restart in place no line leads back, and what was trained again is dashed from where it really began."""
    known, first = held(), 410 if began is None else began
    order = InPlaceRestart(1, "c", "nan", BEGAN, BEGAN, resume_step=400, restarted_at=BEGAN, first_step=began)
    order = replace(order, resume_step=None) if began is None else order
    run = replace(known.run, attempts=(replace(known.run.current, in_place_restarts=(order,)),))
    known = replace(known, run=run, series={1: (*rows(1, 10, 600), *rows(1, first, 700))})
    lines = draw_loss(known).lines
    assert all(a[0] <= b[0] for line in lines for a, b in pairwise(line.points))
    assert [line.kept for line in lines] == ([False, True] if not split else [True, False, True])
    assert lines[0].points[-1][0] == (split or 600)
    assert len(draw_progress(known).lines) == 2
    assert all(line.kept for line in draw_speed(known)[0].lines[-1:])


def test_a_loss_that_is_not_a_number_is_a_gap_and_no_point():
    """Neither nan nor the flag of the metric line is drawn as a value, and neither is lost."""
    bad = (Sample(step=710, at=BEGAN, nonfinite=True), Sample(step=711, at=BEGAN, loss=math.nan))
    known = held()
    curve = draw_loss(replace(known, series={1: (*known.series[1], *bad)}))
    assert curve.gaps == (710.0, 711.0)
    assert all(math.isfinite(y) for line in curve.lines for _, y in line.points)


@given(points=points, most=st.integers(4, 60))
def test_thinning_keeps_the_ends_and_the_extremes(points: list[tuple[float, float]], most: int):
    """However many points: no more than asked for, in order, none made up, the greatest and the least among them."""
    kept = thin_points(points, most)
    assert len(kept) <= most
    assert set(kept) <= set(points)
    assert kept[0] == points[0]
    assert kept[-1] == points[-1]
    assert all(a[0] <= b[0] for a, b in pairwise(kept))
    assert {max(y for _, y in kept), min(y for _, y in kept)} == {max(y for _, y in points), min(y for _, y in points)}


@pytest.mark.slow
def test_two_hundred_attempts_and_a_hundred_thousand_points_stay_one_small_page():
    """Bounded in points and in bytes; what is left out is counted. The cost grows with the points, not their square."""
    known, tenth = immense(every=4, tries=200), immense(every=4, tries=20)
    assert sum(len(rows) for rows in known.series.values()) == 100_000
    made: list[IncidentReport] = []
    cost_of_tenth = cpu_seconds(lambda: make_report(tenth), repeats=2)
    assert cpu_seconds(lambda: made.append(make_report(known)), repeats=1) / cost_of_tenth < 40
    (report,) = made
    page = render_page(report)
    assert len(render_page(make_report(immense(every=200, tries=20)))) < len(page)
    assert len(page.encode()) < MOST_BYTES
    for chart in report.charts:
        assert sum(len(line.points) for line in chart.curve.lines) <= CHART_POINT_LIMIT
        assert max(len(line.points) for line in chart.curve.lines) <= LINE_POINT_LIMIT
    assert (report.older_attempts, report.older_cases) == (140, 199 - INCIDENT_LIMIT)
    assert "1,845 decisions are left out" in page.replace("1845", "1,845")


@pytest.mark.parametrize("state", list(RunState))
def test_every_state_has_its_headline_and_its_page(state: RunState):
    """No state of a run, with or without an open incident, is without words."""
    known = held()
    for incidents in ((), known.run.incidents, tuple(replace(i, closed_at=None) for i in known.run.incidents)):
        report = make_report(replace(known, run=replace(known.run, state=state, incidents=incidents, pages=())))
        assert report.headline
        assert report.todo
        assert report.headline in render_page(report)


def test_a_job_that_logs_no_steps_is_drawn_over_time():
    """There is no step axis then; the loss over time tells as much."""
    known = held()
    timed = tuple(replace(row, step=None) for row in rows(1, 10, 700))
    report = make_report(replace(known, series={1: timed}))
    assert [(chart.name, chart.title) for chart in report.charts] == [("loss", "Loss over time")]
    assert "Loss over time" in render_page(report)
