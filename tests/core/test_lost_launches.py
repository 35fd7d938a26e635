"""CreateTrainingJob succeeded, its answer was lost, and what came next said otherwise: the job is found and watched."""

from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

import pytest

from rerail.messages.messages import JobStateChanged, RunDue
from rerail.model.actions import Severity
from rerail.model.errors import (
    CallFailed,
    CapacityRefused,
    JobNotFound,
    RequestRefused,
    RerailError,
    StateUnknown,
    Throttled,
)
from rerail.model.rate_limit import LaunchRequest
from rerail.model.run import JobStatus, RunState
from rerail.model.signals import OperatorVerb
from tests.core.failures import NODE_LOST
from tests.fakes import DEFAULT, World
from tests.raising import raising

CAPACITY = CapacityRefused("ResourceLimitExceeded: the limit is 1 instance, with current utilization of 1 instance")
INVALID = RequestRefused("AccessDeniedException: not authorized to perform sagemaker:CreateTrainingJob")


def pass_minutes(world: World, count: int) -> None:
    """Let time pass; errors of calls go to the log, and the next sweep tries again."""
    for _ in range(count):
        with suppress(RerailError):
            world.minutes(1)


def lose_answer(world: World, monkeypatch, then: Exception) -> None:
    """Have the first creation succeed without an answer, and each later one raise this error."""
    create, calls = world.sagemaker.create, []

    def answer(request):
        calls.append(request)
        if len(calls) == 1:
            create(request)
            raise CallFailed("read timeout")
        raise then

    monkeypatch.setattr(world.sagemaker, "create", answer)


def hide(world: World, monkeypatch, name: str = "gpt-a002"):
    """Have SageMaker not show the job yet; return what shows it."""
    describe = world.sagemaker.describe

    def blind(job_name):
        if job_name == name:
            raise JobNotFound(job_name)
        return describe(job_name)

    monkeypatch.setattr(world.sagemaker, "describe", blind)
    return lambda: monkeypatch.setattr(world.sagemaker, "describe", describe)


@pytest.mark.parametrize("refusal", [CAPACITY, INVALID], ids=["capacity", "request"])
def test_a_refusal_is_not_believed_while_the_job_lives(monkeypatch, refusal):
    """It is watched, no page is sent, and its own failure is handled."""
    world = World().with_saves()
    lose_answer(world, monkeypatch, refusal)
    world.sagemaker.fail("gpt", NODE_LOST)
    pass_minutes(world, 20)
    assert (world.run().state, world.run().current.job_name) == (RunState.WATCHING, "gpt-a002")
    assert not [notice for notice in world.bus.notices if notice.severity is Severity.PAGE]
    monkeypatch.undo()
    world.sagemaker.fail("gpt-a002", NODE_LOST)
    pass_minutes(world, 20)
    assert world.sagemaker.live() == ["gpt-a003"]


def test_the_rate_limit_does_not_hide_a_job(monkeypatch):
    """Other runs have filled it since the lost answer, and an operator says stop: the job is stopped."""
    world = World().with_saves()
    limits = replace(DEFAULT.limits, account_relaunches=2)
    world.policies.by_name["default"] = replace(DEFAULT, limits=limits)
    lose_answer(world, monkeypatch, INVALID)
    world.sagemaker.fail("gpt", NODE_LOST)
    while not world.sagemaker.live():
        pass_minutes(world, 1)
    for other in ("a-a002", "b-a002"):
        world.rate_limit.admit(LaunchRequest(other), at=world.clock(), limit=2, window=limits.account_window)
    pass_minutes(world, 1)
    world.send_command(OperatorVerb.STOP, OperatorVerb.STOP)
    pass_minutes(world, 30)
    assert (world.run().state, world.sagemaker.live()) == (RunState.STOPPED, [])


