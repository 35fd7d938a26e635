"""Signatures of agent messages in the mailbox: they prove that the writer has the key given to the run's jobs.

Many principals can write to the bucket. The key is in the jobs' environment, so only those who may describe the job can
read it. A signature covers the object's name and all its bytes, so it is not valid for another run or report.
"""

import hmac
import re

from rerail.model.errors import BadMailboxObject

VARIABLE = "RERAIL_SEAL_KEY"
UNSEALED = "seal"  # the defect of a message whose origin is not proven
KEY = re.compile(r"[0-9a-f]{64}")
SEALED = re.compile(rb'(?P<text>\{.*),"seal":"(?P<seal>[0-9a-f]{64})"\}', re.DOTALL)


def sign(text: bytes, *, name: str, key: str) -> bytes:
    """Return the JSON object with its signature for this object name; unchanged if `key` is empty."""
    return b'%b,"seal":"%b"}' % (text[:-1], _make_signature(text, name, key)) if key else text


def is_signed(text: bytes, *, name: str, key: str) -> bool:
    """Return whether the text is signed with this key; False if there is no signature or no key.

    Raise BadMailboxObject if it is signed with another key.
    """
    match = SEALED.fullmatch(text) if key else None
    if match is None:
        return False
    if not hmac.compare_digest(match["seal"], _make_signature(match["text"] + b"}", name, key)):
        raise BadMailboxObject(f"object {name[:200]!r}: its seal was not made with the run's key", defect=UNSEALED)
    return True


def _make_signature(text: bytes, name: str, key: str) -> bytes:
    return hmac.digest(key.encode(), name.encode() + b"\n" + text, "sha256").hex().encode()
