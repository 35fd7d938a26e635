"""One lazily made client a service, shared by all adapters of a process."""

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
    """The service's client, made at the first use."""
    return client_as(CONFIG, service)


def client_as(config: Config, service: str, **where: str) -> Any:
    """A client of another kind, which is not shared; `where` is its `region_name`, if that is another one."""
    return _session().client(service, config=config, **where)
