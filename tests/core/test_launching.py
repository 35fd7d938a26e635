"""The gate in front of every launch: the pause, the run's time, its money and the account's brake."""

import ast
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

import rerail
from rerail.accounting.costs import sum_run_dollars
from rerail.decisions.launch import choose_resume_step_again, with_next_attempt
from rerail.decisions.launch_checks import CHECKS, Consequence, Obstacle, with_launch_blocked
from rerail.messages.messages import AlarmStateChanged, FindingsReceived, RunDue
from rerail.model.actions import Severity
from rerail.model.checkpoints import Checkpoint
from rerail.model.errors import StateUnknown, Throttled
from rerail.model.finding import Finding, Kind, Level
from rerail.model.policy import Limits, MaxRuntime, Mode, OnAlarm, OnMaxRuntime
from rerail.model.rate_limit import LaunchRequest
from rerail.model.run import JobStatus, LaunchCheck, RunState
from rerail.model.runbooks import Runbook
from rerail.model.signals import OperatorVerb
from tests.core.failures import NODE_LOST
from tests.fakes import World
from tests.raising import raising

P5_HOUR = 63.296


@pytest.fixture
def world() -> World:
    """A run that trains on two P5, with a checkpoint."""
    world = World()
    world.sagemaker.instance_type, world.sagemaker.instance_count = "ml.p5.48xlarge", 2
    world.adopt(max_runtime_s=86400)
    world.checkpoints.save(step=100)
    return world


def under(world: World, **fields) -> World:
    world.policies.by_name["default"] = replace(world.policies.by_name["default"], **fields)
    return world


def report_finding(world: World, kind: Kind, onset: int | None = 90) -> None:
    finding = Finding(kind, Level.INTERVENE, 120, onset, f"{kind} since step {onset}")
    world.supervisor().handle(FindingsReceived("gpt", world.run().current.job_name, (finding,)))


def test_the_checks_are_asked_in_this_order():
    assert [check.__name__ for check in CHECKS] == [
        "is_not_paused",
        "has_time_left",
        "has_run_budget_left",
        "has_incident_budget_left",
        "is_approved",
    ]


def test_there_is_one_way_to_a_launch():
    """A CreateJob is made in one place, by `launch.with_launch`, behind the gate."""
    makers = set()
    for path in Path(rerail.__file__).parent.rglob("*.py"):
        calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        if any(isinstance(made, ast.Name) and made.id == "CreateJob" for made in calls):
            makers.add(path.stem)
    assert makers == {"launch"}


# The pause


def test_the_next_attempt_keeps_samples_rate_and_microbatches(world):
    run = world.run()
    kept = {"skip_samples": "1-9", "rate": 0.5, "microbatches": 4, "max_runtime_s": 600}
    ended = replace(run.current, status=JobStatus.FAILED, ended_at=world.clock(), **kept)
    run = with_next_attempt(replace(run, attempts=(ended,)), 90, wake_at=world.clock())
    assert {name: getattr(run.current, name) for name in kept} == kept


def test_while_paused_nothing_is_created_and_all_is_reported(world):
    """The failure is judged and told as ever; the launch waits, said once, and is made once the pause is lifted."""
    world.pause.paused = True
    world.lose_node(minutes=60)
    assert (world.run().state, world.run().blocked_by) == (RunState.WAITING, "pause")
    assert list(world.sagemaker.jobs) == ["gpt"]
    assert [title for title in world.notice_titles(Severity.INFORM) if "waits" in title] == ["gpt: waits"]
    assert sum("Rerail is paused for this account" in reason for reason in world.reasons()) == 1
    world.pause.paused = False
    world.minutes(2)
    assert (world.run().state, list(world.sagemaker.jobs)) == (RunState.WATCHING, ["gpt", "gpt-a002"])


def test_while_paused_no_finding_stops_a_job(world):
    """What was found meanwhile is told, and acted on while it is fresh."""
    world.pause.paused = True
    report_finding(world, Kind.NON_FINITE, onset=90)
    world.minutes(10)
    assert (world.run().state, world.sagemaker.live()) == (RunState.WATCHING, ["gpt"])
    assert world.notice_titles(Severity.INFORM)[-1] == "gpt: waits until the pause is lifted"
    world.pause.paused = False
    world.minutes(3)
    assert world.sagemaker.live() == ["gpt-a002"]
    assert any(reason.startswith("the pause was lifted: non_finite") for reason in world.reasons())


