"""Make a private bucket: no public access, TLS only, retained with its policy after the stack is deleted."""

from aws_cdk import Duration, RemovalPolicy
from aws_cdk import aws_s3 as s3
from constructs import Construct


def closed_bucket(scope: Construct, *, name: str, rule: str, kept: Duration) -> s3.Bucket:
    """Its objects are gone after `kept`, by the lifecycle rule of that id. Encrypted with S3's own key: whoever may use
    the bucket, or was given a signed link, needs no permission for a key."""
    bucket = s3.Bucket(
        scope,
        "Bucket",
        bucket_name=name,
        encryption=s3.BucketEncryption.S3_MANAGED,
        block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
        object_ownership=s3.ObjectOwnership.BUCKET_OWNER_ENFORCED,
        enforce_ssl=True,
        lifecycle_rules=[
            s3.LifecycleRule(id=rule, expiration=kept, abort_incomplete_multipart_upload_after=Duration.days(1))
        ],
        removal_policy=RemovalPolicy.RETAIN_ON_UPDATE_OR_DELETE,
    )
    assert bucket.policy, "enforce_ssl makes one"
    # Jobs may go on after the stack: without it, any role that may write into the bucket could command them.
    bucket.policy.apply_removal_policy(RemovalPolicy.RETAIN_ON_UPDATE_OR_DELETE)
    return bucket
