"""A run's metrics through the round: judged as they come, stitched over its attempts, remembered, and acted on."""

import math
from dataclasses import replace
from datetime import timedelta

import pytest

from rerail.decisions.checkpoint_health import with_health
from rerail.incident_report.facts import Facts
from rerail.incident_report.summary import make_summary
from rerail.messages.messages import FindingsReceived, JobStateChanged
from rerail.model.actions import Severity
from rerail.model.checkpoints import Health
from rerail.model.errors import Throttled
from rerail.model.finding import Finding, Kind, Level
from rerail.model.policy import Mode, Policy
from rerail.model.run import JobStatus, RunState
from rerail.model.signals import OperatorVerb
from tests.core.failures import OOM
from tests.fakes import World
from tests.raising import raising

MINUTE = timedelta(minutes=1)
STEPS_A_MINUTE = 10


@pytest.fixture
def world() -> World:
    world = World()
    world.sagemaker.defined_metrics = ("step", "loss", "nonfinite")
    return world.adopt()


def train(world: World, minutes: int, *, job: str = "gpt", first: int = 0, loss=None, nonfinite: float = 0.0) -> int:
    """The job prints for so many minutes, a checkpoint each ten, a round each minute; its last step."""
    step = first
    for _ in range(minutes):
        begun = world.clock()
        step += STEPS_A_MINUTE
        value = loss(step) if loss else 2.0 + 3.0 * math.exp(-step / 500) + 0.01 * math.sin(step)
        row = {"step": float(step), "nonfinite": nonfinite, "count": float(STEPS_A_MINUTE)}
        if not nonfinite:
            row |= {"loss": value}
        world.series.print(job, begun, **row)
        if step % 100 == 0:
            world.checkpoints.save(step=step, attempt=world.run().current.number)
        world.minutes(1)
    return step


@pytest.mark.parametrize("minutes", [1, 2, 5, 10])
def test_a_healthy_run_is_watched_in_silence(world, minutes):
    """Values of a longer period are read later, which is no stall."""
    metrics = replace(world.policies.by_name["default"].metrics, period=minutes * MINUTE)
    world.policies.by_name["default"] = replace(world.policies.by_name["default"], metrics=metrics)
    train(world, 200)
    assert world.run().state is RunState.WATCHING
    assert world.bus.notices == []
    assert world.memories.recall(["gpt"])["gpt"].cursor.step == 2_000 - 10 * minutes


def test_a_loss_that_is_no_number_is_rolled_back_to_before_it(world):
    """CloudWatch takes no NaN: the explicit flag says so. The successor resumes from a checkpoint before the onset,
    which was in the minute after the last good one."""
    last, began = train(world, 95), world.clock()
    train(world, 10, first=last, nonfinite=1.0)
    world.minutes(5)
    run = world.run()
    assert run.current.number == 2
    assert run.current.resumed_from_step == 900
    assert run.incidents[0].kind == "non_finite"
    assert 950 <= run.incidents[0].onset_step <= 970
    assert began - 2 * MINUTE <= run.incidents[0].happened_at <= began < run.incidents[0].decided_at


@pytest.mark.parametrize("sound", [0, 1, 2])
def test_a_loss_that_is_missing_almost_from_the_start_is_reported_while_the_job_trains(world, sound):
    """Too few losses arrived to expect one in each minute, so the job goes on; the notice ends with the next loss."""
    world.sagemaker.jobs["gpt"] = replace(world.sagemaker.jobs["gpt"], defined_metrics=("step", "loss"))
    for minute in range(30):
        loss = {"loss": 2.0} if minute < sound or minute == 25 else {}
        world.series.print("gpt", world.clock(), step=10.0 * minute + 10, count=10.0, **loss)
        world.minutes(1)
    assert world.notice_titles(Severity.INFORM) == ["gpt: blind (warning)", "gpt: blind (over)"]
    assert world.bus.notices[0].body.startswith("no loss for 660 s while steps are made; it may be NaN")
    assert (world.sagemaker.live(), world.run().state) == (["gpt"], RunState.WATCHING)


