"""Kill the supervisor before and after every call that it makes: the run ends as it would have, every time."""

from collections.abc import Callable
from datetime import timedelta
from hashlib import sha256
from typing import Any

import pytest

from rerail.messages.messages import CommandReceived, FindingsReceived, JobStateChanged, Message, ReportFiled, RunDue
from rerail.model.checkpoints import EMERGENCY
from rerail.model.errors import CommandNotStored, Throttled
from rerail.model.finding import Finding, Kind, Level
from rerail.model.machines import WarmPool
from rerail.model.mailbox import Durability, ReportKind, make_change_key
from rerail.model.run import JobStatus, RunState
from rerail.model.signals import OperatorVerb
from tests.core.failures import ECC, NODE_LOST
from tests.core.test_damaged_checkpoint import DAMAGED
from tests.crashes import Crash, FaultInjector
from tests.fakes import BUCKET, Agent, World

Scenario = Callable[[FaultInjector], World]


def relaunch_scenario(injector: FaultInjector) -> World:
    """Adopt a run, break its warm machine, relaunch, complete; deliver each message until it succeeds.

    Each launch requires that the warm pool with the broken machine is released.
    """
    world = World()
    world.sagemaker.submit("gpt", keep_alive_seconds=1800)
    create = world.sagemaker.create

    def checked_create(request: Any) -> None:
        assert set(world.sagemaker.released) == {"gpt"}, "launched before the broken machine was released"
        create(request)

    world.sagemaker.create = checked_create  # type: ignore[method-assign]
    deliver(world, injector, JobStateChanged("gpt"))
    world.checkpoints.commit(step=100)
    world.sagemaker.fail("gpt", ECC, pool=WarmPool("Available"))
    for _ in range(6):
        world.clock.pass_by(timedelta(minutes=1))
        deliver(world, injector, JobStateChanged("gpt"))
    world.clock.pass_by(timedelta(minutes=1))
    world.checkpoints.commit(step=200, attempt=2)
    deliver(world, injector, RunDue("gpt"))
    world.sagemaker.end("gpt-a002", JobStatus.COMPLETED)
    deliver(world, injector, JobStateChanged("gpt-a002"))
    a_minute(world, injector, "gpt-a002")
    return world


def handshake_scenario(injector: FaultInjector) -> World:
    """Move a slow job after its agent's save; then the agent reports a diverged loss."""
    world = World()
    world.sagemaker.submit("gpt")
    deliver(world, injector, JobStateChanged("gpt"))
    agent = Agent(world)
    deliver(world, injector, filed(agent, ReportKind.HELLO))
    world.checkpoints.commit(step=100)
    world.clock.pass_by(timedelta(minutes=1))
    slow = Finding(Kind.THROUGHPUT_DROP, Level.INTERVENE, 110, 105, "slow")
    deliver(world, injector, FindingsReceived("gpt", "gpt", (slow,)))
    deliver(world, injector, filed(agent, ReportKind.ACKNOWLEDGED, command=agent.asked.id))
    world.clock.pass_by(timedelta(seconds=20))
    world.checkpoints.commit(step=120, reason=EMERGENCY)
    deliver(world, injector, saved(agent, 120))
    a_minute(world, injector, "gpt")
    successor = Agent(world, attempt=2, job="gpt-a002")
    deliver(world, injector, filed(successor, ReportKind.HELLO))
    diverged = Finding(Kind.DIVERGENCE, Level.INTERVENE, 150, 115, "9.1 for 80 rows")
    deliver(world, injector, filed(successor, ReportKind.FINDINGS, findings=(diverged,)))
    world.clock.pass_by(timedelta(seconds=20))
    deliver(world, injector, saved(successor, 155))
    a_minute(world, injector, "gpt-a002")
    a_minute(world, injector, "gpt-a003")
    a_minute(world, injector, "gpt-a003")  # what the function before may have been about to publish is left to it
    return world


