"""What the detectors say of a running job: people are told at once, the job is stopped only for what will not mend."""

from dataclasses import replace
from datetime import timedelta

import pytest

from rerail.messages.messages import AlarmStateChanged, FindingsReceived
from rerail.model.actions import Severity
from rerail.model.checkpoints import Health
from rerail.model.finding import Finding, Kind, Level
from rerail.model.mailbox import CommandKind
from rerail.model.policy import Limits, Mode, OnAlarm, Policy, Retries
from rerail.model.run import JobStatus, RunState
from tests.core.failures import NODE_LOST
from tests.fakes import DEFAULT, World

MINUTE = timedelta(minutes=1)
# The namespace in which SageMaker publishes.
OURS = "/aws/sagemaker/TrainingJobs"


@pytest.fixture
def world() -> World:
    """A run that has trained for fifty minutes, with checkpoints at steps 100 to 500."""
    return World().with_saves()


def report_finding(
    world: World, kind: Kind, level: Level, *, onset: int | None = 350, step: int | None = 480, job: str = "gpt"
):
    finding = Finding(kind, level, step, onset, f"{kind} since step {onset}")
    world.supervisor().handle(FindingsReceived("gpt", job, (finding,)))


def test_a_warning_is_reported_once_and_nothing_is_done(world):
    for _ in range(5):
        report_finding(world, Kind.LOSS_SPIKE, Level.WARN)
    assert world.run().state is RunState.WATCHING
    assert world.sagemaker.live() == ["gpt"]
    assert world.notice_titles(Severity.INFORM) == ["gpt: loss_spike (warning)"]


@pytest.mark.parametrize("kind", [Kind.LOSS_SPIKE, Kind.BLIND])
@pytest.mark.parametrize("earlier", [None, timedelta(minutes=7)], ids=["no onset", "an onset"])
def test_a_notice_has_the_time_of_the_onset(world, kind, earlier):
    at = world.clock()
    finding = Finding(kind, Level.INTERVENE if kind is Kind.BLIND else Level.WARN, 480, 350, "found", at)
    world.supervisor().handle(FindingsReceived("gpt", "gpt", (replace(finding, onset_at=earlier and at - earlier),)))
    assert world.bus.notices[-1].since == (at - earlier if earlier else at)


@pytest.mark.parametrize("kind", [Kind.DIVERGENCE, Kind.NON_FINITE, Kind.FROZEN_LOSS])
def test_a_lasting_loss_finding_is_rolled_back_to_before_its_onset(world, kind):
    """Not to the newest checkpoint: those of steps 400 and 500 hold what went wrong at 350."""
    report_finding(world, kind, Level.INTERVENE)
    world.minutes(3)
    run = world.run()
    assert (run.state, run.current.job_name, run.current.resumed_from_step) == (RunState.WATCHING, "gpt-a002", 300)
    assert run.incidents[0].kind == kind
    assert run.incidents[0].lost_steps == 180
    assert world.sagemaker.jobs["gpt"].status is JobStatus.STOPPED
    assert world.sagemaker.most_live_at_once == 1
    assert {command.kind for command in world.mailbox.commands} == {CommandKind.TRAIN}, "without an agent, no request"
    report_finding(world, Kind.THROUGHPUT_DROP, Level.INTERVENE, job="gpt-a002")
    world.minutes(3)
    assert [attempt.rung for attempt in world.run().attempts] == ["", "replay", ""]


def test_a_tainted_checkpoint_is_neither_progress_nor_a_place_to_resume_from(world):
    """It lies there until the next attempt moves it aside; if that attempt dies first, it is still passed over."""
    report_finding(world, Kind.DIVERGENCE, Level.INTERVENE)
    world.minutes(3)
    assert world.run().open_incident is not None, "step 500 of the first attempt is no progress of the second"
    world.sagemaker.fail("gpt-a002", NODE_LOST)
    world.minutes(3)
    assert world.run().current.resumed_from_step == 300
    world.checkpoints.save(step=400, attempt=3)
    world.minutes(3)
    assert world.run().open_incident is not None, "the first attempt seemed healthy there too: it was found at step 480"
    world.checkpoints.save(step=500, attempt=3)
    world.minutes(3)
    assert world.run().open_incident is None