@pytest.mark.parametrize("first", [0, 14])
def test_a_loss_that_is_logged_every_quarter_of_an_hour_is_reported_missing_once(world, first):
    """The wait for the first loss tells how seldom it is logged, as the gaps between losses do."""
    world.sagemaker.jobs["gpt"] = replace(world.sagemaker.jobs["gpt"], defined_metrics=("step", "loss"))
    for minute in range(65):
        loss = {"loss": 2.0} if minute % 15 == first else {}
        world.series.print("gpt", world.clock(), step=10.0 * minute + 10, count=10.0, **loss)
        world.minutes(1)
    assert world.notice_titles(Severity.INFORM) == ["gpt: blind (warning)", "gpt: blind (over)"]


@pytest.mark.parametrize("first_nan", [951, 952, 956, 960, 961])
def test_a_silence_is_dated_to_before_the_last_loss(world, first_nan):
    """A script that prints no flag: CloudWatch drops what is no number, so that the minute in which it began has a loss
    still. What was saved in that minute holds the NaN, and is not resumed from."""
    world.sagemaker.jobs["gpt"] = replace(world.sagemaker.jobs["gpt"], defined_metrics=("step", "loss"))
    last = train(world, 95, nonfinite=0.0)
    for _ in range(10):
        begun, first, last = world.clock(), last + 1, last + STEPS_A_MINUTE
        sound = [step for step in range(first, last + 1) if step < first_nan]
        row = {"step": float(last), **({"loss": 2.4, "count": float(len(sound))} if sound else {})}
        world.series.print("gpt", begun, **row)
        if first_nan <= last and last - first_nan < STEPS_A_MINUTE:
            world.checkpoints.save(step=last)
        world.minutes(1)
    world.minutes(5)
    run = world.run()
    assert run.incidents[0].kind == "non_finite"
    assert first_nan - 2 * STEPS_A_MINUTE <= run.incidents[0].onset_step <= first_nan
    assert (run.current.number, run.current.resumed_from_step) == (2, 900)


def summarize(world: World) -> dict:
    return make_summary(Facts(world.run(), world.clock(), timeline=tuple(world.runs.timeline)))


def test_a_warning_is_not_shown_with_what_was_done_about_an_earlier_incident(world):
    last = train(world, 50)
    world.lose_node(minutes=3)
    train(world, 30, job="gpt-a002", first=last)
    assert summarize(world)["did"].endswith("committed a new checkpoint at step 600")
    world.minutes(8)
    assert summarize(world)["happened"] == "warning: the job has made no step for longer than usual"
    assert summarize(world)["did"] == "nothing: it may well recover by itself"


def test_a_warning_whose_proposal_was_denied_is_shown_with_the_denial(world):
    """Rerail did ask: the operator decided that the job goes on."""
    world.policies.by_name["default"] = Policy(mode=Mode.APPROVE)
    world.supervisor().handle(FindingsReceived("gpt", "gpt", (Finding(Kind.STALL, Level.INTERVENE, 480, 480, "x"),)))
    world.send_command(OperatorVerb.DENY, why="it evaluates", proposal=world.run().proposal.id)
    assert summarize(world)["did"].startswith("ada said deny (it evaluates): the job goes on")


