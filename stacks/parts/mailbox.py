"""The mailbox: the bucket through which the supervisor and the agents of running jobs exchange messages."""

from aws_cdk import Aws, Duration
from aws_cdk import aws_iam as iam
from aws_cdk import aws_s3 as s3
from constructs import Construct

from rerail.model.mailbox import (
    NONCE_LENGTH,
    make_bucket_name,
    make_change_key,
    make_command_key,
    make_heartbeat_key,
    make_report_id,
    make_report_key,
)
from stacks.parts.closed_bucket import closed_bucket
from stacks.parts.permissions import acknowledge, allow

EVERY_CHANGE = make_change_key("*", "*")
EVERY_COMMAND, EVERY_HEARTBEAT, EVERY_REPORT = make_command_key("*"), make_heartbeat_key("*"), make_report_key("*", "*")
EVERY_REPORT_WRITTEN_ONCE = make_report_key("*", make_report_id("*", "?" * NONCE_LENGTH))
# No job runs for more than 28 days.
KEPT = Duration.days(30)
ANY_RUN = "Runs are named by the jobs that ask to be supervised; which ones do is not known here."


class JobMailbox(Construct):
    """Encrypted with S3's own key, so that a training role needs no permission for a key, and for TLS only.

    The name is a function of account and region, because the agent derives it from its job's ARN. For the same reason
    a bucket that outlived its stack stands in the way of a new one; a deployment that fails leaves none behind.
    """

    def __init__(self, scope: Construct, id: str) -> None:
        super().__init__(scope, id)
        name = make_bucket_name(Aws.ACCOUNT_ID, Aws.REGION)
        self._arn = f"arn:{Aws.PARTITION}:s3:::{name}"
        self.bucket = closed_bucket(self, name=name, rule="OldMail", kept=KEPT)
        _announce_to_event_bridge(self.bucket)
        self._let_nobody_take_mail_away()
        self._deny_overwriting_reports()
        reason = "Messages of a few hundred bytes, gone after 30 days; each says which job wrote it, and when."
        acknowledge(self.bucket, "AwsSolutions-S1", reason=reason)

    def let_command(self, role: iam.Role) -> None:
        """Only this role writes commands: a training role that may use the bucket could else command other jobs."""
        allow(role, "s3:PutObject", on=self._objects(EVERY_COMMAND), because=ANY_RUN)
        self.bucket.add_to_resource_policy(
            iam.PolicyStatement(
                sid="OnlyTheSupervisorCommands",
                effect=iam.Effect.DENY,
                principals=[iam.AnyPrincipal()],
                actions=["s3:PutObject", "s3:DeleteObject"],
                resources=[self._objects(EVERY_COMMAND)],
                conditions={"ArnNotEquals": {"aws:PrincipalArn": role.role_arn}},
            )
        )

    def _let_nobody_take_mail_away(self) -> None:
        """The lifecycle alone removes reports and heartbeats: a user of the bucket could otherwise silence a job."""
        self.bucket.add_to_resource_policy(
            iam.PolicyStatement(
                sid="NobodyTakesMailAway",
                effect=iam.Effect.DENY,
                principals=[iam.AnyPrincipal()],
                actions=["s3:DeleteObject", "s3:DeleteObjectVersion"],
                resources=[self._objects(EVERY_HEARTBEAT), self._objects(EVERY_REPORT)],
            )
        )

    def _deny_overwriting_reports(self) -> None:
        """Deny writes to existing reports: a role that may write into the bucket could replace one before it is read.

        Agents of the previous version write names without a nonce, and write them unconditionally.
        """
        self.bucket.add_to_resource_policy(
            iam.PolicyStatement(
                sid="ReportsAreWrittenOnce",
                effect=iam.Effect.DENY,
                principals=[iam.AnyPrincipal()],
                # Multipart uploads and copies, which cannot have the condition, are refused too.
                actions=["s3:PutObject"],
                resources=[self._objects(EVERY_REPORT_WRITTEN_ONCE)],
                conditions={"Null": {"s3:if-none-match": "true"}},
            )
        )

    def let_read_reports(self, role: iam.Role) -> None:
        self._let_read(role, EVERY_REPORT)

    def let_read_changes(self, role: iam.Role) -> None:
        self._let_read(role, EVERY_CHANGE)

    def let_read_heartbeats(self, role: iam.Role) -> None:
        self._let_read(role, EVERY_HEARTBEAT)

    def _let_read(self, role: iam.Role, keys: str) -> None:
        allow(role, "s3:GetObject", on=self._objects(keys), because=ANY_RUN)
        # Without permission to list a bucket a missing object is a 403 instead of a 404.
        allow(role, "s3:ListBucket", on=self._arn)

    def _objects(self, keys: str) -> str:
        return f"{self._arn}/{keys}"


def _announce_to_event_bridge(bucket: s3.Bucket) -> None:
    # The convenient property of the bucket would bring a custom resource, with a function, to set this one flag.
    plain = bucket.node.default_child
    assert isinstance(plain, s3.CfnBucket)
    enabled = s3.CfnBucket.EventBridgeConfigurationProperty(event_bridge_enabled=True)
    plain.notification_configuration = s3.CfnBucket.NotificationConfigurationProperty(
        event_bridge_configuration=enabled
    )
