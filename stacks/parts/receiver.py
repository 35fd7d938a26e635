"""A receiver outside AWS: an HTTPS endpoint with its rule, and a dead-letter queue for failed deliveries."""

from collections.abc import Mapping
from typing import Any

from aws_cdk import Aws, Duration
from aws_cdk import aws_events as events
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_sns as sns
from constructs import Construct

from rerail.model.runbooks import Runbook
from rerail.notices.notifiers.targets import NotificationTarget
from stacks.parts.bus import RerailBus
from stacks.parts.dead_letter_queue import DeadLetterQueue
from stacks.parts.permissions import allow

# A page that arrives a quarter of an hour late is worth less than the alarm that says that pages do not arrive.
AGE = Duration.minutes(15)
RETRIES = 185


class ReceiverRule(Construct):
    """Sends the detail of each event of one type, as it is: the publisher wrote it for this receiver.

    Rule, destination and connection are EventBridge's: it retries 401, 407, 409, 429 and 5xx, and what is refused
    otherwise, or too old, lies in the dead-letter queue, whose alarm pages."""

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        bus: RerailBus,
        target: NotificationTarget,
        connection: events.Connection,
        url: str,
        per_second: int,
        key: kms.IKey,
        page: sns.ITopic,
    ) -> None:
        """`per_second` is the most that is sent."""
        super().__init__(scope, id)
        destination = events.ApiDestination(
            self,
            "Destination",
            connection=connection,
            endpoint=url,
            http_method=events.HttpMethod.POST,
            rate_limit_per_second=per_second,
            description=f"Rerail: notices for {target.name}",
        )
        self._arn = destination.api_destination_arn
        ours = {"StringEquals": {"aws:SourceAccount": Aws.ACCOUNT_ID}}
        self._role = iam.Role(self, "Role", assumed_by=iam.ServicePrincipal("events.amazonaws.com", conditions=ours))
        allow(self._role, "events:InvokeApiDestination", on=self._arn)
        self._dead_letters = DeadLetterQueue(
            self, "DeadLetters", key=key, page=page, of=f"the rule for {target.name}", runbook=Runbook.UNDELIVERED
        )
        self.add_rule(
            "Rule",
            pattern={"source": ["rerail"], "detail-type": [target.detail_type]},
            description=f"Rerail: notices for {target.name}",
            bus=bus,
            input_path="$.detail",
        )

    def add_rule(
        self,
        id: str,
        *,
        pattern: Mapping[str, Any],
        description: str,
        bus: RerailBus | None = None,
        **shape: Any,
    ) -> None:
        """Add a rule that sends to this receiver; `shape` selects the part of the event, or transforms it."""
        rule = events.CfnRule(
            self,
            id,
            description=description,
            event_bus_name=bus.bus.event_bus_name if bus else None,
            event_pattern=pattern,
            targets=[
                events.CfnRule.TargetProperty(
                    id="Receiver",
                    arn=self._arn,
                    role_arn=self._role.role_arn,
                    dead_letter_config=events.CfnRule.DeadLetterConfigProperty(arn=self._dead_letters.queue.queue_arn),
                    retry_policy=events.CfnRule.RetryPolicyProperty(
                        maximum_event_age_in_seconds=AGE.to_seconds(), maximum_retry_attempts=RETRIES
                    ),
                    **shape,
                )
            ],
        )
        self._dead_letters.accept_from_rule(rule.attr_arn, bus=bus.bus.event_bus_name if bus else None)