def test_an_open_warning_stands_in_the_headline_until_it_is_over(world):
    """A NaN of the last minutes is a warning before it is believed; where it recovers, there is nothing to do."""

    last = train(world, 50)
    assert summarize(world)["headline"] == "Training: nothing to do"
    last = train(world, 3, first=last, loss=lambda step: 60.0)
    assert summarize(world)["headline"] == "Training, but its loss may have gone wrong"
    assert summarize(world)["happened"].startswith("warning: the loss had gone wrong at step 501 (loss_spike: ")
    assert (summarize(world)["tone"], summarize(world)["todo"][0][:11]) == ("recovering", "Nothing yet")
    last = train(world, 60, first=last)
    assert summarize(world)["headline"] == "Training: nothing to do"
    for kind, what in (
        ("stall", "the job has made no step for longer than usual"),
        ("blind", "metrics or heartbeats are missing"),
    ):
        silent = len(world.bus.notices)
        while len(world.bus.notices) == silent:
            world.minutes(1)
        assert summarize(world)["headline"] == "Training, but its progress is in doubt"
        assert summarize(world)["happened"] == f"warning: {what}"
        last = train(world, 60, first=last)
        assert summarize(world)["headline"] == "Training: nothing to do"
        titles = [f"gpt: {kind} ({state})" for state in ("warning", "over")]
        assert [notice.title for notice in world.bus.notices[silent:]] == titles


@pytest.mark.parametrize(
    ("minutes_after", "title", "todo"),
    [(0, "completed with a loss in trouble", "check its result"), (60, "completed", "nothing to do")],
)
def test_a_run_that_completes_with_a_loss_in_trouble_is_to_be_checked(world, minutes_after, title, todo):
    last = train(world, 3, first=train(world, 50), loss=lambda step: 60.0)
    train(world, minutes_after, first=last)
    world.sagemaker.end("gpt", JobStatus.COMPLETED, metrics={"step": 1.0})
    world.supervisor().handle(JobStateChanged("gpt"))
    assert summarize(world)["headline"] == f"{title.capitalize()}: {todo}"
    assert world.bus.notices[-1].title == f"gpt: {title}"


@pytest.mark.parametrize(
    ("planned", "title"),
    [(None, "completed"), (1_000, "completed"), (1_001, "completed long before its last step"), (9, "completed")],
)
def test_a_run_that_completes_before_half_of_its_steps_is_to_be_checked(world, planned, title):
    train(world, 50)
    world.sagemaker.end("gpt", JobStatus.COMPLETED, metrics={"step": 500.0}, planned_steps=planned)
    world.supervisor().handle(JobStateChanged("gpt"))
    assert world.bus.notices[-1].title == f"gpt: {title}"
    said = "its last known step is 500, and its hyperparameters ask for 1,001" in world.bus.notices[-1].body
    assert said == (title != "completed")


def test_steps_with_a_loss_in_trouble_refund_no_retry(world):
    """Steps prove the progress of a script without step folders, unless the loss was in trouble at the last one."""
    last = train(world, 60)
    world.checkpoints.saved.clear()
    world.checkpoints.save_file("last.pt")
    train(world, 30, first=last, nonfinite=1.0)
    world.minutes(5)
    run = world.run()
    assert run.ledger.progress_step is None or run.ledger.progress_step <= 600
    assert not any("progress to step 6" in entry and "step 600" not in entry for entry in run.ledger.entries)
    assert run.ledger.charges


def test_a_longer_minute_after_the_onset_does_not_date_it_back(world):
    """A problem began after the row before its own, however many steps the row has in which it is confirmed."""
    last = train(world, 95)
    for step in (last + 10, last + 3_000, last + 6_000, last + 9_000):
        world.series.print("gpt", world.clock(), step=float(step), nonfinite=1.0, count=10.0)
        world.minutes(1)
    world.minutes(5)
    run = world.run()
    incident = run.incidents[0]
    assert (incident.kind, incident.onset_step, run.current.resumed_from_step) == ("non_finite", 951, 900)


def test_after_a_rollback_the_same_steps_are_judged_again(world):
    """They are new steps with the same numbers; a NaN that comes back is found again."""
    last = train(world, 95)
    train(world, 10, first=last, nonfinite=1.0)
    world.minutes(5)
    last = train(world, 5, job="gpt-a002", first=900)
    assert world.memories.recall(["gpt"])["gpt"].cursor.step < 950
    train(world, 10, job="gpt-a002", first=last, nonfinite=1.0)
    world.minutes(5)
    assert world.run().current.number == 3 or world.run().state is RunState.HELD


