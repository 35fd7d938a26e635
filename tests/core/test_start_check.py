"""The step that an attempt began at beside the one that was ordered: what is recorded, said and left alone."""

from dataclasses import replace

import pytest

from rerail.accounting.goodput import make_account
from rerail.accounting.wall_time import Badput
from rerail.decisions.start_check import find_save_steps
from rerail.incident_report.facts import Facts
from rerail.incident_report.summary import make_summary
from rerail.messages.messages import FindingsReceived
from rerail.model.actions import Severity
from rerail.model.checkpoint_layouts import Layout
from rerail.model.checkpoints import Checkpoint
from rerail.model.mailbox import ReportKind
from rerail.model.policy import Policy
from rerail.model.run import RunState
from rerail.model.signals import OperatorVerb
from tests.core.test_restarting import Job
from tests.fakes import MIDNIGHT, Agent, World


@pytest.fixture
def job(world) -> Job:
    job = Job(world)
    job.hello()
    return job


def summary(world: World) -> dict:
    return make_summary(Facts(world.run(), world.clock(), timeline=tuple(world.runs.timeline)))


def relaunched(world: World, job: Job) -> Job:
    """The job of an agent fails; its successor is ordered to resume from step 500."""
    world.lose_node(minutes=3, metrics={"step": 560.0})
    run = world.run()
    assert (run.current.number, run.current.resumed_from_step, run.state) == (2, 500, RunState.WATCHING)
    new = Job(world, attempt=2, name=run.current.job_name)
    new.hello()
    return new


def test_a_restart_that_began_below_the_ordered_step_is_corrected_and_paged(world, job):
    """Ordered step 400, begun at 0: the record, the notice, the summary and the goodput tell what happened."""
    job.finds(step=540)
    job = job.restarts()
    believed = make_account(world.run(), world.clock(), Policy()).badput_s[Badput.LOST]
    job.steps(1)
    run = world.run()
    assert world.notice_titles(Severity.PAGE) == ["gpt: it began at step 0 instead of 400"]
    text = "was ordered to resume from step 400, but began at step 0: 540 steps are lost"
    assert text in world.reasons()[-1]
    assert (run.incidents[0].lost_steps, run.incidents[0].resume_step) == (540, 400)
    assert run.current.in_place_restarts[0].began_step == 0
    assert make_account(run, world.clock(), Policy()).badput_s[Badput.LOST] > believed
    assert summary(world)["headline"] == "Training, but needs your attention"
    job.saves(500)
    world.minutes(3)
    assert world.run().incidents[0].recovered
    assert world.run().pages == ()  # and an all-clear
    assert "restart 1 of attempt 1 began at step 0 instead of 400: 540 steps lost" in summary(world)["did"]


def test_a_restart_that_began_at_the_ordered_step_is_not_paged(world, job):
    job.finds(step=540)
    job.restarts().steps(400)
    assert world.reasons()[-1].endswith("step 400 is done, 0 s after the order")
    assert world.notice_titles(Severity.PAGE) == []


def test_a_relaunch_that_began_below_the_ordered_step_is_corrected_and_paged(world, job):
    job = relaunched(world, job)
    job.steps(1)
    run = world.run()
    assert world.notice_titles(Severity.PAGE) == ["gpt: it began at step 0 instead of 500"]
    assert (run.find_start(run.current), run.incidents[0].lost_steps) == (0, 560)
    job.steps(7)  # SageMaker has restarted the container
    assert len(world.notice_titles(Severity.PAGE)) == 1
    assert run == replace(world.run(), version=run.version)
    job.saves(600)
    world.minutes(3)
    assert "attempt 2 began at step 0 instead of 500: 560 steps lost" in summary(world)["did"]
    world.lose_node(job.name, minutes=3, metrics={"step": 610.0})
    assert "attempt 2 began" not in summary(world)["did"]


@pytest.mark.parametrize(("first", "began", "lost"), [(501, 500, 60), (510, 500, 60), (500, 500, 60), (401, 400, 160)])
def test_a_start_within_a_save_interval_is_recorded_without_a_page(world, job, first, began, lost):
    """Scripts count from 0 or 1, report every tenth step, or fall back to the checkpoint before."""
    job = relaunched(world, job)
    job.steps(first)
    run = world.run()
    assert (run.current.began_step, run.incidents[0].lost_steps) == (began, lost)
    assert world.notice_titles(Severity.PAGE) == []


def test_steps_that_never_reached_the_ordered_one_are_counted_otherwise(world, job):
    """Its steps are those of the epoch, and its checkpoints are not."""
    world.lose_node(minutes=3, metrics={"step": 60.0})
    job = Job(world, attempt=2, name=world.run().current.job_name)
    job.hello()
    job.steps(1)
    assert world.notice_titles(Severity.PAGE) == []


