"""The account that has to own the bucket of a call to S3: a bucket's name may belong to any account."""

from collections.abc import Collection

# Of a bucket that is written or read, and of the source of a copy.
OWNER_PARAMETERS = ("ExpectedBucketOwner", "ExpectedSourceBucketOwner")


def make_owner_parameters(accepted: Collection[str], account: str) -> dict[str, str]:
    """Return the parameters with which S3 refuses a call to a bucket of another account.

    `accepted` are the operation's parameters. Without an account, return none.
    """
    return {name: account for name in OWNER_PARAMETERS if account and name in accepted}