@pytest.mark.parametrize("noise", [0.01, 0.2])
@pytest.mark.parametrize("returns", [True, False])
def test_a_divergence_that_returns_soon_after_a_near_rollback_is_found(world, noise, returns):
    """The new attempt has too few rows before it to learn the normal level from: it knows that of the last attempt."""
    world.policies.by_name["default"] = replace(world.policies.by_name["default"], ladder=Policy().ladder)

    def decay(step):
        return 2 + 3 * math.exp(-step / 2000) + noise * math.sin(step)

    def diverge(step):
        return decay(step) + (1 + (step - 900) / 200) * (step > 900)

    last = train(world, 90, loss=diverge)
    for _ in range(60):
        if world.sagemaker.live() == ["gpt"]:
            last = train(world, 1, first=last, loss=diverge)
    world.minutes(2)
    assert world.sagemaker.live() == ["gpt-a002"]
    resumed = world.run().current.resumed_from_step
    assert 600 <= resumed < 900
    train(world, 100, job="gpt-a002", first=resumed, loss=diverge if returns else decay)
    run = world.run()
    if returns:
        assert run.state is RunState.HELD and "went wrong again" in run.hold_reason
        assert "recovered" not in "".join(notice.title for notice in world.bus.notices)
    else:
        assert (run.state, run.open_warnings, run.open_incident) == (RunState.WATCHING, {}, None)


def test_after_a_lost_node_replayed_steps_are_not_judged_twice(world):
    """What was healthy once is healthy now; judging goes on beyond the last judged step."""
    last = train(world, 95)
    world.lose_node(minutes=3)
    judged = world.memories.recall(["gpt"])["gpt"].cursor.step
    train(world, 3, job="gpt-a002", first=900)
    assert world.memories.recall(["gpt"])["gpt"].cursor.step == judged
    train(world, 20, job="gpt-a002", first=last)
    assert world.memories.recall(["gpt"])["gpt"].cursor.step > judged
    assert world.run().state is RunState.WATCHING


def test_metrics_that_cannot_be_read_stop_nothing_and_are_reported(world, monkeypatch):
    monkeypatch.setattr(world.series, "read", raising(Throttled("GetMetricData: rate exceeded")))
    world.minutes(5)
    assert world.round().run().unread == "GetMetricData: rate exceeded"
    assert world.sagemaker.live() == ["gpt"]


def test_a_finding_is_sent_before_the_detectors_are_stored(world, monkeypatch):
    """A round that dies between the two tells it again, and people hear it once."""
    last = train(world, 95)
    world.policies.by_name["default"] = Policy(mode=Mode.OBSERVE)
    keep, world.memories.keep = world.memories.keep, lambda memories: (_ for _ in ()).throw(RuntimeError("killed"))
    for minute in range(5):
        world.series.print("gpt", world.clock(), step=float(last + 10 * minute + 10), nonfinite=1.0, count=10.0)
        world.clock.pass_by(MINUTE)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="killed"):
            world.round().run()
    first, second = (message for message in world.queue.waiting if "findings" in message)
    assert first == second
    world.memories.keep = keep
    world.minutes(3)
    notices = [n for n in world.bus.notices if n.severity is Severity.INFORM and "non_finite" in n.title]
    assert len({notice.key for notice in notices}) == len(notices)


def test_only_runs_in_training_are_read(world):
    """Starting, waiting and held runs would be paid for in vain."""
    train(world, 5)
    assert world.round().run().monitored == 1
    world.sagemaker.fail("gpt", OOM)
    world.minutes(2)
    assert world.round().run().monitored == 0


