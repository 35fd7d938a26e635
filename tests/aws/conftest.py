"""A pretend AWS for the adapters: moto behind the real SDK, empty at the beginning of each test."""

from collections.abc import Iterator

import pytest
from moto import mock_aws

from rerail.aws.clients import client
from tests.aws.places import TABLE, make_table, our_own_clients


@pytest.fixture(scope="module", autouse=True)
def clients_of_our_own() -> Iterator[None]:
    with our_own_clients():
        yield


@pytest.fixture(autouse=True)
def aws() -> Iterator[None]:
    """An empty AWS."""
    with mock_aws():
        yield


@pytest.fixture
def table() -> str:
    """The table, as the stack makes it."""
    make_table(client("dynamodb"))
    return TABLE
