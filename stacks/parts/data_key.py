"""The customer-managed key that encrypts the table, the queues and the topics.

SNS, SQS, DynamoDB and Scheduler use it with the permissions of their caller (see `use_key`). Only services that
write to our queues and topics under their own name need a line in the key's policy."""

from aws_cdk import Aws, RemovalPolicy
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from constructs import Construct

from stacks.parts.permissions import SEND_MESSAGE

SENDERS = ("events.amazonaws.com", "cloudwatch.amazonaws.com")


class DataKey(kms.Key):
    """Rotated each year; kept when the stack goes, because the table is kept too."""

    def __init__(self, scope: Construct, id: str) -> None:
        super().__init__(
            scope,
            id,
            description="Rerail: runs, signals and notices at rest",
            enable_key_rotation=True,
            removal_policy=RemovalPolicy.RETAIN,
        )
        for sender in SENDERS:
            self.add_to_resource_policy(
                iam.PolicyStatement(
                    sid=f"Send{sender.split('.')[0].title()}",
                    principals=[iam.ServicePrincipal(sender)],
                    actions=list(SEND_MESSAGE),
                    resources=["*"],  # in a key's policy: this key
                    conditions={"StringEquals": {"aws:SourceAccount": Aws.ACCOUNT_ID}},
                )
            )
