"""A notice as an e-mail: the subject says it all, the text starts with what happened and ends with links."""

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

# Of SNS: ASCII, no line breaks or control characters; 256 KiB of text.
SUBJECT_LIMIT, TEXT_LIMIT_BYTES = 100, 256 * 1024


def as_subject(notice: Notice) -> str:
    """The title, as SNS takes a subject."""
    title = " ".join("".join(c if " " <= c <= "~" else " " for c in notice.title).split())
    return truncate(title, SUBJECT_LIMIT) or "Rerail"


def as_text(notice: Notice, links: Links) -> str:
    """The whole notice as plain text, for a reader who sees nothing else."""
    todo = (
        "\n".join(["What to do:", *(f"  - {step}" for step in list_next_steps(notice))])
        if list_next_steps(notice)
        else ""
    )
    facts = (
        ("By when", format_deadline(notice)),
        ("What Rerail did", indent(notice.did)),
        ("Since", format_since(notice)),
        ("Cost so far", format_cost(notice)),
        ("Where", clean_text(format_state(notice))),
    )
    said = "\n".join(f"{name}: {value}" for name, value in facts if value)
    led = "\n".join(f"  {name}: {address}" for name, address in [*links.named, ("Terminal", links.show)] if address)
    return "\n\n".join(filter(None, (indent(notice.body) or clean_text(notice.title), todo, said, f"Links:\n{led}")))
