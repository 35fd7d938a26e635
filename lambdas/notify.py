"""Lambda function: send notices from the bus to people. A failed notice raises: Lambda retries, then alarms."""

from typing import Any

from loading import loaded
from observability import logger, metrics, traced
from rerail.notices.notice import read_detail
from rerail.notices.notifiers.links import NoticeOrigin, make_links
from wiring import clients
from wiring.notify import make_notifier, notify_settings, report_links


@logger.inject_lambda_context(clear_state=True)
@metrics.log_metrics
@traced
def handler(event: dict[str, Any], context: Any) -> None:
    notice = read_detail(event["detail"])
    origin = NoticeOrigin(event["account"], event["region"], notify_settings().docs_url)
    make_notifier().send(notice, make_links(notice, origin, report=report_links().of(notice, origin)))
    metrics.add_metric(name=f"Notices.{notice.severity}", unit="Count", value=1)
    logger.info("notified", extra={"run": notice.run, "severity": notice.severity, "key": notice.key})


loaded(make_notifier, report_links, clients("sns", "events"))
