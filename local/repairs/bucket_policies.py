"""Refuse to create the policy of a bucket that has one, and let a stack import it.

MiniStack's CloudFormation replaces the policy, and cannot import one. AWS fails the resource, unless it is imported.
Facts: aws-cloudformation/cloudformation-coverage-roadmap issue 1068.
"""

from typing import Any

from ministack.services import s3
from ministack.services.cloudformation import changesets, provisioners

TYPE = "AWS::S3::BucketPolicy"


def apply() -> None:
    handler = provisioners._RESOURCE_HANDLERS[TYPE]
    stock = handler["create"]

    def create(logical_id: str, properties: dict[str, Any], stack: str) -> Any:
        bucket = properties.get("Bucket")
        if bucket in s3._bucket_policies:
            raise ValueError(f"The bucket policy already exists on bucket {bucket}.")
        stock(logical_id, properties, stack)
        return bucket, {}

    handler["create"] = create
    handler["import"] = lambda identifier: (identifier["Bucket"], {})
    changesets._IMPORT_LOOKUPS[TYPE] = (("Bucket",), _find_problem)


def _find_problem(bucket: str) -> str | None:
    """Return why the policy cannot be imported; None if it can."""
    if bucket in s3._bucket_policies:
        return None
    return str(changesets._IMPORT_NOT_FOUND.format(type=TYPE, value=bucket))
