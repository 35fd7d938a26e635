"""Nights in the life of a run, hour by hour: the real loop and the real round on a pretend world."""

import random
from dataclasses import replace
from datetime import timedelta

import pytest

from rerail.accounting.goodput import make_account
from rerail.accounting.wall_time import Badput
from rerail.decisions.launch import make_create_job
from rerail.messages.messages import CommandReceived, FindingsReceived, JobStateChanged, RunDue
from rerail.model.actions import Severity
from rerail.model.causes import Cause
from rerail.model.checkpoint_layouts import UNKNOWN_STEP, Layout
from rerail.model.codec import dumps, loads
from rerail.model.finding import Finding, Kind, Level
from rerail.model.policy import Limits, Mode, OnMaxRuntime, Policy
from rerail.model.run import JobStatus, Run, RunState
from rerail.model.signals import OperatorVerb
from rerail.model.signatures import VARIABLE
from tests.core.failures import KILLED, NO_MACHINES, NODE_LOST
from tests.fakes import KEY, Agent, World

BUG = (
    'AlgorithmError: {"rerail":1,"cause":"user_code","error":"ValueError: bad shape","step":60,"rank":0}, exit code: 1'
)


@pytest.fixture
def world() -> World:
    return World().adopt()


def test_the_rank_that_failed_is_named(world):
    """One of eight ranks fails, and the incident says which."""
    world.sagemaker.fail("gpt", "[rank5]: Traceback (most recent call last):\n[rank5]: RuntimeError: ragged batch")
    world.minutes(1)
    assert "(RuntimeError: ragged batch); the failing rank is 5" in world.run().incidents[-1].reason


def test_a_lost_node_costs_nothing_but_the_steps_since_the_last_checkpoint(world):
    """00:00 the job trains. 01:00 a checkpoint. 01:10 the node dies. Minutes later the successor trains from it."""
    assert world.run().state is RunState.WATCHING
    world.minutes(60)
    world.checkpoints.save(step=1000)
    world.minutes(10)
    world.lose_node(minutes=3, metrics={"step": 1100.0})

    run = world.run()
    assert [attempt.job_name for attempt in run.attempts] == ["gpt", "gpt-a002"]
    assert run.state is RunState.WATCHING
    assert run.attempts[0].cause is Cause.INFRASTRUCTURE
    assert make_create_job(run).previous_cause == "infrastructure"
    assert run.open_incident and run.open_incident.lost_steps == 100
    assert world.sagemaker.requests["gpt-a002"]["Environment"] == {
        "RERAIL_RUN": "gpt",
        "RERAIL_ATTEMPT": "2",
        "RERAIL_RESUME_STEP": "1000",
        "RERAIL_MTBF_SECONDS": "11406900",
        VARIABLE: KEY,
    }

    world.checkpoints.save(step=1500, attempt=2)
    world.minutes(2)
    assert world.run().open_incident is None, "a newer checkpoint closes the incident"
    world.sagemaker.end("gpt-a002", JobStatus.COMPLETED)
    world.minutes(2)
    assert world.run().state is RunState.COMPLETED
    assert not world.run().is_open
    assert world.notice_titles(Severity.PAGE) == []
    assert world.notice_titles(Severity.INFORM) == [
        "gpt: infrastructure: relaunching",
        "gpt: recovered",
        "gpt: completed",
    ]


def test_a_bug_is_tried_once_more_and_then_held(world):
    """The same error at the same step twice is deterministic: no third attempt, one page."""
    world.checkpoints.save(step=50)
    world.sagemaker.fail("gpt", BUG)
    world.minutes(3)
    assert world.run().current.number == 2
    world.sagemaker.fail("gpt-a002", BUG)
    world.minutes(90)
    run = world.run()
    assert (run.state, run.current.number) == (RunState.HELD, 2)
    assert "same error at step 60 in attempts 1 and 2" in run.hold_reason
    assert world.notice_titles(Severity.PAGE) == ["gpt: held: ValueError: bad shape at step 60, twice"]


def test_waiting_for_capacity_costs_time_and_no_attempts(world):
    """Five hours without machines: no attempt is spent, no storm is called, and the run goes on when they come."""
    world.checkpoints.save(step=10)
    world.sagemaker.fail("gpt", NODE_LOST)
    world.sagemaker.no_capacity = 20
    world.minutes(300)
    run = world.run()
    assert run.state is RunState.WATCHING
    assert [attempt.job_name for attempt in run.attempts] == ["gpt", "gpt-a002"]
    assert world.notice_titles(Severity.PAGE) == []


