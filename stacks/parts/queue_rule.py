"""An EventBridge rule that sends matching events to a queue of signals, with a dead-letter queue."""

from collections.abc import Mapping
from typing import Any

from aws_cdk import Aws
from aws_cdk import aws_events as events
from aws_cdk import aws_kms as kms
from aws_cdk import aws_sns as sns
from constructs import Construct

from stacks.parts.dead_letter_queue import DeadLetterQueue
from stacks.parts.signals_queue import SignalsQueue

DAY_S = 86400
RETRIES = 185


class QueueRule(Construct):
    """Matches events of this account alone.

    It uses the L1 resource, because the L2 target would also put wildcard actions in the key's policy."""

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        pattern: Mapping[str, Any],
        description: str,
        signals: SignalsQueue,
        key: kms.IKey,
        page: sns.ITopic,
        bus: events.IEventBus | None = None,
    ) -> None:
        super().__init__(scope, id)
        dead_letters = DeadLetterQueue(self, "DeadLetters", key=key, page=page, of=f"the rule {id}")
        self.rule = events.CfnRule(
            self,
            "Rule",
            description=description,
            event_bus_name=bus.event_bus_name if bus else None,
            event_pattern={"account": [Aws.ACCOUNT_ID], **pattern},
            targets=[
                events.CfnRule.TargetProperty(
                    id="Signals",
                    arn=signals.queue.queue_arn,
                    dead_letter_config=events.CfnRule.DeadLetterConfigProperty(arn=dead_letters.queue.queue_arn),
                    retry_policy=events.CfnRule.RetryPolicyProperty(
                        maximum_event_age_in_seconds=DAY_S, maximum_retry_attempts=RETRIES
                    ),
                )
            ],
        )
        signals.accept_from_rule(self.rule.attr_arn)
        dead_letters.accept_from_rule(self.rule.attr_arn, bus=bus.event_bus_name if bus else None)
