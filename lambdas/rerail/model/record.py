"""The base of stored records: this version keeps the fields that a newer version has written."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A record whose fields may be unknown to this version; the codec reads and writes them."""

    # The fields that this version does not know, as JSON.
    newer_fields: str = ""
