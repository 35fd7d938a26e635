"""Where the adapters' tests take place: the region, the account and the table that the stack would make."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from moto.s3.models import s3_backends

from rerail.aws import clients

REGION = "eu-west-1"
ACCOUNT = "123456789012"
TABLE = "Rerail-Runs"


def make_table(dynamodb: Any) -> None:
    """Keys pk and sk, and the sparse index `open` that carries what a round reads."""
    dynamodb.create_table(
        TableName=TABLE,
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name in ("pk", "sk", "open")],
        KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}],
        GlobalSecondaryIndexes=[
            {
                "IndexName": "open",
                "KeySchema": [
                    {"AttributeName": "open", "KeyType": "HASH"},
                    {"AttributeName": "pk", "KeyType": "RANGE"},
                ],
                "Projection": {"ProjectionType": "INCLUDE", "NonKeyAttributes": ["doc", "version", "state"]},
            }
        ],
    )


def make_bucket(name: str) -> Any:
    """Create the bucket in the tests' region, and return the client of S3."""
    s3 = clients.client("s3")
    s3.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": REGION})
    return s3


def fill(bucket: str, keys: Iterable[str], body: bytes = b"x" * 10) -> None:
    """Put an object at each key into moto's S3, without the client, whose calls take a hundred times as long."""
    for key in keys:
        s3_backends[ACCOUNT]["aws"].put_object(bucket, key, body)


@contextmanager
def our_own_clients() -> Iterator[None]:
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
    """Let the next call make a new client, for buckets of this account; each call to S3 has to name it."""
    clients.client.cache_clear()
    clients._session.cache_clear()
    clients.set_bucket_owner(ACCOUNT)
    clients._session().events.register("before-call.s3", require_bucket_owner)


def require_bucket_owner(model: Any, params: dict[str, Any], **_: Any) -> None:
    """Fail a call that S3 would carry out in whichever account owns the bucket."""
    names = {"ExpectedBucketOwner": "x-amz-expected-bucket-owner"}
    names |= {"ExpectedSourceBucketOwner": "x-amz-source-expected-bucket-owner"}
    accepted = model.input_shape.members if model.input_shape else ()
    wanted = {header: ACCOUNT for name, header in names.items() if name in accepted}
    assert wanted.items() <= params["headers"].items(), f"{model.name} names no owner of the bucket"
