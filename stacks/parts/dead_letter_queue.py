"""A dead-letter queue with its alarm, for messages that could not be delivered or handled."""

from aws_cdk import Duration, Fn, RemovalPolicy
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from rerail.model.runbooks import Runbook
from stacks.parts.alarms import MINUTE, page_when_above
from stacks.parts.permissions import acknowledge


class DeadLetterQueue(Construct):
    """Keeps messages for two weeks, also after the stack is deleted, and pages while it is not empty."""

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        key: kms.IKey,
        page: sns.ITopic,
        of: str,
        runbook: Runbook = Runbook.DEAD_LETTERS,
    ) -> None:
        """Make the queue; `of` names its source in "the dead-letter queue of ... is not empty"."""
        super().__init__(scope, id)
        self.of = of
        self._page, self._rules = page, 0
        self.queue = sqs.Queue(
            self,
            "Queue",
            encryption_master_key=key,
            enforce_ssl=True,
            retention_period=Duration.days(14),
            removal_policy=RemovalPolicy.RETAIN_ON_UPDATE_OR_DELETE,
        )
        acknowledge(self, "AwsSolutions-SQS3", reason="This is the dead-letter queue of a rule, schedule or function.")
        page_when_above(
            self,
            "Letters",
            metric=self.queue.metric_approximate_number_of_messages_visible(period=MINUTE, statistic="Maximum"),
            page=page,
            text=f"Rerail: the dead-letter queue of {of} is not empty. Inspect the messages, fix the cause, redrive.",
            runbook=runbook,
        )

    def accept_from_rule(self, rule_arn: str, *, bus: str | None = None) -> None:
        """Let EventBridge send undeliverable events of that rule to this queue; `bus` is the rule's, if it is ours."""
        self.queue.add_to_resource_policy(send_from_rule(self.queue, rule_arn))
        self.watch_rule(rule_arn, bus=bus)

    def watch_rule(self, rule_arn: str, *, bus: str | None = None) -> None:
        """Page for an event that EventBridge can send neither to the rule's target nor to this queue: it is lost."""
        self._rules += 1
        # `arn:...:rule/<rule>`, or `arn:...:rule/<bus>/<rule>`.
        dimensions = {"RuleName": Fn.select(2 if bus else 1, Fn.split("/", rule_arn))}
        page_when_above(
            self,
            "Lost" if self._rules == 1 else f"Lost{self._rules}",
            metric=cloudwatch.Metric(
                namespace="AWS/Events",
                metric_name="InvocationsFailedToBeSentToDlq",
                dimensions_map=dimensions | ({"EventBusName": bus} if bus else {}),
                statistic="Sum",
                period=MINUTE,
            ),
            page=self._page,
            text=f"Rerail: an event of {self.of} could neither be delivered nor be kept: it is lost. Check that the "
            "queue's policy and its key allow EventBridge.",
            runbook=Runbook.EVENTS_DROPPED,
        )


def send_from_rule(queue: sqs.IQueue, rule_arn: str) -> iam.PolicyStatement:
    """Return a statement that lets EventBridge send to the queue on behalf of that rule alone."""
    return iam.PolicyStatement(
        principals=[iam.ServicePrincipal("events.amazonaws.com")],
        actions=["sqs:SendMessage"],
        resources=[queue.queue_arn],
        conditions={"ArnEquals": {"aws:SourceArn": rule_arn}},
    )
