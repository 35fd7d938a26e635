"""Slow ranks are named, and healthy ones never: the scoring of the ranks' times, round after round."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.stragglers import REPORTED, TUNED, count_false_results, name_slow_rank
from rerail.detection.stragglers import (
    ROUNDS_OVER,
    ROUNDS_SLOW,
    StragglerState,
    follow_scores,
    list_stragglers,
    score_ranks,
)
from tests.examples import count_examples

seconds = st.floats(0.001, 100)


@settings(max_examples=count_examples(100), deadline=None)
@given(st.lists(st.tuples(seconds, seconds), min_size=2, max_size=40), st.floats(0.01, 100))
def test_scores_do_not_depend_on_the_unit_of_time(times, factor):
    """A slower model, or another clock, gives the same ratios."""
    compute, data = [c for c, _ in times], [d for _, d in times]
    scaled = score_ranks([c * factor for c in compute], [d * factor for d in data], StragglerState())
    for one, other in zip(score_ranks(compute, data, StragglerState()), scaled, strict=True):
        assert one.ratio == pytest.approx(other.ratio) and 0 <= one.data_share <= 1


@settings(max_examples=count_examples(100), deadline=None)
@given(st.lists(seconds, min_size=3, max_size=40), st.randoms())
def test_scores_do_not_depend_on_the_order_of_the_ranks(compute, chance):
    """Which rank has which number is no evidence."""
    order = chance.sample(range(len(compute)), len(compute))
    scores = score_ranks(compute, [0.0] * len(compute), StragglerState())
    mixed = score_ranks([compute[rank] for rank in order], [0.0] * len(compute), StragglerState())
    assert [scores[rank].is_slow for rank in order] == [score.is_slow for score in mixed]


@pytest.mark.parametrize("times", [[math.nan, 1.0], [0.0, 1.0], [math.inf, 1.0], [1.0], []])
def test_a_round_with_an_unknown_time_is_left_out(times):
    assert score_ranks(times, [0.0] * len(times), StragglerState()) == ()


def test_one_slow_round_is_no_straggler_and_a_recovery_is_reported():
    """A pause of a minute happens; what lasts is reported once, and once when it is over."""
    state, found, recovered = StragglerState(), [], []
    for slow in (1, 0, 1, 1, 1, 0, 0, 0, 0):
        compute = [0.4, 0.4, 0.4 * (1 + 0.4 * slow), 0.4]
        state, new, over = follow_scores(state, score_ranks(compute, [0.02] * 4, state))
        found.append([straggler.rank for straggler in new])
        recovered.append(list(over))
    assert found == [[], [], [], [2], *[[]] * 5] and ROUNDS_SLOW == 2
    assert recovered == [*[[]] * 7, [2], []] and ROUNDS_OVER == 3


def follow(rounds, state=None):
    """Return the state after rounds of computing alone, and the ranks that were slow in the last of them."""
    state, slow = state or StragglerState(), []
    for compute in rounds:
        scores = score_ranks(compute, [0.0] * len(compute), state)
        state, slow = follow_scores(state, scores)[0], [score.rank for score in scores if score.is_slow]
    return state, slow


@pytest.mark.parametrize(("sigma", "limit"), [(0.0, 0.077), (0.015, 0.077), (0.03, 0.12), (0.04, 0.1398), (0.06, 0.18)])
def test_the_limit_is_four_deviations_or_three_for_a_rank_that_is_surely_slow(sigma, limit):
    """The limit is at least 8 %; 15 % is sure. The spread is the median distance of all ranks but the slowest."""
    width = 2 * sigma / 1.4826
    peers = [math.exp(log * width) for log in (-1, -1, -1, -1, 0, 1, 1, 1)]
    assert follow([[*peers, math.exp(0.99 * limit)]])[1] == []
    assert follow([[*peers, math.exp(1.01 * limit)]])[1] == [8]


@pytest.mark.parametrize(
    ("size", "count", "found"), [(2, 1, 1), (8, 1, 1), (8, 2, 0), (15, 2, 0), (16, 2, 2), (16, 3, 0)]
)
def test_without_a_past_more_than_one_of_eight_slow_ranks_are_the_structure_of_the_job(size, count, found):
    times = [1.0] * (size - count) + [2.0] * count
    assert len(follow([times])[1]) == found


@pytest.mark.parametrize(
    ("rounds", "noise", "before", "after", "is_slow"),
    [
        (5, 0.0, 1.3, 1.3 * 1.079, False),
        (5, 0.0, 1.3, 1.3 * 1.081, True),
        (4, 0.0, 1.3, 1.3 * 1.081, False),
        (40, 0.0, 0.8, 1.079, False),
        (40, 0.0, 0.8, 1.081, True),
        (90, 0.03, 1.0, math.exp(0.14), False),
        (90, 0.03, 1.0, math.exp(0.16), True),
    ],
)
def test_a_rank_with_a_past_of_five_rounds_is_compared_with_it(rounds, noise, before, after, is_slow):
    """It must be slower than its own past by 8 % and four deviations of it, and than its peers by 8 %."""
    peers = [[math.exp(noise * (-1) ** (number + rank)) for rank in range(8)] for number in range(rounds)]
    state, _ = follow([[*times, before, before] for times in peers])
    assert follow([[*[1.0] * 8, before, after]], state)[1] == ([9] if is_slow else [])


def test_the_past_of_a_rank_is_its_last_thirty_normal_rounds():
    state, _ = follow([[1.0, 1.0, math.exp(-0.001 * number)] for number in range(90)])
    rank = state.ranks[2]
    assert rank.past == pytest.approx([-0.001 * number for number in range(60, 90)])
    assert (rank.usual, rank.deviation) == (pytest.approx(-0.0745), pytest.approx(0.0155, rel=0.01))


@pytest.mark.parametrize(("data", "share"), [(0.02, 0.0), (0.11, 0.45), (0.14, 0.6)])
def test_what_exceeds_the_peers_is_computing_or_waiting_for_data(data, share):
    """A rank takes 0.62 s and its peers 0.42 s."""
    (*_, score) = scores = score_ranks([0.4] * 8 + [0.62 - data], [0.02] * 8 + [data], StragglerState())
    assert (score.ratio, score.data_share) == (pytest.approx(0.62 / 0.42), pytest.approx(share))
    (found,) = list_stragglers(follow_scores(follow_scores(StragglerState(), scores)[0], scores)[0])
    assert (found.rank, found.rounds, found.waits_for_data) == (8, 2, share > 0.5)


def test_results_are_listed_by_their_ratio_until_three_rounds_in_a_row_are_normal():
    state, _ = follow([[1.0] * 14 + [1.3, 1.5]] * 3)
    assert [(found.rank, found.ratio, found.rounds) for found in list_stragglers(state)] == [(15, 1.5, 3), (14, 1.3, 3)]
    for times in ([1.0] * 16, [1.0] * 16, [1.0] * 15 + [1.6], [1.0] * 16, [1.0] * 16):
        state, _ = follow([times], state)
    assert [(found.rank, found.rounds) for found in list_stragglers(state)] == [(15, 4)]


def test_the_stages_of_a_pipeline_are_no_stragglers():
    """A quarter of the ranks computes half as much again, from the start; a rank that becomes slow is found there."""
    chance, state, found = random.Random(5), StragglerState(), []
    for number in range(60):
        compute = [(0.6 if rank % 4 == 3 else 0.4) * chance.gauss(1, 0.005) for rank in range(16)]
        compute[7] *= 1.2 if number >= 40 else 1.0
        state, new, _ = follow_scores(state, score_ranks(compute, [0.0] * 16, state))
        found += [(number, straggler.rank) for straggler in new]
    assert found == [(41, 7)]


@pytest.mark.parametrize("size", [8, 64])
def test_one_that_is_slower_by_a_fifth_is_named_within_three_minutes(size):
    """With the benchmark's noise; and hours of healthy ranks bring no result."""
    named = [name_slow_rank(size, 1.2, TUNED + seed, REPORTED, warm_up=8) for seed in range(20)]
    assert sum(named) >= 19
    assert count_false_results(size, TUNED + 50, REPORTED, rounds=60) == 0
