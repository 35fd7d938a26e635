"""Where the time of a run went: by hand for every kind, and by Hypothesis that nothing is booked twice or forgotten."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.simulate.accounts import Spent
from cli.simulate.assumptions import Assumptions
from cli.simulate.supervised import Supervised
from cli.simulate.ways import DEFAULT, RELAUNCHED, UNCHANGED
from cli.simulate.world import SimulatedRun
from rerail.accounting import on_call_times
from rerail.accounting.goodput import (
    Account,
    Badput,
    find_incident_dollars,
    find_recent_share,
    make_account,
    sum_accounts,
)
from rerail.model.causes import Cause
from rerail.model.codec import loads
from rerail.model.finding import Kind
from rerail.model.policy import Policy
from rerail.model.run import (
    AfterStop,
    Attempt,
    Incident,
    InPlaceRestart,
    JobStatus,
    PlannedStop,
    Proposal,
    ProposedAction,
    Run,
    RunState,
)
from tests.core import strategies

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
PRICED = Policy(prices={"ml.a": 60.0})  # a dollar a minute


def at(minutes: float) -> datetime:
    return NOON + minutes * MINUTE


def an_attempt(number: int, created: float | None, began: float | None, ended: float | None, **facts: Any) -> Attempt:
    """One job, in minutes after noon."""
    moments = {"created_at": created, "training_started_at": began, "ended_at": ended}
    status = None if created is None else JobStatus.IN_PROGRESS if ended is None else JobStatus.FAILED
    given = {name: None if minutes is None else at(minutes) for name, minutes in moments.items()}
    return Attempt(number, f"gpt-{number}", **{"status": status, "instance_type": "ml.a", **given, **facts})


def an_incident(happened: float, decided: float, closed: float | None = None, **facts: Any) -> Incident:
    """What befell the first attempt, unless told otherwise, and was mended if it is closed."""
    given = {"number": 1, "kind": "job_failed", "attempt": 1, "cause": Cause.INFRASTRUCTURE, "recovered": bool(closed)}
    given |= {"reason": "", "evidence": "", "happened_at": at(happened), "decided_at": at(decided)}
    return Incident(**{**given, "closed_at": None if closed is None else at(closed), **facts})


def a_run(*attempts: Attempt, incidents: Sequence[Incident] = (), **facts: Any) -> Run:
    given = {"id": "gpt", "policy": "default", "state": RunState.WATCHING, "created_at": at(1)}
    return Run(**{**given, "attempts": attempts, "incidents": tuple(incidents), **facts})


def minutes(account: Account) -> dict[str, float]:
    """Goodput and what there is of badput, in minutes."""
    spent = {kind.name: round(seconds / 60, 6) for kind, seconds in account.badput_s.items() if seconds}
    return {"GOOD": round(account.goodput_s / 60, 6), **spent}


@pytest.mark.parametrize("waits", [False, True])
def test_a_stop_keeps_the_time_that_the_run_was_held(waits):
    """Whether or not the next attempt is in the record; time after the order is not counted."""
    failed = an_incident(65, 66, 66, recovered=False)
    attempts = (an_attempt(1, 0, 5, 65), *([an_attempt(2, None, None, None)] if waits else []))
    held = a_run(*attempts, incidents=[failed], state=RunState.HELD)
    stopped = replace(held, state=RunState.STOPPED, commanded_at=at(126))
    expected = {"GOOD": 60, "MACHINES": 5, "UNNOTICED": 1, "HUMAN": 60}
    assert minutes(make_account(held, at(126), PRICED)) == minutes(make_account(stopped, at(500), PRICED)) == expected


def test_a_run_that_only_trains_has_but_waited_for_machines():
    """From its job's creation on, although Rerail adopted it a minute later."""
    account = make_account(a_run(an_attempt(1, 0, 5, None)), at(65), PRICED)
    assert minutes(account) == {"GOOD": 60, "MACHINES": 5}
    assert account.share == 60 / 65
    assert (account.dollars, account.lost_dollars, account.saved_s) == (60, 0, 0)
    assert (account.mttd_s, account.mttr_s, account.decided, account.relaunches) == (None, None, 0, 0)


DIED = (an_attempt(1, 0, 5, 65, last_step=600), an_attempt(2, 70, 75, None, resumed_from_step=400))