@pytest.mark.parametrize("refusal", [CAPACITY, INVALID], ids=["capacity", "request"])
@pytest.mark.parametrize("has_event", [True, False], ids=["event", "sweep"])
def test_a_job_that_becomes_visible_after_the_refusal_is_taken_up(monkeypatch, refusal, has_event):
    """Describe calls are eventually consistent. The job's event, or the sweep's list of changed jobs, shows it."""
    world = World().with_saves()
    lose_answer(world, monkeypatch, refusal)
    show = hide(world, monkeypatch)
    world.sagemaker.fail("gpt", NODE_LOST)
    pass_minutes(world, 5)
    assert world.run().state in (RunState.WAITING, RunState.HELD)
    show()
    if has_event:
        world.supervisor().handle(JobStateChanged("gpt-a002"))
    pass_minutes(world, 3)
    assert (world.run().state, world.run().hold_reason) == (RunState.WATCHING, "")
    assert world.sagemaker.live() == ["gpt-a002"]
    assert not world.run().pages


@pytest.mark.parametrize("refusal", [CAPACITY, INVALID], ids=["capacity", "request"])
def test_a_stop_looks_before_it_ends_the_run(monkeypatch, refusal):
    world = World().with_saves()
    lose_answer(world, monkeypatch, refusal)
    show = hide(world, monkeypatch)
    world.sagemaker.fail("gpt", NODE_LOST)
    pass_minutes(world, 5)
    show()
    world.send_command(OperatorVerb.STOP, OperatorVerb.STOP)
    pass_minutes(world, 20)
    assert (world.run().state, world.sagemaker.live()) == (RunState.STOPPED, [])


def test_a_job_of_a_stopped_run_is_stopped_when_it_becomes_visible(monkeypatch):
    world = World().with_saves()
    lose_answer(world, monkeypatch, CAPACITY)
    show = hide(world, monkeypatch)
    world.sagemaker.fail("gpt", NODE_LOST)
    pass_minutes(world, 5)
    world.send_command(OperatorVerb.STOP, OperatorVerb.STOP)
    assert world.run().state is RunState.STOPPED
    show()
    world.supervisor().handle(JobStateChanged("gpt-a002"))
    pass_minutes(world, 3)
    assert (world.run().state, world.sagemaker.live()) == (RunState.STOPPED, [])
    assert world.sagemaker.jobs["gpt-a002"].status is JobStatus.STOPPED


def test_an_operators_hold_outlives_a_job_that_becomes_visible(monkeypatch):
    world = World().with_saves()
    lose_answer(world, monkeypatch, CAPACITY)
    show = hide(world, monkeypatch)
    world.sagemaker.fail("gpt", NODE_LOST)
    pass_minutes(world, 5)
    world.send_command(OperatorVerb.HOLD, OperatorVerb.HOLD)
    show()
    world.supervisor().handle(JobStateChanged("gpt-a002"))
    pass_minutes(world, 3)
    assert (world.run().state, world.run().current.may_be_live) == (RunState.HELD, True)
    assert "gpt: its job runs, and it is held" in world.notice_titles(Severity.PAGE)
    world.send_command(OperatorVerb.RELEASE, OperatorVerb.RELEASE)
    pass_minutes(world, 2)
    assert (world.run().state, world.sagemaker.live()) == (RunState.WATCHING, ["gpt-a002"])


def test_a_refusal_waits_while_the_name_cannot_be_described(monkeypatch):
    """Unknown is not absent: the launch stays pending, and the run is neither held nor deferred."""
    world = World().with_saves()
    lose_answer(world, monkeypatch, INVALID)
    describe = world.sagemaker.describe

    def throttled(job_name):
        if job_name == "gpt-a002":
            raise StateUnknown("DescribeTrainingJob: rate exceeded")
        return describe(job_name)

    world.sagemaker.fail("gpt", NODE_LOST)
    monkeypatch.setattr(world.sagemaker, "describe", throttled)
    pass_minutes(world, 10)
    assert (world.run().state, len(world.run().pending)) == (RunState.STARTING, 1)
    monkeypatch.setattr(world.sagemaker, "describe", describe)
    pass_minutes(world, 3)
    assert world.run().state is RunState.WATCHING


