"""The account and region that a deployment goes to, and with whose permissions."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, NoRegionError, ProfileNotFound

from cli import place
from cli.place import client
from cli.project import read_choices
from local.deploy import QUALIFIER, QUALIFIER_CHOICE
from local.stack import LocalAws, LocalAwsError

LOGGED_OUT = ("ExpiredToken", "ExpiredTokenException", "InvalidClientTokenId", "UnrecognizedClientException")
BOOTSTRAP = "/cdk-bootstrap/${Qualifier}/version"
# The roles of a bootstrap, before a synthesis names them. Who deploys needs nothing but to assume them; where that is
# not allowed, the caller's own permissions count.
_OF_THE_BOOTSTRAP = (
    "arn:${AWS::Partition}:iam::${AWS::AccountId}:role/cdk-${Qualifier}-%s-${AWS::AccountId}-${AWS::Region}"
)
DEPLOY_ROLE, EXECUTION_ROLE, LOOKUP_ROLE = (
    _OF_THE_BOOTSTRAP % kind for kind in ("deploy-role", "cfn-exec-role", "lookup-role")
)
# What a bootstrap must at least be for the roles that the assembly names.
LEAST_BOOTSTRAP = 6


@dataclass(frozen=True, slots=True)
class Target:
    """`who` is the ARN of the caller. `aws` is the local AWS, where it is that."""

    account: str
    region: str
    who: str
    partition: str = "aws"
    profile: str = ""
    aws: LocalAws | None = None
    # Of the CDK's bootstrap, in its names.
    qualifier: str = QUALIFIER
    _sessions: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def is_local(self) -> bool:
        return self.aws is not None

    @property
    def name(self) -> str:
        return f"account {self.account}, region {self.region}" + (", the local AWS" if self.is_local else "")

    def client(self, service: str, *, role: str = "") -> Any:
        """Return a client with the caller's permissions, or with the bootstrap's `role` if it may be assumed."""
        session = self._in_role(self.fill(role)) if role else None
        return session.client(service) if session else client(service)

    def may_act_as(self, role: str) -> bool:
        return self._in_role(self.fill(role)) is not None

    def fill(self, text: str) -> str:
        """Return a text of the assembly with account, region, partition and qualifier filled in."""
        values = {"AccountId": self.account, "Region": self.region, "Partition": self.partition}
        for name, value in values.items():
            text = text.replace(f"${{AWS::{name}}}", value)
        return text.replace("${Qualifier}", self.qualifier)

    def _in_role(self, role: str) -> Any:
        # Asked again while it is refused: a bootstrap may make the role in between.
        if not self.is_local and (session := self._sessions.get(role) or _assumed(role, self.region)):
            self._sessions[role] = session
        return self._sessions.get(role)

    def read_bootstrap_version(self) -> int:
        """Return the version of the CDK's bootstrap; 0 if there is none."""
        try:
            ssm = self.client("ssm", role=LOOKUP_ROLE)
            return int(ssm.get_parameter(Name=self.fill(BOOTSTRAP))["Parameter"]["Value"])
        except ClientError as error:
            if error.response["Error"]["Code"] == "ParameterNotFound":
                return 0
            raise


def _assumed(role: str, region: str) -> Any:
    import boto3

    try:
        answer = client("sts").assume_role(RoleArn=role, RoleSessionName="rerail-deploy")["Credentials"]
    except ClientError:
        # As the CDK does: an identity that may not assume the role may still have the permissions itself.
        return None
    return boto3.Session(answer["AccessKeyId"], answer["SecretAccessKey"], answer["SessionToken"], region_name=region)


def find(*, local: bool, profile: str, region: str) -> Target:
    """Return the target; exit with status 2 if it cannot be determined."""
    if local:
        return _local()
    chosen: Mapping[str, str] = {"AWS_PROFILE": profile, "AWS_REGION": region, "AWS_DEFAULT_REGION": region}
    os.environ |= {name: value for name, value in chosen.items() if value}
    place.forget_clients()
    try:
        sts = client("sts")
        identity = sts.get_caller_identity()
    except ProfileNotFound as error:
        place.fail(f"--profile {profile}: {error}", "`aws configure list-profiles` lists those that there are")
    except NoRegionError:
        place.fail("no AWS region is set", "give --region, or set AWS_REGION")
    except NoCredentialsError:
        place.fail("no AWS credentials were found", "give --profile, or log in: `aws sso login`, `aws configure`")
    except ClientError as error:
        code = error.response["Error"]["Code"]
        remedy = "log in again: `aws sso login`" if code in LOGGED_OUT else "check --profile and your credentials"
        place.fail(f"AWS does not know you: {error}", remedy)
    except BotoCoreError as error:
        place.fail(f"AWS cannot be asked who you are: {error}", "check --profile, --region and the network")
    qualifier = str(read_choices().get(QUALIFIER_CHOICE) or QUALIFIER)
    account, region, arn = identity["Account"], sts.meta.region_name, identity["Arn"]
    return Target(account, region, arn, arn.split(":")[1], profile, qualifier=qualifier)


def _local() -> Target:
    try:
        aws = LocalAws.attach(place.LOCAL_STATE)
    except LocalAwsError:
        place.fail("no local AWS is running here", "start one with `rerail local up`, or leave --local out")
    place.use_local(aws.endpoint_url)
    identity = client("sts").get_caller_identity()
    return Target(identity["Account"], client("sts").meta.region_name, identity["Arn"], aws=aws)
