"""Notices on the bus `rerail`, for our own function and for anyone's rules."""

import json
from datetime import datetime

from rerail.actions import Tell
from rerail.aws.clients import client
from rerail.wakeups import NOTICE, RERAIL


class EventBus:
    """The port `Bus` on EventBridge."""

    def __init__(self, name: str) -> None:
        self._name = name

    def publish(self, notice: Tell, *, run: str, at: datetime) -> None:
        detail = {
            "run": run,
            "severity": notice.severity.value,
            "title": notice.title,
            "body": notice.body,
            "key": notice.key,
        }
        entry = {
            "EventBusName": self._name,
            "Source": RERAIL,
            "DetailType": NOTICE,
            "Time": at,
            "Detail": json.dumps(detail),
        }
        answer = client("events").put_events(Entries=[entry])
        if answer["FailedEntryCount"]:
            raise RuntimeError(f"the notice {notice.key} was not accepted: {answer['Entries'][0].get('ErrorMessage')}")
