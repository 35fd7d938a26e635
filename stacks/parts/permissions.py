"""IAM statements, each wildcard with the reason why it cannot be narrower."""

from collections.abc import Mapping, Sequence
from typing import Any

from aws_cdk import Acknowledgment, Aws, Validations
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from constructs import IConstruct

from rerail.decisions.quarantine import COPIES, OVERWRITTEN, QUARANTINED, REPLACED
from stacks.options import TOKENS, DeploymentOptions

TRAINING_JOBS = f"arn:{Aws.PARTITION}:sagemaker:{Aws.REGION}:{Aws.ACCOUNT_ID}:training-job/*"
# SageMaker authorizes a job on a training plan for the plan and its capacity too.
PLANS = [
    f"arn:{Aws.PARTITION}:sagemaker:{Aws.REGION}:{Aws.ACCOUNT_ID}:{kind}/*"
    for kind in ("training-plan", "reserved-capacity")
]
ANY_JOB = "Any training job of the account may ask to be supervised, by a tag; which ones do is not known here."

# SageMaker writes the log of every training job there.
LOG_GROUP = "/aws/sagemaker/TrainingJobs"
ONE_LOG = "All training jobs of the account write to this one log group; which ones are supervised is not known here."

# A bucket's name says nothing of its owner: without this, a job could point Rerail at another account's bucket.
OF_THIS_ACCOUNT = {"StringEquals": {"aws:ResourceAccount": Aws.ACCOUNT_ID}}

READ_ITEM = ("kms:Decrypt", "kms:DescribeKey")
# Beside those of reading.
WRITE_ITEM = (
    "kms:Encrypt",
    "kms:GenerateDataKey",
    "kms:GenerateDataKeyWithoutPlaintext",
    "kms:ReEncryptFrom",
    "kms:ReEncryptTo",
)
SEND_MESSAGE = ("kms:Decrypt", "kms:GenerateDataKey")


def acknowledge(scope: IConstruct, rule: str, *, reason: str) -> None:
    """Accept one finding of cdk-nag on this construct and below."""
    Validations.of(scope).acknowledge(Acknowledgment(id=rule, reason=reason))


def allow(
    role: iam.Role,
    *actions: str,
    on: str | Sequence[str],
    where: Mapping[str, Any] | None = None,
    because: str | None = None,
) -> None:
    """Add a statement to the role; `because` says why a resource has to be a wildcard.

    The name of a bucket says nothing about its account, so S3 is allowed in this account alone.
    """
    resources = [on] if isinstance(on, str) else list(on)
    conditions = dict(where or {})
    if any(action.startswith("s3:") for action in actions):
        conditions["StringEquals"] = {**conditions.get("StringEquals", {}), "aws:ResourceAccount": Aws.ACCOUNT_ID}
    role.add_to_principal_policy(iam.PolicyStatement(actions=list(actions), resources=resources, conditions=conditions))
    for resource in filter(lambda resource: "*" in resource, resources):
        if not because:
            raise ValueError(f"{', '.join(actions)} on {resource}: say because of what it is a wildcard")
        acknowledge(role, f"AwsSolutions-IAM5[Resource::{_as_nag_writes(resource)}]", reason=because)


def read_job_logs(role: iam.Role) -> None:
    """Let the role read what training jobs print."""
    group = f"arn:{Aws.PARTITION}:logs:{Aws.REGION}:{Aws.ACCOUNT_ID}:log-group:{LOG_GROUP}"
    allow(role, "logs:DescribeLogStreams", "logs:GetLogEvents", on=f"{group}:*", because=ONE_LOG)


def use_key(role: iam.Role, key: kms.IKey, *actions: str, service: str) -> None:
    """The key, but only through one service of this account and region."""
    via = f"{service}.{Aws.REGION}.{Aws.URL_SUFFIX}"
    allow(role, *actions, on=key.key_arn, where={"StringEquals": {"kms:ViaService": via}})


