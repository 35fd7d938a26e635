"""Lambda function: send notices from the bus to people. A failed notice raises: Lambda retries, then alarms."""

from typing import Any

from loading import loaded
from observability import logger, metrics, traced
from rerail.model.errors import NotSigned
from rerail.model.notice import Notice
from rerail.notices.notice import read_detail
from rerail.notices.notifiers.links import NoticeOrigin, complete_commands, make_links
from wiring import clients
from wiring.notify import make_answer_url, make_notifier, notify_settings, report_links


@logger.inject_lambda_context(clear_state=True)
@metrics.log_metrics
@traced
def handler(event: dict[str, Any], context: Any) -> None:
    notice = read_detail(event["detail"])
    origin = NoticeOrigin(event["account"], event["region"], notify_settings().docs_url)
    links = make_links(
        notice,
        origin,
        report=report_links().of(notice, origin),
        all_runs=report_links().of_all_runs(notice, origin),
        answer=_find_answer_url(notice),
    )
    make_notifier().send(complete_commands(notice, origin), links)
    metrics.add_metric(name=f"Notices.{notice.severity}", unit="Count", value=1)
    logger.info("notified", extra={"run": notice.run, "severity": notice.severity, "key": notice.key})


def _find_answer_url(notice: Notice) -> str:
    """Return the link with which the notice's proposal is answered; the page is sent also if it cannot be signed."""
    try:
        return make_answer_url(notice)
    except NotSigned:
        logger.exception("the link to answer the proposal cannot be signed", extra={"run": notice.run})
        return ""


loaded(make_notifier, report_links, clients("sns", "events"))