def test_a_relaunch_costs_steps_and_the_time_until_machines_are_there_again():
    """A third of 600 steps are trained again; two minutes to notice, three of backoff, five for machines."""
    run = a_run(*DIED, incidents=[an_incident(65, 67, 85, step=600, resume_step=400)])
    account = make_account(run, at(105), PRICED)
    assert minutes(account) == {"GOOD": 40 + 30, "LOST": 20, "UNNOTICED": 2, "BACKOFF": 3, "MACHINES": 10}
    assert (account.dollars, account.lost_dollars) == (90, pytest.approx(20))
    assert (account.mttd_s, account.mttr_s, account.decided, account.recovered, account.relaunches) == (
        120,
        1200,
        1,
        1,
        1,
    )


def test_what_people_would_have_taken_longer_is_saved():
    """A crash: their median of twenty minutes but for the five that we took; no machine was billed meanwhile."""
    account = make_account(a_run(*DIED, incidents=[an_incident(65, 67, 85)]), at(105), PRICED)
    assert (account.saved_s / 60, account.saved_dollars) == (on_call_times.CRASH.median - 5, 0)


@pytest.mark.parametrize("created", [None, 70])
def test_steps_are_lost_before_the_next_job_trains(created):
    """The decision names the step that it resumes from, before the job exists or has machines."""
    waiting = an_attempt(2, created, None, None, resumed_from_step=400)
    assert minutes(make_account(a_run(DIED[0], waiting), at(72), PRICED))["LOST"] == 20


@pytest.mark.parametrize("facts", [{}, {"closed": 200}, {"closed": 85, "recovered": False}])
def test_nothing_is_saved_before_it_is_proven(facts):
    run = a_run(*DIED, incidents=[an_incident(65, 67, **facts)])
    account = make_account(run, at(105), PRICED)
    assert (account.saved_s, account.recovered, account.mttr_s, account.decided) == (0, 0, None, 1)
    assert make_account(run, at(66), PRICED).decided == 0


@pytest.mark.parametrize(
    ("kind", "cause", "saved", "dollars"),
    [
        (Kind.DIVERGENCE, Cause.DIVERGED, 120 - 5, 120 - 5),
        (Kind.LOSS_SPIKE, Cause.DIVERGED, 120 - 5, 120 - 5),
        (Kind.STALL, Cause.HANG, 30 + 20 - 5, 30 - 5),
        (Kind.STARTUP_STALL, Cause.HANG, 30 + 20 - 5, 30 - 5),
        (Kind.THROUGHPUT_DROP, Cause.HARDWARE, (360 - 5) * 0.2, (360 - 5) * 0.2),
        ("job_failed", Cause.HANG, 20 - 5, 0),  # its watchdog has ended it already
    ],
)
def test_a_job_that_would_have_gone_on_for_nothing_saves_money_too(kind, cause, saved, dollars):
    """Until people had seen it its two machines would have been billed: each a dollar a minute."""
    attempts = [replace(attempt, instance_count=2) for attempt in DIED]
    account = make_account(
        a_run(*attempts, incidents=[an_incident(65, 67, 85, kind=kind, cause=cause)]), at(105), PRICED
    )
    assert (account.saved_s / 60, account.saved_dollars) == (pytest.approx(saved), pytest.approx(2 * dollars))


def test_a_rollback_beyond_an_attempt_loses_all_of_it_and_part_of_the_one_before():
    """The third attempt resumes from step 200: of 600 steps of the first, 400 are lost, and all of the second's."""
    run = a_run(*replace_ended(DIED, 95, 800), an_attempt(3, 95, 95, None, resumed_from_step=200))
    assert minutes(make_account(run, at(105), PRICED))["LOST"] == 40 + 20


def replace_ended(attempts: Sequence[Attempt], ended: float, step: int) -> list[Attempt]:
    *rest, last = attempts
    return [*rest, replace(last, ended_at=at(ended), status=JobStatus.FAILED, last_step=step)]


@pytest.mark.parametrize(("resumed", "lost"), [(None, 0), (0, 60), (400, 0)])
def test_where_no_step_is_known_all_is_lost_or_unknown(resumed, lost):
    run = a_run(an_attempt(1, 0, 5, 65), an_attempt(2, 65, 65, None, resumed_from_step=resumed))
    assert minutes(make_account(run, at(70), PRICED)).get("LOST", 0) == lost


