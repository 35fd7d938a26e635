"""Forward the runs' events from the bus `rerail` to another bus: the account's default one, or the hub's."""

from aws_cdk import Aws
from aws_cdk import aws_events as events
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_sns as sns
from constructs import Construct

from stacks.parts.bus import RerailBus
from stacks.parts.dead_letter_queue import DeadLetterQueue
from stacks.parts.permissions import allow
from stacks.parts.queue_rule import DAY_S, RETRIES

PATTERN = {"source": ["rerail"], "detail-type": ["Rerail Run State Change"]}


class ForwardedRunEvents(Construct):
    """A rule whose target is the other bus, with the role that may put events there."""

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        bus: RerailBus,
        key: kms.IKey,
        page: sns.ITopic,
        to: str = "",
        name: str = "the default bus",
    ) -> None:
        """`to` is the ARN of the other bus, without it the account's default bus; `name` is what people call it."""
        super().__init__(scope, id)
        target = to or f"arn:{Aws.PARTITION}:events:{Aws.REGION}:{Aws.ACCOUNT_ID}:event-bus/default"
        ours = {"StringEquals": {"aws:SourceAccount": Aws.ACCOUNT_ID}}
        role = iam.Role(self, "Role", assumed_by=iam.ServicePrincipal("events.amazonaws.com", conditions=ours))
        allow(role, "events:PutEvents", on=target)
        of = "the rule that forwards run events" + (f" to {name}" if to else "")
        dead_letters = DeadLetterQueue(self, "DeadLetters", key=key, page=page, of=of)
        rule = events.CfnRule(
            self,
            "Rule",
            description=f"Rerail: state changes of runs for {name}",
            event_bus_name=bus.bus.event_bus_name,
            event_pattern=PATTERN,
            targets=[
                events.CfnRule.TargetProperty(
                    id="OtherBus" if to else "DefaultBus",
                    arn=target,
                    role_arn=role.role_arn,
                    dead_letter_config=events.CfnRule.DeadLetterConfigProperty(arn=dead_letters.queue.queue_arn),
                    retry_policy=events.CfnRule.RetryPolicyProperty(
                        maximum_event_age_in_seconds=DAY_S, maximum_retry_attempts=RETRIES
                    ),
                )
            ],
        )
        dead_letters.accept_from_rule(rule.attr_arn, bus=bus.bus.event_bus_name)
