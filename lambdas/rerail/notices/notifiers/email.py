"""Format a notice as an e-mail: the subject is the title; the text starts with what happened and ends with links."""

from rerail.model.notice import Notice
from rerail.notices.notice import truncate
from rerail.notices.notifiers.links import Links
from rerail.notices.notifiers.text import (
    clean_prose,
    clean_text,
    format_cost,
    format_deadline,
    format_since,
    format_state,
    indent,
    list_next_steps,
)

# Limits of SNS: a subject is ASCII without line breaks or control characters; a text has at most 256 KiB.
SUBJECT_LIMIT, TEXT_LIMIT_BYTES = 100, 256 * 1024


def format_subject(notice: Notice) -> str:
    """Return the title as a valid SNS subject."""
    title = " ".join("".join(c if " " <= c <= "~" else " " for c in clean_text(notice.title)).split())
    return truncate(title, SUBJECT_LIMIT) or "Rerail"


def format_text(notice: Notice, links: Links) -> str:
    """Return the whole notice as plain text."""
    steps = list_next_steps(notice)
    todo = "\n".join(["What to do:", *(f"  - {step}" for step in steps)]) if steps else ""
    facts = (
        ("By when", format_deadline(notice)),
        ("What Rerail did", indent(notice.did)),
        ("Since", format_since(notice)),
        ("Cost so far", format_cost(notice)),
        ("Where", clean_prose(format_state(notice))),
    )
    fact_lines = "\n".join(f"{name}: {value}" for name, value in facts if value)
    link_lines = "\n".join(f"  {name}: {link}" for name, link in [*links.named, ("Terminal", links.show)] if link)
    happened = indent(notice.body) or clean_prose(notice.title)
    return "\n\n".join(filter(None, (happened, todo, fact_lines, f"Links:\n{link_lines}")))
