"""People: SNS topics for pages and for information, as e-mail and for chat."""

import json
from collections.abc import Mapping

from rerail.aws.clients import client
from rerail.model.actions import Severity
from rerail.notices.notice import Notice
from rerail.notices.notifiers.chat import as_chat
from rerail.notices.notifiers.email import as_subject, as_text
from rerail.notices.notifiers.links import Links


class SnsTopics:
    """Says a notice on the topic of its severity, as text for people or, where `chat`, for Amazon Q Developer."""

    def __init__(self, topics: Mapping[Severity, str], *, chat: bool = False) -> None:
        self._topics = topics
        self._chat = chat

    def say(self, notice: Notice, links: Links) -> None:
        """All of it in one message; raises KeyError where no topic is there for the severity."""
        message = json.dumps(as_chat(notice, links)) if self._chat else as_text(notice, links)
        told = {"run": notice.run, "severity": notice.severity.value, "key": notice.key}
        client("sns").publish(
            TopicArn=self._topics[notice.severity],
            Subject=as_subject(notice),
            Message=message,
            MessageAttributes={
                name: {"DataType": "String", "StringValue": value} for name, value in told.items() if value
            },
        )
