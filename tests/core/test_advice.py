"""How often to save: Daly's optimum, from what the run's own saves and failures have shown."""

from datetime import UTC, datetime, timedelta
from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerail.accounting.save_interval import advise_interval, estimate_mtbf, format_advice
from rerail.model.causes import Cause
from rerail.model.checkpoint_intervals import SaveInterval, choose_interval, find_optimal_interval
from rerail.model.checkpoints import Checkpoint
from rerail.model.policy import Policy
from rerail.model.run import Attempt, JobStatus, Run, RunState

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)


@pytest.mark.parametrize(
    ("stall_s", "mtbf_h", "minutes"),
    [(0.5, 3.09, 1.8), (5, 3.09, 5.5), (60, 3.09, 18.6), (300, 3.09, 39.8), (5, 24.7, 15.7), (60, 792, 308)],
)
def test_the_interval_is_dalys(stall_s, mtbf_h, minutes):
    """The table of a simulation of Llama 3's failures: 16,384 GPUs fail every 3.09 h, 64 every 792 h."""
    assert find_optimal_interval(stall_s, mtbf_h * 3600) / 60 == pytest.approx(minutes, rel=0.03)


def waste(interval_s: float, stall_s: float, mtbf_s: float) -> float:
    """Share of the time that is lost to saves and to steps trained twice, to first order."""
    return stall_s / (interval_s + stall_s) + (interval_s + stall_s) / (2 * mtbf_s)


@given(st.floats(0.01, 600), st.floats(3600, 3_600_000))
def test_nothing_wastes_much_less(stall_s, mtbf_s):
    """Neither half as often nor twice as often is better, where failures are rarer than saves are slow."""
    best = find_optimal_interval(stall_s, mtbf_s)
    if stall_s < mtbf_s / 50:
        assert waste(best, stall_s, mtbf_s) <= 1.02 * min(waste(best * f, stall_s, mtbf_s) for f in (0.5, 2.0))
        assert best == pytest.approx(sqrt(2 * stall_s * mtbf_s), rel=0.2)


def test_a_save_that_takes_longer_than_failures_are_apart():
    """Then the time between failures itself; and nothing measured is no advice."""
    assert find_optimal_interval(100, 40) == 40
    assert find_optimal_interval(0, 3600) == find_optimal_interval(5, 0) == 0


def a_run(*, failures: int = 0, hours: float = 100, machines: int = 1) -> Run:
    each = hours / (failures + 1)
    attempts = tuple(
        Attempt(
            number=number,
            job_name=f"gpt-{number}",
            status=JobStatus.FAILED if number <= failures else JobStatus.IN_PROGRESS,
            training_started_at=NOON - each * HOUR,
            ended_at=NOON if number <= failures else None,
            cause=Cause.INFRASTRUCTURE if number <= failures else None,
            instance_count=machines,
        )
        for number in range(1, failures + 2)
    )
    return Run("gpt", "default", RunState.WATCHING, NOON, attempts)


def saves(*, every: timedelta, stall_s: float | None, write_s: float | None = None) -> list[Checkpoint]:
    facts = {"stall_s": stall_s, "write_s": write_s, "reason": "periodic"}
    return [Checkpoint(f"s3://b/step-{n}/", n, 1, NOON + n * every, **facts) for n in range(1, 6)]


def test_a_run_without_failures_leans_on_what_is_known_of_machines():
    """One machine fails in 264 days, a thousand of them every six hours; the run's own hours count beside that."""
    alone, _ = estimate_mtbf(a_run(hours=0), Policy(), at=NOON)
    assert alone == timedelta(days=264).total_seconds()
    thousand, _ = estimate_mtbf(a_run(hours=0, machines=1000), Policy(), at=NOON)
    assert thousand / 3600 == pytest.approx(6.3, abs=0.1)


def test_a_run_with_many_failures_uses_its_own_failure_rate():
    """Forty failures in a hundred hours: what the machines promised hardly matters any more."""
    measured, failures = estimate_mtbf(a_run(failures=40, machines=1000), Policy(), at=NOON)
    assert (measured / 3600, failures) == (pytest.approx(2.6, abs=0.1), 40)


def test_a_wait_for_machines_is_no_failure():
    """It costs no step."""
    run = a_run(failures=1)
    waited = Attempt(3, "gpt-3", JobStatus.FAILED, cause=Cause.CAPACITY)
    assert estimate_mtbf(Run("gpt", "default", run.state, NOON, (*run.attempts, waited)), Policy(), at=NOON)[1] == 1


def test_the_advice_names_its_inputs():
    """What is near the best is left alone: the curve is flat there."""
    run = a_run(failures=9, hours=30, machines=1000)
    often = advise_interval(run, saves(every=MINUTE, stall_s=5.0), Policy(), at=NOON)
    assert format_advice(often) == (
        "the run saves every 60 s; every 6 min would waste less: "
        "a checkpoint costs 5 s, a failure occurs every 3.6 h (9 so far)"
    )
    near = advise_interval(run, saves(every=5 * MINUTE, stall_s=5.0), Policy(), at=NOON)
    assert format_advice(near).startswith("the run saves every 5 min, which is close to the optimum of 6 min")


def test_saving_more_often_than_a_save_takes_is_of_no_use():
    """The interval is never shorter than what it takes until a checkpoint is whole."""
    run = a_run(failures=9, hours=30, machines=1000)
    advice = advise_interval(run, saves(every=HOUR, stall_s=0.5, write_s=600.0), Policy(), at=NOON)
    assert (advice.interval_s, advice.bound) == (600, True)
    assert "a shorter interval does not help" in format_advice(advice)


def test_what_was_never_measured_gets_no_advice():
    """Saves of a script's own say nothing of how long they took."""
    assert advise_interval(a_run(), saves(every=HOUR, stall_s=None), Policy(), at=NOON) is None


@given(st.floats(0, 3600), st.floats(1, 1e9), st.floats(0, 7200), st.floats(0.001, 1.0))
def test_the_chosen_interval_keeps_its_bounds(stall_s, mtbf_s, durable_s, share):
    """Never shorter than the policy allows or than a checkpoint takes, and saving never takes more than its share."""
    bounds = SaveInterval(shortest=MINUTE, longest=HOUR, most_share=share)
    chosen = choose_interval(bounds, mtbf_s=mtbf_s, stall_s=stall_s, durable_s=durable_s)
    least = max(60.0, durable_s, stall_s / share - stall_s)
    assert chosen >= least * (1 - 1e-9)
    assert stall_s / (chosen + stall_s) <= share * (1 + 1e-9)
    assert chosen <= max(least, 3600.0) * (1 + 1e-9)


def test_the_chosen_interval_is_the_recommended_one_within_the_bounds():
    """Nothing measured yet: as if a checkpoint stopped training for a minute; no share: never."""
    bounds, mtbf_s = SaveInterval(shortest=timedelta(), longest=HOUR), 3.09 * 3600
    assert choose_interval(bounds, mtbf_s=mtbf_s, stall_s=5.0) == find_optimal_interval(5.0, mtbf_s)
    assert choose_interval(bounds, mtbf_s=mtbf_s) == choose_interval(bounds, mtbf_s=mtbf_s, stall_s=60.0)
    assert choose_interval(SaveInterval(most_share=0.0), mtbf_s=mtbf_s, stall_s=5.0) == float("inf")
