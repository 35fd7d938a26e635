"""What an incident has cost, and the goodput of the latest day."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerail.accounting.goodput import find_incident_dollars, find_recent_share, make_account
from rerail.model.actions import Notify, Severity
from rerail.model.run import RunState
from rerail.model.runbooks import Runbook
from rerail.notices.notice import make_run_notice
from rerail.notices.notifiers.text import format_cost
from tests.core import strategies
from tests.core.test_goodput import DIED, PRICED, a_run, an_attempt, an_incident, at, lives


def cost(run, number: int, minutes: float) -> float | None:
    return find_incident_dollars(run, run.incidents[number - 1], at(minutes), PRICED.prices)


def test_an_incident_costs_the_steps_that_are_trained_again():
    """A third of 60 minutes at a dollar a minute; nothing is billed while machines are awaited."""
    run = a_run(*DIED, incidents=[an_incident(65, 67, 120)])
    assert cost(run, 1, 130) == pytest.approx(20)
    assert make_account(run, at(130), PRICED).lost_dollars == pytest.approx(20)


def test_a_hold_costs_the_steps_that_were_not_saved():
    """A third of 60 minutes at a dollar a minute, although the run has no later attempt."""
    run = a_run(replace(DIED[0], kept_step=400), state=RunState.HELD, incidents=[an_incident(65, 67, 67)])
    assert cost(run, 1, 130) == pytest.approx(20)


def test_each_incident_has_its_own_price():
    """The second one loses half of ten minutes; the first one's price stays what it was."""
    second = replace(DIED[1], ended_at=at(95), last_step=800)
    third = an_attempt(3, 96, 97, None, resumed_from_step=600)
    incidents = [an_incident(65, 67, 85), an_incident(95, 95, 120, number=2, attempt=2)]
    run = a_run(DIED[0], second, third, incidents=incidents)
    assert cost(run, 1, 130) == pytest.approx(20)
    assert cost(run, 2, 130) == pytest.approx(10)


def test_an_open_incident_costs_what_is_lost_so_far():
    """Nothing before it is known to which step the run goes back."""
    incidents = [an_incident(65, 67)]
    assert cost(a_run(DIED[0], incidents=incidents), 1, 68) == 0
    assert cost(a_run(*DIED, incidents=incidents), 1, 80) == pytest.approx(20)


def test_a_running_job_that_is_stopped_costs_the_time_until_it_has_ended():
    first = replace(DIED[0], last_step=None)
    run = a_run(first, DIED[1], incidents=[an_incident(50, 55, 120, kind="divergence", actions=("stop",), step=600)])
    # Stopping takes 10 of 60 minutes, and a third of the steps of the other 50 is trained again.
    assert cost(run, 1, 130) == pytest.approx(10 + 50 / 3)
    assert cost(run, 1, 60) < cost(run, 1, 130), "what was lost until then"


def test_the_price_is_unknown_with_that_of_a_machine():
    run = a_run(*DIED, incidents=[an_incident(65, 67, 120)])
    assert find_incident_dollars(run, run.incidents[0], at(130), {}) is None


def test_a_notice_has_the_price_of_its_incident():
    """An open one's, or that of the incident which an all-clear ends; none for a run in good health."""
    page = Notify(Severity.PAGE, "t", "b", "k", runbook=Runbook.INFORMED)
    run = a_run(*DIED, incidents=[an_incident(65, 67, 120)])
    cleared, informed = (
        make_run_notice(replace(page, clears=clears), run, at=at(130), policy=PRICED) for clears in ("k", "")
    )
    assert format_cost(cleared) == "$115, $20.00 of it by this incident"
    assert format_cost(informed) == "$115"


@given(lives() | strategies.runs, strategies.moments | st.floats(0, 20_000).map(at))
def test_no_incident_costs_less_than_nothing_or_more_than_the_run(run, moment):
    """For whatever a record may hold."""
    spent = make_account(run, moment, PRICED)
    for incident in run.incidents:
        dollars = find_incident_dollars(run, incident, moment, PRICED.prices)
        assert dollars is None or 0 <= dollars <= (spent.dollars or 0) + 1e-6


def test_a_bad_night_shows_in_the_goodput_of_the_day():
    """Four weeks of training and a day in which nothing but the wait for people happened."""
    day = 24 * 60
    attempt = an_attempt(1, 0, 0, 28 * day, last_step=1_000)
    run = a_run(
        attempt, state=RunState.HELD, incidents=[an_incident(28 * day, 28 * day, 28 * day + 1, recovered=False)]
    )
    assert make_account(run, at(29 * day), PRICED).share == pytest.approx(28 / 29)
    assert find_recent_share(run, at(29 * day)) == pytest.approx(0, abs=1e-6)
    assert find_recent_share(run, at(28 * day)) == pytest.approx(1)
    assert find_recent_share(run, at(28.5 * day)) == pytest.approx(0.5)
    ended = replace(run, state=RunState.COMPLETED)
    assert find_recent_share(ended, at(40 * day)) is None
    assert find_recent_share(run, at(60), timedelta(minutes=30)) == pytest.approx(1)
