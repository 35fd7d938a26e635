"""A job that SageMaker no longer has, and another job that has its name."""

from dataclasses import replace
from datetime import timedelta

import pytest

from rerail.decisions.decide import decide
from rerail.decisions.on_job import NEW_JOB_GRACE
from rerail.model.actions import Notify, Severity
from rerail.model.run import JobStatus, Run, RunState
from rerail.model.runbooks import Runbook
from rerail.model.signals import JobGone, JobObserved
from tests.core.failures import NODE_LOST
from tests.fakes import DEFAULT, World

MOMENT = timedelta(seconds=1)


def pages(actions: tuple[object, ...]) -> list[Notify]:
    return [action for action in actions if isinstance(action, Notify) and action.severity is Severity.PAGE]


@pytest.fixture
def run(world: World) -> Run:
    """Return a run whose second attempt trains."""
    world.sagemaker.fail("gpt", NODE_LOST)
    world.minutes(5)
    assert world.run().current.number == 2
    return world.run()


def test_a_deleted_job_holds_its_run_and_pages(run: Run) -> None:
    """It is not known whether the run is to continue, so no other job is launched."""
    at = run.ledger.starts[-1] + NEW_JOB_GRACE
    decision = decide(run, JobGone(at, "gpt-a002"), DEFAULT)
    assert (decision.run.state, decision.run.current.ended_at) == (RunState.HELD, at)
    (page,) = pages(decision.actions)
    assert page.runbook is Runbook.JOB_GONE


def test_a_job_that_was_just_created_may_not_be_visible_yet(run: Run) -> None:
    """DescribeTrainingJob is eventually consistent."""
    at = run.ledger.starts[-1] + NEW_JOB_GRACE - MOMENT
    decision = decide(run, JobGone(at, "gpt-a002"), DEFAULT)
    assert (decision.run, decision.actions) == (run, ())


def test_an_older_job_that_is_gone_changes_nothing(run: Run) -> None:
    decision = decide(run, JobGone(run.ledger.starts[-1] + 2 * NEW_JOB_GRACE, "gpt"), DEFAULT)
    assert (decision.run, decision.actions) == (run, ())


@pytest.mark.parametrize("status", [JobStatus.FAILED, JobStatus.STOPPED, JobStatus.COMPLETED])
def test_another_job_of_the_same_name_is_not_the_attempt(world: World, run: Run, status: JobStatus) -> None:
    """After DeleteTrainingJob a name can be used again."""
    job, _ = world.sagemaker.describe("gpt-a002")
    other = replace(job, created_at=job.created_at + MOMENT, status=status, failure_reason=NODE_LOST)
    decision = decide(run, JobObserved(world.clock(), other), DEFAULT)
    assert (decision.run, decision.actions) == (run, ())