@pytest.mark.parametrize(("first", "lost"), [(None, 0), (301, 10), (1, 60)])
def test_a_script_that_resumes_by_itself_loses_the_steps_behind_its_first_one(first, lost):
    """Of 360 steps in 60 minutes, those after step 300 are trained again; nothing is lost until a step is reported."""
    run = a_run(an_attempt(1, 0, 5, 65, last_step=360), an_attempt(2, 65, 65, None, first_step=first))
    assert minutes(make_account(run, at(70), PRICED)).get("LOST", 0) == pytest.approx(lost)


def test_a_hang_is_badput_from_its_onset():
    """Twenty minutes until it was believed, one to stop the job; the machines were paid for all of it."""
    hung = an_incident(45, 65, cause=Cause.HANG, kind=Kind.STALL, actions=("stop", "relaunch"))
    first = an_attempt(1, 0, 5, 66, last_step=400)
    run = a_run(first, an_attempt(2, 66, 70, None, resumed_from_step=400), incidents=[hung])
    account = make_account(run, at(70), PRICED)
    assert minutes(account) == {"GOOD": 40, "UNNOTICED": 20, "STOPPING": 1, "MACHINES": 9}
    assert account.lost_dollars == pytest.approx(21)


def test_a_restart_in_place_is_booked_to_its_first_step():
    """Ten minutes of steps go back with it: from step 600 to 500 of a hundred minutes' work."""
    order = InPlaceRestart(
        1, "c", "crashed", at(65), at(70), resume_step=500, last_step=600, restarted_at=at(66), stepped_at=at(68)
    )
    crashed = an_incident(65, 65, 70, kind="crashed", cause=Cause.USER_CODE, actions=("restart",))
    run = a_run(an_attempt(1, 0, 5, None, in_place_restarts=(order,)), incidents=[crashed])
    account = make_account(run, at(78), PRICED)
    assert minutes(account) == {"GOOD": 50 + 10, "LOST": 10, "RESTART": 3, "MACHINES": 5}
    unordered = replace(run.attempts[0], in_place_restarts=(replace(order, resume_step=None),))
    known = [replace(crashed, resume_step=step) for step in (200, 500)]  # the newest checkpoint is the last one known
    assert minutes(make_account(a_run(unordered, incidents=known), at(78), PRICED)) == minutes(account)
    assert (account.restarts, account.relaunches) == (1, 0)
    assert make_account(a_run(*run.attempts, an_attempt(2, 79, 80, None)), at(81), PRICED).restarts == 1
    assert find_incident_dollars(run, crashed, at(78), PRICED.prices) == pytest.approx(13)
    assert account.saved_s / 60 == on_call_times.CRASH.median - 1  # until its processes ran again


def test_a_restart_that_came_to_nothing_lasts_until_the_job_ends():
    order = InPlaceRestart(1, "c", "diverged", at(65), at(70), failed="nothing was heard")
    account = make_account(a_run(an_attempt(1, 0, 5, None, in_place_restarts=(order,))), at(75), PRICED)
    assert minutes(account) == {"GOOD": 60, "RESTART": 10, "MACHINES": 5}


def test_what_sagemaker_repairs_is_no_goodput_and_not_billed():
    """By the history of the job's own statuses."""
    run = a_run(an_attempt(1, 0, 5, 65, repair_seconds=600, billable_s=3000), state=RunState.COMPLETED)
    account = make_account(run, at(65), PRICED)
    assert minutes(account) == {"GOOD": 50, "REPAIR": 10, "MACHINES": 5}
    assert (account.dollars, account.lost_dollars) == (50, 0)
    assert make_account(run, at(35), PRICED).dollars == pytest.approx(25)


def test_a_held_run_waits_for_people():
    dead = an_attempt(1, 0, 5, 65, last_step=600)
    held = an_incident(65, 66, 66, recovered=False, actions=("hold",))
    account = make_account(a_run(dead, incidents=[held], state=RunState.HELD), at(126), PRICED)
    assert minutes(account) == {"GOOD": 60, "UNNOTICED": 1, "HUMAN": 60, "MACHINES": 5}
    released = an_attempt(2, 126, 130, None, resumed_from_step=600, approved_by="ada")
    account = make_account(a_run(dead, released, incidents=[held]), at(130), PRICED)
    assert minutes(account) == {"GOOD": 60, "UNNOTICED": 1, "HUMAN": 60, "MACHINES": 9}


