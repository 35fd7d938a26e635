"""A world for the core."""

import pytest

from tests.fakes import Agent, World


@pytest.fixture
def world() -> World:
    """A run that has trained for an hour, with checkpoints at steps 100 to 500; its last save is two minutes old."""
    world = World().with_saves()
    world.minutes(2)
    return world


@pytest.fixture
def agent(world) -> Agent:
    """An agent in its job, which has said hello."""
    agent = Agent(world)
    agent.hello()
    return agent
