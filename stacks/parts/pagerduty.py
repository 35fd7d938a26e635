"""PagerDuty: pages and all-clears as events of its API, each with the routing key of the account's integration."""

from aws_cdk import SecretValue
from aws_cdk import aws_events as events
from aws_cdk import aws_kms as kms
from aws_cdk import aws_sns as sns
from constructs import Construct

from rerail.notices.notifiers.targets import PAGERDUTY
from stacks.options import DeploymentOptions
from stacks.parts.bus import RerailBus
from stacks.parts.own_alarms import forward_own_alarms
from stacks.parts.receiver import ReceiverRule

# An integration takes 120 events a minute.
PER_SECOND = 2
ALARM_BEGUN = {
    "event_action": "trigger",
    "dedup_key": "alarm/<name>",
    "payload": {
        "summary": "<says>",
        "source": "rerail",
        "severity": "critical",
        "component": "<name>",
        "class": "alarm",
        "timestamp": "<at>",
        "custom_details": {"what happened": "<reason>", "in a terminal": "rerail doctor"},
    },
    "client": "Rerail",
}
ALARM_OVER = {"event_action": "resolve", "dedup_key": "alarm/<name>"}


class PagerDuty(ReceiverRule):
    """The Events API v2. The routing key is put in where the event leaves: neither the bus nor a function sees it."""

    TARGET = PAGERDUTY

    @staticmethod
    def is_configured(options: DeploymentOptions) -> bool:
        """Return whether the options ask for this target."""
        return bool(options.pagerduty_secret)

    def __init__(
        self, scope: Construct, id: str, *, options: DeploymentOptions, bus: RerailBus, key: kms.IKey, page: sns.ITopic
    ) -> None:
        routing_key = SecretValue.secrets_manager(options.pagerduty_secret)
        connection = events.Connection(
            scope,
            "PagerDutyConnection",
            description="Rerail: the routing key of PagerDuty",
            # EventBridge asks for an authorization; this header means the same to PagerDuty as the key in the body.
            authorization=events.Authorization.api_key("X-Routing-Key", routing_key),
            body_parameters={"routing_key": events.HttpParameter.from_secret(routing_key)},
        )
        super().__init__(
            scope,
            id,
            bus=bus,
            target=self.TARGET,
            connection=connection,
            url=options.pagerduty_url,
            per_second=PER_SECOND,
            key=key,
            page=page,
        )
        forward_own_alarms(self, begun=ALARM_BEGUN, over=ALARM_OVER)
