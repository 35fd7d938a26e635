"""Forward agents' reports from the mailbox to their own queue."""

from aws_cdk import aws_kms as kms
from aws_cdk import aws_sns as sns
from constructs import Construct

from stacks.parts.mailbox import EVERY_REPORT, JobMailbox
from stacks.parts.queue_rule import QueueRule
from stacks.parts.signals_queue import SignalsQueue


class Reports(QueueRule):
    """The rule on the account's default bus: new reports, and neither commands nor heartbeats."""

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        mailbox: JobMailbox,
        signals: SignalsQueue,
        key: kms.IKey,
        page: sns.ITopic,
    ) -> None:
        super().__init__(
            scope,
            id,
            pattern={
                "source": ["aws.s3"],
                "detail-type": ["Object Created"],
                "detail": {
                    "bucket": {"name": [mailbox.bucket.bucket_name]},
                    "object": {"key": [{"wildcard": EVERY_REPORT}]},
                },
            },
            description="Rerail: reports of agents in training jobs",
            signals=signals,
            key=key,
            page=page,
        )