def test_a_stall_found_during_a_pause_is_over_once_the_job_has_saved(world):
    world.pause.paused = True
    stall = Finding(Kind.STALL, Level.INTERVENE, 120, 120, "no step", world.clock(), onset_at=world.clock(), idle=True)
    world.supervisor().handle(FindingsReceived("gpt", "gpt", (stall,)))
    assert world.run().proposal
    world.minutes(2)
    world.checkpoints.save(step=200)
    world.pause.paused = False
    world.minutes(3)
    assert (world.sagemaker.live(), world.run().proposal) == (["gpt"], None)


def test_what_was_found_long_ago_is_not_acted_on_without_a_human(world):
    world.pause.paused = True
    report_finding(world, Kind.DIVERGENCE)
    world.minutes(120)
    world.pause.paused = False
    world.minutes(5)
    assert world.sagemaker.live() == ["gpt"]
    page = next(notice for notice in world.bus.notices if notice.severity is Severity.PAGE)
    assert f"rerail approve gpt --proposal {world.run().proposal.id}" in page.todo


def test_a_stop_that_a_pause_put_off_is_not_ours_when_a_human_stops_the_job(world, monkeypatch):
    """Recorded, not called: the process died there, Rerail was paused, and then somebody stopped the job."""
    stop = world.sagemaker.stop

    monkeypatch.setattr(world.sagemaker, "stop", raising(Throttled("died here")))
    report_finding(world, Kind.NON_FINITE)
    assert world.run().state is RunState.STOPPING
    world.pause.paused = True
    world.minutes(2)
    assert (world.run().state, world.run().stop.is_deferred) == (RunState.SAVING, True)
    monkeypatch.setattr(world.sagemaker, "stop", stop)
    world.sagemaker.end("gpt", JobStatus.STOPPED)
    world.pause.paused = False
    world.minutes(5)
    assert (world.run().state, list(world.sagemaker.jobs)) == (RunState.STOPPED, ["gpt"])


def test_a_stop_that_was_put_off_is_called_when_the_pause_is_lifted(world):
    """The deadline of the save passes during the pause."""
    world.minutes(9)
    world.send_command(OperatorVerb.RESTART)
    world.pause.paused = True
    world.minutes(40)
    assert (world.run().state, world.sagemaker.live()) == (RunState.SAVING, ["gpt"])
    assert sum("not yet: Rerail is paused for this account" in reason for reason in world.reasons()) == 1
    world.pause.paused = False
    world.minutes(3)
    assert world.sagemaker.live() == ["gpt-a002"]
    assert "the pause was lifted: stopping the job" in world.reasons()


def test_an_unreadable_policy_blocks_pending_actions(world, monkeypatch):
    monkeypatch.setattr(world.sagemaker, "stop", lambda job: (_ for _ in ()).throw(Throttled("later")))
    report_finding(world, Kind.NON_FINITE)
    monkeypatch.undo()

    monkeypatch.setattr(world.policies, "get", raising(StateUnknown("GetParameter timed out")))
    with pytest.raises(StateUnknown):
        world.supervisor().handle(RunDue("gpt"))
    assert world.sagemaker.live() == ["gpt"]


# Money


def test_a_run_that_has_cost_enough_is_held(world):
    """Two machines for two hours are four machine-hours; a release grants as much again."""
    under(world, limits=Limits(run_dollars=200))
    world.minutes(120)
    world.lose_node(minutes=20)
    spent = f"${4 * P5_HOUR:,.0f}"
    assert world.run().state is RunState.HELD
    assert f"the run has cost {spent}, of at most $200 (limits.run_dollars)" in world.run().hold_reason
    happened = "the waiting time has ended: creating gpt-a002 from step 100"
    assert world.bus.notices[-1].body.startswith(f"{happened}; held: the run has cost {spent}")
    world.send_command(OperatorVerb.RELEASE)
    world.minutes(2)
    assert world.sagemaker.live() == ["gpt-a002"]
    world.lose_node("gpt-a002", minutes=20)
    assert world.run().state is RunState.WATCHING


