"""How facts are put for people, in whatever form they are told: times, money, and text that came from elsewhere."""

import unicodedata
from datetime import UTC, datetime, timedelta

from rerail.decisions.launch_checks import spoken_dollars
from rerail.decisions.remedies import spoken
from rerail.model.secrets import veiled
from rerail.notices.notice import Notice

# Joins the parts of one emoji; other invisible characters can turn a line around.
JOINER = "\u200d"


def plain(text: str) -> str:
    """The text without what looks like a secret, or is not a character to be read: control, turned around, half of a
    pair."""
    read = (character if _is_readable(character) else " " for character in text.replace("\r\n", "\n"))
    return veiled("".join(read).strip())


def indented(text: str) -> str:
    """The text with every line but the first set in: what was quoted can not look like a part of ours."""
    return "\n  ".join(line.rstrip() for line in plain(text).splitlines() if line.strip())


def steps(notice: Notice) -> list[str]:
    """What the reader must do, a line each."""
    return [line.strip() for line in plain(notice.todo).splitlines() if line.strip()]


def spoken_time(time: datetime) -> str:
    """A moment as everybody reads it alike."""
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def deadline(notice: Notice) -> str:
    """By when something must be done, and how long that is."""
    if notice.by is None:
        return ""
    left = notice.by - notice.at if notice.at else timedelta()
    return spoken_time(notice.by) + (f" (in {spoken(left)})" if left > timedelta() else "")


def begun(notice: Notice) -> str:
    """Since when the trouble has been there, and how long that is."""
    if notice.since is None:
        return ""
    ago = notice.at - notice.since if notice.at else timedelta()
    return spoken_time(notice.since) + (f" ({spoken(ago)} ago)" if ago >= timedelta(seconds=1) else "")


def cost(notice: Notice) -> str:
    """What the run has cost so far; nothing where a price is not known."""
    return "" if notice.dollars is None else spoken_dollars(notice.dollars)


def whereabouts(notice: Notice) -> str:
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
