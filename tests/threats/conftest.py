"""A run under attack: its world hands out keys, and its agent seals what it says."""

from collections.abc import Iterator

import pytest
from moto import mock_aws

from rerail.aws.clients import client
from rerail.model.signatures import VARIABLE
from tests.aws.places import TABLE, make_table, our_own_clients
from tests.fakes import KEY, Agent, World

ANOTHER = "cd" * 32


@pytest.fixture
def table() -> Iterator[str]:
    """The table, as the stack makes it, which limits the size of an item."""
    with our_own_clients(), mock_aws():
        make_table(client("dynamodb"))
        yield TABLE


@pytest.fixture
def world() -> World:
    """A run in training, whose first job was started with a key, and metrics that CloudWatch has of it."""
    world = World(new_key=lambda: KEY)
    world.sagemaker.defined_metrics = ("step", "loss", "nonfinite")
    return world.adopt(request={"Environment": {VARIABLE: KEY, "STEPS": "100"}})


@pytest.fixture
def agent(world: World) -> Agent:
    """The run's own agent; it has said hello."""
    agent = Agent(world, signing_key=KEY)
    agent.hello()
    return agent


@pytest.fixture
def stranger(world: World) -> Agent:
    """Somebody who may write into the mailbox and knows the run's name, its job and the attempt, and not its key."""
    return Agent(world, reports=100, signing_key="")
