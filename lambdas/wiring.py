"""Which adapter answers which port: the only place where the core meets AWS."""

from datetime import UTC, datetime
from functools import cache, partial

from rerail.actions import Severity
from rerail.aws.brake import DynamoBrake
from rerail.aws.cloudwatch import CloudWatchSeries
from rerail.aws.dynamodb import DynamoRuns
from rerail.aws.eventbridge import EventBus, Receiver
from rerail.aws.hyperpod import DynamoHyperPods
from rerail.aws.logs import CloudWatchLogs
from rerail.aws.mailbox import S3Mailbox
from rerail.aws.memories import DynamoMemories
from rerail.aws.pages import S3Pages
from rerail.aws.report_links import ReportLinks
from rerail.aws.s3 import S3Checkpoints
from rerail.aws.sagemaker import SageMakerJobs
from rerail.aws.sns import SnsTopics
from rerail.aws.sqs import SqsQueue
from rerail.aws.ssm import SsmPolicies, SsmSwitch
from rerail.hyperpod import HyperPodWatch
from rerail.loop import Supervisor
from rerail.rounds import Round
from rerail.story.gather import Gathering
from rerail.story.reporter import Reporter
from rerail.switch import SwitchedPolicies
from rerail.telling.pagerduty import as_pagerduty
from rerail.telling.voice import Voice, Way
from rerail.telling.webhook import as_webhook
from rerail.wakeups import FOR_PAGER, FOR_WEBHOOK
from rerail.watching import Watching
from settings import NotifySettings, ReportSettings, SuperviseSettings, SweepSettings


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
def hyperpod_watch() -> HyperPodWatch:
    """The loop for HyperPod clusters, for `supervise`."""
    settings = SuperviseSettings.from_environment()
    return HyperPodWatch(
        memories=DynamoHyperPods(settings.table),
        runs=DynamoRuns(settings.table),
        policies=_policies(settings.policy_prefix, settings.switch),
        bus=EventBus(settings.bus),
        clock=now,
    )


@cache
def minute_round() -> Round:
    """The round, for `sweep`."""
    settings = SweepSettings.from_environment()
    policies = _policies(settings.policy_prefix, settings.switch)
    return Round(
        runs=DynamoRuns(settings.table),
        jobs=SageMakerJobs(),
        checkpoints=S3Checkpoints(),
        policies=policies,
        watching=Watching(CloudWatchSeries(), DynamoMemories(settings.table)),
        mailbox=S3Mailbox(settings.mailbox),
        queue=SqsQueue(settings.queue_url),
        clock=now,
        switch=policies.switch,
        hyperpods=DynamoHyperPods(settings.table),
    )


@cache
def reporter() -> Reporter:
    """The incident reports, for `report`."""
    # The other functions have no layer with what it draws with, and shall not pay for loading it.
    from report_page.page import drawn_page

    settings = ReportSettings.from_environment()
    return Reporter(
        gathering=Gathering(
            runs=DynamoRuns(settings.table),
            policies=SsmPolicies(settings.policy_prefix, now),
            series=CloudWatchSeries(),
            logs=CloudWatchLogs(),
            checkpoints=S3Checkpoints(),
            clock=now,
        ),
        draws=partial(drawn_page, docs_url=settings.docs_url, region=settings.region),
        pages=S3Pages(settings.reports),
    )


def _policies(prefix: str, switch: str) -> SwitchedPolicies:
    return SwitchedPolicies(SsmPolicies(prefix, now), SsmSwitch(switch, now))


@cache
def notify_settings() -> NotifySettings:
    """What `notify` is told by its environment."""
    return NotifySettings.from_environment()


@cache
def report_links() -> ReportLinks:
    """Where the reports are, for `notify`."""
    settings = notify_settings()
    return ReportLinks(settings.reports, signed=settings.report_links != "console")


@cache
def voice() -> Voice:
    """Every way to tell a notice that is set up, for `notify`; all-clears go where pages go."""
    settings = notify_settings()
    ways: list[tuple[str, Way]] = [("e-mail", _topics(settings.page_topic, settings.inform_topic).say)]
    if settings.chat_page_topic:
        ways.append(("chat", _topics(settings.chat_page_topic, settings.chat_inform_topic, chat=True).say))
    if settings.pager:
        ways.append(("PagerDuty", Receiver(settings.bus, FOR_PAGER, as_pagerduty).send))
    if settings.webhook:
        ways.append(("webhook", Receiver(settings.bus, FOR_WEBHOOK, as_webhook).send))
    return Voice(ways)


def _topics(page: str, inform: str, *, chat: bool = False) -> SnsTopics:
    return SnsTopics({Severity.PAGE: page, Severity.CLEAR: page, Severity.INFORM: inform}, chat=chat)
