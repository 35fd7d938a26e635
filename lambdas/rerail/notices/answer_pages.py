"""The pages behind the link of a proposal: the question with its form, and what became of the answer.

To open the link changes nothing: chat programs open links too, for a preview.
"""

from collections.abc import Mapping
from html import escape

from rerail.model.formatting import format_dollars
from rerail.model.run import Proposal

# Nothing is loaded or run, and no other page may frame these or learn their address.
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Robots-Tag": "noindex",
}
# Characters of a name and of a reason.
NAME_LIMIT, REASON_LIMIT = 64, 300
_STYLE = (
    ":root{color-scheme:light dark}"
    "body{font:1rem/1.5 system-ui,sans-serif;max-width:36rem;margin:2rem auto;padding:0 1rem}"
    "h1{font-size:1.4rem;line-height:1.3}dt{font-weight:600}dd{margin:0 0 .75rem;overflow-wrap:anywhere}"
    "label{display:block;margin:.75rem 0}input{font:inherit;width:100%;box-sizing:border-box;padding:.5rem}"
    "button{font:inherit;padding:.75rem 1.5rem;margin:.5rem .5rem 0 0}code{overflow-wrap:anywhere}"
)


def format_question(run: str, proposal: Proposal, fields: Mapping[str, str]) -> str:
    """Return the page that shows the proposal and asks for an answer."""
    dollars = "" if proposal.dollars is None else f"about {format_dollars(proposal.dollars)}"
    facts = {
        "Proposal": f"{proposal.id}: {proposal.what}",
        "Because": proposal.why,
        "Cost": dollars,
        "Asked": f"{proposal.asked_at:%Y-%m-%d %H:%M} UTC",
        "Open until": f"{proposal.expires_at:%Y-%m-%d %H:%M} UTC",
    }
    listed = "".join(f"<dt>{name}</dt><dd>{escape(text)}</dd>" for name, text in facts.items() if text)
    hidden = "".join(
        f'<input type="hidden" name="{escape(name)}" value="{escape(value)}">' for name, value in fields.items()
    )
    return _format_page(
        f"{run}: your approval is needed",
        f"<dl>{listed}</dl>"
        # The Enter key presses the first button, so that one is disabled: to type a name approves nothing.
        f'<form method="post">{hidden}<button disabled hidden></button>'
        f'<label>Your name<input name="who" required maxlength="{NAME_LIMIT}" autocomplete="name"></label>'
        f'<label>Reason (optional)<input name="why" maxlength="{REASON_LIMIT}"></label>'
        '<button name="verb" value="approve">Approve</button><button name="verb" value="deny">Deny</button></form>'
        "<p>Name and reason are kept in the run's timeline.</p>",
    )


def format_message(title: str, text: str, command: str = "") -> str:
    """Return a page that says what happened, and which command shows more."""
    shown = f"<p>In a terminal: <code>{escape(command)}</code></p>" if command else ""
    return _format_page(title, f"<p>{escape(text)}</p>{shown}")


def _format_page(title: str, body: str) -> str:
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>"
        f"<body><main><h1>{escape(title)}</h1>{body}</main></body></html>"
    )
