"""Give an event the time that its sender wrote.

MiniStack stamps every event with the moment PutEvents was called and drops the entry's `Time`. AWS carries the entry's
`Time` (to the second) and uses its own clock only where the entry has none. Signals are dated by it.
"""

import json
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

from ministack.services import eventbridge

Answer = tuple[int, dict[str, str], bytes]
_given: ContextVar[float | None] = ContextVar("given_event_time", default=None)


def apply() -> None:
    stock_put, stock_now = eventbridge._put_events, eventbridge._now_ts

    def put_one(entry: dict[str, Any], allow_aws_source: bool) -> Answer:
        token = _given.set(as_epoch(entry.get("Time")))
        try:
            answer: Answer = stock_put({"Entries": [entry]}, allow_aws_source)
            return answer
        finally:
            _given.reset(token)

    def put_events(data: dict[str, Any], allow_aws_source: bool = False) -> Answer:
        entries = data.get("Entries", [])
        if len(entries) > 10 or not any("Time" in entry for entry in entries):
            answer: Answer = stock_put(data, allow_aws_source)
            return answer
        answers = [put_one(entry, allow_aws_source) for entry in entries]
        bodies = [json.loads(answer[2]) for answer in answers]
        merged = {
            "FailedEntryCount": sum(body["FailedEntryCount"] for body in bodies),
            "Entries": [result for body in bodies for result in body["Entries"]],
        }
        return answers[0][0], answers[0][1], json.dumps(merged).encode()

    def now() -> float:
        given = _given.get()
        return stock_now() if given is None else given

    eventbridge._put_events = put_events
    eventbridge._now_ts = now


def as_epoch(given: Any) -> float | None:
    """Epoch seconds of a `Time` as an SDK or a service sends it, or None where there is none."""
    if isinstance(given, datetime):
        return given.timestamp()
    if isinstance(given, str):
        parsed = datetime.fromisoformat(given.replace("Z", "+00:00"))
        return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()
    return float(given) if isinstance(given, int | float) else None
