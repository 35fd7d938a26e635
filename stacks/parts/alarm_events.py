"""Users' own CloudWatch alarms on metrics of training jobs, from the default bus to the queue of commands."""

from aws_cdk import aws_kms as kms
from aws_cdk import aws_sns as sns
from constructs import Construct

from stacks.parts.queue_rule import QueueRule
from stacks.parts.signals_queue import SignalsQueue

# Only alarms on metrics with a dimension that names a training job.


def _with(dimension: str) -> dict[str, object]:
    return {"configuration": {"metrics": {"metricStat": {"metric": {"dimensions": {dimension: [{"exists": True}]}}}}}}


PATTERN = {
    "source": ["aws.cloudwatch"],
    "detail-type": ["CloudWatch Alarm State Change"],
    "detail": {"state": {"value": ["ALARM"]}, "$or": [_with("TrainingJobName"), _with("Host")]},
}


class AlarmEvents(QueueRule):
    """The rule on the account's default bus."""

    def __init__(self, scope: Construct, id: str, *, signals: SignalsQueue, key: kms.IKey, page: sns.ITopic) -> None:
        super().__init__(
            scope,
            id,
            pattern=PATTERN,
            description="Rerail: alarms on metrics of training jobs",
            signals=signals,
            key=key,
            page=page,
        )
