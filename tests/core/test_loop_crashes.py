"""Kill the supervisor before and after every call that it makes: the night ends as it would have, every time."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from rerail.messages.messages import FindingsReceived, JobStateChanged, Message, ReportFiled, RunDue
from rerail.model.checkpoints import EMERGENCY
from rerail.model.errors import CommandNotStored, Throttled
from rerail.model.finding import Finding, Kind, Level
from rerail.model.mailbox import Durability, ReportKind
from rerail.model.run import JobStatus, RunState
from tests.fakes import Agent, World

NODE_LOST = "InternalServerError: We encountered an internal error.  Please try again."


class Crash(BaseException):
    """The function died here, whatever it would have caught."""


@dataclass
class Saboteur:
    """Stands between the loop and its ports and strikes at one call, before it or after it."""

    strike_at: int
    after: bool
    error: Callable[[], Exception] = Crash
    calls: int = 0

    def wrap(self, port: Any) -> Any:
        saboteur = self

        class Port:
            def __getattr__(self, name: str) -> Any:
                method = getattr(port, name)
                return (lambda *args, **kwargs: saboteur.pass_on(method, args, kwargs)) if callable(method) else method

        return Port()

    def pass_on(self, method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.calls += 1
        strikes = self.calls == self.strike_at
        if strikes and not self.after:
            raise self.error()
        result = method(*args, **kwargs)
        if strikes:
            raise self.error()
        return result


def a_night(saboteur: Saboteur) -> World:
    """A run is adopted, its node dies, it is relaunched and completes; each message is delivered until it succeeds."""
    world = World()
    world.sagemaker.submit("gpt")
    deliver(world, saboteur, JobStateChanged("gpt"))
    world.checkpoints.save(step=100)
    world.sagemaker.fail("gpt", NODE_LOST, keep_alive_seconds=600)
    for _ in range(6):
        world.clock.pass_by(timedelta(minutes=1))
        deliver(world, saboteur, JobStateChanged("gpt"))
    world.clock.pass_by(timedelta(minutes=1))
    world.checkpoints.save(step=200, attempt=2)
    deliver(world, saboteur, RunDue("gpt"))
    world.sagemaker.end("gpt-a002", JobStatus.COMPLETED)
    deliver(world, saboteur, JobStateChanged("gpt-a002"))
    deliver(world, saboteur, JobStateChanged("gpt-a002"))
    return world


def a_handshake(saboteur: Saboteur) -> World:
    """A job is slow, its agent saves it, it is moved; then its loss diverges, and the agent's report tells."""
    world = World()
    world.sagemaker.submit("gpt")
    deliver(world, saboteur, JobStateChanged("gpt"))
    agent = Agent(world)
    deliver(world, saboteur, filed(agent, ReportKind.HELLO))
    world.checkpoints.save(step=100)
    world.clock.pass_by(timedelta(minutes=1))
    slow = Finding(Kind.THROUGHPUT_DROP, Level.INTERVENE, 110, 105, "slow")
    deliver(world, saboteur, FindingsReceived("gpt", "gpt", (slow,)))
    deliver(world, saboteur, filed(agent, ReportKind.HEARD, command=agent.asked.id))
    world.clock.pass_by(timedelta(seconds=20))
    world.checkpoints.save(step=120, reason=EMERGENCY)
    deliver(world, saboteur, saved(agent, 120))
    a_minute(world, saboteur, "gpt")
    successor = Agent(world, attempt=2, job="gpt-a002")
    deliver(world, saboteur, filed(successor, ReportKind.HELLO))
    diverged = Finding(Kind.DIVERGENCE, Level.INTERVENE, 150, 115, "9.1 for 80 rows")
    deliver(world, saboteur, filed(successor, ReportKind.FINDINGS, findings=(diverged,)))
    world.clock.pass_by(timedelta(seconds=20))
    deliver(world, saboteur, saved(successor, 155))
    a_minute(world, saboteur, "gpt-a002")
    a_minute(world, saboteur, "gpt-a003")
    return world


def filed(agent: Agent, told: ReportKind, **facts: Any) -> ReportFiled:
    key = agent.files(told, **facts)
    return ReportFiled(agent.run, f"r{agent.attempt}-{agent.told}", key)


def saved(agent: Agent, step: int) -> ReportFiled:
    return filed(agent, ReportKind.CHECKPOINT, command=agent.asked.id, step=step, durability=Durability.REMOTE)


def a_minute(world: World, saboteur: Saboteur, job: str) -> None:
    world.clock.pass_by(timedelta(minutes=1))
    deliver(world, saboteur, JobStateChanged(job))