def test_an_unsigned_or_false_report_changes_no_decision(world, job):
    """A stranger's report is not believed, and a false one of the job itself is only text."""
    job = relaunched(world, job)
    before = world.run()
    stranger = Agent(world, attempt=2, job=job.name, reports=500, signing_key="")
    stranger.deliver(stranger.files(ReportKind.RESTARTED, step=1))
    assert world.run().current.first_step is None
    job.steps(1)
    after = world.run()
    decided = ("state", "stop", "ledger", "labels", "wake_at", "proposal", "rungs_taken", "blocked_by")
    assert [getattr(after, name) for name in decided] == [getattr(before, name) for name in decided]
    assert after.incidents[0].resume_step == before.incidents[0].resume_step
    job.saves(450)  # below the ordered step: no progress
    world.minutes(3)
    assert world.run().open_incident is not None


# Without an agent


def seen(world: World, step: int) -> None:
    """The sweep has read the first step from the metrics of the current job."""
    world.supervisor().handle(FindingsReceived("gpt", world.run().current.job_name, (), step))


@pytest.fixture
def scripted() -> World:
    """A run without an agent, whose second job was ordered to resume from step 500."""
    return fail(World().with_saves(layout=Layout.HUGGING_FACE, is_signed=False))


def fail(world: World) -> World:
    number, name = world.run().current.number, world.run().current.job_name
    world.lose_node(name, minutes=10, metrics={"step": 560.0})
    assert (world.run().current.number, world.run().current.resumed_from_step) == (number + 1, 500)
    return world


def test_a_script_that_counts_from_0_in_each_launch_is_not_taken_for_one_that_lost_its_steps(scripted):
    """Its checkpoints go on beyond the ordered step."""
    seen(scripted, 1)
    scripted.minutes(2)
    scripted.checkpoints.save(600, attempt=0, layout=Layout.HUGGING_FACE)
    scripted.minutes(3)
    run = scripted.run()
    assert (run.attempts[1].first_step, run.attempts[1].began_step, run.incidents[0].lost_steps) == (1, 500, 60)
    assert (scripted.notice_titles(Severity.PAGE), run.incidents[0].recovered) == ([], True)


def test_a_checkpoint_below_the_ordered_step_confirms_what_the_metrics_say(scripted):
    seen(scripted, 1)
    scripted.minutes(2)
    scripted.checkpoints.save(50, attempt=0, layout=Layout.HUGGING_FACE)
    scripted.minutes(3)
    run = scripted.run()
    assert (run.attempts[1].began_step, run.incidents[0].lost_steps) == (0, 560)
    assert scripted.notice_titles(Severity.PAGE) == ["gpt: it began at step 0 instead of 500"]
    assert (
        "loads no checkpoint: `rerail stop gpt`, fix it, then `rerail submit train.py --continue gpt`\n"
        in run.pages[0].notice.todo
    )
    assert run.open_incident is not None  # no progress
    # A counter that starts again by design does so in each attempt: it is said once in a run.
    fail(scripted)
    seen(scripted, 1)
    scripted.minutes(2)
    scripted.checkpoints.save(60, attempt=0, layout=Layout.HUGGING_FACE)
    scripted.minutes(3)
    assert scripted.run().attempts[2].began_step == 0
    assert len(scripted.notice_titles(Severity.PAGE)) == 1


def test_a_list_of_relaunches_names_the_step_that_was_begun(scripted):
    seen(scripted, 1)
    for step in (50, 600, 700):
        scripted.checkpoints.save(step, attempt=0, layout=Layout.HUGGING_FACE)
        scripted.minutes(5)
        if step == 600:
            scripted.send_command(OperatorVerb.RESTART)
            scripted.minutes(1)
    assert "2 times: attempt 2 from step 0 instead of 500, then 3 from step 700" in summary(scripted)["did"]


def test_the_first_step_is_read_from_the_metrics_of_a_script(world):
    """Until it is known, and only where no agent reports it."""
    world = World()
    world.sagemaker.defined_metrics = ("step", "loss")
    world.with_saves(layout=Layout.HUGGING_FACE, is_signed=False)
    fail(world)
    world.series.print("gpt-a002", world.clock(), step=1.0, loss=2.0)
    world.minutes(3)
    assert world.run().attempts[1].first_step == 1


def test_the_interval_is_the_longest_between_recent_checkpoints():
    def saves(*steps: int) -> list[Checkpoint]:
        return [Checkpoint(f"s3://b/{step}", step, 1, MIDNIGHT) for step in steps]

    assert find_save_steps(saves(350, 300, 301, 250, 10)) == 50
    assert find_save_steps(saves(300)) is None
    assert find_save_steps(()) is None