@pytest.mark.parametrize("kind", [Kind.BLIND, Kind.CHECKPOINT_STALL, Kind.CAPACITY_WAIT, Kind.PLATEAU])
def test_a_finding_that_a_stop_cannot_fix_pages_and_stops_nothing(world, kind):
    """Blind is not healthy, and no reason to stop a job."""
    report_finding(world, kind, Level.INTERVENE)
    world.minutes(10)
    assert world.sagemaker.live() == ["gpt"]
    assert world.run().state is RunState.WATCHING
    (page,) = [notice for notice in world.bus.notices if notice.severity is Severity.PAGE]
    assert page.title.startswith(f"gpt: {kind}: ")
    assert page.todo.startswith("Decide whether the job should go on\nTo see what it prints: rerail logs gpt --since")


@pytest.mark.parametrize("kind", [Kind.DIVERGENCE, Kind.NON_FINITE, Kind.THROUGHPUT_DROP])
@pytest.mark.parametrize("order", ["in one message", "the end first"])
def test_a_problem_that_is_over_stops_no_healthy_job(world, kind, order):
    """One message contains both after an outage; a message that is delivered again comes after later ones."""
    at = world.clock()
    found = Finding(kind, Level.INTERVENE, 480, 350, "it lasts", at - 40 * MINUTE)
    over = Finding(kind, Level.RECOVERED, 490, 350, "it is over", at - 20 * MINUTE)
    for findings in ([found, over],) if order == "in one message" else ([over], [found]):
        world.supervisor().handle(FindingsReceived("gpt", "gpt", tuple(findings)))
    world.minutes(3)
    assert (world.sagemaker.live(), world.notice_titles()) == (["gpt"], [f"gpt: {kind} (over)"])
    assert not [label for label in world.run().labels if label.health is not Health.CLEAN]
    again = replace(found, step=495, at=at - MINUTE)
    world.supervisor().handle(FindingsReceived("gpt", "gpt", (again,)))
    assert world.run().stop, "it has come again since"


def test_steps_that_the_sweep_sees_again_hide_no_hang_that_the_agent_found(world):
    """The sweep knows no step for it, and the agent's report may be a second older."""
    over = Finding(Kind.STALL, Level.RECOVERED, None, None, "steps are made again", world.clock())
    hang = Finding(Kind.STALL, Level.INTERVENE, 495, 495, "no step for 300 s", world.clock() - timedelta(seconds=1))
    for finding in (over, hang):
        world.supervisor().handle(FindingsReceived("gpt", "gpt", (finding,)))
    assert world.run().stop


def test_a_recovery_from_the_future_hides_no_problem(world):
    over = Finding(Kind.DIVERGENCE, Level.RECOVERED, None, None, "", world.clock() + timedelta(days=400))
    world.supervisor().handle(FindingsReceived("gpt", "gpt", (over,)))
    world.minutes(5)
    found = Finding(Kind.DIVERGENCE, Level.INTERVENE, 480, 350, "it lasts", world.clock())
    world.supervisor().handle(FindingsReceived("gpt", "gpt", (found,)))
    assert world.run().stop


def test_observe_mode_reports_what_it_would_do(world):
    world.policies.by_name["default"] = replace(DEFAULT, mode=Mode.OBSERVE)
    report_finding(world, Kind.DIVERGENCE, Level.INTERVENE)
    world.minutes(5)
    assert world.sagemaker.live() == ["gpt"]
    assert world.run().state is RunState.WATCHING
    action_not_taken = world.bus.notices[-1].did
    assert "stopping the job, to relaunch from step 300 (rung replay: back to 50 steps" in action_not_taken
    run = world.run()
    assert run.ledger.charges == {}, "nothing was done, so nothing was spent"
    assert (run.current.cause, run.current.fingerprint, run.incidents) == (None, "", ())


def test_each_of_two_findings_is_observed_once(world):
    world.policies.by_name["default"] = replace(DEFAULT, mode=Mode.OBSERVE)
    two = [Finding(kind, Level.INTERVENE, 480, 350, "") for kind in (Kind.DIVERGENCE, Kind.THROUGHPUT_DROP)]
    for _ in range(3):
        world.supervisor().handle(FindingsReceived("gpt", "gpt", tuple(two)))
    assert world.notice_titles() == [f"gpt: {finding.kind}: observing only" for finding in two]


def test_observing_a_spent_budget_holds_nothing(world):
    world.policies.by_name["default"] = replace(DEFAULT, mode=Mode.OBSERVE, retries=Retries(diverged=0))
    report_finding(world, Kind.DIVERGENCE, Level.INTERVENE)
    assert world.run().state is RunState.WATCHING
    assert world.notice_titles(Severity.PAGE) == []
    assert "observing only: it would be held: diverged is not retried" in world.bus.notices[-1].did