def test_a_job_that_gets_no_machines_is_launched_again_until_patience_ends():
    """CapacityError on a job that was accepted: another job each time, a hold after the policy's 12 hours."""
    world = World()
    world.sagemaker.machines_come = False
    world.adopt()
    for _ in range(60):
        if world.run().current.may_be_live:
            world.sagemaker.fail(world.run().current.job_name, NO_MACHINES)
        world.minutes(15)
    run = world.run()
    assert run.state is RunState.HELD
    assert "no capacity for 12" in run.hold_reason
    assert run.ledger.charges == {}


def test_a_human_stop_ends_the_run(world):
    """A stop that we did not ask for ends the run."""
    world.sagemaker.end("gpt", JobStatus.STOPPED)
    world.minutes(120)
    assert world.run().state is RunState.STOPPED
    assert list(world.sagemaker.jobs) == ["gpt"]


def test_a_finding_about_a_job_that_a_human_is_stopping_changes_nothing(world):
    """The job needs minutes to stop and is slow meanwhile: a relaunch would override the human."""
    world.minutes(10)
    world.checkpoints.save(step=10)
    world.sagemaker.jobs["gpt"] = replace(world.sagemaker.jobs["gpt"], status=JobStatus.STOPPING, secondary="Stopping")
    slow = Finding(Kind.THROUGHPUT_DROP, Level.INTERVENE, 12, 8, "slow")
    world.supervisor().handle(FindingsReceived("gpt", "gpt", (slow,)))
    assert world.run().stop is None
    world.sagemaker.end("gpt", JobStatus.STOPPED)
    world.minutes(30)
    assert (world.run().state, world.sagemaker.live()) == (RunState.STOPPED, [])


def test_a_drill_that_arrives_hours_late_interrupts_nothing(world):
    """It was among the dead letters, which are delivered again by hand."""
    world.checkpoints.save(step=10)
    asked_at = world.clock()
    world.minutes(120, every=timedelta(minutes=10))
    world.send_command(OperatorVerb.DRILL, step=10, asked_at=asked_at)
    world.minutes(30)
    assert (world.run().state, world.sagemaker.live()) == (RunState.WATCHING, ["gpt"])
    assert "too long ago" in world.reasons()[-1]


@pytest.mark.parametrize(("choice", "jobs"), [(OnMaxRuntime.STOP, 1), (OnMaxRuntime.RELAUNCH, 2)])
def test_the_policy_decides_what_a_spent_max_runtime_means(choice, jobs):
    world = World()
    world.policies.by_name["default"] = Policy(on_max_runtime=choice)
    world.adopt()
    world.sagemaker.end("gpt", JobStatus.STOPPED, secondary="MaxRuntimeExceeded")
    world.minutes(5)
    assert len(world.sagemaker.jobs) == jobs


def test_sagemakers_own_restart_is_counted_and_left_alone(world):
    """Spot interruption and cluster repair happen inside the same job: count them and keep still."""
    job = world.sagemaker.jobs["gpt"]
    for secondary in ("Interrupted", "Starting", "Training", "Restarting", "Training"):
        world.sagemaker.jobs["gpt"] = replace(job, secondary=secondary)
        world.minutes(2)
    run = world.run()
    assert (run.state, run.current.number, run.current.self_repairs) == (RunState.WATCHING, 1, 2)


def test_three_attempts_without_a_newer_checkpoint_are_enough(world):
    for _ in range(6):
        world.sagemaker.fail(world.run().current.job_name, KILLED)
        world.minutes(20)
        if world.run().state is RunState.HELD:
            break
    assert world.run().current.number == 3
    assert "3 attempts trained and left no newer checkpoint" in world.run().hold_reason


def test_a_script_without_manifests_proves_its_progress_by_getting_farther(world):
    """It resumes by its own means; dying again and again at ever later steps is progress, at the same step is none."""
    for step in (100, 200, 300, 400, 500, 500, 500, 500):
        if world.run().state is RunState.HELD:
            break
        world.sagemaker.fail(world.run().current.job_name, KILLED, metrics={"step": step})
        world.minutes(20)
    assert world.run().state is RunState.HELD
    assert world.run().current.number == 6
    assert all(attempt.resumed_from_step is None for attempt in world.run().attempts)


