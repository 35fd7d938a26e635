"""Format a notice as JSON for any HTTPS receiver; docs/notice.schema.json is its schema."""

from typing import Any

from rerail.model.notice import Notice
from rerail.notices.notice import format_detail
from rerail.notices.notifiers.links import Links
from rerail.notices.notifiers.text import clean_text

VERSION = 1


def format_webhook(notice: Notice, links: Links) -> dict[str, Any]:
    """Return all fields of the notice, with text cleaned, and its links."""
    detail = {key: clean_text(text) if isinstance(text, str) else text for key, text in format_detail(notice).items()}
    urls = {"report": links.report, "runbook": links.runbook, "console": links.console, "show": links.show}
    return {"version": VERSION, "source": "rerail", **detail, "links": urls}
