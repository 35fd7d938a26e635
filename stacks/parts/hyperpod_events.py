"""Forward health events of the account's HyperPod clusters from the default bus to the queue of commands."""

from aws_cdk import aws_kms as kms
from aws_cdk import aws_sns as sns
from constructs import Construct

from stacks.parts.queue_rule import QueueRule
from stacks.parts.signals_queue import SignalsQueue

KIND = "SageMaker HyperPod Cluster"


def _event(**details: object) -> dict[str, object]:
    return {"detail-type": [f"{KIND} Event"], "detail": {"EventDetails": details}}


# Of the many events of a cluster at work only its troubles, and what may end them: a thousand nodes that are patched
# must not stand before a job that died.
PATTERN = {
    "source": ["aws.sagemaker"],
    "$or": [
        {"detail-type": [f"{KIND} State Change", f"{KIND} Node Health Event"]},
        _event(EventLevel=["Warn", "Error"]),
        _event(Description=[{"wildcard": "*completed successfully*"}, {"prefix": "Termination of EC2 Instance"}]),
    ],
}


class HyperPodEvents(QueueRule):
    """The rule on the account's default bus."""

    def __init__(self, scope: Construct, id: str, *, signals: SignalsQueue, key: kms.IKey, page: sns.ITopic) -> None:
        super().__init__(
            scope,
            id,
            pattern=PATTERN,
            description="Rerail: HyperPod clusters that have something to say",
            signals=signals,
            key=key,
            page=page,
        )
