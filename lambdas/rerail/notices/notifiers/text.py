"""How facts are put for people, in whatever form they are told: times, money, and text that came from elsewhere."""

import unicodedata
from datetime import UTC, datetime, timedelta

from rerail.decisions.launch_checks import format_dollars
from rerail.decisions.remedies import format_duration
from rerail.model.secrets import redact_patterns
from rerail.notices.notice import Notice

# Joins the parts of one emoji; other invisible characters can turn a line around.
JOINER = "\u200d"


def clean_text(text: str) -> str:
    """The text without what looks like a secret, or is not a character to be read: control, turned around, half of a
    pair."""
    read = (character if _is_readable(character) else " " for character in text.replace("\r\n", "\n"))
    return redact_patterns("".join(read).strip())


def indent(text: str) -> str:
    """The text with every line but the first set in: what was quoted can not look like a part of ours."""
    return "\n  ".join(line.rstrip() for line in clean_text(text).splitlines() if line.strip())


def list_next_steps(notice: Notice) -> list[str]:
    """What the reader must do, a line each."""
    return [line.strip() for line in clean_text(notice.todo).splitlines() if line.strip()]


def format_time(time: datetime) -> str:
    """A moment as everybody reads it alike."""
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def format_deadline(notice: Notice) -> str:
    """By when something must be done, and how long that is."""
    if notice.by is None:
        return ""
    left = notice.by - notice.at if notice.at else timedelta()
    return format_time(notice.by) + (f" (in {format_duration(left)})" if left > timedelta() else "")


def format_since(notice: Notice) -> str:
    """Since when the trouble has been there, and how long that is."""
    if notice.since is None:
        return ""
    ago = notice.at - notice.since if notice.at else timedelta()
    return format_time(notice.since) + (f" ({format_duration(ago)} ago)" if ago >= timedelta(seconds=1) else "")


def format_cost(notice: Notice) -> str:
    """What the run has cost so far; nothing where a price is not known."""
    return "" if notice.dollars is None else format_dollars(notice.dollars)


def format_state(notice: Notice) -> str:
    """Where the run is: "held, attempt 2, step 1200, job gpt-a002"."""
    parts = (
        notice.state,
        f"attempt {notice.attempt}" if notice.attempt is not None else "",
        f"step {notice.step}" if notice.step is not None else "",
        f"job {notice.job}" if notice.job else "",
    )
    return ", ".join(filter(None, parts))


def _is_readable(character: str) -> bool:
    if character in ("\n", JOINER):
        return True
    return unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Zl", "Zp")