@pytest.mark.parametrize("state", [RunState.STOPPED, RunState.HELD])
@pytest.mark.parametrize(("kept", "lost"), [(None, 0), (600, 0), (400, 20), (0, 60)])
def test_steps_that_were_not_saved_are_lost_when_the_run_stops(state, kept, lost):
    """No later attempt is needed to know it. All that a completed run has trained is its result."""
    run = a_run(an_attempt(1, 0, 5, 65, last_step=600, kept_step=kept), state=state, commanded_at=at(60))
    assert minutes(make_account(run, at(65), PRICED)).get("LOST", 0) == lost
    completed = make_account(replace(run, state=RunState.COMPLETED), at(65), PRICED)
    assert completed.goodput_s == 3600


def test_a_job_that_is_left_running_while_people_are_asked_earns_nothing():
    """Held with the job alive: nobody knows whether its steps are worth anything."""
    held = an_incident(45, 50, 50, recovered=False, cause=Cause.DIVERGED, kind=Kind.DIVERGENCE, actions=("hold",))
    run = a_run(an_attempt(1, 0, 5, None), incidents=[held], state=RunState.HELD)
    assert minutes(make_account(run, at(65), PRICED)) == {"GOOD": 45, "HUMAN": 15, "MACHINES": 5}


def test_a_proposal_waits_for_people():
    """The launch is decided after two minutes, and asked for; nobody has answered yet."""
    proposal = Proposal("p1", ProposedAction.LAUNCH, 2, "launch", "", at(67), at(97))
    waiting = an_attempt(2, None, None, None)
    run = a_run(DIED[0], waiting, incidents=[an_incident(65, 66)], proposal=proposal, state=RunState.WAITING)
    assert minutes(make_account(run, at(77), PRICED)) == {
        "GOOD": 60,
        "UNNOTICED": 1,
        "BACKOFF": 1,
        "HUMAN": 10,
        "MACHINES": 5,
    }


def test_a_stop_under_way_is_badput():
    run = a_run(
        an_attempt(1, 0, 5, None), stop=PlannedStop(AfterStop.RELAUNCH, "", at(65), at(80)), state=RunState.SAVING
    )
    assert minutes(make_account(run, at(70), PRICED)) == {"GOOD": 60, "STOPPING": 5, "MACHINES": 5}


def test_an_unknown_price_keeps_money_untold():
    account = make_account(a_run(an_attempt(1, 0, 5, None)), at(65), Policy())
    assert (account.dollars, account.lost_dollars, account.goodput_s) == (None, None, 3600)
    assert sum_accounts([account, make_account(a_run(an_attempt(1, 0, 5, None)), at(65), PRICED)]).dollars == 60


def test_a_sum_weighs_its_means_by_incidents():
    """Two incidents of one run count twice."""
    incidents = [an_incident(65, 67, 85), an_incident(70, 71, 95, number=2)]
    one = make_account(a_run(*DIED, incidents=incidents), at(105), PRICED)
    both = sum_accounts([one, one, Account()])
    assert (both.mttd_s, both.mttr_s, both.decided, both.relaunches) == (one.mttd_s, one.mttr_s, 4, 2)
    assert both.wall_s == 2 * one.wall_s
    assert sum_accounts([]).share is None


def test_a_run_that_was_recorded():
    """Three real jobs, on a clock sixty times as fast: ten of eighty steps were lost to the first failure, none to the
    kill that came right after a save."""
    run = loads(Run, (Path(__file__).parent / "data" / "run-recorded.json").read_text())
    jobs = [(a.created_at, a.training_started_at, a.ended_at) for a in run.attempts]
    account = make_account(run, run.attempts[-1].ended_at + timedelta(days=1), PRICED)
    trained = [(ended - began).total_seconds() for _, began, ended in jobs]
    assert account.wall_s == pytest.approx((jobs[-1][2] - jobs[0][0]).total_seconds())
    assert account.badput_s[Badput.LOST] == pytest.approx(trained[0] * 10 / 80)
    assert account.goodput_s == pytest.approx(sum(trained) - trained[0] * 10 / 80)
    assert account.badput_s[Badput.MACHINES] == pytest.approx(
        sum((began - made).total_seconds() for made, began, _ in jobs)
    )
    gaps = sum((after[0] - before[2]).total_seconds() for before, after in pairwise(jobs))
    assert account.badput_s[Badput.UNNOTICED] + account.badput_s[Badput.BACKOFF] == pytest.approx(gaps)
    assert 0 < account.badput_s[Badput.UNNOTICED] < 0.1
    assert (account.relaunches, account.decided, account.recovered) == (2, 2, 2)