def test_steps_of_an_agent_that_has_saved_nothing_prove_no_progress(world):
    """Each attempt dies at a later step, and begins at step 0 again: the budgets hold it, and no retry is refunded."""
    for number in (1, 2, 3):
        job = world.run().current.job_name
        Agent(world, attempt=number, job=job).hello()
        world.minutes(2)
        world.sagemaker.fail(job, KILLED, metrics={"step": 100 * number})
        world.minutes(20)
    assert (world.run().state, world.run().current.number) == (RunState.HELD, 3)
    assert not any("progress to step" in entry for entry in world.run().ledger.entries)


def test_a_release_resumes_from_the_newest_checkpoint_there_is(world):
    """Not from the one of the last incident: a job that was held alive may have saved more."""
    world.checkpoints.save(step=10)
    world.send_command(OperatorVerb.HOLD)
    world.checkpoints.save(step=90)
    world.lose_node(minutes=5)
    world.checkpoints.save(step=95)
    world.send_command(OperatorVerb.RELEASE, 2)
    assert world.run().current.resumed_from_step == 95


def test_progress_refunds_every_budget(world):
    """Twelve node losses in a row, more than the budget of ten: each attempt leaves a newer checkpoint."""
    for number in range(1, 13):
        world.minutes(40)
        world.checkpoints.save(step=number * 100)
        world.lose_node(world.run().current.job_name, minutes=3)
    assert world.run().state is RunState.WATCHING
    assert world.run().ledger.charges == {Cause.INFRASTRUCTURE: 1}
    assert world.notice_titles(Severity.PAGE) == []


def test_a_restart_storm_is_held():
    """Machines that come up and die at once, five times in half an hour."""
    world = World()
    world.policies.by_name["default"] = Policy(limits=Limits(attempts_without_progress=100))
    world.adopt()
    for _ in range(10):
        if world.run().current.may_be_live:
            world.sagemaker.fail(world.run().current.job_name, NODE_LOST, training_started_at=None)
        world.minutes(2)
    assert "restart storm: 5 starts" in world.run().hold_reason


def test_observe_mode_reports_what_it_would_do_and_does_nothing():
    world = World()
    world.policies.by_name["default"] = Policy(mode=Mode.OBSERVE)
    world.adopt()
    world.checkpoints.save(step=70)
    world.lose_node(minutes=60)
    assert list(world.sagemaker.jobs) == ["gpt"]
    assert "observing only: would relaunch from step 70" in world.run().hold_reason
    assert world.notice_titles(Severity.PAGE) == []


@pytest.mark.threat("T27")
def test_a_deployment_without_roles_only_observes_whatever_the_policy_is():
    """The policy acts, and so does the one that was read last: neither counts."""
    world = World(observe_only="trainingRoleArns is not set").adopt()
    del world.policies.by_name["default"]
    world.lose_node(minutes=5)
    assert list(world.sagemaker.jobs) == ["gpt"]
    assert "observing only: would relaunch from wherever its script resumes" in world.run().hold_reason


@pytest.mark.threat("T27")
@pytest.mark.parametrize("is_live", [True, False])
@pytest.mark.parametrize("verb", OperatorVerb)
def test_a_deployment_without_roles_refuses_what_it_may_not_do(verb, is_live):
    """An operator's command that would stop or create a job is answered by what to set; others are carried out."""
    world = World(observe_only="trainingRoleArns is not set").adopt()
    if not is_live:
        world.lose_node(minutes=2)
    world.send_command(verb)
    harmless = (OperatorVerb.HOLD, OperatorVerb.DENY, OperatorVerb.SAVE)
    is_carried_out = verb in harmless or verb is (OperatorVerb.RELEASE if is_live else OperatorVerb.STOP)
    refused = "but this deployment only observes: trainingRoleArns is not set; set it in cdk.json and deploy"
    assert (refused in world.reasons()[-1]) is not is_carried_out
    world.minutes(5)
    assert (list(world.sagemaker.jobs), world.sagemaker.live()) == (["gpt"], ["gpt"] if is_live else [])