@pytest.mark.parametrize("verb", [OperatorVerb.RESTART, OperatorVerb.ROLLBACK, OperatorVerb.DRILL])
def test_an_operator_stops_no_job_whose_successor_would_be_held(world, verb):
    """The job trains on; with a higher limit the same order is carried out."""
    under(world, limits=Limits(run_dollars=200))
    world.minutes(200)
    world.send_command(verb, "early", step=100)
    world.minutes(20)
    assert (world.sagemaker.live(), world.run().state) == (["gpt"], RunState.WATCHING)
    assert f"ada said {verb}" in world.reasons()[-1]
    assert "but nothing is stopped, because its next job would not be created: the run has cost" in world.reasons()[-1]
    assert world.reasons()[-1].endswith("raise the limit in policy 'default', then repeat the command")
    under(world, limits=Limits(run_dollars=2000))
    world.send_command(verb, "late", step=100)
    world.minutes(20)
    assert world.sagemaker.live() == ["gpt-a002"]


def test_an_alarm_stops_no_job_whose_successor_would_be_held(world):
    """The run has cost its limit: a stop would end its training for an alarm that others may have set."""
    under(world, on_alarm=OnAlarm.RESTART, limits=Limits(run_dollars=200))
    world.minutes(200)
    world.supervisor().handle(AlarmStateChanged("gpt", "gpu-idle", "ALARM", "below 10", "/aws/sagemaker/TrainingJobs"))
    world.minutes(5)
    assert (world.sagemaker.live(), world.run().state) == (["gpt"], RunState.WATCHING)
    assert "no restart: its next job would not be created: the run has cost" in world.bus.notices[-1].body


def test_an_incident_may_cost_only_so_much(world):
    """What the run had cost before the incident does not count; its relaunches do, until there is progress."""
    under(world, limits=Limits(incident_dollars=200, attempts_without_progress=50, starts=50))
    world.minutes(600)
    for attempt in ("gpt", "gpt-a002"):
        world.lose_node(attempt, minutes=60)
    world.lose_node("gpt-a003", minutes=20)
    assert world.run().state is RunState.HELD
    assert "(limits.incident_dollars)" in world.run().hold_reason


@pytest.mark.parametrize(
    ("facts", "prices"),
    [({"billable_s": 1800}, {}), ({}, {"ml.p5.48xlarge": 20.0})],
    ids=["billed for less time", "a price of the policy"],
)
def test_a_cap_counts_billed_time_and_the_policys_prices(world, facts, prices):
    """SageMaker bills BillableTimeInSeconds; under a savings plan the same hours are cheaper."""
    under(world, limits=Limits(run_dollars=200), prices=prices)
    world.minutes(120)
    world.lose_node(minutes=20, **facts)
    assert world.sagemaker.live() == ["gpt-a002"]


def test_a_running_job_is_saved_and_stopped_at_its_cap(world):
    """People are informed at four fifths of it. A held run goes on for as much again once it is released."""
    under(world, limits=Limits(stop_dollars=4 * P5_HOUR))
    world.minutes(100)
    (forecast,) = [notice for notice in world.bus.notices if notice.title == "gpt: its cost nears the cap"]
    assert "on 2026-01-31 at 02:00 UTC" in forecast.body and forecast.severity is Severity.INFORM
    assert world.sagemaker.live() == ["gpt"]
    world.minutes(21)
    assert world.run().state is RunState.SAVING
    world.checkpoints.save(step=900)
    world.minutes(2)
    assert (world.run().state, world.sagemaker.live()) == (RunState.HELD, [])
    assert "(limits.stop_dollars)" in world.run().hold_reason
    assert world.run().ledger.charges == {}
    world.send_command(OperatorVerb.RELEASE)
    world.minutes(115)
    assert world.sagemaker.live() == ["gpt-a002"]
    world.minutes(30)
    assert world.sagemaker.live() == []


@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.APPROVE, Mode.PAUSE])
def test_a_job_that_may_not_be_stopped_at_its_cap_pages_once(world, mode):
    """A proposal that waits meanwhile changes nothing."""
    under(world, mode=mode, limits=Limits(stop_dollars=4 * P5_HOUR))
    if mode is Mode.PAUSE:
        report_finding(world, Kind.LOSS_SPIKE)
        assert world.run().proposal
    world.minutes(180)
    assert world.sagemaker.live() == ["gpt"]
    assert world.notice_titles(Severity.PAGE) == ["gpt: its cost has reached the cap"]
    (forecast,) = [notice for notice in world.bus.notices if notice.title == "gpt: its cost nears the cap"]
    assert "at the cap on-call is paged, and the job goes on" in forecast.did
    assert sum("(limits.stop_dollars)" in reason for reason in world.reasons()) == 2
    world.sagemaker.end("gpt", JobStatus.COMPLETED)
    world.minutes(2)
    assert len(world.notice_titles(Severity.CLEAR)) == 1


