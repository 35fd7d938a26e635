"""The queues of the signals for the supervisor: events, commands and the sweep's wake-ups; agents' reports apart."""

from aws_cdk import Duration
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from stacks.parts.alarms import OldMessages
from stacks.parts.dead_letter_queue import DeadLetterQueue, send_from_rule
from stacks.parts.permissions import SEND_MESSAGE, allow, use_key

# Of the function that is fed from here: ten signals, each with a few calls that may be throttled.
TIMEOUT = Duration.seconds(60)
TRIES = 5


class SignalsQueue(Construct):
    """Standard, not FIFO: a signal is only a wake-up, so order and repetition do not matter.

    `of` names its consumer in the alarm on its dead letters, `what` a message in the alarm on old ones."""

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        key: kms.IKey,
        page: sns.ITopic,
        of: str = "the supervisor",
        what: str = "a signal",
    ) -> None:
        super().__init__(scope, id)
        self._key = key
        self.dead_letters = DeadLetterQueue(self, "DeadLetters", key=key, page=page, of=of)
        self.queue = sqs.Queue(
            self,
            "Queue",
            encryption_master_key=key,
            enforce_ssl=True,
            # Lambda asks for at least six times the function's timeout, or a batch comes back while it is worked on.
            visibility_timeout=Duration.seconds(6 * TIMEOUT.to_seconds()),
            retention_period=Duration.days(4),
            dead_letter_queue=sqs.DeadLetterQueue(queue=self.dead_letters.queue, max_receive_count=TRIES),
        )
        OldMessages(self, "Stale", queue=self.queue, page=page, of=f"{what} for supervise")

    def accept_from_rule(self, rule_arn: str) -> None:
        """Let EventBridge put here what that rule matches."""
        self.queue.add_to_resource_policy(send_from_rule(self.queue, rule_arn))

    def let_send(self, role: iam.Role) -> None:
        allow(role, "sqs:SendMessage", on=self.queue.queue_arn)
        use_key(role, self._key, *SEND_MESSAGE, service="sqs")
