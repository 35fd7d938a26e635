"""Format a notice as an event of PagerDuty's Events API v2: pages trigger, all-clears resolve, by the key of the page.

Notices of severity `inform` are not sent: every event of this API is an alert and opens an incident."""

from hashlib import sha256
from typing import Any

from rerail.model.actions import Severity
from rerail.model.notice import Notice
from rerail.notices.notice import truncate
from rerail.notices.notifiers.links import Links
from rerail.notices.notifiers.text import (
    clean_prose,
    clean_text,
    format_cost,
    format_deadline,
    format_state,
    list_next_steps,
)

SUMMARY_LIMIT, KEY_LIMIT = 1_024, 255


def format_pagerduty(notice: Notice, links: Links) -> dict[str, Any] | None:
    """Return the request body without the routing key, which EventBridge adds; None for a notice that only informs."""
    match notice.severity:
        case Severity.PAGE:
            return _make_trigger(notice, links)
        case Severity.CLEAR:
            return {"event_action": "resolve", "dedup_key": _dedup_key(notice.clears)}
        case Severity.INFORM:
            return None


def _make_trigger(notice: Notice, links: Links) -> dict[str, Any]:
    payload: dict[str, Any] = {
        "summary": truncate(" ".join(clean_prose(notice.title).split()), SUMMARY_LIMIT) or "Rerail",
        "source": clean_prose(notice.job or notice.run) or "rerail",
        "severity": "critical",
        "component": clean_prose(notice.run),
        "group": "sagemaker",
        "class": notice.runbook.value,
        "custom_details": _list_details(notice, links),
    }
    if notice.at:
        payload["timestamp"] = notice.at.isoformat()
    event: dict[str, Any] = {
        "event_action": "trigger",
        "dedup_key": _dedup_key(notice.key),
        "payload": payload,
        "client": "Rerail",
        "links": [{"href": address, "text": name} for name, address in links.addresses],
    }
    if client_url := links.report or links.console:
        event["client_url"] = client_url
    return event


def _list_details(notice: Notice, links: Links) -> dict[str, Any]:
    """Return the non-empty details, the most important first."""
    details = {
        "what happened": clean_prose(notice.body),
        "what to do": "\n".join(list_next_steps(notice)),
        "by when": format_deadline(notice),
        "what Rerail did": clean_prose(notice.did),
        "since": notice.since.isoformat() if notice.since else "",
        "cost so far": format_cost(notice),
        "where": clean_prose(format_state(notice)),
        "runbook": links.runbook,
        "in a terminal": links.show,
    }
    return {name: value for name, value in details.items() if value}


def _dedup_key(key: str) -> str:
    """Return the deduplication key; a key over the limit ends in its digest, so that it stays unique."""
    key = clean_text(key)
    return key if len(key) <= KEY_LIMIT else f"{key[: KEY_LIMIT - 17]}-{sha256(key.encode()).hexdigest()[:16]}"
