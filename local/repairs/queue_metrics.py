"""Publish the depth and age of every queue in AWS/SQS.

MiniStack publishes no AWS/SQS metrics, so an alarm on a dead-letter queue stays silent. AWS samples each queue about
once a minute; here a change is published within two seconds, and an unchanged value once a minute. As on AWS, a message
that was received three times has no age until it is deleted.
"""

import logging
import threading
import time
from typing import Any

from ministack.core.responses import request_scope
from ministack.services import cloudwatch, sqs

LOOK_EVERY_S = 2.0
REPEAT_EVERY_S = 60.0
# A message that was received so often is left out of the age.
MOST_RECEIVES = 3

logger = logging.getLogger("local.queue_metrics")
_published: dict[tuple[str, str, str, str], tuple[float, float]] = {}


def apply() -> None:
    threading.Thread(target=_watch, name="queue-metrics", daemon=True).start()


def _watch() -> None:
    while True:
        time.sleep(LOOK_EVERY_S)
        try:
            publish_all()
        except Exception:
            logger.exception("queue metrics")


def publish_all() -> None:
    """Publish the metrics of every queue of every account and region once."""
    for (account, region, _url), queue in list(sqs._queues._data.items()):
        with request_scope(account, region):
            for metric, value in depths(queue).items():
                _publish(account, region, queue["name"], metric, value)


def depths(queue: dict[str, Any]) -> dict[str, float]:
    now = time.time()
    messages = list(queue["messages"])
    visible = [message for message in messages if message.get("visible_at", now) <= now]
    in_flight = [message for message in messages if message not in visible and message.get("receive_count", 0)]
    aging = [message for message in messages if message.get("receive_count", 0) < MOST_RECEIVES]
    oldest = min((message.get("sent_at", now) for message in aging), default=now)
    return {
        "ApproximateNumberOfMessagesVisible": len(visible),
        "ApproximateNumberOfMessagesNotVisible": len(in_flight),
        # In steps of ten seconds, so that growing older is not a change at every look.
        "ApproximateAgeOfOldestMessage": (now - oldest) // 10 * 10,
    }


def _publish(account: str, region: str, queue: str, metric: str, value: float) -> None:
    key = (account, region, queue, metric)
    before, when = _published.get(key, (None, 0.0))
    if value != before or time.monotonic() - when >= REPEAT_EVERY_S:
        unit = "Seconds" if metric == "ApproximateAgeOfOldestMessage" else "Count"
        cloudwatch.record_metric("AWS/SQS", metric, value, unit, {"QueueName": queue})
        _published[key] = (value, time.monotonic())