def continue_scenario(injector: FaultInjector) -> World:
    """Hold a run for a bug, then continue it with other code; its next relaunch has that code too."""
    world = World()
    world.sagemaker.submit("gpt", request={"HyperParameters": {"code": '"old"'}})
    deliver(world, injector, JobStateChanged("gpt"))
    world.checkpoints.commit(step=100)
    world.clock.pass_by(timedelta(minutes=1))
    deliver(world, injector, JobStateChanged("gpt"))
    world.sagemaker.fail("gpt", "AlgorithmError: torch.OutOfMemoryError: CUDA out of memory., exit code: 1")
    deliver(world, injector, JobStateChanged("gpt"))
    text = b'{"HyperParameters": {"code": "new"}, "Environment": {"BATCH": "4"}}'
    digest = sha256(text).hexdigest()
    world.mailbox.put(make_change_key("gpt", digest), text)
    deliver(world, injector, CommandReceived("c1", "gpt", OperatorVerb.CONTINUE, "ada", "", change=digest))
    a_minute(world, injector, "gpt-a002")
    world.sagemaker.fail("gpt-a002", NODE_LOST)
    for _ in range(6):
        a_minute(world, injector, "gpt-a002")
    return world


def copy_scenario(injector: FaultInjector) -> World:
    """Copy a file that is overwritten in place, tear it, and relaunch from the copy."""
    world = World()
    world.sagemaker.submit("gpt")
    deliver(world, injector, JobStateChanged("gpt"))
    for etag in ("a", "b"):
        world.clock.pass_by(timedelta(minutes=20))
        world.checkpoints.save_file(etag=etag)
        deliver(world, injector, RunDue("gpt", lists=True))
    world.clock.pass_by(timedelta(minutes=1))
    world.checkpoints.save_file(etag="torn")
    world.sagemaker.fail("gpt", NODE_LOST)
    for _ in range(3):
        a_minute(world, injector, "gpt")
    world.sagemaker.fail("gpt-a002", DAMAGED)
    for _ in range(4):
        a_minute(world, injector, "gpt-a002")
    return world


def filed(agent: Agent, kind: ReportKind, **facts: Any) -> ReportFiled:
    key = agent.files(kind, **facts)
    return ReportFiled(agent.run, f"r{agent.attempt}-{agent.reports}", key)


def saved(agent: Agent, step: int) -> ReportFiled:
    return filed(agent, ReportKind.CHECKPOINT, command=agent.asked.id, step=step, durability=Durability.REMOTE)


def a_minute(world: World, injector: FaultInjector, job: str) -> None:
    world.clock.pass_by(timedelta(minutes=1))
    deliver(world, injector, JobStateChanged(job))


def deliver(world: World, injector: FaultInjector, message: Message) -> None:
    """Deliver again until the function returns, as the queue does."""
    for _ in range(3):
        try:
            world.supervisor(injector.wrap).handle(message)
        except (Crash, CommandNotStored):
            continue
        return
    raise AssertionError("one fault must not fail a message three times")


def outcome(world: World) -> dict[str, Any]:
    run = world.run()
    return {
        "state": run.state,
        "jobs": sorted(world.sagemaker.jobs),
        "resumed_from": [attempt.resumed_from_step for attempt in run.attempts],
        "charges": run.ledger.charges,
        "incidents": [(incident.cause, incident.resume_step, incident.resolution) for incident in run.incidents],
        "pending": run.pending,
        "told": {notice.key for notice in world.bus.notices},
        "events": [(e.previous_state, e.state, e.attempt, e.job) for e in world.bus.distinct_events()],
        "unpublished": run.unpublished,
        "most live at once": world.sagemaker.most_live_at_once,
    }


def play_undisturbed(scenario: Scenario) -> tuple[World, int]:
    """Return the world at the end of a scenario without a fault, and the number of calls."""
    injector = FaultInjector()
    return scenario(injector), injector.calls


SCENARIOS = (relaunch_scenario, handshake_scenario, continue_scenario, copy_scenario)
UNDISTURBED = {scenario: play_undisturbed(scenario) for scenario in SCENARIOS}
EXPECTED = {scenario: outcome(world) for scenario, (world, _) in UNDISTURBED.items()}
CALLS = [(scenario, call) for scenario, (_, calls) in UNDISTURBED.items() for call in range(calls + 1)]


def test_the_undisturbed_relaunch_completes():
    world, calls = UNDISTURBED[relaunch_scenario]
    expected = EXPECTED[relaunch_scenario]
    assert expected["state"] is RunState.COMPLETED
    assert expected["jobs"] == ["gpt", "gpt-a002"]
    assert expected["most live at once"] == 1
    assert expected["unpublished"] == ()
    assert [event.is_end for event in world.bus.events].count(True) == 1
    assert calls > 30


