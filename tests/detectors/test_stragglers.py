"""Slow ranks are named, and healthy ones never: the scoring of the ranks' times, round after round."""

import math
import random
from statistics import median

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


@settings(max_examples=count_examples(50), deadline=None)
@given(st.lists(st.lists(st.floats(0.96, 1.04), min_size=8, max_size=8), min_size=1, max_size=40))
def test_ranks_within_four_percent_are_never_slow(rounds):
    """However their times move within it."""
    state = StragglerState()
    for compute in rounds:
        state, new, _ = follow_scores(state, score_ranks(compute, [0.0] * 8, state))
        assert not new


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


def test_a_rank_that_waits_for_data_is_told_from_one_that_computes_slowly():
    state = StragglerState()
    for _ in range(3):
        state, _, _ = follow_scores(state, score_ranks([0.4, 0.4, 0.4, 0.6], [0.02, 0.3, 0.02, 0.02], state))
    assert {(found.rank, found.waits_for_data) for found in list_stragglers(state)} <= {(1, True), (3, False)}
    state = StragglerState()
    for _ in range(3):
        state, _, _ = follow_scores(state, score_ranks([0.4] * 8, [0.02] * 7 + [0.3], state))
    (found,) = list_stragglers(state)
    assert (found.rank, found.waits_for_data, found.ratio) == (7, True, pytest.approx(0.7 / 0.42))


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


def test_the_spread_is_robust():
    """One extreme rank does not hide itself by widening the spread."""
    compute = [0.4 + 0.001 * rank for rank in range(7)] + [4.0]
    assert [score.rank for score in score_ranks(compute, [0.0] * 8, StragglerState()) if score.is_slow] == [7]
    assert median(compute) < 0.41
