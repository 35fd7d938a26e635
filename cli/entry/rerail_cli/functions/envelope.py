"""Signed envelopes of calls and results: a JSON header and pickled bytes under an HMAC-SHA256 of the run's key.

The key is the one with which the agent signs its reports. A signature covers the name of the object (kind, run, call,
and the job for a result) and all its bytes, so that it is not valid for another run, call or attempt.
"""

from __future__ import annotations

import hmac
import json
from typing import Any

KEY_VARIABLE = "RERAIL_SEAL_KEY"
BEGIN = b"rerail-signed-1\n"
SIGNATURE_LENGTH = 64


class BadEnvelope(Exception):
    """The bytes are not an envelope that was signed with this key under this name."""


def make_name(kind: str, run: str, call: str, job: str = "") -> str:
    """Return the name that a signature covers: of the `call`, or of the `result` of one job."""
    return f"remote-function/{kind}/{run}/{call}/{job}"


def sign(header: dict[str, Any], content: bytes, name: str, key: str) -> bytes:
    """Return header and content as an envelope; raise ValueError without a key."""
    if not key:
        raise ValueError("an envelope cannot be signed without a key")
    body = json.dumps(header).encode() + b"\n" + content
    return BEGIN + _make_signature(body, name, key) + b"\n" + body


def verify(envelope: bytes, name: str, key: str) -> tuple[dict[str, Any], bytes]:
    """Return header and content of an envelope; raise BadEnvelope if it was not signed with this key and name."""
    start = len(BEGIN) + SIGNATURE_LENGTH + 1
    if not key or envelope[: len(BEGIN)] != BEGIN or envelope[start - 1 : start] != b"\n":
        raise BadEnvelope("it has no signature")
    body = envelope[start:]
    if not hmac.compare_digest(envelope[len(BEGIN) : start - 1], _make_signature(body, name, key)):
        raise BadEnvelope("its signature was not made with the key of the run for this call")
    header, _, content = body.partition(b"\n")
    return json.loads(header.decode()), content


def _make_signature(body: bytes, name: str, key: str) -> bytes:
    return hmac.new(key.encode(), name.encode() + b"\n" + body, "sha256").hexdigest().encode()
