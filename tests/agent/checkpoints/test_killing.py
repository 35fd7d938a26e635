"""SIGKILL at random moments of a save."""

from pathlib import Path

import pytest

from tests.agent.checkpoints.kills import kill_runs

pytestmark = pytest.mark.slow


def test_a_kill_at_any_moment_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    """A successor restores what was reported as committed, or something newer, bit for bit."""
    assert kill_runs(tmp_path, 12, seed=7) == []
