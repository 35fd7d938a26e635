"""May everybody do what they must? Questions about the job's role and the supervisor's, in the order of the answers."""

import json
import re
from collections.abc import Sequence
from urllib.parse import unquote

from botocore.exceptions import ClientError

from cli.doctor.check import Check, Question, broken, ok, warn
from cli.doctor.storage import find_bucket_key
from cli.doctor.subject import Subject
from cli.logbook import LOG_GROUP
from cli.project import CHOICES
from cli.trouble import is_missing
from rerail.model.mailbox import make_command_key, make_heartbeat_key, make_report_key

SAGEMAKER = "sagemaker.amazonaws.com"
ALLOWED = "allowed"
LOG_ACTIONS = ("logs:CreateLogStream", "logs:PutLogEvents", "logs:DescribeLogStreams")
PULL_ACTIONS = ("ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer")
# As the SageMaker Developer Guide lists them for a job in a VPC.
VPC_ACTIONS = (
    "ec2:CreateNetworkInterface",
    "ec2:CreateNetworkInterfacePermission",
    "ec2:DeleteNetworkInterface",
    "ec2:DeleteNetworkInterfacePermission",
    "ec2:DescribeNetworkInterfaces",
    "ec2:DescribeVpcs",
    "ec2:DescribeDhcpOptions",
    "ec2:DescribeSubnets",
    "ec2:DescribeSecurityGroups",
)
ECR_IMAGE = re.compile(
    r"(?P<account>\d{12})\.dkr\.ecr\.(?P<region>[a-z0-9-]+)\.amazonaws\.com(?:\.cn)?/(?P<repository>[^:@]+)"
)
ARN = re.compile(r"arn:[a-z0-9-]+:iam::[^:]*:role/.+")


def role(subject: Subject) -> Check | None:
    """It exists, and SageMaker may take it on."""
    if subject.role and not ARN.fullmatch(subject.role):
        return broken(f"RoleArn is {subject.role!r:.100}, and no ARN", "write arn:aws:iam::ACCOUNT:role/NAME")
    if _is_free(subject):
        return None
    name = subject.role.rpartition("/")[2]
    try:
        found = subject.client("iam").get_role(RoleName=name)["Role"]
    except ClientError as error:
        if is_missing(error):
            return broken(f"there is no role {name}", "give the job a role of this account, as RoleArn")
        raise
    document = found.get("AssumeRolePolicyDocument", {})
    trust = unquote(document) if isinstance(document, str) else json.dumps(document)
    if SAGEMAKER not in trust:
        return broken(f"SageMaker may not take on {name}", f"trust {SAGEMAKER} in its trust policy")
    return ok(f"SageMaker may take on {name}")


def role_is_passed(subject: Subject) -> Check | None:
    """Rerail may hand it to the jobs after."""
    if _is_free(subject):
        return None
    answer = subject.client("iam").simulate_principal_policy(
        PolicySourceArn=subject.deployment.supervisor_role,
        ActionNames=["iam:PassRole"],
        ResourceArns=[subject.role],
        ContextEntries=[
            {"ContextKeyName": "iam:PassedToService", "ContextKeyValues": [SAGEMAKER], "ContextKeyType": "string"}
        ],
    )
    if _refused(answer["EvaluationResults"]):
        return broken(
            f"Rerail may not hand {subject.role} to SageMaker: no job can be relaunched",
            f"add it to trainingRoleArns in {CHOICES.name}, and deploy",
        )
    return ok("Rerail may hand it to SageMaker")


def role_saves(subject: Subject) -> Check | None:
    """The job may write and read its checkpoints."""
    if _is_free(subject) or not subject.bucket:
        return None
    return _may(
        subject,
        subject.role,
        ("s3:PutObject", "s3:GetObject"),
        f"{subject.bucket}/{subject.prefix}step-000000001/manifest.json",
        refused="the role cannot save to, or read from, the checkpoint folder",
        remedy=f"allow it s3:GetObject and s3:PutObject on {subject.bucket}/{subject.prefix}*",
        fine="the role may write and read the checkpoint folder",
    )


def role_reports(subject: Subject) -> Check | None:
    """The agent may use the mailbox."""
    if _is_free(subject):
        return None
    bucket, run = subject.deployment.output("MailboxBucket"), subject.run_name
    reads = _lacking(subject, subject.role, ("s3:GetObject",), f"{bucket}/{make_command_key(run)}")
    writes = [
        action
        for key in (make_heartbeat_key(run), make_report_key(run, "hello"))
        for action in _lacking(subject, subject.role, ("s3:PutObject",), f"{bucket}/{key}")
    ]
    if lacking := [*reads, *writes]:
        said = f"the role lacks {' and '.join(dict.fromkeys(lacking))} on the mailbox: the agent is deaf or mute"
        return warn(said, f"allow it s3:GetObject and s3:PutObject on {bucket}/runs/*")
    return ok("the agent may use the mailbox")


def role_logs(subject: Subject) -> Check | None:
    """The job may write its log and its metrics: a failure is diagnosed from the one, a loss read from the other."""
    if _is_free(subject):
        return None
    partition, account = subject.role.split(":")[1], subject.role.split(":")[4]
    group = f"arn:{partition}:logs:{subject.deployment.region}:{account}:log-group:{LOG_GROUP}"
    lacking = [
        *_lacking_on(subject, LOG_ACTIONS, [f"{group}:log-stream:{subject.name}/algo-1-1"]),
        *_lacking_on(subject, ("cloudwatch:PutMetricData",), ["*"]),
    ]
    if lacking:
        return warn(
            f"the role lacks {', '.join(lacking)}: no log to diagnose, or no metrics to watch",
            f"allow it the first on {group}:*, and cloudwatch:PutMetricData",
        )
    return ok("the role may write log and metrics")