def test_a_job_without_metric_definitions_is_not_watched_and_its_silence_means_nothing(world):
    """Somebody only added the tag: two days without a metric cost nothing, warn of nothing, stop nothing."""
    world.sagemaker.defined_metrics = ()
    world.adopt("plain")
    train(world, 3)
    world.sagemaker.end("gpt", JobStatus.COMPLETED)
    world.minutes(48 * 60, every=timedelta(minutes=20))
    assert world.sagemaker.live() == ["plain"]
    assert [notice for notice in world.bus.notices if notice.title.startswith("plain")] == []


def stall(world: World, minutes: int, **host: float) -> None:
    """No step any more; the machines report their load where that is given."""
    for _ in range(minutes):
        if host:
            world.series.print("gpt", world.clock(), **host)
        world.minutes(1)


def test_a_job_that_stands_still_on_idle_machines_is_stopped_and_resumes(world):
    """No step and nothing computed: two signals agree."""
    train(world, 95)
    stall(world, 12, GPUUtilization=0.0)
    assert world.run().current.number == 2
    assert world.run().current.resumed_from_step == 900
    assert world.run().incidents[0].kind == "stall"


@pytest.mark.parametrize("apart", [1, 8])
def test_a_job_that_prints_a_loss_and_no_step_is_watched_in_silence(world, apart):
    """Its lines are its progress, however far apart they usually are; its only file is seldom saved."""
    world.sagemaker.jobs["gpt"] = replace(world.sagemaker.jobs["gpt"], defined_metrics=("loss",))
    for minute in range(300):
        if minute % apart == 0:
            world.series.print("gpt", world.clock(), loss=2.0 + 3.0 * math.exp(-minute / 500), count=1.0)
        world.minutes(1)
        if minute == 100:
            world.bus.notices.clear()
    assert world.run().current.number == 1
    assert world.bus.notices == []
    world.minutes(120)
    assert (world.run().current.number, world.run().incidents[0].kind) == (2, "stall")


def test_a_job_that_only_stopped_printing_is_never_stopped(world):
    train(world, 95)
    for step in range(1000, 2000, 100):
        world.checkpoints.save(step=step)
        stall(world, 10)
    assert world.sagemaker.live() == ["gpt"]
    assert world.run().state is RunState.WATCHING
    assert any("blind" in notice.title for notice in world.bus.notices)


def test_a_slow_start_on_busy_machines_is_reported_and_not_stopped(world):
    stall(world, 120, CPUUtilization=380.0)
    assert world.sagemaker.live() == ["gpt"]
    assert any("startup_stall" in notice.title for notice in world.bus.notices)


def test_an_evaluation_pause_that_this_run_is_known_to_make_is_no_stall(world):
    last = train(world, 30)
    for _ in range(4):
        stall(world, 4, GPUUtilization=90.0)
        last = train(world, 30, first=last)
    assert world.run().current.number == 1
    assert [n.title for n in world.bus.notices if "stall" in n.title] == []


def test_a_spike_that_recovers_leaves_its_checkpoints_clean(world):
    """Suspect from the warning on; the round hears that the loss has come back, and says so."""

    def spikes(step: int) -> float:
        healthy = 2.0 + 3.0 * math.exp(-step / 500) + 0.01 * math.sin(step)
        return 3 * healthy if 1_200 < step <= 1_260 else healthy

    last = train(world, 122, loss=spikes)
    world.checkpoints.save(step=last)
    checkpoints = world.checkpoints.list_checkpoints("s3://bucket/checkpoints/")
    assert with_health(world.run(), checkpoints)[0].health is Health.SUSPECT
    train(world, 20, first=last, loss=spikes)
    assert {c.health for c in with_health(world.run(), checkpoints)} == {Health.CLEAN}
    assert world.run().state is RunState.WATCHING
    titles = [notice.title for notice in world.bus.notices]
    assert titles.index("gpt: loss_spike (warning)") < titles.index("gpt: loss_spike (over)")
    assert world.memories.recall(["gpt"])["gpt"].open_findings == ()


