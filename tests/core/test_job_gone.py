"""A job that SageMaker no longer has, and another job that has its name."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from rerail.decisions.decide import decide
from rerail.decisions.decision import with_attempt
from rerail.decisions.launch import make_create_job
from rerail.decisions.on_job import NEW_JOB_GRACE
from rerail.model.actions import Notify, Severity
from rerail.model.run import JobStatus, Run, RunState
from rerail.model.runbooks import Runbook
from rerail.model.signals import ActionsDone, CreateRefused, JobGone, JobObserved, OperatorVerb, Refusal
from tests.core.failures import NODE_LOST
from tests.core.test_lost_launches import hide
from tests.fakes import DEFAULT, World

MOMENT = timedelta(seconds=1)


def pages(actions: tuple[object, ...]) -> list[Notify]:
    return [action for action in actions if isinstance(action, Notify) and action.severity is Severity.PAGE]


def requested_at(run: Run) -> datetime:
    assert run.current.requested_at
    return run.current.requested_at


@pytest.fixture
def run(world: World) -> Run:
    """Return a run whose second attempt trains."""
    world.lose_node(minutes=5)
    assert world.run().current.number == 2
    return world.run()


def test_a_deleted_job_holds_its_run_and_pages(run: Run) -> None:
    """It is not known whether the run is to continue, so no other job is launched."""
    at = requested_at(run) + NEW_JOB_GRACE
    decision = decide(run, JobGone(at, "gpt-a002"), DEFAULT)
    assert (decision.run.state, decision.run.current.ended_at) == (RunState.HELD, at)
    (page,) = pages(decision.actions)
    assert page.runbook is Runbook.JOB_GONE


def test_a_job_that_was_just_created_may_not_be_visible_yet(run: Run) -> None:
    """DescribeTrainingJob is eventually consistent."""
    at = requested_at(run) + NEW_JOB_GRACE - MOMENT
    recorded_before = with_attempt(run, replace(run.current, requested_at=None, created_at=None))  # an older version
    for before in (run, recorded_before):
        decision = decide(before, JobGone(at, "gpt-a002"), DEFAULT)
        assert (decision.run, decision.actions) == (before, ())


def test_a_release_does_not_make_an_invisible_job_a_deleted_one(monkeypatch) -> None:
    """It resets the launches that the budgets count, but not the time at which the job was created."""
    world = World().with_saves()
    show = hide(world, monkeypatch)
    world.sagemaker.fail("gpt", NODE_LOST)
    while not world.sagemaker.live():
        world.minutes(1)
    world.send_command(OperatorVerb.HOLD, "hold")
    world.send_command(OperatorVerb.RELEASE, "release")
    world.minutes(2)
    show()
    world.minutes(2)
    assert (world.run().state, world.sagemaker.live()) == (RunState.WATCHING, ["gpt-a002"])


def test_a_launch_that_was_refused_to_another_function_may_succeed_later(run: Run) -> None:
    """The refusal took the launch out of the budgets; the job that the slower function created is just as new."""
    create = make_create_job(run)
    at = requested_at(run) + 3 * NEW_JOB_GRACE
    run = with_attempt(run, replace(run.current, status=None, created_at=None))
    run = decide(run, CreateRefused(at, create, Refusal.CAPACITY, "no capacity"), DEFAULT).run
    run = decide(run, ActionsDone(at, (create,)), DEFAULT).run
    assert run.current.exists
    decision = decide(run, JobGone(at + NEW_JOB_GRACE - MOMENT, "gpt-a002"), DEFAULT)
    assert (decision.run, decision.actions) == (run, ())


def test_an_older_job_that_is_gone_changes_nothing(run: Run) -> None:
    decision = decide(run, JobGone(requested_at(run) + 2 * NEW_JOB_GRACE, "gpt"), DEFAULT)
    assert (decision.run, decision.actions) == (run, ())


@pytest.mark.parametrize("status", [JobStatus.FAILED, JobStatus.STOPPED, JobStatus.COMPLETED])
def test_another_job_of_the_same_name_is_not_the_attempt(world: World, run: Run, status: JobStatus) -> None:
    """After DeleteTrainingJob a name can be used again."""
    job, _ = world.sagemaker.describe("gpt-a002")
    other = replace(job, created_at=job.created_at + MOMENT, status=status, failure_reason=NODE_LOST)
    decision = decide(run, JobObserved(world.clock(), other), DEFAULT)
    assert (decision.run, decision.actions) == (run, ())
