"""Forward the runs' events from the bus `rerail` to the account's default bus, for rules of other teams."""

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
    """A rule whose target is the default bus, with the role that may put events there."""

    def __init__(self, scope: Construct, id: str, *, bus: RerailBus, key: kms.IKey, page: sns.ITopic) -> None:
        super().__init__(scope, id)
        default_bus = f"arn:{Aws.PARTITION}:events:{Aws.REGION}:{Aws.ACCOUNT_ID}:event-bus/default"
        ours = {"StringEquals": {"aws:SourceAccount": Aws.ACCOUNT_ID}}
        role = iam.Role(self, "Role", assumed_by=iam.ServicePrincipal("events.amazonaws.com", conditions=ours))
        allow(role, "events:PutEvents", on=default_bus)
        dead_letters = DeadLetterQueue(self, "DeadLetters", key=key, page=page, of="the rule that forwards run events")
        rule = events.CfnRule(
            self,
            "Rule",
            description="Rerail: state changes of runs for the default bus",
            event_bus_name=bus.bus.event_bus_name,
            event_pattern=PATTERN,
            targets=[
                events.CfnRule.TargetProperty(
                    id="DefaultBus",
                    arn=default_bus,
                    role_arn=role.role_arn,
                    dead_letter_config=events.CfnRule.DeadLetterConfigProperty(arn=dead_letters.queue.queue_arn),
                    retry_policy=events.CfnRule.RetryPolicyProperty(
                        maximum_event_age_in_seconds=DAY_S, maximum_retry_attempts=RETRIES
                    ),
                )
            ],
        )
        dead_letters.accept_from_rule(rule.attr_arn, bus=bus.bus.event_bus_name)
