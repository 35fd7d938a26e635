"""What `sweep` is made of: the round."""

from functools import cache

from rerail.aws.cloudwatch import CloudWatchSeries
from rerail.aws.detector_states import DynamoMemories
from rerail.aws.dynamodb import DynamoRuns
from rerail.aws.hyperpod import DynamoHyperPods
from rerail.aws.mailbox import S3Mailbox
from rerail.aws.s3 import S3Checkpoints
from rerail.aws.sagemaker import SageMakerJobs
from rerail.aws.shards import InvokedShares
from rerail.aws.sqs import SqsQueue
from rerail.detection.evaluate import Watching
from rerail.sweep.sweep import Round
from settings import SweepSettings
from wiring import now, pausable_policies


@cache
def minute_round() -> Round:
    """The round."""
    settings = SweepSettings.from_environment()
    policies = pausable_policies(settings.policy_prefix, settings.pause_parameter)
    return Round(
        runs=DynamoRuns(settings.table),
        jobs=SageMakerJobs(),
        checkpoints=S3Checkpoints(),
        policies=policies,
        watching=Watching(CloudWatchSeries(), DynamoMemories(settings.table)),
        mailbox=S3Mailbox(settings.mailbox),
        queue=SqsQueue(settings.queue_url),
        clock=now,
        pause=policies.pause,
        hyperpods=DynamoHyperPods(settings.table),
        shares=InvokedShares(settings.table),
    )
