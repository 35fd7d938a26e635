"""Format times, money and untrusted text for every channel."""

import re
import unicodedata
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta

from rerail.model.formatting import format_dollars, format_duration
from rerail.model.notice import Notice
from rerail.model.policy import Policy
from rerail.model.redaction import redact_patterns

# Joins the parts of one emoji. Other invisible characters are removed, since some reverse the direction of a line.
ZERO_WIDTH_JOINER = "\u200d"
# What chat, mail and pager programs turn into links: schemes, paths of Windows shares, and names with dots.
SCHEME = re.compile(
    r"(?i)(?<![a-z])(?!s3:)(?:(?:https?|ftp|mailto|tel|sms|callto|sips?|slack|skype|msteams|javascript)(?=:)"
    r"|[a-z][a-z0-9+.-]{0,30}(?=://)):"
)
SHARE = re.compile(r"\\\\(?=\w)")
NAME_CHARACTER = r"[^\s.\u3002\uff0e\uff61/:@()<>\[\]{}\"'`,;=!?|\\%$+*&#^~]"
DOTTED = re.compile(rf"s3://\S+|(?<!{NAME_CHARACTER}){NAME_CHARACTER}++(?:[.\u3002\uff0e\uff61]{NAME_CHARACTER}++)+")
DOT = re.compile(r"[.\u3002\uff0e\uff61]")
# Numbers, types of machines, exceptions, fields of requests, and files whose endings are not top-level domains, or ones
# below which names are reserved.
HARMLESS = re.compile(
    r"(?i)[vx-]?\d+(?:\.\d[\w-]*){1,2}|ml\.[a-z\d-]+\.[a-z\d-]+|\w+config\.\w+|(?:torch\.(?:cuda|distributed)|[\w-]+)\."
    r"(?:\w*(?:error|exception|warning)|bin|ckpt|csv|distcp|json|jsonl|log|npy|npz|parquet|pkl|pth|py|safetensors"
    r"|toml|txt|whl|yaml|yml)"
)
COMMAND = re.compile(r"(?m)(?:^|(?<=: ))(?:rerail|aws) ")
# Without a dot in a folder, which would be a host.
FILE = re.compile(r"(?:\.{0,2}/)?(?:[\w-]+/)*[\w.-]+\.(?:py|sh|toml)")
POLICY_FIELDS = frozenset(
    f"{section.name}.{field.name}"
    for section in fields(Policy)
    if is_dataclass(values := getattr(Policy(), section.name))
    for field in fields(values)
)
# They look like the colon, backslash and dot. IDNA does not read this dot as one, unlike the fullwidth one.
COLON, BACKSLASH, ONE_DOT_LEADER = "\uff1a", "\u29f5", "\u2024"


def clean_text(text: str) -> str:
    """Return the text with secrets redacted and unreadable characters replaced by spaces.

    Unreadable are control characters, direction marks and lone surrogates."""
    readable = (character if _is_readable(character) else " " for character in text.replace("\r\n", "\n"))
    return redact_patterns("".join(readable).strip())


def clean_prose(text: str) -> str:
    """Return the clean text without anything that a chat, mail or pager program turns into a link."""
    text = SCHEME.sub(lambda found: found[0][:-1] + COLON, clean_text(text))
    text = SHARE.sub(2 * BACKSLASH, text)
    return DOTTED.sub(lambda found: _escape_name(found[0]), text)


def _escape_name(name: str) -> str:
    is_harmless = name in POLICY_FIELDS or name.startswith("s3://") or HARMLESS.fullmatch(name)
    return name if is_harmless else DOT.sub(ONE_DOT_LEADER, name)


def split_command(step: str) -> tuple[str, str]:
    """Return the words of a step, and the command at its end or ""."""
    command = COMMAND.search(step)
    start = command.start() if command else len(step)
    return step[:start], step[start:]


def indent(text: str) -> str:
    """Return the prose with all lines after the first indented, so that it cannot pass for a part of the notice."""
    return "\n  ".join(line.rstrip() for line in clean_prose(text).splitlines() if line.strip())


def list_next_steps(notice: Notice) -> list[str]:
    """Return the steps for the operator as clean prose; files in commands at their ends stay as they must be typed.

    A folder that a job names may look like such a command."""
    steps = (split_command(line.strip()) for line in clean_text(notice.todo).splitlines() if line.strip())
    return [" ".join(filter(None, (clean_prose(prose), _clean_command(command)))) for prose, command in steps]


def _clean_command(command: str) -> str:
    return " ".join(word if FILE.fullmatch(word) else clean_prose(word) for word in command.split(" "))


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
