"""Build the supervisor of runs and the monitor of HyperPod clusters for the `supervise` function."""

import json
from collections.abc import Mapping, Sequence
from functools import cache, partial
from secrets import token_hex
from typing import Any

from rerail.aws.clients import set_bucket_owner
from rerail.aws.dynamodb import DynamoRuns
from rerail.aws.eventbridge import EventBus
from rerail.aws.hyperpod import DynamoClusters
from rerail.aws.logs import CloudWatchLogs
from rerail.aws.mailbox import S3Mailbox
from rerail.aws.rate_limit import DynamoRateLimit
from rerail.aws.s3 import S3Checkpoints
from rerail.aws.sagemaker import SageMakerJobs
from rerail.hyperpod.clusters import ClusterMonitor
from rerail.messages.messages import Message, check_queue, parse_message
from rerail.supervisor.supervisor import Supervisor
from settings import SuperviseSettings
from wiring import now, pausable_policies

# Out of the timeout of one minute for ten messages: a listing and a quarantine take no longer (aws/folder_listing.py).
MESSAGE_MS = 25_000


class NoTimeLeft(Exception):
    """The invocation ends soon; SQS delivers the message again."""


def check_time(context: Any) -> None:
    """Raise NoTimeLeft if the invocation may end before another message is handled."""
    if context.get_remaining_time_in_millis() < MESSAGE_MS:
        raise NoTimeLeft("the messages before have taken most of the time; this one is delivered again")


def read_message(body: str, *, queue: str) -> Message:
    """Return the message; raise BadMessage, or ForgedMessage for a command from another queue than theirs."""
    message = parse_message(body)
    check_queue(message, queue, commands=SuperviseSettings.from_environment().commands)
    return message


@cache
def make_supervisor() -> Supervisor:
    """Return the supervisor of runs."""
    settings = SuperviseSettings.from_environment()
    set_bucket_owner(settings.account)
    return Supervisor(
        runs=DynamoRuns(settings.table),
        jobs=SageMakerJobs(),
        checkpoints=S3Checkpoints(is_allowed=not settings.observe_only),
        policies=pausable_policies(settings),
        bus=EventBus(settings.bus),
        mailbox=S3Mailbox(settings.mailbox),
        rate_limit=DynamoRateLimit(settings.table),
        clock=now,
        logs=CloudWatchLogs(),
        new_key=partial(token_hex, 32),
        reports=settings.reports,
        quarantine_folders=read_quarantine_folders(settings.quarantine_folders),
        observe_only=settings.observe_only,
    )


def read_quarantine_folders(text: str) -> Mapping[str, Sequence[str]]:
    """Return the folders by role ARN; what cannot be read permits nothing."""
    try:
        table = json.loads(text)
    except ValueError:
        return {}
    listed = table.items() if isinstance(table, dict) else ()
    return {role: tuple(map(str, folders)) for role, folders in listed if isinstance(folders, list)}


@cache
def make_cluster_monitor() -> ClusterMonitor:
    """Return the monitor of HyperPod clusters."""
    settings = SuperviseSettings.from_environment()
    return ClusterMonitor(
        memories=DynamoClusters(settings.table),
        runs=DynamoRuns(settings.table),
        policies=pausable_policies(settings),
        bus=EventBus(settings.bus),
        clock=now,
    )
