"""Build the supervisor of runs and the monitor of HyperPod clusters for the `supervise` function."""

from functools import cache, partial
from secrets import token_hex

from rerail.aws.clients import set_bucket_owner
from rerail.aws.dynamodb import DynamoRuns
from rerail.aws.eventbridge import EventBus
from rerail.aws.hyperpod import DynamoClusters
from rerail.aws.mailbox import S3Mailbox
from rerail.aws.rate_limit import DynamoRateLimit
from rerail.aws.s3 import S3Checkpoints
from rerail.aws.sagemaker import SageMakerJobs
from rerail.hyperpod.clusters import ClusterMonitor
from rerail.supervisor.supervisor import Supervisor
from settings import SuperviseSettings
from wiring import now, pausable_policies


@cache
def make_supervisor() -> Supervisor:
    """Return the supervisor of runs."""
    settings = SuperviseSettings.from_environment()
    set_bucket_owner(settings.account)
    return Supervisor(
        runs=DynamoRuns(settings.table),
        jobs=SageMakerJobs(),
        checkpoints=S3Checkpoints(),
        policies=pausable_policies(settings.policy_prefix, settings.pause_parameter),
        bus=EventBus(settings.bus),
        mailbox=S3Mailbox(settings.mailbox),
        rate_limit=DynamoRateLimit(settings.table),
        clock=now,
        new_key=partial(token_hex, 32),
    )


@cache
def make_cluster_monitor() -> ClusterMonitor:
    """Return the monitor of HyperPod clusters."""
    settings = SuperviseSettings.from_environment()
    return ClusterMonitor(
        memories=DynamoClusters(settings.table),
        runs=DynamoRuns(settings.table),
        policies=pausable_policies(settings.policy_prefix, settings.pause_parameter),
        bus=EventBus(settings.bus),
        clock=now,
    )