def test_a_name_used_again_after_a_delete_is_another_run(world):
    world.sagemaker.end("gpt", JobStatus.COMPLETED)
    world.minutes(2)
    del world.sagemaker.jobs["gpt"]
    world.clock.pass_by(timedelta(hours=1))
    world.adopt()
    world.lose_node(minutes=3)
    assert world.run().state is RunState.COMPLETED
    assert world.run("gpt-202601310102").current.job_name == "gpt-202601310102-a002"


def send_dated_command(world, id, verb, at):
    """An operator's wish arrives that was spoken then."""
    world.supervisor().handle(CommandReceived(id, "gpt", verb, "ada", "", asked_at=at))


def test_the_latest_operator_command_counts_in_any_order_of_arrival(world):
    """A restart that the queue brings back late does not lift the hold that was spoken after it."""
    early, late = world.clock(), world.clock() + timedelta(minutes=2)
    world.minutes(6)
    send_dated_command(world, "c2", OperatorVerb.HOLD, late)
    send_dated_command(world, "c1", OperatorVerb.RESTART, early)
    world.minutes(2)
    assert (world.run().state, world.run().held_by) == (RunState.HELD, "ada")
    assert world.runs.timeline[-1].reason == "ada said restart, but something else was said after that: nothing is done"
    send_dated_command(world, "c3", OperatorVerb.RESTART, late + timedelta(minutes=1))
    assert world.run().state is not RunState.HELD
    assert world.run().held_by == ""


def test_a_command_dated_in_the_future_blocks_no_other(world):
    """Whoever puts an event on the bus may date it: it is of now at the latest."""
    send_dated_command(world, "c1", OperatorVerb.HOLD, world.clock() + timedelta(days=9000))
    world.minutes(1)
    send_dated_command(world, "c2", OperatorVerb.RELEASE, world.clock())
    assert world.run().state is RunState.WATCHING


def test_a_command_that_arrives_twice_is_granted_once(world):
    world.checkpoints.save(step=10)
    world.send_command(OperatorVerb.RESTART)
    world.clock.pass_by(timedelta(minutes=1))
    world.checkpoints.save(step=20)
    world.minutes(5)
    assert world.run().current.number == 2
    world.send_command(OperatorVerb.RESTART)
    world.minutes(60)
    assert world.run().current.number == 2


def test_a_restart_waits_for_a_newer_checkpoint_and_loses_nothing(world):
    world.checkpoints.save(step=10)
    world.minutes(9)
    world.send_command(OperatorVerb.RESTART)
    world.minutes(3)
    assert world.run().state is RunState.SAVING
    assert world.sagemaker.live() == ["gpt"], "an old checkpoint is not what we wait for"
    world.checkpoints.save(step=20)
    world.minutes(3)
    run = world.run()
    assert (run.state, run.current.job_name, run.current.resumed_from_step) == (RunState.WATCHING, "gpt-a002", 20)


def test_a_stop_ends_its_wait_when_a_file_that_is_overwritten_was_saved(world):
    """Its step is unknown, so its change alone counts, and only after the request."""
    file = {"layout": Layout.FILE, "missing": (UNKNOWN_STEP,)}
    world.checkpoints.save(step=0, **file)
    world.minutes(9)
    world.send_command(OperatorVerb.STOP)
    world.minutes(3)
    assert world.run().state is RunState.SAVING
    world.checkpoints.save(step=0, **file)
    world.minutes(3)
    assert world.run().state is RunState.STOPPED
    assert any("was saved after the request to stop" in entry.reason for entry in world.runs.timeline)
    assert world.run().current.kept_step is None, "its step is not known"


def test_a_script_that_resumes_by_itself_is_not_said_to_have_lost_everything():
    """Without an agent and a readable checkpoint nobody knows where it goes on, until it reports its first step."""
    world = World()
    world.sagemaker.defined_metrics = ("step", "loss")
    world.adopt()
    world.minutes(60)
    world.lose_node(minutes=5, metrics={"step": 349.0})
    run = world.run()
    assert run.incidents[0].step == 349 and run.incidents[0].lost_steps is None
    assert make_account(run, world.clock(), Policy()).badput_s[Badput.LOST] == 0
    for step in (301.0, 340.0, 380.0):
        world.series.print("gpt-a002", world.clock(), step=step, loss=2.0)
        world.minutes(1)
    world.minutes(2)
    run = world.run()
    assert (run.current.first_step, run.incidents[0].lost_steps) == (301, 49)
    trained_s = (run.attempts[0].ended_at - run.attempts[0].training_started_at).total_seconds()
    lost_s = make_account(run, world.clock(), Policy()).badput_s[Badput.LOST]
    assert lost_s == pytest.approx(trained_s * 49 / 349)
    assert any("from wherever its script resumes" in entry.reason for entry in world.runs.timeline)
    assert not any("from the start" in entry.reason for entry in world.runs.timeline)


