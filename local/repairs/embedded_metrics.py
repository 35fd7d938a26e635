"""Turns embedded metric format in log lines into CloudWatch metrics.

MiniStack stores the lines that Powertools Metrics prints and goes no further. CloudWatch extracts the metrics of any
log event that carries a CloudWatchMetrics directive.
Facts: CloudWatch user guide, "Specification: Embedded metric format".
"""

import json
import logging
from typing import Any

from ministack.services import cloudwatch, cloudwatch_logs

logger = logging.getLogger("local.embedded_metrics")


def apply() -> None:
    stock = cloudwatch_logs._append_log_events

    def append(stream: dict[str, Any], events: list[dict[str, Any]]) -> None:
        stock(stream, events)
        for event in events:
            if event["message"].startswith("{") and '"_aws"' in event["message"]:
                extract(event["message"])

    cloudwatch_logs._append_log_events = append


def extract(line: str) -> None:
    """Store what the directives of one line declare; a line that breaks the specification yields nothing, as on AWS."""
    try:
        document = json.loads(line)
        for directive in document["_aws"]["CloudWatchMetrics"]:
            _store(document, directive, document["_aws"]["Timestamp"] / 1000)
    except (ValueError, KeyError, TypeError):
        logger.warning("not embedded metric format: %.200s", line)


def _store(document: dict[str, Any], directive: dict[str, Any], timestamp: float) -> None:
    for names in directive.get("Dimensions") or [[]]:
        dimensions = {name: str(document[name]) for name in names}
        for metric in directive["Metrics"]:
            value = document[metric["Name"]]
            values = [float(item) for item in (value if isinstance(value, list) else [value])]
            cloudwatch._store_datum(
                directive["Namespace"], metric["Name"], dimensions, timestamp, metric.get("Unit", "None"),
                None, values, None, None,
            )  # fmt: skip