@given(strategies.runs, strategies.moments, st.timedeltas(timedelta(0), timedelta(days=400)))
def test_whatever_a_record_claims_its_account_is_sound(run, moment, later):
    """Nothing negative, the share within 0 and 1, and nothing smaller at a later time."""
    early, late = make_account(run, moment, PRICED), make_account(run, moment + later, PRICED)
    for account in (early, late):
        assert all(part >= 0 for part in (account.goodput_s, *account.badput_s.values(), account.saved_s))
        assert account.share is None or 0 <= account.share <= 1
        assert account.lost_dollars is None or 0 <= account.lost_dollars <= account.dollars + 1e-6
    for kind in Badput:
        assert late.badput_s[kind] >= early.badput_s[kind] - 1e-3
    assert late.goodput_s >= early.goodput_s - 1e-3
    assert late.saved_s >= early.saved_s
    share = find_recent_share(run, moment + later, later)
    assert share is None or 0 <= share <= 1
    assert (late.decided, late.recovered, late.relaunches) >= (early.decided, early.recovered, early.relaunches)


@st.composite
def lives(draw: st.DrawFn) -> Run:
    """A run as the world makes them: jobs one after the other, each begun and ended after it was created."""
    gaps = st.floats(0, 600)
    now, attempts, incidents = 0.0, [], []
    for number in range(1, draw(st.integers(1, 5)) + 1):
        created, began, ended = (now := now + draw(gaps) for _ in range(3))
        last = draw(st.none() | st.integers(0, 1000))
        resumed, first = draw(st.none() | st.integers(0, 1000)), draw(st.none() | st.integers(0, 1000))
        facts = {"last_step": last, "resumed_from_step": resumed, "first_step": first}
        attempts.append(an_attempt(number, created, began, ended, **facts))
        decided, cause = now + draw(gaps), draw(st.sampled_from(Cause))
        incidents.append(an_incident(now, decided, attempt=number, number=number, cause=cause))
        now = decided
    if draw(st.booleans()):
        attempts[-1] = replace(attempts[-1], ended_at=None, status=JobStatus.IN_PROGRESS)
        return a_run(*attempts, incidents=incidents[:-1])
    state = draw(st.sampled_from([RunState.COMPLETED, RunState.STOPPED, RunState.HELD, RunState.WATCHING]))
    return a_run(*attempts, incidents=incidents, state=state)


@given(lives(), st.floats(0, 20_000))
def test_the_parts_add_up_to_the_wall_time(run, later):
    """From the first job's creation until now, or until the end where the run is over."""
    now, end = at(later), run.current.ended_at
    over = run.state in (RunState.COMPLETED, RunState.STOPPED)
    until = min(now, end) if over and end else now
    wall_s = max(0.0, (until - run.attempts[0].created_at).total_seconds())
    assert make_account(run, now, PRICED).wall_s == pytest.approx(wall_s, abs=1e-3)


# What no record holds, and is taken for training.
UNTOLD = (Spent.TRAINED, Spent.SAVES, Spent.SNAPSHOTS, Spent.INIT, Spent.SLOW)


@pytest.mark.parametrize(("way", "gpus", "days"), [(RELAUNCHED, 16_384, 2), (UNCHANGED, 2048, 5), (DEFAULT, 16_384, 2)])
def test_the_record_tells_what_really_happened(way, gpus, days):
    """Against a simulated world, which knows where each millisecond went: each kind within 2 % of the time."""
    world = SimulatedRun(replace(way, repairs=False), gpus, days, 1, Assumptions())
    supervised = Supervised(world, Policy())
    world.watch = supervised
    world.run()
    account, true = make_account(supervised.run, world.get_moment(), PRICED), world.accounts
    allowed = 0.02 * true.wall_ms / 1000
    assert account.wall_s == pytest.approx(true.wall_ms / 1000)
    assert account.goodput_s == pytest.approx(sum(true.spent[what] for what in UNTOLD) / 1000, abs=allowed)
    for kind in Badput:
        assert account.badput_s[kind] == pytest.approx(true.spent[Spent(kind.value)] / 1000, abs=allowed)
    assert account.relaunches + 1 == world.counts["launches"]
    assert account.decided > 5