@pytest.mark.parametrize("epoch_minutes", [2, 40])
def test_a_loss_that_diverges_in_a_later_epoch_is_rolled_back(epoch_minutes):
    """The steps begin again with each epoch: they are no progress, and the checkpoints' times say what was sound."""
    world = World()
    world.sagemaker.defined_metrics = ("step", "loss")
    world.adopt()
    noise = random.Random(1)
    for minute in range(200):
        loss = 3.0 - minute / 150 if minute < 150 else 5.0 + minute / 150
        step = 60.0 * (minute % epoch_minutes + 1)
        world.series.print("gpt", world.clock(), step=step, loss=loss + noise.gauss(0, 0.02), count=10.0)
        if minute % 30 == 29:
            world.checkpoints.save(step=minute + 1, attempt=1, layout=Layout.STEPS)
        world.minutes(1)
        if world.run().current.number > 1 or world.run().stop:
            break
    world.minutes(20)
    run = world.run()
    assert (run.incidents[0].kind, run.current.resumed_from_step, run.current.rung) == ("divergence", 120, "replay")
    assert 150 < minute < 190
    for step in (1.0, 40.0):
        world.series.print(run.current.job_name, world.clock(), step=step, loss=2.0)
        world.minutes(1)
    assert world.run().incidents[0].lost_steps is None


def test_a_file_that_changes_in_each_attempt_refunds_only_what_was_resumed_farther():
    """Each attempt saves and dies a little later: only the second one began farther than ever."""
    world = World()
    world.sagemaker.defined_metrics = ("step", "loss")
    world.adopt()
    for job, first, last in (("gpt", 1, 349), ("gpt-a002", 301, 355), ("gpt-a003", 301, 359), ("gpt-a004", 301, 363)):
        world.series.print(job, world.clock(), step=float(first), loss=2.0)
        world.minutes(3)
        world.checkpoints.save(step=0, layout=Layout.FILE, missing=(UNKNOWN_STEP,))
        world.lose_node(job, minutes=30 if last > 349 else 5, metrics={"step": float(last)})
    ledger = world.run().ledger
    assert (ledger.progress_step, ledger.charges) == (300, {Cause.INFRASTRUCTURE: 3})


@pytest.mark.parametrize(("copies", "minutes"), [(True, 15), (False, 60)], ids=["a copy", "no copy"])
def test_a_file_saved_after_training_longer_than_was_lost_proves_the_recovery(world, copies, minutes):
    """Where no step is known: 10 minutes of the 50 were lost, if a copy says when the file was saved."""
    world.minutes(40)
    if copies:
        world.checkpoints.save_file()
    world.minutes(10)
    world.lose_node(minutes=10)
    for is_open in (True, False):
        world.checkpoints.save_file()
        world.minutes(2)
        assert (world.run().open_incident is not None) is is_open
        world.minutes(minutes)
    assert any("after training for longer than was lost" in entry.reason for entry in world.runs.timeline)


def test_a_file_saved_beyond_the_incident_proves_the_recovery(world):
    """It counts only if it changed after the new attempt was seen beyond the step at which the old one died."""
    file = {"layout": Layout.FILE, "missing": (UNKNOWN_STEP,)}
    world.lose_node(minutes=5, metrics={"step": 349.0})
    for step, is_open in ((340, True), (360, True), (380, False)):
        world.checkpoints.save(step=0, **file)
        job = world.sagemaker.jobs["gpt-a002"]
        world.sagemaker.jobs["gpt-a002"] = replace(job, metrics={"step": float(step)})
        world.minutes(2)
        assert (world.run().open_incident is not None) is is_open
    assert any("saved" in entry.reason and "beyond step 349" in entry.reason for entry in world.runs.timeline)


