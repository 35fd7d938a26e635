"""A pretend AWS for the adapters: moto behind the real SDK, empty at the beginning of each test."""

import importlib
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ReadTimeoutError
from botocore.stub import Stubber
from moto import mock_aws

from rerail.aws.clients import client
from tests.aws.places import TABLE, make_table, our_own_clients
from tests.raising import raising


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


@pytest.fixture
def impatient(request, clients_of_our_own, monkeypatch) -> Any:
    """The client of the adapter that the test module is named after; it asks once."""
    service = request.module.__name__.rpartition("test_")[2]
    asks_once = boto3.client(service, config=Config(retries={"total_max_attempts": 1}))
    monkeypatch.setattr(importlib.import_module(f"rerail.aws.{service}"), "client", lambda service: asks_once)
    return asks_once


@pytest.fixture
def api(impatient) -> Iterator[Stubber]:
    """Return the stub of the adapter's client: it gives each answer that the test prepares once, and all of them."""
    with Stubber(impatient) as stubber:
        yield stubber
        stubber.assert_no_pending_responses()


@pytest.fixture
def silent(impatient) -> None:
    """Let every call of the adapter time out."""
    # Named by its service, the handler comes before moto's.
    impatient.meta.events.register(
        f"before-send.{impatient.meta.service_model.service_id.hyphenize()}",
        raising(ReadTimeoutError(endpoint_url="https://api.eu-west-1.amazonaws.com/")),
    )
