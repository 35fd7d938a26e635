"""The seal on what an agent leaves in the mailbox: whoever made it knows the key that the run's jobs are handed.

Many may write into the bucket. The key travels in the jobs' environment, so it is known to those who may describe the
job, and to nobody who may merely write objects. A seal is of the object's name and of each of its bytes: what was said
of one run, or in one report, is no word in another.
"""

import hmac
import re
from typing import TYPE_CHECKING

from rerail.model.errors import BadMailboxObject

if TYPE_CHECKING:  # the agent imports this module, and needs neither
    from rerail.model.policy import Policy
    from rerail.model.run import Run

VARIABLE = "RERAIL_SEAL_KEY"
UNSEALED = "seal"  # the defect of mail that does not show whose it is
KEY = re.compile(r"[0-9a-f]{64}")
SEALED = re.compile(rb'(?P<text>\{.*),"seal":"(?P<seal>[0-9a-f]{64})"\}', re.DOTALL)


def sign(text: bytes, *, name: str, key: str) -> bytes:
    """The JSON object as it is to be written under this name; unchanged without a key."""
    return b'%b,"seal":"%b"}' % (text[:-1], _seal(text, name, key)) if key else text


def is_signed(text: bytes, *, name: str, key: str) -> bool:
    """Return whether the text is signed with this key: False without a signature or a key.

    Raises BadMailboxObject for the signature of another key."""
    match = SEALED.fullmatch(text) if key else None
    if match is None:
        return False
    if not hmac.compare_digest(match["seal"], _seal(match["text"] + b"}", name, key)):
        raise BadMailboxObject(f"object {name[:200]!r}: its seal was not made with the run's key", defect=UNSEALED)
    return True


def must_be_signed(run: "Run", policy: "Policy") -> bool:
    """Nothing without a seal is heard of this run: an agent of it has shown that it can, or the policy wants it."""
    return (run.seals or policy.mailbox.sealed_only) and bool(run.seal_key)


def _seal(text: bytes, name: str, key: str) -> bytes:
    return hmac.digest(key.encode(), name.encode() + b"\n" + text, "sha256").hex().encode()
