"""Format a notice as a custom notification of Amazon Q Developer in chat applications, one thread per run.

Slack and Microsoft Teams use different markdown. Untrusted text is therefore rewritten with characters that are markup
in neither. URLs are written bare, because both turn them into links."""

import re
from typing import Any

from rerail.model.notice import Notice
from rerail.notices.notice import truncate
from rerail.notices.notifiers.links import Links
from rerail.notices.notifiers.text import (
    clean_text,
    format_cost,
    format_deadline,
    format_since,
    format_state,
    indent,
    list_next_steps,
    split_command,
)

TITLE_LIMIT, DESCRIPTION_LIMIT, STEP_LIMIT = 250, 8_000, 350
STEPS_LIMIT, WORD_LIMIT = 10, 100
# In characters for each quoted field, so that the links at the end are never truncated.
QUOTED_LIMIT = 2_000
# Look-alikes of markup characters: emphasis, code, mentions and links of Slack (<...>), links of Teams.
ESCAPES = str.maketrans({"*": "∗", "~": "∼", "`": "'", "<": "‹", ">": "›", "[": "［", "]": "］", "#": "＃", "|": "¦"})
UNDERSCORE = re.compile(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
COMMAND = re.compile(r"rerail [A-Za-z0-9 ./_-]+")
MENTION = re.compile(r"@(?=\w)")
ICONS = {"page": "🔴", "inform": "🔵", "clear": "🟢"}


def escape(text: str) -> str:
    """Return untrusted text without markup, mentions and links."""
    return MENTION.sub("＠", UNDERSCORE.sub("＿", indent(text).translate(ESCAPES)))


def format_chat(notice: Notice, links: Links) -> dict[str, Any]:
    """Return the custom notification to publish on the topic of a chat channel."""
    content: dict[str, Any] = {
        "textType": "client-markdown",
        "title": truncate(f"{ICONS[notice.severity]} {_escape_line(notice.title) or 'Rerail'}", TITLE_LIMIT),
        "description": truncate(_format_description(notice, links), DESCRIPTION_LIMIT),
        "keywords": ["rerail", notice.severity.value, truncate(_escape_line(notice.run), WORD_LIMIT)],
    }
    if steps := [truncate(_format_step(step), STEP_LIMIT) for step in list_next_steps(notice)]:
        content["nextSteps"] = steps[:STEPS_LIMIT]
    timestamp = f"-{notice.at:%Y%m%dT%H%M%S}" if notice.at else ""
    return {
        "version": "1.0",
        "source": "custom",
        "id": f"{clean_text(notice.key)}{timestamp}",
        "content": content,
        "metadata": {
            "threadId": clean_text(notice.thread or notice.run),
            "summary": truncate(_escape_line(notice.title), TITLE_LIMIT),
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


def _format_description(notice: Notice, links: Links) -> str:
    facts = (
        ("By when", format_deadline(notice)),
        ("What Rerail did", truncate(escape(notice.did), QUOTED_LIMIT)),
        ("Since", format_since(notice)),
        ("Cost so far", format_cost(notice)),
        ("Where", _escape_line(format_state(notice))),
    )
    fact_lines = [f"*{name}:* {value}" for name, value in facts if value]
    link_lines = [f"*{name}:* {url}" for name, url in links.named]
    command = f"`{links.show}`" if links.show else ""
    body = truncate(escape(notice.body), QUOTED_LIMIT)
    return "\n".join(filter(None, (body, *fact_lines, *link_lines, command))) or "-"


def _format_step(step: str) -> str:
    """Return the step, with a `rerail` command at its end formatted as code for copying."""
    prose, command = split_command(step)
    return f"{escape(prose)} `{command}`".strip() if COMMAND.fullmatch(command) else escape(step)


def _escape_line(text: str) -> str:
    return " ".join(escape(text).split())
