"""A webhook: sends each notice as JSON with an `Authorization` header from a secret."""

from aws_cdk import SecretValue
from aws_cdk import aws_events as events
from aws_cdk import aws_kms as kms
from aws_cdk import aws_sns as sns
from constructs import Construct

from rerail.notices.notifiers.targets import WEBHOOK
from stacks.options import DeploymentOptions
from stacks.parts.bus import RerailBus
from stacks.parts.own_alarms import forward_own_alarms
from stacks.parts.receiver import ReceiverRule

PER_SECOND = 10
# In the form of every other notice: docs/notice.schema.json.
ALARM = {
    "version": 1,
    "source": "rerail",
    "run": "",
    "thread": "rerail",
    "title": "Rerail itself: alarm <name>",
    "at": "<at>",
    "runbook": "unhealthy",
    "links": {"report": "", "runbook": "docs/runbooks/unhealthy.md", "console": "", "show": "rerail doctor"},
}
ALARM_BEGUN = {**ALARM, "severity": "page", "key": "alarm/<name>", "body": "<says> <reason>"}
ALARM_OVER = {**ALARM, "severity": "clear", "key": "alarm/<name>/clear", "clears": "alarm/<name>", "body": "<reason>"}


class Webhook(ReceiverRule):
    """Any HTTPS endpoint that answers within five seconds."""

    TARGET = WEBHOOK

    @staticmethod
    def is_configured(options: DeploymentOptions) -> bool:
        """Return whether the options ask for this target."""
        return bool(options.webhook_url)

    def __init__(
        self, scope: Construct, id: str, *, options: DeploymentOptions, bus: RerailBus, key: kms.IKey, page: sns.ITopic
    ) -> None:
        connection = events.Connection(
            scope,
            "WebhookConnection",
            description="Rerail: the webhook's authorization",
            authorization=events.Authorization.api_key(
                "Authorization", SecretValue.secrets_manager(options.webhook_secret)
            ),
        )
        super().__init__(
            scope,
            id,
            bus=bus,
            target=self.TARGET,
            connection=connection,
            url=options.webhook_url,
            per_second=PER_SECOND,
            key=key,
            page=page,
        )
        forward_own_alarms(self, begun=ALARM_BEGUN, over=ALARM_OVER)
