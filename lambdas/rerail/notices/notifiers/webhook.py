"""A notice as JSON for any receiver of your own: docs/notice.schema.json says what stands in it."""

from typing import Any

from rerail.notices.notice import Notice, as_detail
from rerail.notices.notifiers.links import Links
from rerail.notices.notifiers.text import clean_text

VERSION = 1


def as_webhook(notice: Notice, links: Links) -> dict[str, Any]:
    """Every field of the notice, and its links; text is for reading, and free of control characters."""
    detail = {name: clean_text(value) if isinstance(value, str) else value for name, value in as_detail(notice).items()}
    shown = {"report": links.report, "runbook": links.runbook, "console": links.console, "show": links.show}
    return {"version": VERSION, "source": "rerail", **detail, "links": shown}
