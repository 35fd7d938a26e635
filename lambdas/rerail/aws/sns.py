"""Publish notices on SNS topics, as text for e-mail or as messages for chat."""

import json
from collections.abc import Mapping

from rerail.aws.clients import client
from rerail.model.actions import Severity
from rerail.model.notice import Notice
from rerail.notices.notifiers.chat import format_chat
from rerail.notices.notifiers.email import format_subject, format_text
from rerail.notices.notifiers.links import Links


class SnsTopics:
    """Publishes each notice on the topic of its severity, as text or, with `chat`, for Amazon Q Developer."""

    def __init__(self, topics: Mapping[Severity, str], *, chat: bool = False) -> None:
        self._topics = topics
        self._chat = chat

    def publish(self, notice: Notice, links: Links) -> None:
        """Publish the notice in one message. Raises KeyError if there is no topic for its severity."""
        message = json.dumps(format_chat(notice, links)) if self._chat else format_text(notice, links)
        attributes = {"run": notice.run, "severity": notice.severity.value, "key": notice.key}
        client("sns").publish(
            TopicArn=self._topics[notice.severity],
            Subject=format_subject(notice),
            Message=message,
            MessageAttributes={
                name: {"DataType": "String", "StringValue": value} for name, value in attributes.items() if value
            },
        )
