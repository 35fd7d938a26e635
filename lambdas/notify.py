"""Notices from the bus to people. A notice that cannot be told raises, so that Lambda tries again and then alarms."""

from typing import Any

from observability import logger, metrics, traced
from wiring import topics


@logger.inject_lambda_context(clear_state=True)
@metrics.log_metrics
@traced
def handler(event: dict[str, Any], context: Any) -> None:
    notice = event["detail"]
    topics().say(notice)
    metrics.add_metric(name=f"Notices.{notice['severity']}", unit="Count", value=1)
    logger.info("told", extra={"run": notice["run"], "severity": notice["severity"], "key": notice["key"]})
