"""Signed links with which the receiver of a page answers its proposal, without AWS credentials.

A link names one proposal of one run and expires with it. The signature covers all of that: it answers nothing else.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlencode

from rerail.messages.messages import JOB_NAME
from rerail.model.actions import Severity
from rerail.model.notice import Notice
from rerail.model.run import Proposal

PATH = "/answer"
# The key of a page that asks for an approval: the run and the proposal's id.
_KEY = re.compile(r"([A-Za-z0-9-]{1,63})/proposal-(p\d{1,9})")
_PROPOSAL, _EXPIRY, _SIGNATURE = re.compile(r"p\d{1,9}"), re.compile(r"\d{1,12}"), re.compile(r"[0-9a-f]{64}")


class BadLink(Exception):
    """The link is incomplete or was changed; the message says what to do."""


@dataclass(frozen=True, slots=True)
class AnswerLink:
    """The permission to answer one proposal until it expires."""

    run: str
    proposal: str
    # Seconds since 1970.
    expires: int

    @classmethod
    def of(cls, notice: Notice) -> Self | None:
        """Return the link of a page that asks for an approval; None for every other notice."""
        named = _KEY.fullmatch(notice.key)
        if named is None or notice.severity is not Severity.PAGE or notice.by is None or named[1] != notice.run:
            return None
        return cls(notice.run, named[2], int(notice.by.timestamp()))

    @classmethod
    def parse(cls, fields: Mapping[str, str]) -> tuple[Self, str]:
        """Return the link and its signature, which is not verified here. Raises BadLink."""
        run, proposal = fields.get("run", ""), fields.get("proposal", "")
        expires, signature = fields.get("expires", ""), fields.get("signature", "")
        patterns = ((JOB_NAME, run), (_PROPOSAL, proposal), (_EXPIRY, expires), (_SIGNATURE, signature))
        if not all(pattern.fullmatch(text) for pattern, text in patterns):
            raise BadLink("open the link of the page once more, or answer with `rerail approve` or `rerail deny`")
        return cls(run, proposal, int(expires)), signature

    @property
    def message(self) -> bytes:
        """Return what is signed."""
        return f"rerail answer\n{self.run}\n{self.proposal}\n{self.expires}".encode()

    def is_for(self, proposal: Proposal) -> bool:
        """Return whether the link was made for this proposal; another run of that name may reuse its id."""
        return (self.proposal, self.expires) == (proposal.id, int(proposal.expires_at.timestamp()))

    def fields(self, signature: str) -> dict[str, str]:
        """Return the parameters of the link's URL and of its form."""
        return {"run": self.run, "proposal": self.proposal, "expires": str(self.expires), "signature": signature}

    def format_url(self, base: str, signature: str) -> str:
        return f"{base.rstrip('/')}{PATH}?{urlencode(self.fields(signature))}"
