"""SageMaker's own restarts, told apart by the history of a job."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerail.model.causes import Cause
from rerail.model.self_repairs import ON_THE_WAY, SelfRepair, SelfRepairs, count_repairs, format_repairs
from tests.fakes import World

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
REPAIRING = "Repairing training cluster due to hardware failure"


def history(*steps: str | tuple[str, str]) -> list[dict]:
    """One status a minute, some with the message that SageMaker gives."""
    named = [step if isinstance(step, tuple) else (step, "") for step in steps]
    return [
        {"Status": status, "StatusMessage": message, "StartTime": NOON + timedelta(minutes=number)}
        for number, (status, message) in enumerate(named)
    ]


@pytest.mark.parametrize(
    ("steps", "retries", "counts", "seconds"),
    [
        (("Starting", "Pending", "Starting", "Downloading", "Training", "Uploading", "Completed"), True, {}, 0),
        (("Starting", "Training", "Interrupted", "Starting", "Training"), False, {SelfRepair.SPOT: 1}, 120),
        (("Starting", "Training", "Interrupted", "Starting", "Downloading"), False, {SelfRepair.SPOT: 1}, 0),
        (("Training", "Restarting", "Starting", "Training"), True, {SelfRepair.RETRY: 1}, 120),
        (("Training", "Starting", "Training"), True, {SelfRepair.RETRY: 1}, 60),
        (("Training", "Starting", "Training"), False, {SelfRepair.CLUSTER: 1}, 60),
        (("Training", ("Starting", REPAIRING), "Training"), True, {SelfRepair.CLUSTER: 1}, 60),
        (("Training", "Pending", ("Starting", REPAIRING), "Training"), True, {SelfRepair.CLUSTER: 1}, 120),
        (
            ("Training", "Interrupted", "Starting", "Interrupted", "Starting", "Training"),
            False,
            {SelfRepair.SPOT: 1},
            240,
        ),
        (
            ("Training", "Interrupted", "Training", "Restarting", "Training", "Interrupted", "Training"),
            True,
            {SelfRepair.SPOT: 2, SelfRepair.RETRY: 1},
            180,
        ),
        (("Starting", "Downloading", "Interrupted", "Starting", "Training"), False, {SelfRepair.SPOT: 1}, 120),
        ((), True, {}, 0),
    ],
)
def test_a_self_repair_is_classified_by_the_jobs_history(steps, retries, counts, seconds):
    """The spot market, a repair of the cluster, or a retry after an internal error."""
    assert count_repairs(history(*steps), retries=retries) == SelfRepairs(counts, seconds)


def test_the_counts_are_formatted_in_one_order():
    assert format_repairs({SelfRepair.RETRY: 1, SelfRepair.SPOT: 2}) == "spot 2, retry 1"
    assert format_repairs({}) == ""


statuses = st.sampled_from([*ON_THE_WAY, "Training", "Downloading", "Uploading", "Stopping", "SomethingNew"])


@given(st.lists(statuses | st.tuples(statuses, st.just(REPAIRING)), max_size=20), st.booleans())
def test_no_history_counts_more_restarts_than_it_has_ways_back(steps, retries):
    """Each restart ends in Training or is the last thing that happened; time never runs backwards."""
    counts = count_repairs(history(*steps), retries=retries)
    trained = [step for step in steps if (step if isinstance(step, str) else step[0]) == "Training"]
    assert counts.total <= len(trained) + 1
    assert 0 <= counts.seconds <= 60 * len(steps)


@given(st.lists(statuses, max_size=12), st.lists(statuses, max_size=6), st.booleans())
def test_what_was_counted_stays_counted(before, more, retries):
    """A longer history of the same job never tells of fewer restarts."""
    assert (
        count_repairs(history(*before, *more), retries=retries).total
        >= count_repairs(history(*before), retries=retries).total
    )


def test_self_repairs_are_counted_classified_and_not_charged():
    """A retry and a spot interruption within the job: no attempt, no incident, no budget."""
    world = World().adopt()
    job = world.sagemaker.jobs["gpt"]
    recovered = {}
    for kind, secondary in ((SelfRepair.RETRY, "Restarting"), (SelfRepair.SPOT, "Interrupted")):
        recovered = {**recovered, kind: 1}
        world.sagemaker.jobs["gpt"] = replace(job, secondary=secondary, repaired=SelfRepairs(recovered, 90.0))
        world.minutes(2)
        world.sagemaker.jobs["gpt"] = replace(job, repaired=SelfRepairs(recovered, 90.0 * len(recovered)))
        world.minutes(2)
    run = world.run()
    assert (run.current.number, run.current.self_repairs, run.current.repair_seconds) == (1, 2, 180.0)
    assert dict(run.current.repairs) == {SelfRepair.RETRY: 1, SelfRepair.SPOT: 1}
    assert (run.incidents, dict(run.ledger.charges)) == ((), {})
    assert "SageMaker itself restarts the job (Interrupted): keeping still; so far: spot 1, retry 1" in [
        entry.reason for entry in world.runs.timeline
    ]


def test_a_description_from_before_the_training_is_no_restart():
    """Two events are handled at once: the older description may be recorded last."""
    world = World().adopt()
    world.sagemaker.jobs["gpt"] = replace(world.sagemaker.jobs["gpt"], secondary="Starting")
    world.minutes(1)
    assert world.run().current.self_repairs == 0
    assert not any("itself restarts" in entry.reason for entry in world.runs.timeline)


def test_a_restart_between_two_looks_is_counted_by_the_jobs_own_history():
    world = World().adopt()
    world.sagemaker.jobs["gpt"] = replace(
        world.sagemaker.jobs["gpt"], repaired=SelfRepairs({SelfRepair.CLUSTER: 2}, 600.0)
    )
    world.minutes(1)
    assert world.run().current.self_repairs == 2


def test_when_sagemaker_has_given_up_it_is_our_turn_and_only_then():
    """With a RetryStrategy the job restarts itself: one live job all the time, and one successor at last."""
    world = World().adopt()
    job = world.sagemaker.jobs["gpt"]
    for secondary in ("Restarting", "Starting", "Training", "Restarting", "Starting"):
        world.sagemaker.jobs["gpt"] = replace(job, secondary=secondary, repaired=SelfRepairs({SelfRepair.RETRY: 1}))
        world.minutes(3)
        assert list(world.sagemaker.jobs) == ["gpt"]
    world.lose_node(minutes=3)
    assert list(world.sagemaker.jobs) == ["gpt", "gpt-a002"]
    assert dict(world.run().ledger.charges) == {Cause.INFRASTRUCTURE: 1}
    assert world.sagemaker.most_live_at_once == 1
