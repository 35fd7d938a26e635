"""Checkpoints and their manifests.

A checkpoint exists once its manifest does. It is complete if every file listed in the manifest exists with its size.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from rerail.model.errors import BadManifest
from rerail.model.manifest_signature import has_signature

SCHEMA = 1
MANIFEST = "manifest.json"
# Rerail's own folder names, and those of Hugging Face and others.
STEP_FOLDER = re.compile(r"(?:step|checkpoint)-(\d{1,18})")
EMERGENCY = "emergency"
DAY_S = 86_400
# Larger counts in a manifest are not believed; a range of samples that a launch skips has at most 15 digits.
MOST_COUNTED = 10**14
REASON = re.compile(r"[a-z_]{1,40}")


class Health(StrEnum):
    """Whether a checkpoint may be resumed from."""

    CLEAN = "clean"  # no problem known
    SUSPECT = "suspect"  # it may contain the effects of a problem
    QUARANTINED = "quarantined"  # it must not be resumed from


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint.

    A script that does not use Rerail writes no manifest. Then `layout` is the script's own, `attempt` is 0 until it was
    looked up, and `saved_at` is the time of the newest file.
    """

    uri: str
    step: int
    # The attempt that saved it.
    attempt: int
    saved_at: datetime
    health: Health = Health.CLEAN
    # The files listed in the manifest that do not exist or have another size.
    missing: tuple[str, ...] = ()
    # Why it was saved, if the writer recorded that.
    reason: str = ""
    # The attempt's in-place restart that saved it; 0 is the job's own start.
    restart: int = 0
    # The data position: the number of samples consumed before it. None: unknown.
    consumed_samples: int | None = None
    # The layout of its files; "manifest" is Rerail's own. See checkpoint_layouts.py.
    layout: str = "manifest"
    # Seconds for which saving it interrupted training; None: not measured.
    stall_s: float | None = None
    # Seconds until it was complete; None: not measured.
    write_s: float | None = None
    # ETag and size of a file that its script overwrites in place.
    etag: str = ""
    bytes: int = 0
    # Whether the manifest is signed with the key that its reader gave.
    is_signed: bool = False
    # When S3 received the manifest, which its writer cannot choose; None: not known.
    written_at: datetime | None = None

    @property
    def has_manifest(self) -> bool:
        """Return whether the checkpoint was written with a manifest."""
        return self.layout == "manifest"

    @property
    def is_whole(self) -> bool:
        """Return whether every file exists with its expected size."""
        return not self.missing


def read_manifest(
    text: str | bytes, *, uri: str, sizes: Mapping[str, int], signing_key: str = "", written_at: datetime | None = None
) -> Checkpoint:
    """Return the checkpoint described by a manifest; raise BadManifest if it is malformed.

    `sizes` are the sizes in bytes of the objects in the checkpoint's folder.
    """
    try:
        table = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadManifest(f"{uri}: not JSON ({error}); this checkpoint is ignored") from error
    if not isinstance(table, dict):
        raise BadManifest(f"{uri}: must be a JSON object; this checkpoint is ignored")
    if table.get("schema") != SCHEMA:
        raise BadManifest(f"{uri}: field 'schema' is {table.get('schema')!r:.100}; this version reads {SCHEMA}")
    return Checkpoint(
        uri=uri.removesuffix(MANIFEST),
        step=_whole_number(table, "step", uri=uri),
        attempt=_whole_number(table, "attempt", uri=uri),
        saved_at=_time(table, uri=uri),
        health=_health(table, uri=uri),
        missing=_missing(table, sizes, uri=uri),
        reason=_reason(table),
        restart=_restart(table),
        stall_s=_seconds(table, "stall_s"),
        write_s=_seconds(table, "write_s"),
        consumed_samples=_consumed_samples(table),
        is_signed=has_signature(table, key=signing_key),
        written_at=written_at,
    )


def find_newest_usable(
    checkpoints: Sequence[Checkpoint], *, before_step: int | None = None, health: Health = Health.CLEAN
) -> Checkpoint | None:
    """Return the newest complete checkpoint of this health, or None if there is none.

    With `before_step`, only checkpoints of earlier steps count.
    """
    usable = [c for c in checkpoints if c.is_whole and c.health is health]
    if before_step is not None:
        usable = [c for c in usable if c.step < before_step]
    return max(usable, key=lambda c: (c.step, c.saved_at), default=None)