def test_the_folder_is_listed_once_for_one_message(world, monkeypatch):
    """Each listing is paid for, and the second would say the same."""
    listed = []
    under = world.checkpoints.list_checkpoints
    monkeypatch.setattr(world.checkpoints, "list_checkpoints", lambda uri, **_: (listed.append(uri), under(uri))[1])
    for _ in range(20):  # in some minutes the folder is looked into anyway
        world.clock.pass_by(MINUTE)
        before = len(listed)
        report_finding(world, Kind.BLIND, Level.INTERVENE)
        assert len(listed) - before == 1


def test_a_budget_that_is_spent_pages_and_lets_the_job_run(world):
    world.policies.by_name["default"] = Policy(retries=Retries(diverged=0))
    report_finding(world, Kind.DIVERGENCE, Level.INTERVENE)
    world.minutes(5)
    assert world.run().state is RunState.HELD
    assert world.sagemaker.live() == ["gpt"]
    assert world.notice_titles(Severity.PAGE) == ["gpt: held: divergence since step 350 at step 480"]


def test_a_finding_about_an_attempt_that_is_over_changes_nothing(world):
    """A late message must not stop the healthy successor."""
    world.sagemaker.fail("gpt", NODE_LOST)
    world.minutes(3)
    assert world.sagemaker.live() == ["gpt-a002"]
    report_finding(world, Kind.DIVERGENCE, Level.INTERVENE, job="gpt")
    world.minutes(3)
    assert world.sagemaker.live() == ["gpt-a002"]


@pytest.mark.parametrize(("choice", "jobs"), [(OnAlarm.INFORM, ["gpt"]), (OnAlarm.RESTART, ["gpt", "gpt-a002"])])
def test_the_policy_decides_whether_a_users_alarm_informs_or_restarts(world, choice, jobs):
    world.policies.by_name["default"] = Policy(on_alarm=choice)
    for state in ("OK", "ALARM", "ALARM"):
        world.supervisor().handle(AlarmStateChanged("gpt", "gpu-idle", state, "GPUUtilization below 10", OURS))
    world.minutes(1)
    world.checkpoints.save(step=520)
    world.minutes(3)
    assert list(world.sagemaker.jobs) == jobs
    assert len([title for title in world.notice_titles(Severity.INFORM) if "alarm" in title]) == 1


def test_an_alarm_that_comes_late_restarts_nothing(world):
    """The queue keeps events for days, and an archive replays them: one of hours ago may be over, or of another job."""
    world.policies.by_name["default"] = Policy(on_alarm=OnAlarm.RESTART)
    world.minutes(30)
    world.checkpoints.save(step=600)
    for age in (timedelta(hours=30), timedelta(minutes=70), timedelta()):
        assert world.run().stop is None
        alarm = AlarmStateChanged("gpt", "gpu-idle", "ALARM", "below 10", OURS, world.clock() - age)
        world.supervisor().handle(alarm)
    assert world.run().stop
    warnings = [notice for notice in world.bus.notices if "gpu-idle" in notice.body and "warning" in notice.title]
    assert [world.clock() - notice.since for notice in warnings] == [timedelta(minutes=70)]


def test_only_so_many_alarms_restart_a_run(world):
    """Progress refunds nothing; each later alarm is a notice, and the run stays supervised."""
    world.policies.by_name["default"] = Policy(on_alarm=OnAlarm.RESTART, limits=Limits(alarm_restarts=2))
    for number in (1, 2, 3):
        for state in ("OK", "ALARM", "OK", "ALARM"):
            job = world.run().current.job_name
            world.supervisor().handle(AlarmStateChanged(job, "gpu-idle", state, "GPUUtilization below 10", OURS))
        world.minutes(1)
        world.checkpoints.save(step=1000 * number, attempt=number)
        world.minutes(5)
    assert (list(world.sagemaker.jobs), world.run().state) == (["gpt", "gpt-a002", "gpt-a003"], RunState.WATCHING)
    said = [notice.body for notice in world.bus.notices if "no restart" in notice.body]
    assert len(said) == 1 and "2 restarts for alarms of at most 2 are spent" in said[0]


def test_an_alarm_on_an_unsupervised_job_is_ignored(world):
    world.sagemaker.submit("mine", policy=None)
    assert world.supervisor().handle(AlarmStateChanged("mine", "gpu-idle", "ALARM", "")) is None
    assert world.sagemaker.live() == ["gpt", "mine"]
