"""Nights in a hostile world: short ones in the suite, as long as wanted by hand."""

import pytest

from bench.chaos import Night


@pytest.mark.parametrize("seed", [2, 7, 8])
def test_every_run_ends_as_it_must(seed):
    """Lost, late and repeated events, clocks that jump, an hour of silence, a table from an old backup."""
    counts = Night(seed, hours=8, jobs=2).play()
    assert counts["table restored"] == 1 and counts["relaunches"] >= 10
