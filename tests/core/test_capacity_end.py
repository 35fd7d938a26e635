"""A job that ends with the capacity of its training plan: neither a person's stop nor a failure to relaunch from."""

from datetime import UTC, datetime, timedelta

import pytest

from rerail.model.actions import Severity
from rerail.model.run import JobStatus, RunState
from rerail.supervisor.observe import find_capacity_end
from tests.core.failures import NODE_LOST
from tests.fakes import World

PLAN = "arn:aws:sagemaker:eu-west-1:111122223333:training-plan/nights"
ON_PLAN = {"ResourceConfig": {"InstanceType": "ml.p4d.24xlarge", "InstanceCount": 2, "TrainingPlanArn": PLAN}}
START, HOUR, MINUTE = datetime(2026, 11, 1, tzinfo=UTC), timedelta(hours=1), timedelta(minutes=1)
TWO_WEEKS = ((START, START + 100 * HOUR), (START + 200 * HOUR, START + 300 * HOUR))


def end(world: World, status: JobStatus, reason: str = "", *, left: timedelta) -> None:
    """End a job on the plan when so much of its capacity is left; less than none is after its end."""
    world.sagemaker.submit("gpt", request=ON_PLAN)
    world.minutes(5)
    world.sagemaker.capacities[PLAN] = [(world.clock() - 100 * HOUR, world.clock() + left)]
    world.sagemaker.end("gpt", status, reason)
    world.minutes(60)


@pytest.mark.parametrize(("status", "reason"), [(JobStatus.STOPPED, ""), (JobStatus.FAILED, NODE_LOST)])
@pytest.mark.parametrize("left", [29 * MINUTE, -HOUR])
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
        (START - MINUTE, None),  # before the first: it waited
        (START + 50 * HOUR, None),
        (START + 100 * HOUR - 30 * MINUTE, START + 100 * HOUR),
        (START + 150 * HOUR, START + 100 * HOUR),
        (START + 250 * HOUR, None),
        (START + 301 * HOUR, START + 300 * HOUR),
    ],
)
def test_a_plan_may_have_several_capacities(at, ended_at):
    assert find_capacity_end(TWO_WEEKS, at) == ended_at


def test_a_plan_without_known_capacities_changes_nothing():
    assert find_capacity_end((), START) is None