def test_a_frozen_loss_is_dated_to_the_step_after_the_row_before_it(world):
    train(world, 60, first=train(world, 30), loss=lambda _: 2.0)
    memory = world.memories.recall(["gpt"])["gpt"]
    (frozen,) = memory.open_findings
    assert (frozen.kind, frozen.onset, memory.rows) == (Kind.FROZEN_LOSS, 301, 89)


def test_a_rollback_reaches_behind_the_whole_row_in_which_the_spike_began(world):
    """Rows of a minute hold many steps, and what does not mend was a spike first: the earliest step that can have
    been the onset decides, not the row in which patience ended."""
    train(world, 100, first=train(world, 120), loss=lambda step: 12.0 + 0.05 * math.sin(step))
    world.minutes(3)
    incident = world.run().incidents[0]
    assert (incident.kind, incident.onset_step) == ("divergence", 1201)
    assert world.run().attempts[1].resumed_from_step == 1200


def test_missing_saves_are_reported_and_stop_nothing(world):
    """Steps go on, checkpoints stopped: what a crash would cost grows by the minute."""
    last = train(world, 60)
    for minute in range(70):
        row = {"loss": 2.0, "count": 10.0, "nonfinite": 0.0}
        world.series.print("gpt", world.clock(), step=float(last + 10 * minute + 10), **row)
        world.minutes(1)
    titles = [notice for notice in world.bus.notices if "checkpoint_stall" in notice.title]
    assert len(titles) == 1
    assert "they came at most 10 min apart" in titles[0].body
    assert world.sagemaker.live() == ["gpt"]


def test_a_job_that_sagemaker_restarts_does_not_stand_still(world):
    """A spot machine is reclaimed, and another comes after half an hour: the same job goes on, and nobody steps in."""
    last = train(world, 95)
    for secondary, minutes in (("Interrupted", 25), ("Starting", 2), ("Downloading", 1), ("Training", 3)):
        world.sagemaker.jobs["gpt"] = replace(world.sagemaker.jobs["gpt"], secondary=secondary)
        world.supervisor().handle(JobStateChanged("gpt"))
        world.minutes(minutes)
    train(world, 10, first=last - 50)
    train(world, 10, first=last + 50)
    run = world.run()
    assert (run.state, run.current.number, run.current.self_repairs) == (RunState.WATCHING, 1, 1)
    assert not [notice.title for notice in world.bus.notices if "stall" in notice.title]


def test_a_hang_report_during_a_sagemaker_restart_stops_nothing(world):
    """The agent's report of a hang may arrive when the machines are gone already."""
    train(world, 30)
    world.sagemaker.jobs["gpt"] = replace(world.sagemaker.jobs["gpt"], secondary="Interrupted")
    stall = Finding(Kind.STALL, Level.INTERVENE, 300, 300, "no step for 5 min", world.clock(), world.clock())
    world.supervisor().handle(FindingsReceived("gpt", "gpt", (stall,)))
    assert world.sagemaker.live() == ["gpt"]
    assert world.run().state is RunState.WATCHING


@pytest.mark.parametrize(
    ("before", "saves", "silent", "attempts"),
    [(120, True, 25, 1), (120, True, 60, 2), (30, False, 25, 1), (30, False, 45, 2)],
)
def test_missing_saves_confirm_a_stall_only_when_a_save_is_due(world, before, saves, silent, attempts):
    """A run that saves each half hour, and whose metrics are missing for 25 minutes, may well be healthy; one that lets
    the next save pass is not. Before its first save, nobody knows when it is due: it takes half an hour of silence."""
    for minute in range(before + silent):
        step = STEPS_A_MINUTE * (minute + 1)
        if minute < before:
            row = {"step": float(step), "nonfinite": 0.0, "count": 10.0, "loss": 2.0 + 3.0 * math.exp(-step / 500)}
            world.series.print("gpt", world.clock(), **row)
        if saves and minute % 30 == 10 and (minute < before or attempts == 1):
            world.checkpoints.save(step=step)
        world.minutes(1)
    assert world.run().current.number == attempts