@pytest.mark.parametrize("cap", [8 * P5_HOUR, 0])
def test_a_page_about_a_cap_is_over_once_the_cap_is_another(world, cap):
    """The new cap is told of like the first."""
    under(world, mode=Mode.OBSERVE, limits=Limits(stop_dollars=4 * P5_HOUR))
    world.minutes(130)
    under(world, limits=Limits(stop_dollars=cap))
    world.minutes(2)
    assert world.notice_titles(Severity.CLEAR) == ["gpt: all clear: the cap of $253 is over"]
    world.minutes(130)
    titles = ["gpt: its cost nears the cap", "gpt: its cost has reached the cap"] * (2 if cap else 1)
    assert [title for title in world.notice_titles() if "its cost" in title] == titles


@pytest.mark.parametrize(("spot", "share"), [(True, 0.3), (False, 1)])
def test_a_running_spot_job_is_priced_as_those_before_it_were_billed(world, spot, share):
    run, at, hour = world.run(), world.clock(), timedelta(hours=1)
    ended = replace(run.current, training_started_at=at, ended_at=at + hour, billable_s=1080)
    running = replace(run.current, number=2, training_started_at=at + hour)
    run = replace(run, attempts=(ended, running), cluster=replace(run.cluster, spot=spot))
    assert sum_run_dollars(run, at + 2 * hour, {}) == pytest.approx(2 * P5_HOUR * (0.3 + share))


@pytest.mark.parametrize("caps", [{"run_dollars": 1}, {"incident_dollars": 1}, {"stop_dollars": 1}])
def test_an_unknown_price_is_reported_once(world, caps):
    """No cap can be kept then, and the run is not stopped for that."""
    under(world, limits=Limits(starts=50, attempts_without_progress=50, **caps))
    world.sagemaker.instance_type = "ml.x9.huge"
    world.sagemaker.jobs["gpt"] = replace(world.sagemaker.jobs["gpt"], instance_type="ml.x9.huge")
    for attempt in ("gpt", "gpt-a002", "gpt-a003"):
        world.minutes(30)
        world.lose_node(attempt, minutes=20)
    assert world.sagemaker.live() == ["gpt-a004"]
    assert world.notice_titles(Severity.INFORM).count("gpt: no cap on money") == 1


# MaxRuntimeInSeconds


def condition(world: World, job: str) -> dict:
    return dict(world.sagemaker.requests[job]["StoppingCondition"])


@pytest.fixture
def timed(world: World) -> World:
    """The run's request has a StoppingCondition."""
    stored = world.runs.requests["gpt"]
    limits = {"MaxRuntimeInSeconds": 86400, "MaxWaitTimeInSeconds": 90000}
    world.runs.requests["gpt"] = {**stored, "StoppingCondition": limits}
    return world


def test_a_successor_gets_what_is_left_of_the_runs_time(timed):
    """20 of 24 hours are spent; a spot job still waits for machines as long as before."""
    timed.minutes(20 * 60)
    timed.lose_node(minutes=20)
    assert condition(timed, "gpt-a002") == {"MaxRuntimeInSeconds": 14400, "MaxWaitTimeInSeconds": 18000}


def test_the_last_attempt_gets_enough_to_start_up(timed):
    """A minute would be spent before the first step."""
    timed.minutes(24 * 60 - 1)
    timed.lose_node(minutes=20)
    assert condition(timed, "gpt-a002")["MaxRuntimeInSeconds"] == 15 * 60


def test_a_spent_max_runtime_ends_the_run_with_a_notice(timed):
    """As SageMaker itself would have ended it."""
    timed.minutes(24 * 60 + 1)
    timed.lose_node(minutes=20)
    assert (timed.run().state, list(timed.sagemaker.jobs)) == (RunState.STOPPED, ["gpt"])
    assert timed.notice_titles(Severity.INFORM)[-1] == "gpt: stopped"
    assert "MaxRuntimeInSeconds of 86400 s is spent over 1 attempts" in timed.reasons()[-1]


