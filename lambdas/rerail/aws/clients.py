"""One lazily made client a service, shared by all adapters of a process."""

from functools import cache
from typing import Any

import boto3
from botocore.config import Config

# The control plane of SageMaker throttles at one or two calls a second: adaptive mode slows down instead of failing.
CONFIG = Config(retries={"mode": "adaptive", "max_attempts": 5}, connect_timeout=3, read_timeout=20)


@cache
def _session() -> boto3.Session:
    return boto3.Session()


@cache
def client(service: str) -> Any:
    """The service's client, made at the first use."""
    return _session().client(service, config=CONFIG)