def deliver(world: World, saboteur: Saboteur, wakeup: Message) -> None:
    """As the queue does: again, until the function returns."""
    for _ in range(3):
        try:
            world.supervisor(saboteur.wrap).handle(wakeup)
        except (Crash, CommandNotStored):
            continue
        return
    raise AssertionError("one strike must not fail a message three times")


def outcome(world: World) -> dict[str, Any]:
    run = world.run()
    return {
        "state": run.state,
        "jobs": sorted(world.sagemaker.jobs),
        "resumed_from": [attempt.resumed_from_step for attempt in run.attempts],
        "charges": run.ledger.charges,
        "incidents": [(incident.cause, incident.resume_step, incident.resolution) for incident in run.incidents],
        "pending": run.pending,
        "told": {notice.key for notice in world.bus.told},
        "most live at once": world.sagemaker.most_live_at_once,
    }


UNDISTURBED = Saboteur(strike_at=0, after=False)
EXPECTED = outcome(a_night(UNDISTURBED))


def test_the_undisturbed_night_ends_well():
    assert EXPECTED["state"] is RunState.COMPLETED
    assert EXPECTED["jobs"] == ["gpt", "gpt-a002"]
    assert EXPECTED["most live at once"] == 1
    assert UNDISTURBED.calls > 30


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("call", range(1, UNDISTURBED.calls + 1))
def test_a_crash_at_any_call_changes_nothing_in_the_end(call, after):
    assert outcome(a_night(Saboteur(call, after))) == EXPECTED


A_CALM_HANDSHAKE = Saboteur(strike_at=0, after=False)
SHAKEN = outcome(a_handshake(A_CALM_HANDSHAKE))


def test_the_undisturbed_handshake_ends_well():
    assert SHAKEN["state"] is RunState.WATCHING
    assert SHAKEN["jobs"] == ["gpt", "gpt-a002", "gpt-a003"]
    assert SHAKEN["resumed_from"] == [None, 120, 100]
    assert SHAKEN["pending"] == ()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("call", range(1, A_CALM_HANDSHAKE.calls + 1))
def test_a_crash_at_any_call_of_a_handshake_changes_nothing_in_the_end(call, after):
    """Before and after each read of the mailbox, each command, each stop."""
    assert outcome(a_handshake(Saboteur(call, after))) == SHAKEN


@pytest.mark.parametrize("call", range(1, A_CALM_HANDSHAKE.calls + 1))
def test_an_error_at_any_call_of_a_handshake_changes_nothing_in_the_end(call):
    """The service says no once, and the rest is done before the message goes back."""
    saboteur = Saboteur(call, after=False, error=lambda: CommandNotStored("PutObject: refused"))
    assert outcome(a_handshake(saboteur)) == SHAKEN


@pytest.mark.parametrize("call", range(1, UNDISTURBED.calls + 1))
def test_a_second_instance_that_works_at_the_same_time_changes_nothing_in_the_end(call):
    """At one call of the first, a second supervisor handles the same message from beginning to end."""
    world = World()

    class Meddler(Saboteur):
        def pass_on(self, method, args, kwargs):
            self.calls += 1
            if self.calls == self.strike_at:
                world.supervisor().handle(JobStateChanged("gpt"))
            return method(*args, **kwargs)

    first = Meddler(call, after=False)
    world.sagemaker.submit("gpt")
    deliver(world, first, JobStateChanged("gpt"))
    world.checkpoints.save(step=100)
    world.sagemaker.fail("gpt", NODE_LOST)
    for _ in range(6):
        world.clock.pass_by(timedelta(minutes=1))
        deliver(world, first, JobStateChanged("gpt"))
    assert world.run().state is RunState.WATCHING
    assert sorted(world.sagemaker.jobs) == ["gpt", "gpt-a002"]
    assert world.sagemaker.most_live_at_once == 1


def test_throttling_leaves_the_action_pending_for_the_next_sweep():
    world = World()
    world.sagemaker.submit("gpt")
    world.supervisor().handle(JobStateChanged("gpt"))
    world.sagemaker.fail("gpt", NODE_LOST)
    create = world.sagemaker.create
    world.sagemaker.create = lambda request: (_ for _ in ()).throw(Throttled("Rate exceeded"))
    world.minutes(3)
    assert world.run().pending
    world.sagemaker.create = create
    world.minutes(2)
    assert world.run().pending == ()
    assert sorted(world.sagemaker.jobs) == ["gpt", "gpt-a002"]