@pytest.mark.parametrize("choice", [{"max_runtime": MaxRuntime.PER_ATTEMPT}, {"on_max_runtime": OnMaxRuntime.RELAUNCH}])
def test_each_attempt_may_have_its_own_time(timed, choice):
    """Whoever wants to be relaunched after MaxRuntime does not mean the run by it."""
    under(timed, **choice)
    timed.minutes(30 * 60)
    timed.lose_node(minutes=20)
    assert condition(timed, "gpt-a002")["MaxRuntimeInSeconds"] == 86400


# The brake on all relaunches of the account


def test_more_relaunches_than_the_account_may_have_wait_and_page_once(world):
    """Four runs die at once, two relaunches an hour are allowed: two go on, two wait for theirs; one page."""
    under(world, limits=Limits(account_relaunches=2))
    names = ["gpt", "bert", "llama", "moe"]
    for name in names[1:]:
        world.adopt(name, uri=f"s3://bucket/{name}/")
    world.minutes(1)
    for name in names:
        world.sagemaker.fail(name, NODE_LOST)
    world.minutes(10)
    states = [world.run(name).state for name in names]
    assert sorted(states) == [RunState.WAITING, RunState.WAITING, RunState.WATCHING, RunState.WATCHING]
    assert world.notice_titles(Severity.PAGE) == ["relaunches are rate-limited: many runs fail at once"]
    page = next(notice for notice in world.bus.notices if notice.severity is Severity.PAGE)
    assert "2 relaunches over all runs within 60 min, of at most 2" in page.body
    world.minutes(70)
    (clear,) = [notice for notice in world.bus.notices if notice.severity is Severity.CLEAR]
    assert (clear.clears, clear.title.split(": ", 1)[1]) == (page.key, "all clear: relaunches go ahead again")
    assert {world.run(name).state for name in names} == {RunState.WATCHING}


def test_a_launch_that_is_kept_back_is_no_start(world):
    """Else an hour of waiting would read as a restart storm."""
    under(world, limits=Limits(account_relaunches=1, starts=3))
    world.rate_limit.admit(LaunchRequest("another"), at=world.clock(), limit=1, window=timedelta(hours=1))
    before = world.run().ledger.starts
    world.lose_node(minutes=20)
    assert (world.run().blocked_by, world.run().ledger.starts) == (LaunchCheck.RATE_LIMIT, before)


def test_a_policy_pauses_its_own_runs(world):
    """mode = "pause" does for its jobs what `rerail pause` does for all."""
    under(world, mode=Mode.PAUSE)
    world.lose_node(minutes=20)
    assert list(world.sagemaker.jobs) == ["gpt"]
    under(world, mode=Mode.ACT)
    world.minutes(2)
    assert list(world.sagemaker.jobs) == ["gpt", "gpt-a002"]


def test_a_blocked_launch_waits_and_is_tried_at_each_tick(world):
    obstacle, at = (
        Obstacle(LaunchCheck.RUN_COST, Consequence.WAIT, "too expensive", "raise it", Runbook.MONEY_SPENT),
        world.clock(),
    )
    blocked = with_launch_blocked(replace(world.run(), wake_at=None), obstacle, at)
    assert (blocked.state, blocked.blocked_by, blocked.wake_at) == (RunState.WAITING, LaunchCheck.RUN_COST, at)
    later = at + timedelta(minutes=7)
    assert with_launch_blocked(replace(world.run(), wake_at=later), obstacle, at).wake_at == later


def test_a_checkpoint_that_is_chosen_again_is_never_newer(world):
    """What was saved after the first choice may be what the run was rolled back from."""
    run = world.run()
    run = replace(run, attempts=(replace(run.current, resumed_from_step=300),))
    saved = [Checkpoint(f"s3://b/step-{step}/", step, 1, world.clock()) for step in (100, 200, 400)]
    chosen, note = choose_resume_step_again(run, saved)
    assert chosen.current.resumed_from_step == 200 and "step 300 cannot be resumed from" in note
    assert choose_resume_step_again(run, saved[2:])[0].current.resumed_from_step is None
