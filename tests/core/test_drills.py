"""A restart drill: the run saves, trains a little, and is restarted; nothing is charged, labelled or set aside."""

from dataclasses import replace

import pytest

from rerail.messages.messages import CommandReceived, FindingsReceived, JobStateChanged
from rerail.model.checkpoints import EMERGENCY
from rerail.model.errors import Throttled
from rerail.model.finding import Finding, Kind, Level
from rerail.model.mailbox import CommandKind
from rerail.model.policy import Mode
from rerail.model.run import JobStatus, RunState
from rerail.model.signals import OperatorVerb
from tests.fakes import BUCKET, Agent, World
from tests.raising import raising

SECOND = "gpt-a002"


def send_command(world: World, verb: OperatorVerb, step: int | None = None, *, id: str = "c1") -> str:
    """What the timeline says to it."""
    world.supervisor().handle(CommandReceived(id, "gpt", verb, "ada", "", step=step))
    return world.runs.timeline[-1].reason


def with_agent() -> World:
    world = World().with_saves()
    Agent(world).hello()
    return world


def test_the_agent_saves_and_the_job_goes_on():
    """The wish alone changes nothing else."""
    world = with_agent()
    assert (
        send_command(world, OperatorVerb.SAVE)
        == "ada said save: having the agent save a checkpoint until 01:05 UTC, the job goes on"
    )
    asked = world.mailbox.commands[-1]
    assert (asked.kind, asked.attempt) == (CommandKind.CHECKPOINT, 1)
    Agent(world, reports=1).commits(505)
    world.minutes(30)
    assert (world.run().state, world.sagemaker.live()) == (RunState.WATCHING, ["gpt"])


def test_a_drill_resumes_from_the_step_that_was_named_and_leaves_the_rest():
    """What was saved since, at SIGTERM for one, is as good: the job is told to let it lie."""
    world = with_agent()
    world.checkpoints.commit(step=505, reason=EMERGENCY)
    world.checkpoints.commit(step=530, reason="sigterm")
    said = send_command(world, OperatorVerb.DRILL, 505)
    assert said == "restart drill: ada said drill: stopping the job, to relaunch it from step 505"
    world.minutes(2)
    environment = world.sagemaker.requests[SECOND]["Environment"]
    assert (environment["RERAIL_RESUME_STEP"], environment["RERAIL_KEEP_NEWER"]) == ("505", "1")
    run = world.run()
    assert (run.state, run.current.drill, run.labels, run.incidents) == (RunState.WATCHING, True, (), ())
    assert (run.ledger.charges, run.ledger.starts, run.current.approved_by) == ({}, (), "ada")
    assert any(entry.reason.startswith("restart drill, ") for entry in world.runs.timeline)


def test_its_successor_is_no_drill_and_takes_the_newest():
    """A crash after the drill goes on from the newest save of all attempts."""
    world = with_agent()
    world.checkpoints.commit(step=505, reason=EMERGENCY)
    send_command(world, OperatorVerb.DRILL, 505)
    world.checkpoints.commit(step=530, reason="sigterm")
    world.minutes(2)
    world.sagemaker.fail(SECOND, "InternalServerError: x")
    world.minutes(20)
    environment = world.sagemaker.requests["gpt-a003"]["Environment"]
    assert environment["RERAIL_RESUME_STEP"] == "530" and "RERAIL_KEEP_NEWER" not in environment


def test_a_script_without_an_agent_takes_what_it_finds():
    """Nothing is moved out of its way: the newest save is where it goes on, whatever was named."""
    world = World().with_saves(layout="huggingface")
    send_command(world, OperatorVerb.DRILL, 400)
    world.minutes(2)
    assert world.run().current.resumed_from_step == 500
    assert len(world.checkpoints.list_checkpoints(BUCKET)) == 5 and not world.checkpoints.quarantined


def test_drills_are_no_restart_storm_and_no_attempts():
    """Six drills in a few minutes, and then a failure: it is answered as the first one."""
    world = with_agent()
    for number in range(6):
        world.checkpoints.commit(step=600 + number, attempt=number + 1)
        send_command(world, OperatorVerb.DRILL, id=f"c{number}")
        world.minutes(2)
    world.sagemaker.fail("gpt-a007", "InternalServerError: x")
    world.minutes(3)
    assert world.run().state is not RunState.HELD
    assert len(world.sagemaker.jobs) == 8


