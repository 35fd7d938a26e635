"""Boto3 clients, made on first use and shared by all adapters of a process."""

from functools import cache
from typing import Any

import boto3
from botocore.config import Config

from rerail.aws.validation import install_validation

# The control plane of SageMaker throttles at one or two calls a second: adaptive mode slows down instead of failing.
CONFIG = Config(retries={"mode": "adaptive", "max_attempts": 5}, connect_timeout=3, read_timeout=20)


@cache
def _session() -> boto3.Session:
    session = boto3.Session()
    session.events.register("creating-client-class", install_validation)
    return session


@cache
def client(service: str) -> Any:
    """Return the shared client of the service."""
    return client_as(CONFIG, service)


def client_as(config: Config, service: str, **where: str) -> Any:
    """Return a new client with its own configuration; `where` may set its `region_name`."""
    return _session().client(service, config=config, **where)