def find_newest_step(checkpoints: Sequence[Checkpoint] | None) -> int:
    """Return the step of the newest checkpoint that is complete and clean; 0 if there is none."""
    newest = find_newest_usable(checkpoints or ())
    return newest.step if newest else 0


def _whole_number(table: Mapping[str, Any], name: str, *, uri: str) -> int:
    value = table.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 10**18:
        raise BadManifest(f"{uri}: field '{name}' is {value!r:.100}; it must be a whole number, 0 or more")
    return value


def _time(table: Mapping[str, Any], *, uri: str) -> datetime:
    try:
        time = datetime.fromisoformat(table["saved_at"])
    except (KeyError, TypeError, ValueError) as error:
        raise BadManifest(f"{uri}: field 'saved_at' must be a time such as 2026-01-31T03:00:00Z") from error
    if time.tzinfo is None or not 2000 <= time.year < 2200:
        what = "has no time zone" if time.tzinfo is None else "is before 2000 or after 2199"
        raise BadManifest(f"{uri}: field 'saved_at' {what}; write it as 2026-01-31T03:00:00Z")
    return time


def _health(table: Mapping[str, Any], *, uri: str) -> Health:
    try:
        return Health(table.get("health", Health.CLEAN))
    except ValueError as error:
        raise BadManifest(f"{uri}: field 'health' must be one of {', '.join(Health)}") from error


def _reason(table: Mapping[str, Any]) -> str:
    """Return the reason if it is a single word, else "". It is only shown to people, so a bad one is not an error."""
    reason = table.get("reason")
    return reason if isinstance(reason, str) and REASON.fullmatch(reason) else ""


def _consumed_samples(table: Mapping[str, Any]) -> int | None:
    """Return the number of consumed samples, or None if it is missing or 0, which writers use for "unknown"."""
    number = table.get("consumed_samples")
    return number if type(number) is int and 0 < number < MOST_COUNTED else None


def _seconds(table: Mapping[str, Any], name: str) -> float | None:
    """Return a duration in seconds, or None if it is missing or not a number from 0 to a day."""
    value = table.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < DAY_S:
        return None
    return float(value)


def _restart(table: Mapping[str, Any]) -> int:
    """Return the number of the in-place restart, or 0 if it is missing, as in manifests of older writers."""
    number = table.get("restart")
    return number if type(number) is int and 0 < number < MOST_COUNTED else 0


def _missing(table: Mapping[str, Any], sizes: Mapping[str, int], *, uri: str) -> tuple[str, ...]:
    files = table.get("files")
    if not isinstance(files, list) or not files:
        raise BadManifest(f"{uri}: field 'files' must list at least one file")
    missing = []
    for entry in files:
        if (
            not isinstance(entry, dict)
            or not isinstance(entry.get("name"), str)
            or not isinstance(entry.get("bytes"), int)
        ):
            raise BadManifest(f"{uri}: each entry of 'files' needs a 'name' and a size in 'bytes'")
        if not is_inside(entry["name"]):
            raise BadManifest(f"{uri}: file {entry['name'][:100]!r} does not lie in the checkpoint's folder")
        if sizes.get(entry["name"]) != entry["bytes"]:
            missing.append(entry["name"])
    return tuple(missing)


def is_inside(name: str) -> bool:
    """Return whether a file name stays inside the checkpoint folder when a loader joins it to the folder's path."""
    parts = name.split("/")
    return not {"", ".", ".."} & set(parts) and name.isprintable() and "\\" not in name


def split_uri(uri: str) -> tuple[str, str]:
    """Split `s3://bucket/some/prefix`, with or without a final slash, into `bucket` and `some/prefix/`."""
    # urlparse is not used, because `?` and `#` are ordinary characters in a key.
    bucket, _, path = uri.removeprefix("s3://").partition("/")
    folder = path.strip("/")
    return bucket, f"{folder}/" if folder else ""