def test_a_strangers_job_is_not_taken_for_a_lost_one(monkeypatch):
    """The launch was refused for capacity, and another job took the name meanwhile: it has no key of the run."""
    world = World().with_saves()
    world.sagemaker.no_capacity = 100
    world.sagemaker.fail("gpt", NODE_LOST)
    pass_minutes(world, 3)
    world.adopt("gpt-a002", policy=None)
    pass_minutes(world, 3)
    assert not world.run().current.exists
    world.send_command(OperatorVerb.STOP, OperatorVerb.STOP)
    assert (world.run().state, world.sagemaker.live()) == (RunState.STOPPED, ["gpt-a002"])


def send_during_creation(world: World, monkeypatch, verb: OperatorVerb, *, succeeds: bool = True, reports: bool = True):
    """Have another function handle a command while this one is inside CreateTrainingJob, and its own try throttled.

    The call then succeeds or not, and its function reports that or ends before.
    """
    create = world.sagemaker.create

    def answer(request):
        monkeypatch.setattr(world.sagemaker, "create", raising(Throttled("CreateTrainingJob: rate exceeded")))
        world.send_command(verb, "wrong data")
        if succeeds:
            create(request)
        if not (succeeds and reports):
            raise CallFailed("read timeout")
        monkeypatch.setattr(world.sagemaker, "create", create)

    world.sagemaker.fail("gpt", NODE_LOST)
    world.supervisor().handle(JobStateChanged("gpt"))
    world.clock.pass_by(timedelta(minutes=1))
    monkeypatch.setattr(world.sagemaker, "create", answer)
    with suppress(RerailError):
        world.supervisor().handle(RunDue("gpt"))
    assert world.run().commands, "the command came while the job was being created"
    monkeypatch.setattr(world.sagemaker, "create", create)


@pytest.mark.parametrize("reports", [True, False], ids=["reported", "function-lost"])
@pytest.mark.parametrize("shown_after", [0, 4])
def test_a_stop_during_a_creation_stops_the_job(monkeypatch, reports, shown_after):
    """Whatever becomes of the function that creates it, and without any event of the job."""
    world = World().with_saves()
    show = hide(world, monkeypatch)
    send_during_creation(world, monkeypatch, OperatorVerb.STOP, reports=reports)
    assert world.sagemaker.live() == ["gpt-a002"]
    pass_minutes(world, shown_after)
    show()
    pass_minutes(world, 10)
    assert (world.run().state, world.sagemaker.live()) == (RunState.STOPPED, [])


@pytest.mark.parametrize("verb", [OperatorVerb.STOP, OperatorVerb.HOLD])
def test_a_creation_that_failed_under_a_command_is_over_after_some_minutes(monkeypatch, verb):
    """Nothing is launched, nobody is paged, and a held run is released into the launch of the same attempt."""
    world = World().with_saves()
    send_during_creation(world, monkeypatch, verb, succeeds=False)
    assert world.run().is_open
    pass_minutes(world, 10)
    run = world.run()
    assert (run.state.is_end, run.current.exists, world.sagemaker.live()) == (True, False, [])
    assert not [notice for notice in world.bus.notices if notice.severity is Severity.PAGE]
    if verb is OperatorVerb.HOLD:
        world.send_command(OperatorVerb.RELEASE, OperatorVerb.RELEASE)
        pass_minutes(world, 2)
        assert (world.run().state, world.sagemaker.live()) == (RunState.WATCHING, ["gpt-a002"])


@pytest.mark.parametrize("reports", [True, False], ids=["reported", "function-lost"])
def test_a_hold_during_a_creation_pages_that_the_job_runs(monkeypatch, reports):
    """A page says so once; the job goes on unsupervised until the run is released."""
    world = World().with_saves()
    send_during_creation(world, monkeypatch, OperatorVerb.HOLD, reports=reports)
    pass_minutes(world, 30)
    assert (world.run().state, world.sagemaker.live()) == (RunState.HELD, ["gpt-a002"])
    assert [notice.title for notice in world.bus.notices].count("gpt: its job runs, and it is held") == 1
    world.send_command(OperatorVerb.RELEASE, OperatorVerb.RELEASE)
    pass_minutes(world, 2)
    assert (world.run().state, world.sagemaker.live()) == (RunState.WATCHING, ["gpt-a002"])
