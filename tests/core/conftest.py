"""A world for the core, and how Hypothesis plays here: the same examples each time, without a stopwatch."""

import pytest
from hypothesis import HealthCheck, settings

from tests.fakes import World

settings.register_profile(
    "rerail", deadline=None, max_examples=50, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("rerail")


@pytest.fixture
def world() -> World:
    """A run that has trained for an hour, with checkpoints at steps 100 to 500; its last save is two minutes old."""
    world = World().with_saves()
    world.minutes(2)
    return world
