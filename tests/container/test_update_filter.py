"""Updates that are left out: numbers that are none, and outliers; the same on every rank, and after a resume."""

import json
import math
import random

import pytest

from update_filter import SkipMode, UpdateFilter


def calm(update_filter: UpdateFilter, steps: int, level: float = 2.0) -> list[bool]:
    draw = random.Random(1)
    return [update_filter.accepts(draw.gauss(level, 0.01), draw.gauss(1, 0.05)) for _ in range(steps)]


@pytest.mark.parametrize(("loss", "norm"), [(math.nan, 1.0), (2.0, math.inf), (-math.inf, 1.0)])
def test_what_is_no_number_is_left_out(loss: float, norm: float) -> None:
    """Also on the very first step, and unless the filter is off."""
    assert [UpdateFilter(mode).accepts(loss, norm) for mode in SkipMode] == [True, False, False]


def test_outliers_need_a_history() -> None:
    """Of 64 steps; then six standard deviations are the limit, upwards alone."""
    update_filter = UpdateFilter(SkipMode.SIGMA)
    assert all(calm(update_filter, 63))
    assert update_filter.accepts(2.0, 1.0)
    assert [update_filter.accepts(2.0, 1.0 + more) for more in (0.2, 0.5)] == [True, False]
    assert [update_filter.accepts(loss, 1.0) for loss in (2.1, 1.0)] == [False, True]
    assert update_filter.skipped == 2


def test_a_new_level_is_learnt() -> None:
    """A loss that jumps and stays does not stop training for ever."""
    update_filter = UpdateFilter(SkipMode.SIGMA)
    calm(update_filter, 128)
    passed = calm(update_filter, 60, level=3.0)
    assert not passed[0]
    assert all(passed[10:])


def test_numbers_that_are_none_are_not_learnt() -> None:
    """They would make the mean one too."""
    update_filter = UpdateFilter(SkipMode.SIGMA)
    calm(update_filter, 100)
    assert not update_filter.accepts(math.nan, math.nan)
    assert update_filter.accepts(2.0, 1.0)


def test_a_resumed_filter_decides_like_the_original() -> None:
    """Its state goes through JSON and back."""
    one, other = UpdateFilter(SkipMode.SIGMA), UpdateFilter(SkipMode.SIGMA)
    calm(one, 100)
    one.accepts(9.0, 1.0)
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    values = [(2.0, 1.0), (2.3, 1.0), (2.9, 1.0), (2.0, 1.6)]
    assert [one.accepts(*value) for value in values] == [other.accepts(*each) for each in values]
    assert one.skipped == other.skipped > 1
