"""What a checkpoint says of itself: `manifest.json`, the file that makes a folder of shards a checkpoint."""

import json
import re
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from typing import Any

import xxhash

SCHEMA = 1
FORMAT = "dcp"  # torch.distributed.checkpoint
MANIFEST = "manifest.json"
METADATA = ".metadata"  # torch.distributed.checkpoint's own index, the same name in every checkpoint
SEAL = "seal"  # the manifest's checksum of its own fields
QUARANTINE = "quarantine"
STEP = re.compile(r"step-(\d{9,})")


class DamagedCheckpoint(Exception):
    """A checkpoint is not whole; the message says what is missing or wrong."""


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint holds; `loss` is None when it was not finite, `files` and `saved_at` are the Saver's to fill.
    `restart` is the attempt's restart in place that saved it, 0 for the job's own start. `stall_s` is how
    long the training stood still for it, `write_s` how long it took until it was whole, where that was measured.

    `files`: one {"name", "bytes", "checksum": "xxh3_64:<hex>"} for each file but the manifest itself.
    """

    run: str
    attempt: int
    step: int
    consumed_samples: int
    world_size: int
    loss: float | None
    reason: str
    health: str = "clean"
    saved_at: str = ""
    files: tuple[dict[str, Any], ...] = ()
    schema: int = SCHEMA
    format: str = FORMAT
    restart: int = 0
    stall_s: float | None = None
    write_s: float | None = None

    @property
    def bytes(self) -> int:
        return sum(int(entry["bytes"]) for entry in self.files)


def dump(manifest: Manifest) -> bytes:
    """The text of manifest.json, with a checksum of itself: a flipped digit may not send a run elsewhere."""
    table = asdict(manifest)
    return json.dumps({**table, SEAL: _seal(table)}, indent=1, allow_nan=False).encode()


def parse(text: bytes, *, folder: str) -> Manifest:
    """The manifest of the folder `step-<n>`, or `a1-step-<n>` in quarantine; raises DamagedCheckpoint."""
    known = {field.name for field in fields(Manifest)}
    try:
        table = json.loads(text)
        if table.pop(SEAL) != _seal(table):
            raise ValueError("the checksum of the manifest itself does not match")
        table = {key: value for key, value in table.items() if key in known}
        files = _files(table)
        manifest = Manifest(**{**table, "files": files})
        positions = (manifest.step, manifest.attempt, manifest.restart, manifest.consumed_samples, manifest.world_size)
        if any(type(number) is not int for number in positions):
            raise TypeError("step, attempt, restart, consumed_samples and world_size must be whole numbers")
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise DamagedCheckpoint(f"{MANIFEST} cannot be read: {type(error).__name__}") from error
    if manifest.schema != SCHEMA or step_of(folder) != manifest.step or not files:
        raise DamagedCheckpoint(f"{MANIFEST} has schema {manifest.schema!r:.60} and step {manifest.step!r:.60}")
    if METADATA not in [entry["name"] for entry in files]:
        raise DamagedCheckpoint(f"{MANIFEST} lists no {METADATA}: not a checkpoint of torch.distributed.checkpoint")
    return manifest


def _files(table: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    files: tuple[dict[str, Any], ...] = tuple(
        {"name": str(entry["name"]), "bytes": int(entry["bytes"]), "checksum": str(entry["checksum"])}
        for entry in table["files"]
    )
    if any("/" in entry["name"] or entry["name"] in ("", ".", "..") for entry in files):
        raise ValueError("a file outside the checkpoint's folder")
    return files


def _seal(table: dict[str, Any]) -> str:
    text = json.dumps(table, sort_keys=True, separators=(",", ":"))
    return f"xxh3_64:{xxhash.xxh3_64_hexdigest(text.encode())}"


def folder_name(step: int) -> str:
    return f"step-{step:09d}"


def step_of(folder: str) -> int | None:
    """The step in a folder's name, None where there is none."""
    match = STEP.search(folder)
    return int(match[1]) if match else None


def format_now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
