"""Send wake-ups to the supervisor's queue, in the format of EventBridge events."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from rerail.aws.clients import client
from rerail.aws.validation import truncate
from rerail.messages.messages import SWEEP, WAKE

BATCH = 10


class SqsQueue:
    """The port `Queue` on SQS."""

    def __init__(self, url: str) -> None:
        self._url = url

    def wake(self, messages: Sequence[Mapping[str, Any]], *, at: datetime) -> None:
        for start in range(0, len(messages), BATCH):
            entries = []
            for number, message in enumerate(messages[start : start + BATCH]):
                body = {"source": SWEEP, "detail-type": WAKE, "time": at.isoformat(), "detail": dict(message)}
                entries.append({"Id": str(number), "MessageBody": json.dumps(body)})
            answer = client("sqs").send_message_batch(QueueUrl=self._url, Entries=entries)
            if failed := answer.get("Failed"):
                why = truncate(str((failed[0] or {}).get("Message", "SQS gave no reason")))
                raise RuntimeError(f"{len(failed)} wake-ups were not accepted; reason of the first: {why}")
