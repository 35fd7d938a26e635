"""The account that has to own the bucket of a call to S3: a bucket's name may belong to any account."""

from typing import Any

# Of a bucket that is written or read, and of the source of a copy.
OWNER_PARAMETERS = ("ExpectedBucketOwner", "ExpectedSourceBucketOwner")


def add_bucket_owner(params: dict[str, Any], model: Any, account: str) -> None:
    """Add the parameters with which S3 refuses a call to a bucket of another account; without an account, add none.

    `params` and `model` are those of botocore's event `before-parameter-build.s3`.
    """
    accepted = model.input_shape.members if model.input_shape else ()
    params.update({name: account for name in OWNER_PARAMETERS if account and name in accepted})
