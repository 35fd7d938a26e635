"""Functions that succeed, fail and dawdle, and tell a queue what they were given."""

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import boto3

NAME = os.environ["NAME"]
queue = boto3.client("sqs")


def send(what: dict[str, Any]) -> None:
    queue.send_message(QueueUrl=os.environ["SEEN"], MessageBody=json.dumps({"function": NAME, **what}))


def record(event: dict[str, Any], context: Any) -> dict[str, str]:
    send({"event": event})
    return dict(os.environ)


def fail(event: dict[str, Any], context: Any) -> None:
    send({"event": event})
    time.sleep(event["detail"].get("seconds", 0))
    raise ValueError("no luck")


def flaky(event: dict[str, Any], context: Any) -> None:
    """Fails the first time it is given an event."""
    send({"event": event})
    marker = Path(tempfile.gettempdir()) / event["id"]
    if not marker.exists():
        marker.touch()
        raise ValueError("not yet")


def slow(event: dict[str, Any], context: Any) -> None:
    number, seconds = event["detail"]["number"], event["detail"].get("seconds", 0.05)
    send({"began": number, "pid": os.getpid()})
    time.sleep(seconds)
    send({"number": number})


def consume(event: dict[str, Any], context: Any) -> dict[str, Any]:
    began = time.time()
    bodies = [json.loads(record["body"]) for record in event["Records"]]
    time.sleep(max((body.get("seconds", 0) for body in bodies), default=0))
    send({"bodies": bodies, "began": began, "ended": time.time(), "pid": os.getpid()})
    failed = [record["messageId"] for record in event["Records"] if json.loads(record["body"]).get("fail")]
    return {"batchItemFailures": [{"itemIdentifier": id} for id in failed]}