def test_a_file_saved_at_the_moment_of_getting_past_the_incident_proves_nothing(world):
    """It may hold the step before: S3's times have whole seconds."""
    file = {"layout": Layout.FILE, "missing": (UNKNOWN_STEP,)}
    world.lose_node(minutes=5, metrics={"step": 349.0})
    job = world.sagemaker.jobs["gpt-a002"]
    world.sagemaker.jobs["gpt-a002"] = replace(job, metrics={"step": 360.0})
    for later, is_open in ((0, True), (0, True), (1, False)):
        world.clock.pass_by(timedelta(seconds=later))
        world.checkpoints.save(step=0, **file)
        world.supervisor().handle(JobStateChanged("gpt-a002"))
        assert (world.run().open_incident is not None) is is_open


@pytest.mark.parametrize("waits", [False, True])
def test_a_stop_now_waits_for_no_checkpoint(world, waits):
    """Nor does it go on with a wait that an earlier command began."""
    if waits:
        world.minutes(9)
        world.send_command(OperatorVerb.STOP)
        until = f"{world.run().stop.deadline:%H:%M} UTC"
        assert f"(until {until}) for a newer checkpoint, then stopping the job" in world.runs.timeline[-1].reason
    world.supervisor().handle(CommandReceived("now", "gpt", OperatorVerb.STOP, "ada", "", at_once=True))
    assert world.run().state is RunState.STOPPING and world.sagemaker.live() == []
    world.minutes(1)
    assert world.run().state is RunState.STOPPED
    assert world.run().current.kept_step is None, "it may have saved elsewhere"


@pytest.mark.parametrize(("trained", "waits"), [(60, 15), (6, 6), (0, 0)])
def test_a_stop_waits_no_longer_than_the_deadline_and_the_training_it_could_save(world, trained, waits):
    world.minutes(trained)
    world.send_command(OperatorVerb.STOP)
    world.minutes(max(waits - 1, 0))
    assert world.sagemaker.live() == (["gpt"] if waits else [])
    world.minutes(4)
    assert world.run().state is RunState.STOPPED
    assert world.sagemaker.live() == []


def test_every_decision_is_kept_with_its_reason_and_inputs(world):
    world.checkpoints.save(step=10)
    world.lose_node(minutes=3)
    assert [entry.finding for entry in world.runs.timeline][:3] == ["adopted", "training", "job_failed"]
    failed = world.runs.timeline[2]
    assert failed.before is RunState.WATCHING
    assert failed.after is RunState.WAITING
    assert failed.inputs["resume_step"] == 10
    assert failed.signal["type"] == "JobObserved"
    assert all(entry.reason for entry in world.runs.timeline)


def test_handling_an_unchanged_run_writes_nothing(world):
    before = world.run().version
    for _ in range(20):
        world.clock.pass_by(timedelta(minutes=1))
        world.supervisor().handle(RunDue("gpt"))
    assert world.run().version == before


@pytest.mark.parametrize("step", [1e30, -1e108, float("nan")])
def test_an_invalid_step_loses_no_run(world, step):
    """A script may print any number; a record that holds it could not be read again."""
    world.sagemaker.fail("gpt", NODE_LOST, metrics={"step": step})
    world.supervisor().handle(JobStateChanged("gpt"))
    run = world.run()
    assert run.attempts[0].last_step is None
    assert loads(Run, dumps(run)) == run


def test_two_deployments_in_one_account_never_have_two_live_jobs(world):
    """Each has its own table and decides by itself; the job's name is the same for both, so one job is created."""
    other = World(clock=world.clock)
    other.sagemaker, other.checkpoints, other.mailbox = world.sagemaker, world.checkpoints, world.mailbox
    other.supervisor().handle(JobStateChanged("gpt"))
    world.checkpoints.save(step=1000)
    for attempt in range(1, 4):
        world.sagemaker.fail(world.run().current.job_name, NODE_LOST, metrics={"step": 1000.0 * attempt + 100})
        for _ in range(10):
            world.minutes(1)
            other.minutes(1)
        world.checkpoints.save(step=1000 * (attempt + 1))
        job_names = [deployment.run().current.job_name for deployment in (world, other)]
        assert job_names == [f"gpt-a{attempt + 1:03d}"] * 2
    assert world.sagemaker.most_live_at_once == 1
