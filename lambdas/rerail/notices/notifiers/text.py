"""Format times, money and untrusted text for every channel."""

import unicodedata
from datetime import UTC, datetime, timedelta

from rerail.model.formatting import format_dollars, format_duration
from rerail.model.notice import Notice
from rerail.model.redaction import redact_patterns

# Joins the parts of one emoji. Other invisible characters are removed, since some reverse the direction of a line.
ZERO_WIDTH_JOINER = "\u200d"


def clean_text(text: str) -> str:
    """Return the text with secrets redacted and unreadable characters replaced by spaces.

    Unreadable are control characters, direction marks and lone surrogates."""
    readable = (character if _is_readable(character) else " " for character in text.replace("\r\n", "\n"))
    return redact_patterns("".join(readable).strip())


def indent(text: str) -> str:
    """Return the text with all lines after the first indented, so that it cannot pass for a part of the notice."""
    return "\n  ".join(line.rstrip() for line in clean_text(text).splitlines() if line.strip())


def list_next_steps(notice: Notice) -> list[str]:
    """Return the steps that the operator must take."""
    return [line.strip() for line in clean_text(notice.todo).splitlines() if line.strip()]


def format_time(time: datetime) -> str:
    """Return the time in UTC, to the minute."""
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def format_deadline(notice: Notice) -> str:
    """Return the deadline and the time left, or "" if there is no deadline."""
    if notice.by is None:
        return ""
    remaining = notice.by - notice.at if notice.at else timedelta()
    return format_time(notice.by) + (f" (in {format_duration(remaining)})" if remaining > timedelta() else "")


def format_since(notice: Notice) -> str:
    """Return when the problem began and how long ago that is, or "" if that is not known."""
    if notice.since is None:
        return ""
    age = notice.at - notice.since if notice.at else timedelta()
    return format_time(notice.since) + (f" ({format_duration(age)} ago)" if age >= timedelta(seconds=1) else "")


def format_cost(notice: Notice) -> str:
    """Return the cost of the run so far and of the incident, or "" if a price is not known."""
    if notice.dollars is None:
        return ""
    part = f", {format_dollars(notice.incident_dollars)} of it by this incident" if notice.incident_dollars else ""
    return format_dollars(notice.dollars) + part


def format_state(notice: Notice) -> str:
    """Return the position of the run, such as "held, attempt 2, step 1200, job gpt-a002"."""
    parts = (
        notice.state,
        f"attempt {notice.attempt}" if notice.attempt is not None else "",
        f"step {notice.step}" if notice.step is not None else "",
        f"job {notice.job}" if notice.job else "",
    )
    return ", ".join(filter(None, parts))


def _is_readable(character: str) -> bool:
    if character in ("\n", ZERO_WIDTH_JOINER):
        return True
    return unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Zl", "Zp")