def role_pulls(subject: Subject) -> Check | None:
    """The role may pull the image from ECR."""
    if _is_free(subject) or not (image := ECR_IMAGE.match(subject.image)):
        return None
    partition = subject.role.split(":")[1]
    repository = f"arn:{partition}:ecr:{image['region']}:{image['account']}:repository/{image['repository']}"
    lacking = [
        *_lacking_on(subject, PULL_ACTIONS, [repository]),
        *_lacking_on(subject, ("ecr:GetAuthorizationToken",), ["*"]),
    ]
    if lacking:
        return broken(
            f"the role cannot pull the image ({', '.join(lacking)})",
            f"allow it {', '.join(PULL_ACTIONS)} on {repository}, and ecr:GetAuthorizationToken",
        )
    if image["region"] != subject.deployment.region:
        return broken(
            f"the image lies in {image['region']}, the job runs in {subject.deployment.region}",
            f"push it to a repository of {subject.deployment.region}",
        )
    return ok("the role may pull the image")


def role_joins_vpc(subject: Subject) -> Check | None:
    """The role may attach the machines to the VPC that the request names."""
    if _is_free(subject) or not subject.request.get("VpcConfig"):
        return None
    if lacking := _lacking_on(subject, VPC_ACTIONS, ["*"]):
        return broken(
            f"the role cannot attach machines to the VPC ({', '.join(lacking)})", f"allow it {', '.join(lacking)} on *"
        )
    return ok("the role may attach machines to the VPC")


def supervisor_reads(subject: Subject) -> Check | None:
    """Rerail may look at the checkpoints, and set bad ones aside."""
    if _is_free(subject) or not subject.bucket:
        return None
    return _may(
        subject,
        subject.deployment.supervisor_role,
        ("s3:GetObject",),
        f"{subject.bucket}/{subject.prefix}step-000000001/manifest.json",
        refused="Rerail cannot read the checkpoints: it would resume from none",
        remedy=f"add {subject.bucket} to checkpointBuckets in {CHOICES.name}, and deploy",
        fine="Rerail may read the checkpoints",
    )


def supervisor_decrypts(subject: Subject) -> Check | None:
    """Rerail may use the key that the checkpoints are encrypted with."""
    if _is_free(subject) or not subject.bucket or not (key := find_bucket_key(subject)):
        return None
    answer = subject.client("iam").simulate_principal_policy(
        PolicySourceArn=subject.deployment.supervisor_role,
        ActionNames=["kms:Decrypt"],
        ResourceArns=[subject.client("kms").describe_key(KeyId=key)["KeyMetadata"]["Arn"]],
    )
    if _refused(answer["EvaluationResults"]):
        return warn(
            f"Rerail's own policies do not let it use the bucket's key {key}: it may not read the checkpoints",
            f"add the key to checkpointKeyArns in {CHOICES.name} and deploy, if the key's policy does not allow it",
        )
    return ok("Rerail may use the bucket's key")


QUESTIONS: tuple[Question[Subject], ...] = (
    role,
    role_is_passed,
    role_saves,
    role_reports,
    role_logs,
    role_pulls,
    role_joins_vpc,
    supervisor_reads,
    supervisor_decrypts,
)


def _is_free(subject: Subject) -> bool:
    """The local AWS checks no permissions and has no roles of jobs; a value that is not an ARN has none either."""
    return subject.deployment.where.is_local or not ARN.fullmatch(subject.role)


def _may(
    subject: Subject, who: str, actions: Sequence[str], key: str, *, refused: str, remedy: str, fine: str
) -> Check:
    lacking = _lacking(subject, who, actions, key)
    return broken(f"{refused} ({', '.join(lacking)})", remedy) if lacking else ok(fine)


def _lacking(subject: Subject, who: str, actions: Sequence[str], key: str) -> list[str]:
    """Of these actions on an S3 object, those that the role's own policies do not allow."""
    partition, account = who.split(":")[1], who.split(":")[4]
    # The ARN of a bucket says nothing about its account, and Rerail's permissions are for its own.
    owner = {"ContextKeyName": "aws:ResourceAccount", "ContextKeyValues": [account], "ContextKeyType": "string"}
    answer = subject.client("iam").simulate_principal_policy(
        PolicySourceArn=who,
        ActionNames=list(actions),
        ResourceArns=[f"arn:{partition}:s3:::{key}"],
        ContextEntries=[owner],
    )
    return _refused(answer["EvaluationResults"])


def _lacking_on(subject: Subject, actions: Sequence[str], arns: Sequence[str]) -> list[str]:
    """Return those of the actions that the job's role is not allowed on the resources."""
    answer = subject.client("iam").simulate_principal_policy(
        PolicySourceArn=subject.role, ActionNames=list(actions), ResourceArns=list(arns)
    )
    return _refused(answer["EvaluationResults"])


def _refused(results: Sequence[dict[str, str]]) -> list[str]:
    return [result["EvalActionName"] for result in results if result["EvalDecision"] != ALLOWED]
