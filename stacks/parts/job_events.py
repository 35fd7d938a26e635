"""Forward every state change of every training job to the signals queue."""

from aws_cdk import aws_kms as kms
from aws_cdk import aws_sns as sns
from constructs import Construct

from stacks.parts.queue_rule import QueueRule
from stacks.parts.signals_queue import SignalsQueue

# No filter on status or tags: the event is a hint, the form of its tags is not dependable, the supervisor ignores
# what is not supervised.
PATTERN = {"source": ["aws.sagemaker"], "detail-type": ["SageMaker Training Job State Change"]}


class JobEvents(QueueRule):
    """The rule on the account's default bus."""

    def __init__(self, scope: Construct, id: str, *, signals: SignalsQueue, key: kms.IKey, page: sns.ITopic) -> None:
        super().__init__(
            scope,
            id,
            pattern=PATTERN,
            description="Rerail: SageMaker training jobs that change state",
            signals=signals,
            key=key,
            page=page,
        )
