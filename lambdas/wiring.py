"""Which adapter answers which port: the only place where the core meets AWS."""

from datetime import UTC, datetime
from functools import cache

from rerail.actions import Severity
from rerail.aws.brake import DynamoBrake
from rerail.aws.cloudwatch import CloudWatchSeries
from rerail.aws.dynamodb import DynamoRuns
from rerail.aws.eventbridge import EventBus
from rerail.aws.mailbox import S3Mailbox
from rerail.aws.memories import DynamoMemories
from rerail.aws.s3 import S3Checkpoints
from rerail.aws.sagemaker import SageMakerJobs
from rerail.aws.sns import SnsTopics
from rerail.aws.sqs import SqsQueue
from rerail.aws.ssm import SsmPolicies, SsmSwitch
from rerail.loop import Supervisor
from rerail.rounds import Round
from rerail.switch import SwitchedPolicies
from rerail.watching import Watching
from settings import NotifySettings, SuperviseSettings, SweepSettings


def now() -> datetime:
    """The only clock."""
    return datetime.now(UTC)


@cache
def supervisor() -> Supervisor:
    """The loop, for `supervise`."""
    settings = SuperviseSettings.from_environment()
    return Supervisor(
        runs=DynamoRuns(settings.table),
        jobs=SageMakerJobs(),
        checkpoints=S3Checkpoints(),
        policies=_policies(settings.policy_prefix, settings.switch),
        bus=EventBus(settings.bus),
        mailbox=S3Mailbox(settings.mailbox),
        brake=DynamoBrake(settings.table),
        clock=now,
    )


@cache
def minute_round() -> Round:
    """The round, for `sweep`."""
    settings = SweepSettings.from_environment()
    return Round(
        runs=DynamoRuns(settings.table),
        jobs=SageMakerJobs(),
        checkpoints=S3Checkpoints(),
        policies=_policies(settings.policy_prefix, settings.switch),
        watching=Watching(CloudWatchSeries(), DynamoMemories(settings.table)),
        mailbox=S3Mailbox(settings.mailbox),
        queue=SqsQueue(settings.queue_url),
        clock=now,
    )


def _policies(prefix: str, switch: str) -> SwitchedPolicies:
    return SwitchedPolicies(SsmPolicies(prefix, now), SsmSwitch(switch, now))


@cache
def topics() -> SnsTopics:
    """The topics, for `notify`."""
    settings = NotifySettings.from_environment()
    return SnsTopics({Severity.PAGE: settings.page_topic, Severity.INFORM: settings.inform_topic})
