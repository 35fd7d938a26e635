"""Wake-ups that lay in the queue for long: what they tell of was seen meanwhile, or is looked at once more."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerail.messages.messages import CommandReceived, JobStateChanged, QueueMessage, RunDue
from rerail.model.errors import CallFailed
from rerail.model.run import JobStatus, RunState
from rerail.model.signals import OperatorVerb
from rerail.supervisor.observe import EVENT_VISIBLE_AFTER
from tests.core.failures import NODE_LOST
from tests.fakes import MIDNIGHT, World
from tests.raising import raising

A_MOMENT = timedelta(seconds=5)


def training_run() -> World:
    """A run whose job trains, heard of at midnight."""
    world = World()
    world.sagemaker.submit("gpt")
    world.supervisor().handle(JobStateChanged("gpt"), QueueMessage(MIDNIGHT, MIDNIGHT))
    return world


def record_descriptions(world: World, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The jobs that are described from now on."""
    describe, described = world.sagemaker.describe, []

    def noted(name):
        described.append(name)
        return describe(name)

    monkeypatch.setattr(world.sagemaker, "describe", noted)
    return described


def lose_node(world: World) -> QueueMessage:
    """The job dies, and the supervisor hears of it five seconds later; when it did."""
    world.sagemaker.fail("gpt", NODE_LOST)
    sent = world.clock()
    world.clock.pass_by(A_MOMENT)
    post = QueueMessage(sent, world.clock())
    world.supervisor().handle(JobStateChanged("gpt"), post)
    assert world.run().state is RunState.WAITING and world.run().looked_at == post.received_at
    return post


@pytest.mark.parametrize("message", [JobStateChanged("gpt"), RunDue("gpt")])
def test_what_was_seen_since_it_was_sent_is_not_looked_at_again(monkeypatch, message):
    """The same death told twice, minutes ago: one look has seen it."""
    world = training_run()
    post = lose_node(world)
    world.clock.pass_by(timedelta(minutes=3))
    described, before = record_descriptions(world, monkeypatch), world.run()
    world.supervisor().handle(message, QueueMessage(post.sent_at, world.clock()))
    assert (described, world.run()) == ([], before)


def test_what_was_sent_after_the_look_is_looked_at():
    """The wait is over, and the sweep says so: nothing that was seen before answers that."""
    world = training_run()
    lose_node(world)
    world.clock.pass_by(timedelta(minutes=2))
    world.supervisor().handle(RunDue("gpt"), QueueMessage(world.clock(), world.clock()))
    assert world.sagemaker.live() == ["gpt-a002"]


def test_what_the_look_may_just_have_missed_is_looked_at_again():
    """Sent in the very second of the look: SageMaker may have described the job as it was before."""
    world = training_run()
    post = lose_node(world)
    world.clock.pass_by(timedelta(minutes=2))
    late = QueueMessage(post.received_at - EVENT_VISIBLE_AFTER + timedelta(milliseconds=1), world.clock())
    world.supervisor().handle(RunDue("gpt"), late)
    assert world.sagemaker.live() == ["gpt-a002"]


def test_a_pending_action_is_done_on_an_old_message(monkeypatch):
    """Somebody looked, decided, and died before acting: the message that comes back finishes it."""
    world = training_run()
    post = lose_node(world)
    world.clock.pass_by(timedelta(minutes=2))

    with monkeypatch.context() as broken, pytest.raises(KeyboardInterrupt):
        broken.setattr(world.sagemaker, "create", raising(KeyboardInterrupt))
        world.supervisor().handle(RunDue("gpt"), QueueMessage(world.clock(), world.clock()))
    assert world.run().pending
    world.supervisor().handle(RunDue("gpt"), post)
    assert world.sagemaker.live() == ["gpt-a002"] and not world.run().pending


def test_a_late_operator_command_is_handled():
    world = training_run()
    post = lose_node(world)
    world.supervisor().handle(CommandReceived("c1", "gpt", OperatorVerb.HOLD, "ada", "", asked_at=post.sent_at), post)
    assert world.run().state is RunState.HELD


@given(ahead=st.timedeltas(timedelta(days=-2), timedelta(days=2)), wait=st.timedeltas(timedelta(0), timedelta(hours=3)))
def test_our_own_clock_does_not_matter(ahead, wait):
    """It was wrong by days while somebody looked: the death that is told after that is seen all the same."""
    world = training_run()
    world.clock.pass_by(ahead)
    queue = MIDNIGHT + timedelta(hours=1)
    world.supervisor().handle(RunDue("gpt"), QueueMessage(queue, queue))
    world.clock.pass_by(-ahead)
    world.sagemaker.fail("gpt", NODE_LOST)
    at = queue + timedelta(seconds=2)
    world.supervisor().handle(JobStateChanged("gpt"), QueueMessage(at, at + wait))
    assert world.run().attempts[0].status is JobStatus.FAILED


def test_what_failed_or_was_decided_on_one_message_does_not_count_for_the_next(monkeypatch):
    """The function handles many messages with one supervisor."""
    world = training_run()
    lose_node(world)
    supervisor = world.supervisor()
    world.clock.pass_by(timedelta(minutes=2))
    with monkeypatch.context() as broken, pytest.raises(ZeroDivisionError):
        broken.setattr(world.sagemaker, "create", lambda request: 1 / 0)
        supervisor.handle(RunDue("gpt"))
    decided = list(supervisor.turns)
    supervisor.handle(RunDue("gpt"))
    assert world.sagemaker.live() == ["gpt-a002"]
    assert decided and not any(turn in decided for turn in supervisor.turns)


def test_a_clock_that_is_set_back_holds_up_no_page(monkeypatch):
    """A record from the future was left for an hour to the function that had written it."""
    world = training_run()
    world.sagemaker.fail("gpt", NODE_LOST)
    with monkeypatch.context() as patched:
        for publish in ("publish", "publish_change"):
            patched.setattr(world.bus, publish, raising(CallFailed("no answer")))
        world.pause.paused = True
        with pytest.raises(CallFailed):
            world.supervisor().handle(JobStateChanged("gpt"))
    assert world.run().pending and world.run().unpublished
    world.clock.now -= timedelta(hours=1)
    world.minutes(2)
    assert (world.run().pending, world.run().unpublished) == ((), ())
