"""Clients with dummy credentials for the tests of the command line."""

from collections.abc import Iterator

import pytest

from tests.aws.places import our_own_clients


@pytest.fixture(scope="module", autouse=True)
def clients_of_our_own() -> Iterator[None]:
    with our_own_clients():
        yield
