"""Publish notices, run events and commands on the bus `rerail`."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from rerail.aws.clients import client
from rerail.aws.validation import truncate
from rerail.messages.messages import COMMAND, NOTICE, OPERATOR, RERAIL, RUN_STATE_CHANGE
from rerail.model.notice import Notice
from rerail.model.run_event import RunEvent, format_run_event
from rerail.notices.notice import format_detail
from rerail.notices.notifiers.links import Links


class EventBus:
    """The port `Bus` on EventBridge."""

    def __init__(self, name: str) -> None:
        self._name = name

    def publish(self, notice: Notice) -> None:
        self.put(NOTICE, format_detail(notice), of=notice)

    def publish_change(self, event: RunEvent) -> None:
        detail = json.dumps(format_run_event(event))
        entry = {"Source": RERAIL, "DetailType": RUN_STATE_CHANGE, "Detail": detail, "Time": event.at}
        self._put(entry, f"event {event.id}")

    def send_command(self, detail: Mapping[str, Any]) -> None:
        """Put an operator's command on the bus. Raises RuntimeError if the bus rejects it."""
        entry = {"Source": OPERATOR, "DetailType": COMMAND, "Detail": json.dumps(detail)}
        self._put(entry, f"command {detail.get('verb')} for {detail.get('run')}")

    def put(self, detail_type: str, detail: Mapping[str, Any], *, of: Notice) -> None:
        """Put one event about the notice on the bus. Raises RuntimeError if the bus rejects it."""
        entry: dict[str, Any] = {"Source": RERAIL, "DetailType": detail_type, "Detail": json.dumps(detail)}
        if of.at:
            entry["Time"] = of.at
        self._put(entry, f"notice {of.key}")

    def _put(self, entry: Mapping[str, Any], what: str) -> None:
        answer = client("events").put_events(Entries=[{"EventBusName": self._name, **entry}])
        entries = answer.get("Entries") or [{}]
        first: Mapping[str, Any] = entries[0] or {}
        if not first.get("EventId"):
            why = truncate(str(first.get("ErrorMessage")))
            raise RuntimeError(f"the {what} was not accepted: {why}")


Rendering = Callable[[Notice, Links], Mapping[str, Any] | None]


class Receiver:
    """A receiver outside AWS: a rule on the bus forwards the detail of events of this type to it unchanged."""

    def __init__(self, bus: str, detail_type: str, rendering: Rendering) -> None:
        self._bus = EventBus(bus)
        self._detail_type = detail_type
        self._rendering = rendering

    def send(self, notice: Notice, links: Links) -> None:
        """Send the notice in the receiver's format, unless the format omits this notice."""
        body = self._rendering(notice, links)
        if body is not None:
            self._bus.put(self._detail_type, body, of=notice)
