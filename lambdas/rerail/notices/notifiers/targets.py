"""The notification targets outside AWS: for each, the format of a notice and the type of the event that carries it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rerail.model.notice import Notice
from rerail.notices.notifiers.links import Links
from rerail.notices.notifiers.pagerduty import format_pagerduty
from rerail.notices.notifiers.webhook import format_webhook


@dataclass(frozen=True, slots=True)
class NotificationTarget:
    """A receiver of notices, to which a rule on the bus forwards events of one type."""

    # As users know it.
    name: str
    detail_type: str
    # Return the detail of the event; None for a notice that this target does not receive.
    format: Callable[[Notice, Links], Mapping[str, Any] | None]


PAGERDUTY = NotificationTarget("PagerDuty", "Rerail PagerDuty", format_pagerduty)
WEBHOOK = NotificationTarget("webhook", "Rerail Webhook", format_webhook)
NOTIFIERS = (PAGERDUTY, WEBHOOK)
