"""A notice as an e-mail: the subject says it all, the text starts with what happened and ends with links."""

from rerail.notices.notice import Notice, clipped
from rerail.notices.notifiers.links import Links
from rerail.notices.notifiers.text import begun, cost, deadline, indented, plain, steps, whereabouts

# Of SNS: ASCII, no line breaks or control characters; 256 KiB of text.
SUBJECT_LIMIT, TEXT_LIMIT_BYTES = 100, 256 * 1024


def as_subject(notice: Notice) -> str:
    """The title, as SNS takes a subject."""
    title = " ".join("".join(c if " " <= c <= "~" else " " for c in notice.title).split())
    return clipped(title, SUBJECT_LIMIT) or "Rerail"


def as_text(notice: Notice, links: Links) -> str:
    """The whole notice as plain text, for a reader who sees nothing else."""
    todo = "\n".join(["What to do:", *(f"  - {step}" for step in steps(notice))]) if steps(notice) else ""
    facts = (
        ("By when", deadline(notice)),
        ("What Rerail did", indented(notice.did)),
        ("Since", begun(notice)),
        ("Cost so far", cost(notice)),
        ("Where", plain(whereabouts(notice))),
    )
    said = "\n".join(f"{name}: {value}" for name, value in facts if value)
    led = "\n".join(f"  {name}: {address}" for name, address in [*links.named, ("Terminal", links.show)] if address)
    return "\n\n".join(filter(None, (indented(notice.body) or plain(notice.title), todo, said, f"Links:\n{led}")))
