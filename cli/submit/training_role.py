"""`--create-role`: a role for training jobs, allowed what a job of `rerail submit` needs and no more."""

import json
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from cli.place import client
from cli.submit.account import SubmissionAccount
from cli.submit.problem import Problem
from cli.trouble import explain, get_code

DEFAULT_ROLE = "RerailTraining"
POLICY = "rerail-submit"


def make_trust(account: str) -> dict[str, Any]:
    """Return who may take the role: SageMaker, for jobs of this account only."""
    return {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Principal": {"Service": "sagemaker.amazonaws.com"},
                "Action": "sts:AssumeRole",
                "Condition": {"StringEquals": {"aws:SourceAccount": account}},
            }
        ],
    }


# In the bucket, the folder of everything that `rerail submit` uploads and jobs write.
PREFIX = "rerail"
SHARED = ("code/*/sourcedir.tar.gz", "agent/*.whl", "chains/*/chain.json")
WRITES = ["s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"]


def make_policy(partition: str, region: str, account: str, buckets: list[str], mailbox: str = "") -> dict[str, Any]:
    """Return what a job may do: its buckets, the agent's part of the mailbox, its log, its metrics, and images."""
    arn = f"arn:{partition}"
    logs = f"{arn}:logs:{region}:{account}:log-group:/aws/sagemaker/TrainingJobs"
    return {
        "Version": "2012-10-17",
        "Statement": [
            _allow(["s3:ListBucket"], [f"{arn}:s3:::{bucket}" for bucket in buckets]),
            _allow(["s3:GetObject"], [f"{arn}:s3:::{bucket}/*" for bucket in buckets]),
            _allow(WRITES, [f"{arn}:s3:::{bucket}/{PREFIX}/*" for bucket in buckets]),
            # What other jobs run, and what chains remember, is written by people.
            {
                "Effect": "Deny",
                "Action": WRITES,
                "Resource": [f"{arn}:s3:::{bucket}/{PREFIX}/{name}" for bucket in buckets for name in SHARED],
            },
            *(_allow_mailbox(f"{arn}:s3:::{mailbox}") if mailbox else ()),
            _allow(
                ["logs:CreateLogGroup", "logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"],
                [logs, f"{logs}:*"],
            ),
            _allow(
                ["cloudwatch:PutMetricData"],
                ["*"],
                {"StringEquals": {"cloudwatch:namespace": "/aws/sagemaker/TrainingJobs"}},
            ),
            _allow(["ecr:GetAuthorizationToken"], ["*"]),
            _allow(
                ["ecr:BatchCheckLayerAvailability", "ecr:GetDownloadUrlForLayer", "ecr:BatchGetImage"],
                [f"{arn}:ecr:{region}:*:repository/*"],
            ),
        ],
    }


@dataclass(frozen=True, slots=True)
class PlannedRole:
    """The role of a job."""

    arn: str
    # It does not exist yet, and is to be created before the job.
    is_new: bool = False


def plan_role(account: SubmissionAccount, role: str, *, is_wanted: bool) -> PlannedRole:
    """Return the role of this name or ARN; with `is_wanted` a new one if there is none. Raise Problem without one."""
    if not is_wanted or account.is_local or role.startswith("arn:"):
        return PlannedRole(account.find_role_arn(role))
    import boto3

    name = role or DEFAULT_ROLE
    try:
        return PlannedRole(str(client("iam").get_role(RoleName=name)["Role"]["Arn"]))
    except (ClientError, BotoCoreError) as error:
        if get_code(error) != "NoSuchEntity":
            problem, remedy = explain(error)
            raise Problem(f"--create-role: cannot look for {name}: {problem}", remedy) from error
    number = account.find_number("the new role's ARN")
    return PlannedRole(
        f"arn:{boto3.Session().get_partition_for_region(account.region)}:iam::{number}:role/{name}", is_new=True
    )


def create_role(arn: str, region: str, bucket: str, mailbox: str = "") -> None:
    """Create the role of this ARN, with the permissions of a job in this region."""
    iam, name = client("iam"), arn.rpartition("/")[2]
    _, partition, _, _, account, _ = arn.split(":", 5)
    policy = make_policy(partition, region, account, [bucket], mailbox)
    try:
        iam.create_role(
            RoleName=name,
            AssumeRolePolicyDocument=json.dumps(make_trust(account)),
            Description="Training jobs of rerail submit",
            Tags=[{"Key": "created-by", "Value": "rerail submit"}],
        )
        iam.put_role_policy(RoleName=name, PolicyName=POLICY, PolicyDocument=json.dumps(policy))
        iam.get_waiter("role_exists").wait(RoleName=name)
    except (ClientError, BotoCoreError) as error:
        raise Problem(
            f"--create-role: cannot create {name}: {explain(error).what}",
            "ask for iam:CreateRole and iam:PutRolePolicy, or for a role to name with --role",
        ) from error


def _allow_mailbox(arn: str) -> tuple[dict[str, Any], ...]:
    return (
        _allow(["s3:GetObject"], [f"{arn}/runs/*/command.json"]),
        _allow(["s3:PutObject"], [f"{arn}/runs/*/heartbeat.json", f"{arn}/runs/*/reports/*"]),
    )


def _allow(actions: list[str], resources: list[str], condition: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"Effect": "Allow", "Action": actions, "Resource": resources} | (
        {"Condition": condition} if condition else {}
    )