def read_policies(role: iam.Role, prefix: str) -> None:
    """Every policy that is deployed."""
    arn = f"arn:{Aws.PARTITION}:ssm:{Aws.REGION}:{Aws.ACCOUNT_ID}:parameter{prefix}/*"
    allow(role, "ssm:GetParameter", on=arn, because="A job's tag names the policy, below this prefix of ours.")


def read_checkpoints(role: iam.Role, options: DeploymentOptions) -> None:
    """List checkpoints and read their manifests, in buckets of this account; nothing of them is ever written."""
    if options.observe_only:
        return
    buckets = [f"arn:{Aws.PARTITION}:s3:::{bucket}" for bucket in options.checkpoint_buckets]
    because = "The context value checkpointBuckets says where checkpoints are; jobs choose the prefix."
    allow(role, "s3:ListBucket", on=buckets, where=OF_THIS_ACCOUNT, because=because)
    allow(role, "s3:GetObject", on=[f"{bucket}/*" for bucket in buckets], where=OF_THIS_ACCOUNT, because=because)
    if options.checkpoint_key_arns:
        via = {"StringEquals": {"kms:ViaService": f"s3.{Aws.REGION}.{Aws.URL_SUFFIX}"}}
        allow(role, "kms:Decrypt", on=options.checkpoint_key_arns, where=via, because="checkpointKeyArns says so.")


def allow_quarantine(role: iam.Role, options: DeploymentOptions) -> None:
    """Move checkpoints out of the listed folders to the quarantine of their bucket, with their tags.

    Beside the quarantine are the copies of files that scripts overwrite in place. In the folders themselves, only such
    files are written, and the few that name the last checkpoint.
    """
    places = [uri.removeprefix("s3://") for uris in options.quarantine_folders.values() for uri in uris]
    if not places:
        return
    because = "The context value quarantineFolders says where checkpoints may be moved; jobs choose the prefix below."
    buckets = sorted({f"arn:{Aws.PARTITION}:s3:::{place.partition('/')[0]}" for place in places})
    folders = sorted({f"arn:{Aws.PARTITION}:s3:::{place}" for place in places})
    quarantines = [f"{bucket}/{QUARANTINED}" for bucket in buckets]
    replaced = [f"{folder}{names}" for folder in folders for names in REPLACED]
    copies = [f"{bucket}/{COPIES}" for bucket in buckets]
    beside = [*quarantines, *copies]
    copied = [*beside, *(f"{folder}{names}" for folder in folders for names in OVERWRITTEN)]
    read, deleted = ("s3:GetObject", "s3:GetObjectTagging"), ("s3:DeleteObject",)
    allow(role, "s3:ListBucket", "s3:ListBucketMultipartUploads", on=buckets, where=OF_THIS_ACCOUNT, because=because)
    in_folders = [f"{folder}*" for folder in folders]
    allow(role, *read, *deleted, on=in_folders, where=OF_THIS_ACCOUNT, because=because)
    allow(role, "s3:GetObject", on=beside, where=OF_THIS_ACCOUNT, because=because)
    uploads = ("s3:AbortMultipartUpload", "s3:ListMultipartUploadParts")
    allow(role, "s3:PutObject", "s3:PutObjectTagging", on=[*beside, *replaced], where=OF_THIS_ACCOUNT, because=because)
    allow(role, *deleted, on=copies, where=OF_THIS_ACCOUNT, because=because)
    allow(role, *uploads, on=copied, where=OF_THIS_ACCOUNT, because=because)
    if options.checkpoint_key_arns:
        via = {"StringEquals": {"kms:ViaService": f"s3.{Aws.REGION}.{Aws.URL_SUFFIX}"}}
        keys = options.checkpoint_key_arns
        allow(role, "kms:GenerateDataKey", on=keys, where=via, because="checkpointKeyArns says so.")


def _as_nag_writes(resource: str) -> str:
    for written, token in TOKENS.items():
        resource = resource.replace(token, f"<{written[2:-1]}>")
    return resource
