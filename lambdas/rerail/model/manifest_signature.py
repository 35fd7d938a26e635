"""The signature of a checkpoint's manifest, for the agent that writes it and the supervisor that reads it.

A signature covers all other fields, so that it is not valid for another step, attempt or list of files.
"""

import hmac
import json
from collections.abc import Mapping
from typing import Any

FIELD = "signature"
# The manifest's checksum of its own fields, which is computed after the signature.
CHECKSUM_FIELD = "seal"


def make_signature(table: Mapping[str, Any], *, key: str) -> str:
    """Return the HMAC-SHA256 of a manifest's fields in hexadecimal digits; "" without a key."""
    signed = {name: value for name, value in table.items() if name not in (FIELD, CHECKSUM_FIELD)}
    text = json.dumps(signed, sort_keys=True, separators=(",", ":"))
    return hmac.digest(key.encode(), b"manifest\n" + text.encode(), "sha256").hex() if key else ""


def has_signature(table: Mapping[str, Any], *, key: str) -> bool:
    """Return whether a manifest was signed with this key; False without a key."""
    signature = str(table.get(FIELD) or "")
    return bool(key and signature) and hmac.compare_digest(
        signature.encode(errors="replace"), make_signature(table, key=key).encode()
    )
