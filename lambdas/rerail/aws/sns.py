"""People: one SNS topic for pages, one for information."""

from collections.abc import Mapping
from typing import Any

from rerail.actions import Severity
from rerail.aws.clients import client

SUBJECT_LIMIT = 100


class SnsTopics:
    """Says a notice on the topic of its severity."""

    def __init__(self, topics: Mapping[Severity, str]) -> None:
        self._topics = topics

    def say(self, notice: Mapping[str, Any]) -> None:
        """The detail of a `Rerail Notice` event as a message; raises KeyError where a field is missing."""
        client("sns").publish(
            TopicArn=self._topics[Severity(notice["severity"])],
            Subject=_subject(notice["title"]),
            Message=f"{notice['body']}\n\nrerail show {notice['run']}",
            MessageAttributes={
                name: {"DataType": "String", "StringValue": notice[name]} for name in ("run", "severity", "key")
            },
        )


def _subject(title: str) -> str:
    # SNS refuses a subject with line breaks, control or non-ASCII characters, or of more than 100.
    plain = "".join(c if " " <= c <= "~" else " " for c in title).strip()
    return plain[:SUBJECT_LIMIT] or "Rerail"
