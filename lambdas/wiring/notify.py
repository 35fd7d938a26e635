"""What `notify` is made of: every way to tell people something, and the links that a notice carries."""

from functools import cache

from rerail.aws.eventbridge import Receiver
from rerail.aws.report_links import ReportLinks
from rerail.aws.sns import SnsTopics
from rerail.messages.messages import FOR_PAGER, FOR_WEBHOOK
from rerail.model.actions import Severity
from rerail.notices.notifiers.notifier import Channel, Notifier
from rerail.notices.notifiers.pagerduty import as_pagerduty
from rerail.notices.notifiers.webhook import as_webhook
from settings import NotifySettings


@cache
def notify_settings() -> NotifySettings:
    """What `notify` is told by its environment."""
    return NotifySettings.from_environment()


@cache
def report_links() -> ReportLinks:
    """Where the reports are."""
    settings = notify_settings()
    return ReportLinks(settings.reports, signed=settings.report_links != "console")


@cache
def voice() -> Notifier:
    """Every way to tell a notice that is set up; all-clears go where pages go."""
    settings = notify_settings()
    ways: list[tuple[str, Channel]] = [("e-mail", _topics(settings.page_topic, settings.inform_topic).say)]
    if settings.chat_page_topic:
        ways.append(("chat", _topics(settings.chat_page_topic, settings.chat_inform_topic, chat=True).say))
    if settings.pager:
        ways.append(("PagerDuty", Receiver(settings.bus, FOR_PAGER, as_pagerduty).send))
    if settings.webhook:
        ways.append(("webhook", Receiver(settings.bus, FOR_WEBHOOK, as_webhook).send))
    return Notifier(ways)


def _topics(page: str, inform: str, *, chat: bool = False) -> SnsTopics:
    return SnsTopics({Severity.PAGE: page, Severity.CLEAR: page, Severity.INFORM: inform}, chat=chat)
