"""A notice as an event of PagerDuty's Events API v2: pages trigger, all-clears resolve, by the key of the page.

What only informs is not sent: whatever the severity, an event of this API is an alert, and opens an incident."""

from hashlib import sha256
from typing import Any

from rerail.model.actions import Severity
from rerail.notices.notice import Notice, truncate
from rerail.notices.notifiers.links import Links
from rerail.notices.notifiers.text import clean_text, format_cost, format_deadline, format_state

SUMMARY_LIMIT, KEY_LIMIT = 1_024, 255


def as_pagerduty(notice: Notice, links: Links) -> dict[str, Any] | None:
    """The body to be sent, without the routing key, which is put in where it leaves; None where there is none."""
    match notice.severity:
        case Severity.PAGE:
            return _trigger(notice, links)
        case Severity.CLEAR:
            return {"event_action": "resolve", "dedup_key": _key(notice.clears)}
        case Severity.INFORM:
            return None


def _trigger(notice: Notice, links: Links) -> dict[str, Any]:
    payload: dict[str, Any] = {
        "summary": truncate(" ".join(clean_text(notice.title).split()), SUMMARY_LIMIT) or "Rerail",
        "source": clean_text(notice.job or notice.run) or "rerail",
        "severity": "critical",
        "component": clean_text(notice.run),
        "group": "sagemaker",
        "class": notice.runbook.value,
        "custom_details": _details(notice, links),
    }
    if notice.at:
        payload["timestamp"] = notice.at.isoformat()
    event: dict[str, Any] = {
        "event_action": "trigger",
        "dedup_key": _key(notice.key),
        "payload": payload,
        "client": "Rerail",
        "links": [{"href": address, "text": name} for name, address in links.addresses],
    }
    if opened := links.report or links.console:
        event["client_url"] = opened
    return event


def _details(notice: Notice, links: Links) -> dict[str, Any]:
    """In the order in which they are read."""
    said = {
        "what happened": clean_text(notice.body),
        "what to do": clean_text(notice.todo),
        "by when": format_deadline(notice),
        "what Rerail did": clean_text(notice.did),
        "since": notice.since.isoformat() if notice.since else "",
        "cost so far": format_cost(notice),
        "where": clean_text(format_state(notice)),
        "runbook": links.runbook,
        "in a terminal": links.show,
    }
    return {name: value for name, value in said.items() if value}


def _key(key: str) -> str:
    """The same for the same key; one that is too long is told apart by its digest."""
    key = clean_text(key)
    return key if len(key) <= KEY_LIMIT else f"{key[: KEY_LIMIT - 17]}-{sha256(key.encode()).hexdigest()[:16]}"
