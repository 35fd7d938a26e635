"""Build the sweep of the `sweep` function."""

from functools import cache

from rerail.aws.clients import set_bucket_owner
from rerail.aws.cloudwatch import CloudWatchSeries
from rerail.aws.detector_states import DynamoDetections
from rerail.aws.dynamodb import DynamoRuns
from rerail.aws.hyperpod import DynamoClusters
from rerail.aws.mailbox import S3Mailbox
from rerail.aws.s3 import S3Checkpoints
from rerail.aws.sagemaker import SageMakerJobs
from rerail.aws.shards import InvokedShards
from rerail.aws.sqs import SqsQueue
from rerail.detection.evaluate import Monitor
from rerail.sweep.sweep import Sweep
from settings import SweepSettings
from wiring import now, pausable_policies


@cache
def make_sweep() -> Sweep:
    """Return the sweep."""
    settings = SweepSettings.from_environment()
    set_bucket_owner(settings.account)
    policies = pausable_policies(settings)
    return Sweep(
        runs=DynamoRuns(settings.table),
        jobs=SageMakerJobs(),
        checkpoints=S3Checkpoints(is_allowed=not settings.observe_only),
        policies=policies,
        monitor=Monitor(CloudWatchSeries(), DynamoDetections(settings.table)),
        mailbox=S3Mailbox(settings.mailbox),
        queue=SqsQueue(settings.queue_url),
        clock=now,
        pause=policies.pause,
        clusters=DynamoClusters(settings.table),
        shards=InvokedShards(settings.table),
    )