@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.APPROVE])
def test_an_operators_drill_needs_no_approval(mode):
    world = with_agent()
    world.policies.by_name["default"] = replace(world.policies.by_name["default"], mode=mode)
    send_command(world, OperatorVerb.DRILL, 500)
    world.minutes(2)
    assert list(world.sagemaker.jobs) == ["gpt", SECOND] and world.run().proposal is None


def refused(world: World, verb: OperatorVerb = OperatorVerb.DRILL, step: int | None = None) -> str:
    """Why nothing was done: the job lives, and nothing is owed."""
    before = world.run()
    said = send_command(world, verb, step, id=f"refused-{verb}-{step}")
    after = world.run()
    assert (after.state, after.stop, after.pending) == (before.state, before.stop, before.pending)
    return said


def test_a_human_hold_stands():
    world = with_agent()
    send_command(world, OperatorVerb.HOLD)
    for verb in (OperatorVerb.DRILL, OperatorVerb.SAVE):
        assert refused(world, verb).endswith("but the run is held: `rerail release gpt` first")


def test_a_run_that_does_not_train_is_let_be():
    world = with_agent()
    send_command(world, OperatorVerb.RESTART)
    assert refused(world).endswith("but the run does not train (saving): repeat the command when it does")
    world = with_agent()
    world.sagemaker.jobs["gpt"] = replace(world.sagemaker.jobs["gpt"], secondary="Restarting")
    world.supervisor().handle(JobStateChanged("gpt"))
    assert "but the run does not train (watching)" in refused(world)
    world.sagemaker.end("gpt", JobStatus.COMPLETED)
    assert "but the run has ended (completed): nothing" in send_command(world, OperatorVerb.DRILL, id="last")


def test_while_paused_there_is_no_drill():
    world = with_agent()
    world.pause.paused = True
    assert refused(world).endswith("repeat the command two minutes after the end (`rerail resume`)")


def test_a_pause_that_comes_before_the_stop_calls_it_off():
    world = with_agent()
    stop = world.sagemaker.stop

    world.sagemaker.stop = raising(Throttled("Rate exceeded"))
    send_command(world, OperatorVerb.DRILL, 500)
    world.sagemaker.stop, world.pause.paused = stop, True
    world.minutes(2)
    assert (world.run().state, world.run().stop, world.sagemaker.live()) == (RunState.WATCHING, None, ["gpt"])
    assert any("restart drill of ada) is cancelled" in entry.reason for entry in world.runs.timeline)
    world.pause.paused = False
    world.minutes(5)
    assert list(world.sagemaker.jobs) == ["gpt"]


def test_a_job_that_fails_on_its_way_out_is_a_failure():
    """Its relaunch is no drill: it takes the newest save, and counts as a start."""
    world = with_agent()
    world.sagemaker.stop = lambda job_name: world.sagemaker.fail(job_name, "InternalServerError: x")
    send_command(world, OperatorVerb.DRILL, 400)
    world.minutes(5)
    run = world.run()
    assert (run.current.number, run.current.drill, run.current.resumed_from_step) == (2, False, 500)
    assert len(run.ledger.starts) == 1


def test_a_question_that_stands_is_answered_first():
    world = with_agent()
    world.policies.by_name["default"] = replace(world.policies.by_name["default"], mode=Mode.APPROVE)
    finding = Finding(Kind.DIVERGENCE, Level.INTERVENE, 510, 450, "ten times the usual loss")
    world.supervisor().handle(FindingsReceived("gpt", "gpt", (finding,)))
    assert "waits for an answer: `rerail show gpt` tells which" in refused(world)


def test_what_is_not_there_cannot_be_drilled_from():
    world = with_agent()
    assert "no clean checkpoint of step 450 is there: `rerail checkpoints gpt` lists" in refused(world, step=450)
    empty = World().adopt()
    empty.minutes(2)
    assert refused(empty).endswith("but nothing is saved that it could be relaunched from")
    assert "the job has no agent" in refused(empty, OperatorVerb.SAVE)
    empty.checkpoints.save_file()
    assert "stopping the job" in send_command(empty, OperatorVerb.DRILL, id="c3"), "its script resumes from the file"
