"""Answer a proposal through its signed link: verify the link, show the question, send the command."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from rerail.messages.cluster_events import clean_text
from rerail.model.run import Proposal, Run
from rerail.model.signals import OperatorVerb
from rerail.notices.answer_links import AnswerLink, BadLink
from rerail.notices.answer_pages import NAME_LIMIT, REASON_LIMIT, format_message, format_question

VERBS = (OperatorVerb.APPROVE, OperatorVerb.DENY)


class CommandSender(Protocol):
    """Sends operators' commands to the supervisor."""

    def send_command(self, detail: Mapping[str, Any]) -> None: ...


@dataclass(frozen=True, slots=True)
class Page:
    """An answer to a browser."""

    status: int
    html: str
    # What was sent to the supervisor; empty if nothing was.
    sent: str = ""


@dataclass(frozen=True, slots=True)
class Answering:
    """Shows proposals and takes answers."""

    load: Callable[[str], Run | None]  # returns a run by its id
    has_signed: Callable[[bytes, str], bool]  # returns whether Rerail has signed a message
    commands: CommandSender
    clock: Callable[[], datetime]

    def show(self, fields: Mapping[str, str]) -> Page:
        """Return the page of the link's proposal; nothing is changed."""
        found = self._find(fields)
        if isinstance(found, Page):
            return found
        link, signature, proposal = found
        return Page(200, format_question(link.run, proposal, link.fields(signature)))

    def answer(self, fields: Mapping[str, str]) -> Page:
        """Send the answer, if the proposal is still open; the supervisor checks that once more."""
        found = self._find(fields)
        if isinstance(found, Page):
            return found
        link, _, proposal = found
        who, why = clean_text(fields.get("who"), NAME_LIMIT), clean_text(fields.get("why"), REASON_LIMIT)
        if not who or fields.get("verb") not in VERBS:
            text = "Give your name, and choose Approve or Deny. Nothing was sent."
            return Page(400, format_message("The answer is incomplete", text))
        verb = OperatorVerb(fields["verb"])
        self.commands.send_command(
            {"run": link.run, "verb": verb.value, "who": f"{who} (by link)", "why": why, "proposal": proposal.id}
        )
        text = f"Rerail was asked to {verb} proposal {proposal.id} of {link.run}, and acts within seconds."
        return Page(200, format_message("Thank you", text, f"rerail show {link.run}"), f"{verb} {proposal.id}")

    def _find(self, fields: Mapping[str, str]) -> tuple[AnswerLink, str, Proposal] | Page:
        """Return the link, its signature and its proposal, or the page that says why there is nothing to answer.

        Nothing is read for a link that Rerail has not signed.
        """
        try:
            link, signature = AnswerLink.parse(fields)
        except BadLink as error:
            return Page(400, format_message("This link is incomplete", f"Nothing was sent: {error}."))
        if not self.has_signed(link.message, signature):
            text = "Rerail has not signed this link. Nothing was sent: use the link of the page, unchanged."
            return Page(403, format_message("This link is not valid", text))
        command = f"rerail show {link.run}"
        if self.clock().timestamp() >= link.expires:
            return Page(410, format_message("This proposal has expired", "Nothing was sent.", command))
        run = self.load(link.run)
        # A job of that name may have been deleted and created again, and its run count its proposals anew.
        if run is None or run.proposal is None or not link.is_for(run.proposal):
            text = "It was answered, or the run has moved on. Nothing was sent."
            return Page(410, format_message("This proposal is no longer open", text, command))
        return link, signature, run.proposal
