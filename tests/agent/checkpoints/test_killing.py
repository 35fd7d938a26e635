"""Kills and damages at random, a few of the thousand that `python -m bench.killing` counts."""

import pytest

from bench import killing

pytestmark = pytest.mark.slow


def test_a_kill_at_any_moment_leaves_a_whole_checkpoint() -> None:
    """Whatever was reported as committed is restored, or something newer, bit for bit."""
    tally = killing.kill(12, seed=7)
    assert tally.wrong == []
    assert tally.count == 12


def test_no_damage_is_ever_restored() -> None:
    """One file changed anywhere: the checkpoint before is taken, or the very state that was saved."""
    tally = killing.damage(36, seed=7)
    assert tally.wrong == []
    assert tally.outcomes.keys() >= {"flipped bit: fell back", "truncated: fell back", "missing: fell back"}
