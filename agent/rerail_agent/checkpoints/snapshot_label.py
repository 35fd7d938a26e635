"""Describe a rank's share of a snapshot: the label that is sent and stored with its bytes."""

import json
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import xxhash

from rerail_agent.checkpoints.manifest import Manifest

# Bytes; a label with more is not valid.
LARGEST_SHARE = 1 << 42


class DamagedShare(Exception):
    """A share or its label differs from what was stored; the message says how."""


@dataclass(frozen=True)
class SnapshotLabel:
    """One rank's share of a snapshot."""

    # The same for all shares of one moment, and only for those.
    snapshot: str
    rank: int
    manifest: Manifest
    # Bytes of tensors, laid out as in a checkpoint's file.
    image: int
    # Bytes of plain values.
    values: int
    # Bytes of the description of all positions.
    contents: int
    # The resume limits of the ranks at their start (see Snapshots): after a change they may have to go back.
    orders: str = ""
    # Over all bytes; set by the snapshot process.
    checksum: str = ""

    @property
    def bytes(self) -> int:
        return self.image + self.values + self.contents

    def with_checksum(self, content: memoryview) -> "SnapshotLabel":
        """Return the label with the checksum of its bytes."""
        return replace(self, checksum=compute_checksum(content[: self.bytes]))

    def check(self, content: memoryview) -> None:
        """Raise DamagedShare unless the bytes are those that were labelled."""
        if len(content) < self.bytes:
            raise DamagedShare(f"{len(content)} bytes instead of {self.bytes}")
        if compute_checksum(content[: self.bytes]) != self.checksum:
            raise DamagedShare("the bytes do not match their checksum")

    def table(self) -> dict[str, Any]:
        """Return the label for JSON, with a checksum of the label itself."""
        table = asdict(self)
        return {**table, "seal": _compute_own_checksum(table)}

    @classmethod
    def parse(cls, table: Any) -> "SnapshotLabel":
        """Return the label of a table(); raises DamagedShare."""
        try:
            table = dict(table)
            if table.pop("seal") != _compute_own_checksum(table):
                raise ValueError("the label's own checksum does not match")
            known = {field.name for field in fields(Manifest)}
            saved = {key: value for key, value in dict(table.pop("manifest")).items() if key in known}
            label = cls(manifest=Manifest(**{**saved, "files": ()}), **table)
            sizes = (label.rank, label.image, label.values, label.contents, label.manifest.step)
            if any(type(size) is not int or size < 0 for size in sizes) or label.bytes > LARGEST_SHARE:
                raise ValueError("rank, step and sizes must be whole numbers from 0")
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedShare(f"a label that cannot be read: {type(error).__name__}: {error}") from error
        return label


def compute_checksum(content: memoryview) -> str:
    return f"xxh3_64:{xxhash.xxh3_64_hexdigest(content)}"


def _compute_own_checksum(table: dict[str, Any]) -> str:
    text = json.dumps(table, sort_keys=True, separators=(",", ":"))
    return f"xxh3_64:{xxhash.xxh3_64_hexdigest(text.encode())}"
