"""The queue of commands, to which only EventBridge may write, and the rule that forwards operators' commands to it."""

from aws_cdk import Aws
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_sns as sns
from constructs import Construct

from stacks.parts.bus import RerailBus
from stacks.parts.queue_rule import QueueRule
from stacks.parts.signals_queue import SignalsQueue

PATTERN = {"source": ["rerail.operator"], "detail-type": ["Rerail Command"]}


class CommandQueue(SignalsQueue):
    """The queue of operators' commands, users' alarms and cluster events; it denies every sender but EventBridge."""

    def __init__(self, scope: Construct, id: str, *, key: kms.IKey, page: sns.ITopic) -> None:
        super().__init__(
            scope, id, key=key, page=page, of="the supervisor for commands", what="a command, alarm or cluster event"
        )
        rules = f"arn:{Aws.PARTITION}:events:{Aws.REGION}:{Aws.ACCOUNT_ID}:rule/*"
        statement = iam.PolicyStatement(
            effect=iam.Effect.DENY,
            principals=[iam.AnyPrincipal()],
            actions=["sqs:SendMessage"],
            resources=[self.queue.queue_arn],
            # A user's or role's own request has no source, so that this denies it too.
            conditions={"ArnNotLike": {"aws:SourceArn": rules}},
        )
        self.queue.add_to_resource_policy(statement)


class CommandRule(QueueRule):
    """The rule on the bus `rerail`; anyone with events:PutEvents on it may send commands."""

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        bus: RerailBus,
        signals: SignalsQueue,
        key: kms.IKey,
        page: sns.ITopic,
    ) -> None:
        super().__init__(
            scope,
            id,
            pattern=PATTERN,
            description="Rerail: commands of operators",
            signals=signals,
            key=key,
            page=page,
            bus=bus.bus,
        )
