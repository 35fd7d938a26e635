"""Which saved state may a run carry on from? A checkpoint exists when its manifest does, and is whole when every
file that the manifest lists is there with its size."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from rerail.model.errors import BadManifest

SCHEMA = 1
MANIFEST = "manifest.json"
# Ours, and the one that Hugging Face and others write.
STEP_FOLDER = re.compile(r"(?:step|checkpoint)-(\d{1,18})")
EMERGENCY = "emergency"
DAY_S = 86_400
REASON = re.compile(r"[a-z_]{1,40}")


class Health(StrEnum):
    """What is known of a checkpoint's state."""

    CLEAN = "clean"
    SUSPECT = "suspect"
    QUARANTINED = "quarantined"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A saved state with its manifest; `missing` names the files that the manifest promises and nobody can find,
    `reason` says why it was saved, if its writer said so; `restart` is the attempt's restart in place that saved it.

    `consumed_samples` is the data position: how many samples of the run's order lie behind it.

    A script that knows nothing of Rerail writes no manifest: then `layout` is its own, `attempt` is 0 until somebody
    has looked up whose it is, and `saved_at` is the time of its newest file.

    `stall_s` is how long the training stood still for it in seconds, `write_s` how long it took to be whole, where its
    writer has measured that.
    """

    uri: str
    step: int
    attempt: int
    saved_at: datetime
    health: Health = Health.CLEAN
    missing: tuple[str, ...] = ()
    reason: str = ""
    restart: int = 0
    consumed_samples: int | None = None
    layout: str = "manifest"
    stall_s: float | None = None
    write_s: float | None = None

    @property
    def has_manifest(self) -> bool:
        """Its writer says itself what it is."""
        return self.layout == "manifest"

    @property
    def is_whole(self) -> bool:
        """Every file is there with its size."""
        return not self.missing


def read_manifest(text: str | bytes, *, uri: str, sizes: Mapping[str, int]) -> Checkpoint:
    """A checkpoint from its manifest's text and the sizes in bytes of the objects beside it; raises BadManifest."""
    try:
        table = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadManifest(f"{uri}: not JSON ({error}); this checkpoint is left alone") from error
    if not isinstance(table, dict):
        raise BadManifest(f"{uri}: must be a JSON object; this checkpoint is left alone")
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
        consumed_samples=_consumed(table),
    )


def newest_usable(
    checkpoints: Sequence[Checkpoint], *, before_step: int | None = None, health: Health = Health.CLEAN
) -> Checkpoint | None:
    """The one to resume from: the newest that is whole and clean, and older than `before_step` where that is given."""
    usable = [c for c in checkpoints if c.is_whole and c.health is health]
    if before_step is not None:
        usable = [c for c in usable if c.step < before_step]
    return max(usable, key=lambda c: (c.step, c.saved_at), default=None)


def newest_step(checkpoints: Sequence[Checkpoint] | None) -> int:
    """The step of the newest usable checkpoint; 0 where there is none."""
    newest = newest_usable(checkpoints or ())
    return newest.step if newest else 0


def _whole_number(table: Mapping[str, Any], name: str, *, uri: str) -> int:
    value = table.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise BadManifest(f"{uri}: field '{name}' is {value!r:.100}; it must be a whole number, 0 or more")
    return value


def _time(table: Mapping[str, Any], *, uri: str) -> datetime:
    try:
        time = datetime.fromisoformat(table["saved_at"])
    except (KeyError, TypeError, ValueError) as error:
        raise BadManifest(f"{uri}: field 'saved_at' must be a time such as 2026-01-31T03:00:00Z") from error
    if time.tzinfo is None:
        raise BadManifest(f"{uri}: field 'saved_at' has no time zone; write it as 2026-01-31T03:00:00Z")
    return time


def _health(table: Mapping[str, Any], *, uri: str) -> Health:
    try:
        return Health(table.get("health", Health.CLEAN))
    except ValueError as error:
        raise BadManifest(f"{uri}: field 'health' must be one of {', '.join(Health)}") from error


def _reason(table: Mapping[str, Any]) -> str:
    """One word, or nothing: it is quoted to people, and no manifest is refused for it."""
    reason = table.get("reason")
    return reason if isinstance(reason, str) and REASON.fullmatch(reason) else ""


def _consumed(table: Mapping[str, Any]) -> int | None:
    """None where nothing is said; writers that do not know say 0."""
    number = table.get("consumed_samples")
    return number if isinstance(number, int) and not isinstance(number, bool) and number > 0 else None


def _seconds(table: Mapping[str, Any], name: str) -> float | None:
    """Measured by some writers only; what is no such number counts as not measured."""
    value = table.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < DAY_S:
        return None
    return float(value)


def _restart(table: Mapping[str, Any]) -> int:
    """0 where nothing is said: before there were restarts in place, and by writers that know none."""
    number = table.get("restart")
    return number if type(number) is int and number > 0 else 0


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
    """A relative path of plain parts: such names are joined to paths by those who load the checkpoint."""
    parts = name.split("/")
    return not {"", ".", ".."} & set(parts) and name.isprintable() and "\\" not in name


def bucket_and_folder(uri: str) -> tuple[str, str]:
    """`s3://bucket/some/prefix` -> (`bucket`, `some/prefix/`), with or without a slash at its end."""
    # Not urlparse: `?` and `#` are plain characters in a key.
    bucket, _, path = uri.removeprefix("s3://").partition("/")
    folder = path.strip("/")
    return bucket, f"{folder}/" if folder else ""
