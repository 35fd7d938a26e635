"""A pretend AWS for the adapters: moto behind the real SDK, empty at the beginning of each test."""

from collections.abc import Iterator

import pytest
from moto import mock_aws

from rerail.aws import clients
from tests.aws.places import REGION, TABLE, make_table


@pytest.fixture(scope="module", autouse=True)
def clients_of_our_own() -> Iterator[None]:
    """Dummy credentials, and clients that are made once a module: reading a service's model takes half a second."""
    with pytest.MonkeyPatch.context() as environment:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
            environment.setenv(name, "testing")
        environment.setenv("AWS_DEFAULT_REGION", REGION)
        for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_REGION"):
            environment.delenv(name, raising=False)
        forget_clients()
        yield
        forget_clients()


def forget_clients() -> None:
    clients.client.cache_clear()
    clients._session.cache_clear()


@pytest.fixture(autouse=True)
def aws() -> Iterator[None]:
    """An empty AWS."""
    with mock_aws():
        yield


@pytest.fixture
def table() -> str:
    """The table, as the stack makes it."""
    make_table(clients.client("dynamodb"))
    return TABLE
