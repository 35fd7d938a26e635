"""Wait or act: both in money, and never before the policy lets it."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerail.decisions.cost_benefit import (
    ASSUMED_START,
    NO_RECOVERY_RATES,
    chance_of_no_recovery,
    estimate_start_up,
    with_cost_estimate,
)
from rerail.messages.messages import FindingsReceived, JobStateChanged
from rerail.model.finding import Finding, Kind, Level
from rerail.model.policy import CostBenefit, Policy
from rerail.model.run import Attempt, JobStatus, Run, RunState
from tests.fakes import World

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
ON = Policy(weighing=CostBenefit(enabled=True))


def a_run(*, step_s: float = 20.0, step: int = 1000, kind: str = "ml.p5.48xlarge", count: int = 100) -> Run:
    """A job that took two minutes to start and has trained at this pace until noon."""
    began = NOON - timedelta(seconds=step_s * step)
    attempt = Attempt(
        number=1,
        job_name="gpt",
        status=JobStatus.IN_PROGRESS,
        created_at=began - 2 * MINUTE,
        training_started_at=began,
        instance_type=kind,
        instance_count=count,
    )
    return Run("gpt", "default", RunState.WATCHING, NOON, (attempt,))


def a_spike(lasted: int, *, step_s: float = 20.0, kind: Kind = Kind.LOSS_SPIKE, level: Level = Level.WARN) -> Finding:
    onset_at = NOON - timedelta(seconds=step_s * lasted)
    return Finding(kind, level, 1000, 1001 - lasted, "loss 9.1, usual 2.3", at=NOON, onset_at=onset_at)


def test_slow_steps_make_waiting_the_dearer():
    """20 s a step: 48 rows ahead with chance 0.3 are 4.8 minutes; a start takes two, and one step is trained again."""
    found = with_cost_estimate(a_run(), a_spike(32), 999, at=NOON, policy=ON)
    assert found.level is Level.INTERVENE
    assert found.evidence == (
        "loss 9.1, usual 2.3; waiting is expected to cost $506.37 (4.8 min), a relaunch $246.15 (2.3 min): acting"
    ).replace("4.8 min", "5 min").replace("2.3 min", "2 min")


def test_fast_steps_make_a_relaunch_the_dearer():
    """Half a second a step: the patience is over before a job would have started."""
    found = with_cost_estimate(a_run(step_s=0.5), a_spike(32, step_s=0.5), 999, at=NOON, policy=ON)
    assert found.level is Level.WARN
    assert found.evidence.endswith(": waiting")
    assert "a relaunch $" in found.evidence


def test_far_from_a_checkpoint_a_relaunch_is_dear():
    """A thousand steps would have to be trained again."""
    assert with_cost_estimate(a_run(), a_spike(32), 100, at=NOON, policy=ON).level is Level.WARN


@pytest.mark.parametrize(
    ("finding", "policy"),
    [
        (a_spike(32), Policy()),
        (a_spike(32, kind=Kind.THROUGHPUT_DROP), ON),
        (a_spike(32, kind=Kind.NON_FINITE), ON),
        (a_spike(32, level=Level.INTERVENE), ON),
        (replace(a_spike(32), onset_step=None), ON),
    ],
    ids=["switched off", "throughput", "no number", "decided already", "no onset"],
)
def test_what_is_not_to_be_weighed_is_left_as_it_is(finding, policy):
    """The default policy weighs nothing."""
    assert with_cost_estimate(a_run(), finding, 999, at=NOON, policy=policy) == finding


def test_without_a_price_time_is_compared():
    """The price of an hour stands on both sides."""
    found = with_cost_estimate(a_run(kind="ml.x9.huge"), a_spike(32), 999, at=NOON, policy=ON)
    assert found.level is Level.INTERVENE
    assert "waiting is expected to cost 5 min, a relaunch 2 min: acting" in found.evidence


@given(st.integers(1, 200), st.floats(0.1, 600), st.integers(0, 999))
def test_never_before_it_has_lasted_as_long_as_the_policy_demands(lasted, step_s, resume):
    """Whatever the figures say."""
    policy = replace(ON, weighing=CostBenefit(enabled=True, least=30 * MINUTE, least_rows=20))
    found = with_cost_estimate(a_run(step_s=step_s), a_spike(lasted, step_s=step_s), resume, at=NOON, policy=policy)
    if found.level is Level.INTERVENE:
        assert lasted >= 20
        assert step_s * lasted >= 30 * 60 * 0.999


def test_the_longer_it_lasts_the_less_likely_it_mends():
    """Rows and chances rise together, and every duration has one."""
    assert list(NO_RECOVERY_RATES) == sorted(NO_RECOVERY_RATES)
    assert [chance for _, chance in NO_RECOVERY_RATES] == sorted(chance for _, chance in NO_RECOVERY_RATES)
    assert (chance_of_no_recovery(0), chance_of_no_recovery(31), chance_of_no_recovery(10_000)) == (0.07, 0.16, 0.65)


def test_a_start_is_what_this_runs_own_have_taken():
    """The median of its attempts; before there is one, an assumption."""
    assert estimate_start_up(a_run()) == 2 * MINUTE
    assert estimate_start_up(Run("gpt", "d", RunState.STARTING, NOON, (Attempt(1, "gpt"),))) == ASSUMED_START


def test_a_warning_is_acted_upon_where_waiting_is_dearer():
    """The same remedy as when the patience is at an end, and the reason holds both figures."""
    world = World()
    world.policies.by_name["default"] = ON
    world.sagemaker.instance_type = "ml.p5.48xlarge"
    world.sagemaker.submit("gpt", created_at=world.clock() - 2 * MINUTE)
    world.supervisor().handle(JobStateChanged("gpt"))
    world.minutes(100)
    world.checkpoints.save(step=295)
    onset_at = world.clock() - 6 * MINUTE
    spike = Finding(Kind.LOSS_SPIKE, Level.WARN, 331, 300, "loss 9.1", at=world.clock(), onset_at=onset_at)
    world.supervisor().handle(FindingsReceived("gpt", "gpt", (spike,)))
    assert world.run().state is RunState.WATCHING, "thirty steps again are dearer than to wait"
    world.checkpoints.saved.clear()
    world.checkpoints.save(step=328)
    later = replace(spike, step=331, onset_step=330 - 30)
    world.checkpoints.save(step=299)
    world.policies.by_name["default"] = replace(
        ON, detection=replace(ON.detection, patience_rows=2000, patience_steps=2000)
    )
    world.supervisor().handle(FindingsReceived("gpt", "gpt", (later,)))
    world.minutes(20)
    assert world.sagemaker.live() == ["gpt-a002"]
    assert any("waiting is expected to cost $" in entry.reason for entry in world.runs.timeline)
