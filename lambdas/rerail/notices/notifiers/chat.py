"""A notice as a custom notification of Amazon Q Developer in chat applications (Slack, Microsoft Teams), one thread a
run.

The text is the chat's own markdown, which differs from one to the other: what came from elsewhere is put into
characters that mean nothing in either, and addresses stand bare, which both make links of."""

import re
from typing import Any

from rerail.notices.notice import Notice, truncate
from rerail.notices.notifiers.links import Links
from rerail.notices.notifiers.text import (
    clean_text,
    format_cost,
    format_deadline,
    format_since,
    format_state,
    indent,
    list_next_steps,
)

TITLE_LIMIT, DESCRIPTION_LIMIT, STEP_LIMIT = 250, 8_000, 350
STEPS_LIMIT, WORD_LIMIT = 10, 100
# Of what is quoted, so that the links at the end are never cut off.
QUOTED_LIMIT = 2_500
# Looks the same, and is no markup: emphasis, code, mentions and links of Slack (<...>), links of Teams.
HARMLESS = str.maketrans({"*": "∗", "~": "∼", "`": "'", "<": "‹", ">": "›", "[": "［", "]": "］", "#": "＃", "|": "¦"})
UNDERSCORE = re.compile(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
ADDRESS = re.compile(r"(?i)\b(https?|ftp|mailto|slack|tel):")
COMMAND = re.compile(r"((?:.*:)?) ?(rerail [A-Za-z0-9 ._-]+)")
MENTION = re.compile(r"@(?=\w)")
ICONS = {"page": "🔴", "inform": "🔵", "clear": "🟢"}


def escape(text: str) -> str:
    """Text from elsewhere, which can be read and does nothing: no mark-up, no mention, no link."""
    text = UNDERSCORE.sub("＿", indent(text).translate(HARMLESS))
    return MENTION.sub("＠", ADDRESS.sub(r"\1：", text))


def as_chat(notice: Notice, links: Links) -> dict[str, Any]:
    """The notification, as the topic of a chat channel is sent it."""
    content: dict[str, Any] = {
        "textType": "client-markdown",
        "title": truncate(f"{ICONS[notice.severity]} {_line(notice.title) or 'Rerail'}", TITLE_LIMIT),
        "description": truncate(_description(notice, links), DESCRIPTION_LIMIT),
        "keywords": ["rerail", notice.severity.value, truncate(_line(notice.run), WORD_LIMIT)],
    }
    if asked := [truncate(_command(step), STEP_LIMIT) for step in list_next_steps(notice)]:
        content["nextSteps"] = asked[:STEPS_LIMIT]
    told = f"-{notice.at:%Y%m%dT%H%M%S}" if notice.at else ""
    return {
        "version": "1.0",
        "source": "custom",
        "id": f"{clean_text(notice.key)}{told}",
        "content": content,
        "metadata": {
            "threadId": clean_text(notice.thread or notice.run),
            "summary": truncate(_line(notice.title), TITLE_LIMIT),
            "eventType": f"rerail-{notice.severity.value}",
            "relatedResources": [links.job_arn] if links.job_arn else [],
            "additionalContext": {
                "run": clean_text(notice.run),
                "key": clean_text(notice.key),
                "state": notice.state,
                "runbook": notice.runbook.value,
            },
        },
    }


def _description(notice: Notice, links: Links) -> str:
    facts = (
        ("By when", format_deadline(notice)),
        ("What Rerail did", truncate(escape(notice.did), QUOTED_LIMIT)),
        ("Since", format_since(notice)),
        ("Cost so far", format_cost(notice)),
        ("Where", _line(format_state(notice))),
    )
    said = [f"*{name}:* {value}" for name, value in facts if value]
    led = [f"*{name}:* {address}" for name, address in links.named]
    last = f"`{links.show}`" if links.show else ""
    return "\n".join(filter(None, (truncate(escape(notice.body), QUOTED_LIMIT), *said, *led, last))) or "-"


def _command(step: str) -> str:
    """A step; the command at its end, if there is one, as something to copy."""
    found = COMMAND.fullmatch(step)
    return f"{escape(found[1])} `{found[2]}`".strip() if found else escape(step)


def _line(text: str) -> str:
    return " ".join(escape(text).split())
