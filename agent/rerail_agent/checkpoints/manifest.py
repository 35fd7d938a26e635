"""Read and write `manifest.json`, the file that makes a folder of shards a checkpoint."""

import json
import os
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from stat import S_ISREG
from typing import Any

import xxhash

from rerail.model.manifest_signature import CHECKSUM_FIELD, has_signature, make_signature
from rerail.model.signatures import KEY, VARIABLE

SCHEMA = 1
FORMAT = "dcp"  # torch.distributed.checkpoint
MANIFEST = "manifest.json"
METADATA = ".metadata"  # torch.distributed.checkpoint's own index, the same name in every checkpoint
QUARANTINE = "quarantine"
# So many bytes are read of a manifest, or of a note beside it; thousands of ranks need a million. The rest is cut off,
# so that it cannot be parsed.
SIZE_LIMIT = 1 << 24
STEP = re.compile(r"step-([0-9]{9,18})")
# Such a checkpoint is passed over, and neither moved nor deleted.
UNREADABLE = "its manifest is archived, or encrypted with a key that this job may not use"


class DamagedCheckpoint(Exception):
    """A checkpoint is incomplete or damaged; the message says what is missing or wrong."""


@dataclass(frozen=True)
class Manifest:
    """The content of a checkpoint."""

    run: str
    attempt: int
    step: int
    consumed_samples: int
    world_size: int
    # None if it was not finite.
    loss: float | None
    reason: str
    health: str = "clean"
    # Set by the Saver.
    saved_at: str = ""
    # One {"name", "bytes", "checksum": "xxh3_64:<hex>"} for each file but the manifest; set by the Saver. The entry of
    # `.metadata` has its "sha256" too: with the signature it proves who wrote what is unpickled.
    files: tuple[dict[str, Any], ...] = ()
    schema: int = SCHEMA
    format: str = FORMAT
    # The attempt's restart in place that saved it, 0 for the job's own start.
    restart: int = 0
    # How long the training stood still for it, if measured.
    stall_s: float | None = None
    # How long it took until it was complete, if measured.
    write_s: float | None = None
    # The HMAC of all other fields with the run's key. Of a manifest that was read: "" unless it is right.
    signature: str = ""

    @property
    def bytes(self) -> int:
        return sum(int(entry["bytes"]) for entry in self.files)

    @property
    def index(self) -> dict[str, Any]:
        """Return the entry of `.metadata`."""
        return next((entry for entry in self.files if entry["name"] == METADATA), {})


def dump(manifest: Manifest) -> bytes:
    """Return the text of manifest.json, with a checksum of itself, so that a flipped digit is noticed.

    In a job with a key of its run it is signed.
    """
    table = asdict(manifest)
    table["signature"] = make_signature(table, key=read_signing_key())
    return json.dumps({**table, CHECKSUM_FIELD: _compute_own_checksum(table)}, indent=1, allow_nan=False).encode()


def read_start(file: Path) -> bytes:
    """Return a file's bytes up to SIZE_LIMIT: others may have written to the folder."""
    require_regular(file)
    with file.open("rb") as stream:
        return stream.read(SIZE_LIMIT)


def require_regular(file: Path) -> None:
    """Raise OSError for what is not a file, where reading could block for ever: a pipe, or a link to a device."""
    if not S_ISREG(file.stat().st_mode):
        raise OSError(f"{file.name} is not a regular file")


def parse(text: bytes, *, folder: str) -> Manifest:
    """Return the manifest of the folder `step-<n>`, or `a1-step-<n>` in quarantine; raises DamagedCheckpoint."""
    known = {field.name for field in fields(Manifest)}
    try:
        table = json.loads(text)
        if table.pop(CHECKSUM_FIELD) != _compute_own_checksum(table):
            raise ValueError("the checksum of the manifest itself does not match")
        table["signature"] = verify_signature(table)
        table = {key: value for key, value in table.items() if key in known}
        files = _files(table)
        manifest = Manifest(**{**table, "files": files})
        positions = (manifest.step, manifest.attempt, manifest.restart, manifest.consumed_samples, manifest.world_size)
        if not all(map(is_count, positions)):
            raise TypeError("step, attempt, restart, consumed_samples and world_size must be whole numbers, 0 or more")
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise DamagedCheckpoint(f"{MANIFEST} cannot be read: {type(error).__name__}") from error
    if manifest.schema != SCHEMA or parse_step(folder) != manifest.step or not files:
        raise DamagedCheckpoint(f"{MANIFEST} has schema {manifest.schema!r:.60} and step {manifest.step!r:.60}")
    if METADATA not in [entry["name"] for entry in files]:
        raise DamagedCheckpoint(f"{MANIFEST} lists no {METADATA}: not a checkpoint of torch.distributed.checkpoint")
    return manifest


def is_count(value: object) -> bool:
    """Return whether a value is a whole number from 0 that fits into a file name."""
    return type(value) is int and 0 <= value < 10**18


def _files(table: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    files: tuple[dict[str, Any], ...] = tuple(
        {"name": str(entry["name"]), "bytes": int(entry["bytes"]), "checksum": str(entry["checksum"])}
        | ({"sha256": str(entry["sha256"])} if "sha256" in entry else {})
        for entry in table["files"]
    )
    if any("/" in name or name in ("", ".", "..") or not name.isprintable() for name in (e["name"] for e in files)):
        raise ValueError("a file outside the checkpoint's folder")
    return files


def _compute_own_checksum(table: dict[str, Any]) -> str:
    text = json.dumps(table, sort_keys=True, separators=(",", ":"))
    return f"xxh3_64:{xxhash.xxh3_64_hexdigest(text.encode())}"


def read_signing_key() -> str:
    """Return the key of this job's run, "" if it has none."""
    key = os.environ.get(VARIABLE, "")
    return key if KEY.fullmatch(key) else ""


def verify_signature(table: dict[str, Any]) -> str:
    """Return the signature of a manifest's table if it was made with the run's key, otherwise ""."""
    return str(table["signature"]) if has_signature(table, key=read_signing_key()) else ""


def make_folder_name(step: int) -> str:
    return f"step-{step:09d}"


def parse_step(folder: str) -> int | None:
    """Return the step in a folder's name, or None."""
    match = STEP.search(folder)
    return int(match[1]) if match else None


def find_steps(names: Iterable[str]) -> list[int]:
    """Return the steps of the names that make_folder_name() gives, newest first; others may add any other name."""
    found = ((name, parse_step(name)) for name in names)
    return sorted((step for name, step in found if step is not None and name == make_folder_name(step)), reverse=True)


def format_now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
