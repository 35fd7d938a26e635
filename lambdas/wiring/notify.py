"""Build the channels and links of the `notify` function."""

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
    """Return the settings from the environment."""
    return NotifySettings.from_environment()


@cache
def report_links() -> ReportLinks:
    """Return the links to incident reports."""
    settings = notify_settings()
    return ReportLinks(settings.reports, signed=settings.report_links != "console")


@cache
def voice() -> Notifier:
    """Return the notifier with all configured channels; all-clears go where pages go."""
    settings = notify_settings()
    channels: list[tuple[str, Channel]] = [("e-mail", _topics(settings.page_topic, settings.inform_topic).say)]
    if settings.chat_page_topic:
        channels.append(("chat", _topics(settings.chat_page_topic, settings.chat_inform_topic, chat=True).say))
    if settings.pager:
        channels.append(("PagerDuty", Receiver(settings.bus, FOR_PAGER, as_pagerduty).send))
    if settings.webhook:
        channels.append(("webhook", Receiver(settings.bus, FOR_WEBHOOK, as_webhook).send))
    return Notifier(channels)


def _topics(page: str, inform: str, *, chat: bool = False) -> SnsTopics:
    return SnsTopics({Severity.PAGE: page, Severity.CLEAR: page, Severity.INFORM: inform}, chat=chat)
