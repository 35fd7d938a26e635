"""Boto3 clients, made on first use and shared by all adapters of a process."""

import os
from functools import cache
from typing import Any

import boto3
from botocore.config import Config

from rerail.aws.validation import install_validation
from rerail.model.bucket_owner import add_bucket_owner

# The control plane of SageMaker throttles at one or two calls a second: adaptive mode slows down instead of failing.
CONFIG = Config(retries={"mode": "adaptive", "max_attempts": 5}, connect_timeout=3, read_timeout=20)

# For what is useful but not needed: a service that does not answer at once is not waited for.
QUICK = Config(retries={"mode": "standard", "max_attempts": 2}, connect_timeout=2, read_timeout=3)


@cache
def _session() -> boto3.Session:
    session = boto3.Session()
    if not session.region_name:  # AWS_REGION, which the other SDKs and the CDK read, and boto3 does not
        session = boto3.Session(region_name=os.environ.get("AWS_REGION"))
    session.events.register("creating-client-class", install_validation)
    return session


# The account that owns every bucket of the shared client. Empty in the command line, which reads what its user may.
_bucket_owner = ""


def set_bucket_owner(account: str) -> None:
    """Let S3 refuse each call of the shared client to a bucket of another account."""
    global _bucket_owner
    _bucket_owner = account


@cache
def client(service: str) -> Any:
    """Return the shared client of the service."""
    made = client_as(CONFIG, service)
    made.meta.events.register("before-parameter-build.s3", _add_bucket_owner)
    if service == "sagemaker":
        from rerail.aws.unknown_members import install_unknown_members  # only the functions with jobs load it

        install_unknown_members(made)
    return made


@cache
def quick_client(service: str) -> Any:
    """Return the client of a service other than S3 that gives up early."""
    return client_as(QUICK, service)


def _add_bucket_owner(params: dict[str, Any], model: Any, **_: Any) -> None:
    add_bucket_owner(params, model, _bucket_owner)


def client_as(config: Config, service: str, **where: str) -> Any:
    """Return a new client with its own configuration; `where` may set its `region_name`."""
    return _session().client(service, config=config, **where)
