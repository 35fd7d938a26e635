"""Build the channels and links of the `notify` function."""

from functools import cache

from rerail.aws.eventbridge import Receiver
from rerail.aws.report_links import ReportLinks
from rerail.aws.signing_key import SigningKey
from rerail.aws.sns import SnsTopics
from rerail.model.actions import Severity
from rerail.model.notice import Notice
from rerail.notices.answer_links import AnswerLink
from rerail.notices.notifiers.notifier import Channel, Notifier
from rerail.notices.notifiers.targets import NOTIFIERS
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


def make_answer_url(notice: Notice) -> str:
    """Return the signed link of a page that asks for an approval; "" for other notices, and if links are off."""
    settings = notify_settings()
    link = AnswerLink.of(notice) if settings.answer_url else None
    return link.format_url(settings.answer_url, SigningKey(settings.answer_key).sign(link.message)) if link else ""


@cache
def make_notifier() -> Notifier:
    """Return the notifier with all configured channels; all-clears go where pages go."""
    settings = notify_settings()
    channels: list[tuple[str, Channel]] = [("e-mail", _topics(settings.page_topic, settings.inform_topic).publish)]
    if settings.chat_page_topic:
        channels.append(("chat", _topics(settings.chat_page_topic, settings.chat_inform_topic, chat=True).publish))
    configured = settings.targets.split(",")
    for target in NOTIFIERS:
        if target.name in configured:
            channels.append((target.name, Receiver(settings.bus, target.detail_type, target.format).send))
    return Notifier(channels)


def _topics(page: str, inform: str, *, chat: bool = False) -> SnsTopics:
    return SnsTopics({Severity.PAGE: page, Severity.CLEAR: page, Severity.INFORM: inform}, chat=chat)
