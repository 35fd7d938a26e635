"""The table of runs, their requests, timelines and jobs, with a sparse index of open runs."""

from aws_cdk import RemovalPolicy
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from constructs import Construct

from stacks.parts.permissions import READ_ITEM, WRITE_ITEM, allow, use_key

INDEX = "open"


class RunsTable(Construct):
    """Retained after the stack is deleted, with point-in-time recovery for 35 days and deletion protection."""

    def __init__(self, scope: Construct, id: str, *, key: kms.IKey) -> None:
        super().__init__(scope, id)
        self._key = key
        self.table = dynamodb.Table(
            self,
            "Table",
            partition_key=_text("pk"),
            sort_key=_text("sk"),
            billing_mode=dynamodb.BillingMode.PAY_PER_REQUEST,
            time_to_live_attribute="expires",
            encryption=dynamodb.TableEncryption.CUSTOMER_MANAGED,
            encryption_key=key,
            point_in_time_recovery_specification=dynamodb.PointInTimeRecoverySpecification(
                point_in_time_recovery_enabled=True
            ),
            deletion_protection=True,
            removal_policy=RemovalPolicy.RETAIN,
        )
        self.table.add_global_secondary_index(
            index_name=INDEX,
            partition_key=_text("open"),
            sort_key=_text("pk"),
            projection_type=dynamodb.ProjectionType.INCLUDE,
            non_key_attributes=["doc", "version", "state"],
        )

    def let_read(self, role: iam.Role) -> None:
        """Ask which runs are open, and for many items at once."""
        allow(role, "dynamodb:BatchGetItem", on=self.table.table_arn)
        self.let_list_open(role)
        use_key(role, self._key, *READ_ITEM, service="dynamodb")

    def let_list_open(self, role: iam.Role) -> None:
        """Ask which runs are open."""
        allow(role, "dynamodb:Query", on=f"{self.table.table_arn}/index/{INDEX}")

    def let_load(self, role: iam.Role) -> None:
        """Read the record of one run."""
        allow(role, "dynamodb:GetItem", on=self.table.table_arn)
        use_key(role, self._key, *READ_ITEM, service="dynamodb")

    def let_look(self, role: iam.Role) -> None:
        """Read one run with its timeline."""
        allow(role, "dynamodb:GetItem", "dynamodb:Query", on=self.table.table_arn)
        use_key(role, self._key, *READ_ITEM, service="dynamodb")

    def let_remember(self, role: iam.Role) -> None:
        """Also allow writing detector states and sweep reports, and nothing else: not the records of runs."""
        own = {"ForAllValues:StringLike": {"dynamodb:LeadingKeys": ["watch#*", "round#*"]}}
        allow(role, "dynamodb:BatchWriteItem", on=self.table.table_arn, where=own)
        use_key(role, self._key, *WRITE_ITEM, service="dynamodb")

    def let_keep_waits(self, role: iam.Role) -> None:
        """Read runs, and keep and delete the waits for them, nothing else."""
        own = {"ForAllValues:StringEquals": {"dynamodb:LeadingKeys": ["waits"]}}
        allow(role, "dynamodb:GetItem", on=self.table.table_arn)
        waits = ("dynamodb:PutItem", "dynamodb:DeleteItem", "dynamodb:Query")
        allow(role, *waits, on=self.table.table_arn, where=own)
        use_key(role, self._key, *READ_ITEM, *WRITE_ITEM, service="dynamodb")

    def let_write(self, role: iam.Role) -> None:
        """A transaction needs the actions of its parts, and those only put. Nothing is ever deleted: `expires` does."""
        allow(role, "dynamodb:GetItem", "dynamodb:PutItem", on=self.table.table_arn)
        use_key(role, self._key, *READ_ITEM, *WRITE_ITEM, service="dynamodb")


def _text(name: str) -> dynamodb.Attribute:
    return dynamodb.Attribute(name=name, type=dynamodb.AttributeType.STRING)