def test_the_undisturbed_handshake_relaunches_twice():
    expected = EXPECTED[handshake_scenario]
    assert expected["state"] is RunState.WATCHING
    assert expected["jobs"] == ["gpt", "gpt-a002", "gpt-a003"]
    assert expected["resumed_from"] == [None, 120, 100]
    assert expected["pending"] == ()


def test_a_continued_run_keeps_its_checkpoints_and_every_later_job_has_the_new_code():
    world, _ = UNDISTURBED[continue_scenario]
    expected = EXPECTED[continue_scenario]
    assert expected["state"] is RunState.WATCHING
    assert expected["resumed_from"] == [None, 100, 100]
    for job in ("gpt-a002", "gpt-a003"):
        request = world.sagemaker.requests[job]
        assert (request["HyperParameters"], request["Environment"]["BATCH"]) == ({"code": "new"}, "4")


@pytest.mark.parametrize(("scenario", "call"), CALLS, ids=lambda value: getattr(value, "__name__", value))
def test_a_crash_at_any_call_changes_nothing_in_the_end(scenario, call):
    """After each read of the mailbox, each command, each stop, which is before the next; 0 is before the first."""
    world = scenario(FaultInjector(max(call, 1), after=call > 0))
    assert outcome(world) == EXPECTED[scenario]
    if scenario is copy_scenario:
        run, (file,) = world.run(), world.checkpoints.saved[BUCKET]
        assert (run.state, run.current.number, run.pending, file.etag) == (RunState.WATCHING, 3, (), "b")
        assert {copy.key: copy.etag for copy in run.copies} == world.checkpoints.copies
        assert [file.etag for file in world.checkpoints.quarantined] == ["torn"]


@pytest.mark.parametrize("call", range(1, UNDISTURBED[handshake_scenario][1] + 1))
def test_an_error_at_any_call_of_a_handshake_changes_nothing_in_the_end(call):
    """The service refuses one call; the other actions are done before the message goes back."""
    injector = FaultInjector(call, after=False, error=lambda: CommandNotStored("PutObject: refused"))
    assert outcome(handshake_scenario(injector)) == EXPECTED[handshake_scenario]


@pytest.mark.parametrize("call", range(1, UNDISTURBED[relaunch_scenario][1] + 1))
def test_a_second_instance_that_works_at_the_same_time_changes_nothing_in_the_end(call):
    """At one call of the first, a second supervisor handles the same message from beginning to end.

    Neither sends a notice or an event that the other sends; the adoption's event alone may come twice.
    """
    world = World()

    class SecondInstance(FaultInjector):
        def call(self, method, args, kwargs):
            self.calls += 1
            if self.calls == self.fail_at:
                world.supervisor().handle(JobStateChanged("gpt"))
            return method(*args, **kwargs)

    first = SecondInstance(call, after=False)
    world.sagemaker.submit("gpt")
    deliver(world, first, JobStateChanged("gpt"))
    world.checkpoints.commit(step=100)
    world.sagemaker.fail("gpt", NODE_LOST)
    for _ in range(6):
        world.clock.pass_by(timedelta(minutes=1))
        deliver(world, first, JobStateChanged("gpt"))
    assert world.run().state is RunState.WATCHING
    assert sorted(world.sagemaker.jobs) == ["gpt", "gpt-a002"]
    assert world.sagemaker.most_live_at_once == 1
    sent = [notice.key for notice in world.bus.notices]
    assert len(sent) == len(set(sent)) > 0
    ids = [event.id for event in world.bus.events if event.previous_state]
    assert len(ids) == len(set(ids)) > 0


def test_throttling_leaves_the_action_pending_for_the_next_sweep():
    world = World().adopt()
    world.sagemaker.fail("gpt", NODE_LOST)
    create = world.sagemaker.create
    world.sagemaker.create = lambda request: (_ for _ in ()).throw(Throttled("Rate exceeded"))
    world.minutes(3)
    assert world.run().pending
    world.sagemaker.create = create
    world.minutes(2)
    assert world.run().pending == ()
    assert sorted(world.sagemaker.jobs) == ["gpt", "gpt-a002"]
