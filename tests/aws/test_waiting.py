"""The agent's waiter reads what the supervisor has stored, and agrees with `rerail wait`."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import boto3
import pytest
from botocore.exceptions import EndpointConnectionError, WaiterError

from cli import wait
from rerail.aws.dynamodb import DynamoRuns
from rerail.model.policy import Policy
from rerail.model.run import Attempt, Run, RunState
from rerail_agent.waiting import UNTIL, RunWaiter
from tests.aws.places import REGION

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
NAME = "gpt-" + "x" * 58  # the run's name is shorter, with a digest
FIRST = Run("gpt", "default", RunState.STARTING, NOON, (Attempt(1, NAME),), version=1)
TRAINS = replace(FIRST, state=RunState.WATCHING, attempts=(Attempt(1, NAME, training_started_at=NOON),))
MODEL = "s3://bucket/gpt-a002/output/model.tar.gz"
SECOND = replace(TRAINS, attempts=(*TRAINS.attempts, Attempt(2, "gpt-a002", training_started_at=NOON, artifacts=MODEL)))
WAITS, DONE = replace(TRAINS, state=RunState.WAITING), replace(SECOND, state=RunState.COMPLETED)
HELD = replace(SECOND, state=RunState.HELD, hold_reason="the budget is spent", hold_advice="fix the bug")


class Night:
    """A waiter whose every pause lets the next thing happen to the run."""

    def __init__(self, table: str, *records: Run | None, **options: str) -> None:
        self.waiter = RunWaiter(boto3.Session(region_name=REGION), table=table, **options)
        self.runs, self.left, self.version, self.now = DynamoRuns(table), list(records), 0, 0.0
        self.waiter._sleep, self.waiter._clock = self.go_on, lambda: self.now
        self.go_on(0)

    def go_on(self, seconds: float) -> None:
        self.now += seconds
        record = self.left.pop(0) if self.left else None
        if record:
            self.version += 1
            self.runs.save(replace(record, version=self.version))


def test_a_wait_goes_on_over_a_relaunch_and_returns_the_model(table):
    """By the name of the job that was started, which is not the run's."""
    result = Night(table, None, FIRST, TRAINS, WAITS, SECOND, DONE).waiter.wait(Run=NAME)
    assert (result.state, result.run, result.job, result.attempts) == ("completed", "gpt", "gpt-a002", 2)
    assert result.artifacts == MODEL


def test_a_held_run_is_waited_for_if_asked(table):
    """Once it is released it goes on; the default ends the wait, and a stop ends any."""
    night = Night(table, HELD, SECOND, DONE, on_hold="wait")
    assert night.waiter.wait(Run="gpt").state == "completed"
    with pytest.raises(WaiterError, match="the run is stopped"):
        Night(
            table, replace(HELD, id="other"), replace(HELD, id="other", state=RunState.STOPPED), on_hold="wait"
        ).waiter.wait(Run="other")
    with pytest.raises(ValueError, match="on_hold 'go on'"):
        RunWaiter(boto3.Session(region_name=REGION), table=table, on_hold="go on")


def test_the_cost_is_that_of_all_attempts(table):
    """At the prices of the run's policy; None if one is missing."""
    hour, policy = NOON + timedelta(hours=1), replace(Policy(), prices={"ml.test": 3.0})
    timed = Attempt(1, "gpt-a001", training_started_at=NOON, ended_at=hour, billable_s=3600)
    first = replace(timed, instance_type="ml.test", instance_count=2)
    attempts = (first, replace(first, number=2, job_name="gpt-a002"))
    run = replace(DONE, attempts=attempts, last_policy=policy)
    assert Night(table, run).waiter.wait(Run="gpt").dollars == pytest.approx(12.0)
    unpriced = replace(run, id="new", last_policy=replace(policy, prices={}))
    assert Night(table, unpriced).waiter.wait(Run="new").dollars is None


def test_training_is_reached_before_the_end(table):
    night = Night(table, FIRST, TRAINS, DONE, until="training")
    assert night.waiter.wait(Run="gpt").state == "watching" and night.left == [DONE]


@pytest.mark.parametrize("ended", [HELD, replace(HELD, state=RunState.STOPPED)])
def test_an_end_without_success_is_a_waiter_error(table, ended):
    with pytest.raises(WaiterError, match=f"the run is {ended.state}") as error:
        Night(table, TRAINS, ended).waiter.wait(Run="gpt")
    assert error.value.last_response.job == "gpt-a002"


def test_the_last_attempt_of_the_waiter_and_a_job_that_is_no_run_are_errors(table):
    night = Night(table, TRAINS)
    with pytest.raises(WaiterError, match="Max attempts exceeded"):
        night.waiter.wait(Run="gpt", WaiterConfig={"Delay": 5, "MaxAttempts": 3})
    assert night.now == 10
    with pytest.raises(WaiterError, match="has not become a run within 180 s"):
        Night(table).waiter.wait(Run="other")
    with pytest.raises(ValueError, match="'delay': it takes Delay and MaxAttempts"):
        night.waiter.wait(Run="gpt", WaiterConfig={"delay": 5})
    with pytest.raises(ValueError, match="until 'done'"):
        RunWaiter(boto3.Session(region_name=REGION), table=table, until="done")


def test_a_network_that_is_down_for_a_moment_ends_no_wait(table, monkeypatch):
    night = Night(table, TRAINS, DONE)
    down, real = [True, True], night.waiter.load

    def load(name: str) -> Run | None:
        if night.now > 0 and down:
            down.pop()
            raise EndpointConnectionError(endpoint_url="https://here")
        return real(name)

    monkeypatch.setattr(night.waiter, "load", load)
    assert night.waiter.wait(Run="gpt").state == "completed" and not down


def test_waits_within_asyncio_run_side_by_side(table):
    runs = DynamoRuns(table)
    waiter = RunWaiter(boto3.Session(region_name=REGION), table=table)
    names = ("one", "two")
    for name in names:
        runs.save(replace(TRAINS, id=name, attempts=(Attempt(1, name),)))

    async def finish() -> None:
        for name in reversed(names):
            await asyncio.sleep(0.02)
            runs.save(replace(DONE, id=name, version=2))

    async def wait_for_both() -> list[str]:
        config = {"Delay": 0.01}
        waits = [waiter.wait_async(Run=name, WaiterConfig=config) for name in names]
        *results, _ = await asyncio.gather(*waits, finish())
        return [result.run for result in results if result]

    assert asyncio.run(wait_for_both()) == list(names)


@pytest.mark.parametrize("until", UNTIL)
@pytest.mark.parametrize("state", RunState)
@pytest.mark.parametrize("run", [FIRST, TRAINS])
def test_the_waiter_and_the_command_agree(table, until, state, run):
    """And with the events: what ends a wait is what an event calls an end."""
    run = replace(run, state=state)
    waiter = RunWaiter(boto3.Session(region_name=REGION), table=table, until=until)
    assert waiter.has_reached(run) == wait.has_reached(run, wait.WaitGoal(until))
    assert set(UNTIL) == {goal.value for goal in wait.WaitGoal}
    assert state.is_end == (state.value in ("completed", "stopped", "held"))
