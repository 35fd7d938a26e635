"""What a rank's share of a snapshot says of itself: the label that goes with its bytes, from memory to memory."""

import json
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import xxhash

from rerail_agent.checkpoints.manifest import Manifest

LARGEST_SHARE = 1 << 42  # bytes; a label that asks for more is not one of ours


class DamagedShare(Exception):
    """A share or its label is not what was filed; the message says what differs."""


@dataclass(frozen=True)
class SnapshotLabel:
    """One rank's share. `snapshot` is the same for all shares of one moment, and for those alone.

    The bytes are `image` of tensors, laid out as in a checkpoint's file, `values` of plain values, and `contents` that
    say what lies where. `checksum` is over all of them, and is the keeper's to fill. `orders` names what the ranks were
    told when they started (see Snapshots): told something else since, an attempt may have to go back.
    """

    snapshot: str
    rank: int
    manifest: Manifest
    image: int
    values: int
    contents: int
    orders: str = ""
    checksum: str = ""

    @property
    def bytes(self) -> int:
        return self.image + self.values + self.contents

    def sealed(self, content: memoryview) -> "SnapshotLabel":
        """The same with the checksum of its bytes."""
        return replace(self, checksum=compute_checksum(content[: self.bytes]))

    def check(self, content: memoryview) -> None:
        """Raises DamagedShare unless the bytes are those that were labelled."""
        if len(content) < self.bytes:
            raise DamagedShare(f"{len(content)} bytes instead of {self.bytes}")
        if compute_checksum(content[: self.bytes]) != self.checksum:
            raise DamagedShare("the bytes do not match their checksum")

    def table(self) -> dict[str, Any]:
        """As JSON can carry it, with a checksum of the label itself."""
        table = asdict(self)
        return {**table, "seal": _seal(table)}

    @classmethod
    def parse(cls, table: Any) -> "SnapshotLabel":
        """The label of a table(); raises DamagedShare."""
        try:
            table = dict(table)
            if table.pop("seal") != _seal(table):
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


def _seal(table: dict[str, Any]) -> str:
    text = json.dumps(table, sort_keys=True, separators=(",", ":"))
    return f"xxh3_64:{xxhash.xxh3_64_hexdigest(text.encode())}"
