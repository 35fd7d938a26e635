"""An operator's command is carried out while it is about the present situation of the present run."""

from dataclasses import replace
from datetime import timedelta

import pytest

from rerail.decisions.on_command import find_refusal
from rerail.messages.messages import CommandReceived
from rerail.model.policy import Policy
from rerail.model.run import JobStatus, RunState
from rerail.model.signals import OperatorVerb
from tests.fakes import World

VERBS = (OperatorVerb.STOP, OperatorVerb.RESTART, OperatorVerb.HOLD)


def send(world: World, verb: OperatorVerb, age: timedelta) -> None:
    command = CommandReceived(f"{verb}-{age}", "gpt", verb, "ada", "", asked_at=world.clock() - age)
    world.supervisor().handle(command)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("days", [2, 400])
def test_a_command_from_before_the_run_changes_nothing(verb, days):
    """A dead letter was sent again: since then the job was deleted, and another got its name."""
    world = World()
    world.clock.pass_by(timedelta(days=3))
    world.adopt()
    world.minutes(10)
    send(world, verb, timedelta(days=days))
    world.minutes(15)
    assert (world.sagemaker.live(), len(world.run().attempts), world.run().held_by) == (["gpt"], 1, "")
    assert "too long ago: nothing is done; say it again" in world.reasons()[-1]


@pytest.mark.parametrize("verb", VERBS)
def test_a_command_of_hours_ago_changes_nothing(verb):
    """It may be about another situation; one that waited for minutes is carried out."""
    world = World().with_saves()
    world.clock.pass_by(timedelta(days=5))
    send(world, verb, timedelta(minutes=61))
    world.minutes(40)
    assert (world.sagemaker.live(), len(world.run().attempts), world.run().held_by) == (["gpt"], 1, "")
    send(world, verb, timedelta(minutes=50))
    world.minutes(40)
    assert world.sagemaker.live() != ["gpt"] or world.run().held_by == "ada"


@pytest.mark.parametrize("verb", [OperatorVerb.RESTART, OperatorVerb.DRILL])
def test_a_command_that_is_delivered_again_after_many_others_changes_nothing(verb):
    """A queue delivers at least once: neither a second restart nor a second drill stops the healthy job."""
    world = World().with_saves()
    command = CommandReceived("c1", "gpt", verb, "ada", "", asked_at=world.clock())
    world.supervisor().handle(command)
    world.minutes(20)
    for number in range(60):
        world.send_command(OperatorVerb.SAVE, f"save-{number}", asked_at=world.clock())
    world.supervisor().handle(command)
    world.minutes(20)
    assert (world.sagemaker.live(), len(world.run().attempts)) == (["gpt-a002"], 2)


@pytest.mark.parametrize("later", [0, -1], ids=["the-same-second", "a-second-earlier"])
def test_of_two_commands_only_an_earlier_one_is_outdated(later):
    """EventBridge's times have whole seconds, so two commands of one second are carried out as they arrive."""
    world = World().with_saves()
    world.clock.pass_by(timedelta(minutes=10))
    at = world.clock()
    for verb, seconds in ((OperatorVerb.HOLD, 0), (OperatorVerb.RELEASE, later)):
        asked_at = at + timedelta(seconds=seconds)
        world.supervisor().handle(CommandReceived(str(verb), "gpt", verb, "ada", "", asked_at=asked_at))
    assert world.run().held_by == ("" if later == 0 else "ada")


STOPPED, HELD = (OperatorVerb.STOP, JobStatus.STOPPED), (OperatorVerb.HOLD, JobStatus.FAILED)


@pytest.mark.parametrize(
    ("before", "ended", "verb", "refusal"),
    [
        (OperatorVerb.HOLD, None, OperatorVerb.HOLD, "the run is held already: nothing to hold"),
        (*STOPPED, OperatorVerb.HOLD, "the run has ended (stopped): nothing to hold"),
        (*STOPPED, OperatorVerb.RELEASE, "the run is not held (stopped): nothing to release"),
        (*STOPPED, OperatorVerb.RESTART, "no job of this run is live (stopped): nothing to stop"),
        (*STOPPED, OperatorVerb.STOP, "no job of this run is live (stopped): nothing to stop"),
        (None, JobStatus.COMPLETED, OperatorVerb.STOP, "no job of this run is live (completed): nothing to stop"),
        (*HELD, OperatorVerb.RESTART, "no job of this run is live (held): nothing to stop"),
        (*STOPPED, OperatorVerb.SAVE, "the run has ended (stopped): nothing trains"),
        (None, None, OperatorVerb.APPROVE, "nothing waits for approval (watching): nothing to answer"),
        (None, None, OperatorVerb.DENY, "nothing waits for approval (watching): nothing to answer"),
        (None, None, OperatorVerb.RELEASE, "the run is not held (watching): nothing to release"),
    ],
)
def test_a_command_that_would_change_nothing_is_refused_with_the_reason(before, ended, verb, refusal):
    world = World().with_saves()
    if before:
        world.send_command(before, "before")
    if ended:
        world.sagemaker.end("gpt", ended)
        world.minutes(1)
    run = world.run()
    world.send_command(verb, "now")
    assert world.reasons()[-1] == f"ada said {verb}, but {refusal}"
    assert replace(world.run(), commands=run.commands, version=run.version) == run


def test_a_job_that_lives_on_may_be_stopped_although_its_run_has_ended():
    world = World().with_saves()
    ended = replace(world.run(), state=RunState.STOPPED)
    assert find_refusal(ended, OperatorVerb.STOP, world.clock(), Policy()) == ""
