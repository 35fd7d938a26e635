"""The simulated world: time is booked once, chance has a seed, and every way of looking after a run is held to it."""

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cli.simulate.accounts import Accounts, Spent
from cli.simulate.assumptions import Assumptions
from cli.simulate.faults import DAY_MS, SimulatedFault, compute_mtbf, draw_faults, read_rates
from cli.simulate.months import SimulationResult, SimulationTask, read_policy, simulate
from cli.simulate.ways import DEFAULT, HUMAN, OUTLIVES, SAGEMAKER, SNAPSHOTS, WARM, WAYS, Way
from tests.examples import count_examples

POLICY = read_policy()
ASSUMED = Assumptions()


def outcome(way: Way, *, gpus: int = 4096, days: float = 0.5, seed: int = 0, factor: float = 1.0) -> SimulationResult:
    return simulate(SimulationTask(way, gpus, days, seed, ASSUMED, POLICY, factor))


@cache
def ettr(way: Way, factor: float) -> float:
    return sum(outcome(way, gpus=16_384, days=1.5, seed=seed, factor=factor).ettr for seed in range(2)) / 2


@settings(max_examples=count_examples(25), deadline=None)
@given(
    way=st.sampled_from(list(WAYS.values())),
    gpus=st.sampled_from([8, 1024, 16_384, 100_000]),
    seed=st.integers(0, 10_000),
    factor=st.sampled_from([0.0, 1.0, 3.5]),
)
def test_every_millisecond_is_booked_once(way, gpus, seed, factor):
    """What was trained and all that was lost add up to the wall-clock time, and nothing is less than nothing."""
    found = outcome(way, gpus=gpus, days=0.25, seed=seed, factor=factor)
    assert sum(found.spent.values()) == DAY_MS // 4
    assert min(found.spent.values()) >= 0
    assert 0 <= found.ettr <= 1
    assert found.wasted <= found.cost


@pytest.mark.parametrize("way", [HUMAN, DEFAULT, SNAPSHOTS], ids=lambda way: way.key)
def test_the_same_seed_gives_the_same_run(way):
    """A run is a function of its seed, to the last count; another seed is another run."""
    one, again, other = (outcome(way, gpus=16_384, seed=seed) for seed in (7, 7, 8))
    assert one == again
    assert one.spent != other.spent


@pytest.mark.parametrize("way", [HUMAN, SAGEMAKER, WARM, SNAPSHOTS], ids=lambda way: way.key)
def test_without_faults_only_saves_and_the_start_take_time(way):
    """Nothing goes wrong, so nothing is lost, noticed late or waited for."""
    calm = replace(ASSUMED, start_fails=0.0)
    found = simulate(SimulationTask(way, 4096, 1.0, 0, calm, POLICY, factor=0.0))
    assert {what for what, ms in found.spent.items() if ms} <= {
        *(Spent.TRAINED, Spent.SAVES, Spent.SNAPSHOTS, Spent.MACHINES, Spent.INIT)
    }
    assert found.spent[Spent.MACHINES] == 1000 * calm.cold_s
    assert found.spent[Spent.INIT] == 1000 * (calm.init_s + calm.load_s)
    assert found.counts["launches"] == 1 and found.counts["lost_steps"] == 0


@pytest.mark.parametrize("way", [HUMAN, WARM], ids=lambda way: way.key)
def test_more_faults_are_never_better(way):
    """Over several seeds, a run with more of the same faults trains less."""
    few, usual, many = (ettr(way, factor) for factor in (0.0, 1.0, 4.0))
    assert few > usual > many


def test_a_greater_factor_keeps_the_faults_of_a_smaller_one():
    """So that runs with more faults can be compared with their likes."""
    small, large = (set(draw_faults(4096, 20, 3, step_s=6, factor=factor)) for factor in (1.0, 2.5))
    assert small < large


def test_the_rates_are_those_of_the_published_run():
    """419 interruptions in 54 days on 16,384 GPUs: one every 3.09 hours."""
    counts = {fault: rate * 16_384 * 54 for fault, rate in read_rates().items()}
    assert {fault: round(count) for fault, count in counts.items()} == {
        SimulatedFault.GPU: 268,
        SimulatedFault.HOST: 53,
        SimulatedFault.NETWORK: 42,
        SimulatedFault.SOFTWARE: 56,
    }
    assert compute_mtbf(16_384) / 3600 == pytest.approx(3.09, abs=0.01)


def test_each_means_is_worth_something_on_a_large_run():
    """People alone train least; SageMaker's means, Rerail and a warm pool each add to that."""
    found = [ettr(way, 1.0) for way in (HUMAN, SAGEMAKER, WARM, replace(OUTLIVES, in_place=False))]
    assert found == sorted(found)


def test_later_signals_cost_time():
    """Half an hour on everything that Rerail hears."""
    assert ettr(WARM, 1.0) > ettr(replace(WARM, later_s=1800.0), 1.0)


def test_the_core_decides():
    """The signals of every minute went through `decide`, and what SageMaker does not mend was relaunched."""
    found = outcome(replace(WARM, repairs=False), gpus=16_384, days=1.0)
    assert found.signals >= 2 * 1440
    assert found.counts["decisions"] > found.counts["launches"] > 1


def test_what_is_lost_was_trained_before():
    """Steps that are trained again move from what counts to what is lost; the sum stays."""
    accounts = Accounts()
    accounts.book(Spent.TRAINED, 1000, billed=True)
    accounts.lose(300)
    assert (accounts.spent[Spent.TRAINED], accounts.spent[Spent.LOST], accounts.wall_ms) == (700, 300, 1000)
    with pytest.raises(AssertionError):
        accounts.lose(701)


def test_the_interval_is_the_one_that_the_agent_chooses():
    """About 105 seconds at half a second a save and 3.09 hours between failures; at most an hour in a calm run."""
    assert outcome(DEFAULT, gpus=16_384, days=0.1).interval_s == pytest.approx(105, abs=5)
    assert outcome(DEFAULT, gpus=8, days=0.2, factor=0.0).interval_s == 3600
    slow = replace(ASSUMED, arena_stall_s=300.0)
    found = simulate(SimulationTask(DEFAULT, 16_384, 1.0, 0, slow, POLICY))
    assert found.spent[Spent.SAVES] < POLICY.interval.most_share * DAY_MS
    off = simulate(SimulationTask(replace(DEFAULT, interval_s=900.0), 16_384, 0.1, 0, ASSUMED, POLICY))
    assert off.interval_s == 900


def test_the_automatic_interval_is_worth_more_than_any_half_hour():
    """On a large run, where failures are hours apart."""
    assert ettr(DEFAULT, 1.0) > ettr(replace(DEFAULT, interval_s=1800.0), 1.0) + 0.03
