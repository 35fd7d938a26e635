"""A job that ends with the capacity of its training plan: neither a person's stop nor a failure to relaunch from."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from rerail.model.actions import Severity
from rerail.model.run import Job, JobStatus, RunState
from rerail.model.signals import OperatorVerb
from rerail.supervisor.observe import find_capacity_end
from tests.core.failures import NODE_LOST
from tests.fakes import World

PLAN = "arn:aws:sagemaker:eu-west-1:111122223333:training-plan/nights"
ON_PLAN = {"ResourceConfig": {"InstanceType": "ml.p4d.24xlarge", "InstanceCount": 2, "TrainingPlanArn": PLAN}}
START, HOUR, MINUTE = datetime(2026, 11, 1, tzinfo=UTC), timedelta(hours=1), timedelta(minutes=1)
JOB = Job("gpt", "arn", JobStatus.STOPPED, "Stopped", START, training_started_at=START)
TWO_WEEKS = ((START, START + 100 * HOUR), (START + 200 * HOUR, START + 300 * HOUR))


def end(world: World, status: JobStatus, reason: str = "", *, left: timedelta) -> None:
    """End a job on the plan when so much of its capacity is left; less than none is after its end."""
    world.sagemaker.submit("gpt", request=ON_PLAN)
    world.minutes(5)
    world.sagemaker.capacities[PLAN] = [(world.clock() - 100 * HOUR, world.clock() + left)]
    world.sagemaker.end("gpt", status, reason)
    world.minutes(60)


@pytest.mark.parametrize(("status", "reason"), [(JobStatus.STOPPED, ""), (JobStatus.FAILED, NODE_LOST)])
@pytest.mark.parametrize("left", [29 * MINUTE, -2 * MINUTE])
def test_the_run_is_held_whatever_the_status(status, reason, left):
    """It pages once, launches nothing, charges no budget."""
    world = World()
    end(world, status, reason, left=left)
    run = world.run()
    assert (run.state, list(world.sagemaker.jobs), dict(run.ledger.charges)) == (RunState.HELD, ["gpt"], {})
    assert "its training plan's capacity ended at" in run.hold_reason
    (page,) = (notice for notice in world.bus.notices if notice.severity is Severity.PAGE)
    assert "its training plan has ended" in page.title and "release the run" in page.todo


def test_with_capacity_left_a_stop_is_a_persons_and_a_failure_is_relaunched():
    for status, reason, state, jobs in (
        (JobStatus.STOPPED, "", RunState.STOPPED, 1),
        (JobStatus.FAILED, NODE_LOST, RunState.WATCHING, 2),
    ):
        world = World()
        end(world, status, reason, left=33 * MINUTE)
        assert (world.run().state, len(world.sagemaker.jobs)) == (state, jobs)


@pytest.mark.parametrize(
    ("at", "ended_at"),
    [
        (START + 50 * HOUR, None),
        (START + 100 * HOUR - 30 * MINUTE, START + 100 * HOUR),
        (START + 150 * HOUR, START + 100 * HOUR),
        (START + 250 * HOUR, None),
        (START + 301 * HOUR, START + 300 * HOUR),
    ],
)
def test_a_plan_may_have_several_capacities(at, ended_at):
    assert find_capacity_end(TWO_WEEKS, replace(JOB, ended_at=at)) == ended_at


@pytest.mark.parametrize("began", [None, START + 110 * HOUR])
def test_a_job_that_had_no_capacity_ended_with_none(began):
    """It waited for the second one when it was stopped, or ran elsewhere."""
    job = replace(JOB, training_started_at=began, ended_at=START + 150 * HOUR)
    assert find_capacity_end(TWO_WEEKS, job) is None


def test_a_plan_without_known_capacities_changes_nothing():
    assert find_capacity_end((), replace(JOB, ended_at=START)) is None


def test_a_stop_of_rerails_own_launches_nothing_onto_an_ended_plan():
    world = World()
    world.sagemaker.submit("gpt", request=ON_PLAN)
    world.minutes(5)
    world.sagemaker.capacities[PLAN] = [(world.clock() - 100 * HOUR, world.clock() + 29 * MINUTE)]
    world.send_command(OperatorVerb.RESTART, 1)
    world.minutes(60)
    assert (world.run().state, list(world.sagemaker.jobs)) == (RunState.HELD, ["gpt"])
