"""Means to wait for what the emulator does in its own time, and to read the sample stack's queues."""

import json
import time
from collections.abc import Callable
from typing import Any, TypeVar

from local.stack import LocalAws

Answer = TypeVar("Answer")
HANG_S = 120.0  # ends a wait for what never comes


def eventually(look: Callable[[], Answer], within_s: float = HANG_S) -> Answer:
    """The first truthy answer; the last one, whatever it is, after `within_s`."""
    deadline = time.monotonic() + within_s
    while not (answer := look()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return answer


class Mailbox:
    """Reads a queue of the sample stack and keeps what it read."""

    def __init__(self, aws: LocalAws, name: str) -> None:
        self.sqs, self.url = aws.client("sqs"), aws.outputs[f"{name}Url"]
        self.messages: list[dict[str, Any]] = []

    def read(self) -> list[dict[str, Any]]:
        answer = self.sqs.receive_message(
            QueueUrl=self.url, MaxNumberOfMessages=10, MessageAttributeNames=["All"], WaitTimeSeconds=0
        )
        for message in answer.get("Messages", []):
            attributes = {name: item["StringValue"] for name, item in message.get("MessageAttributes", {}).items()}
            self.messages.append({"body": json.loads(message["Body"]), "attributes": attributes})
            self.sqs.delete_message(QueueUrl=self.url, ReceiptHandle=message["ReceiptHandle"])
        return self.messages

    def find(self, wanted: Callable[[dict[str, Any]], bool], count: int = 1, within_s: float = HANG_S) -> list[Any]:
        """The messages that are wanted, as soon as there are `count` of them; those there are after `within_s`."""

        def look() -> list[dict[str, Any]]:
            return [message for message in self.read() if wanted(message)]

        eventually(lambda: len(look()) >= count, within_s)
        return look()


def put_event(aws: LocalAws, kind: str, **detail: Any) -> None:
    entry = {"Source": "test", "DetailType": kind, "Detail": json.dumps(detail), "EventBusName": "sample"}
    answer = aws.client("events").put_events(Entries=[entry])
    assert answer["FailedEntryCount"] == 0
