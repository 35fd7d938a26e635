"""Saves and finds training state so that a kill at any moment costs steps, never the run.

A checkpoint is a folder `step-000000060/` with `*.pt` files and, written last, `manifest.json`. It exists when its
manifest does, and it is whole when every listed file is there with its size and checksum. Nothing whole is ever written
over, and deleting begins with the manifest. What a rollback no longer trusts is kept in `quarantine/`.
"""

import itertools
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import xxhash

SCHEMA = 1
MANIFEST = "manifest.json"
QUARANTINE = "quarantine"
STEP = re.compile(r"step-(\d{9,})")
SAVING = ".saving-"  # the prefix of a folder whose save has not come to its manifest yet
CHUNK = 1 << 23


class DamagedCheckpoint(Exception):
    """A checkpoint is not whole; the message says what is missing or wrong."""


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint holds, as in its manifest.json; `loss` is None when it was not finite."""

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


def save(root: Path, manifest: Manifest, parts: dict[str, Any]) -> bool:
    """Writes a checkpoint, each part to `<name>.pt`; False when a whole one of this step is there already.

    A replayed step is the same state again, so the older copy stays. One that is torn or damaged makes room.
    """
    final = root / folder_name(manifest.step)
    if is_whole(final):
        return False
    sweep_up(root)
    folder = root / f"{SAVING}{final.name}"
    folder.mkdir(parents=True)
    files = tuple(_write_part(folder, f"{name}.pt", part) for name, part in parts.items())
    _sync_folder(folder)
    drop(final)
    folder.rename(final)
    _sync_folder(root)
    _write_manifest(final, Manifest(**{**vars(manifest), "files": files, "saved_at": _now()}))
    return True


def load(root: Path, step: int, device: torch.device) -> tuple[Manifest, dict[str, Any]]:
    """The manifest and the parts of a checkpoint that `newest_whole` has found."""
    folder = root / folder_name(step)
    manifest = read_manifest(folder)
    names = [entry["name"] for entry in manifest.files]
    parts = {Path(name).stem: torch.load(folder / name, map_location=device, weights_only=True) for name in names}
    return manifest, parts


def newest_whole(root: Path, allowed: Callable[[Manifest], bool], tell: Callable[[str], None]) -> int:
    """The newest whole step that is allowed, 0 if there is none; tells of every damaged one that it passes over."""
    for step in steps(root):
        folder = root / folder_name(step)
        if not (folder / MANIFEST).exists():
            continue
        try:
            if allowed(read_manifest(folder)):
                verify(folder)
                return step
        except DamagedCheckpoint as damage:
            tell(f"checkpoint {folder.name} is damaged ({damage}); falling back to the one before it")
    return 0


def quarantine(root: Path, *, after: int, tainted: Callable[[Manifest], bool], tell: Callable[[str], None]) -> None:
    """Moves tainted checkpoints after a step to `quarantine/a<attempt>-step-<n>/`, and tells of each.

    One without a readable manifest is torn or damaged: it goes too, its attempt unknown. Each takes one rename, so a
    kill in between leaves the rest to the next start. Nothing is deleted, and nothing in quarantine is replaced.
    """
    for step in steps(root):
        folder = root / folder_name(step)
        attempt = _attempt_if(tainted, folder)
        if step > after and attempt is not None:
            place = _free_place(root / QUARANTINE / f"a{attempt}-{folder.name}")
            place.parent.mkdir(exist_ok=True)
            folder.rename(place)
            _sync_folder(place.parent)
            _sync_folder(root)
            tell(f"{folder.name} of attempt {attempt} comes after step {after}: moved to {place.relative_to(root)}")


def _attempt_if(tainted: Callable[[Manifest], bool], folder: Path) -> int | str | None:
    try:
        manifest = read_manifest(folder)
    except DamagedCheckpoint:
        return "unknown"
    return manifest.attempt if tainted(manifest) else None


def _free_place(wanted: Path) -> Path:
    # A sync that was cut short between its upload and its delete brings a checkpoint back that was moved before.
    places = (wanted.with_name(f"{wanted.name}-{number}") for number in itertools.count(2))
    return next(place for place in itertools.chain([wanted], places) if not place.exists())


def verify(folder: Path) -> Manifest:
    """The manifest, once every listed file has its size and its checksum; raises DamagedCheckpoint."""
    manifest = read_manifest(folder)
    for entry in manifest.files:
        path = folder / entry["name"]
        if not path.is_file():
            raise DamagedCheckpoint(f"{path.name} is missing")
        if path.stat().st_size != entry["bytes"]:
            raise DamagedCheckpoint(f"{path.name} has {path.stat().st_size} bytes instead of {entry['bytes']}")
        if checksum(path) != entry["checksum"]:
            raise DamagedCheckpoint(f"{path.name} does not match its checksum")
    return manifest


def is_whole(folder: Path) -> bool:
    try:
        verify(folder)
    except DamagedCheckpoint:
        return False
    return True


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a checkpoint; raises DamagedCheckpoint when it is missing or cannot be read."""
    try:
        table = json.loads((folder / MANIFEST).read_text())
        manifest = Manifest(**{**table, "files": tuple(table["files"])})
        listed = [(str(entry["name"]), int(entry["bytes"]), str(entry["checksum"])) for entry in manifest.files]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise DamagedCheckpoint(f"{MANIFEST} cannot be read: {type(error).__name__}") from error
    named = STEP.search(folder.name)  # a1-step-000000060 in quarantine
    if manifest.schema != SCHEMA or named is None or int(named[1]) != manifest.step or not listed:
        raise DamagedCheckpoint(f"{MANIFEST} has schema {manifest.schema} and step {manifest.step}")
    return manifest


def prune(root: Path, *, keep: int, newest: int) -> None:
    """Deletes what is older than the last `keep` checkpoints up to `newest`, the one just saved.

    Newer ones, of another attempt, are left alone, and so are the newest clean one and the quarantine.
    """
    if keep < 1:
        raise ValueError(f"keep={keep}: must be at least 1, or the newest checkpoint would be deleted")
    upto = [step for step in steps(root) if step <= newest]
    existing = [step for step in upto if (root / folder_name(step) / MANIFEST).exists()]
    kept = {*existing[:keep], *_newest_clean(root, existing)}
    for step in upto:
        if step not in kept:
            drop(root / folder_name(step))


def _newest_clean(root: Path, existing: Iterable[int]) -> Iterator[int]:
    for step in existing:
        try:
            if read_manifest(root / folder_name(step)).health == "clean":
                yield step
                return
        except DamagedCheckpoint:
            continue


def drop(folder: Path) -> None:
    """Deletes a checkpoint, manifest first: half deleted, it must not look whole."""
    if not folder.exists():
        return
    (folder / MANIFEST).unlink(missing_ok=True)
    _sync_folder(folder)
    shutil.rmtree(folder)


def sweep_up(root: Path) -> None:
    """Deletes what killed saves have left. There is one writer, so no save is under way here."""
    for folder in root.glob(f"{SAVING}*"):
        shutil.rmtree(folder)


def steps(root: Path) -> list[int]:
    """The steps that have a folder, newest first."""
    matches = (STEP.fullmatch(path.name) for path in root.glob("step-*"))
    return sorted((int(match[1]) for match in matches if match), reverse=True)


def folder_name(step: int) -> str:
    return f"step-{step:09d}"


def checksum(path: Path) -> str:
    digest = xxhash.xxh3_64()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return f"xxh3_64:{digest.hexdigest()}"


def fingerprint(model: dict[str, torch.Tensor]) -> str:
    """One checksum over all weights, to compare two runs at a glance."""
    digest = xxhash.xxh3_64()
    for name in sorted(model):
        digest.update(name.encode())
        digest.update(model[name].detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return f"xxh3_64:{digest.hexdigest()}"


def _write_part(folder: Path, name: str, part: Any) -> dict[str, Any]:
    path = folder / name
    with path.open("wb") as file:
        torch.save(part, file)
        file.flush()
        os.fsync(file.fileno())
    return {"name": name, "bytes": path.stat().st_size, "checksum": checksum(path)}


def _write_manifest(folder: Path, manifest: Manifest) -> None:
    temporary = folder / f"{MANIFEST}.tmp"
    with temporary.open("w") as file:
        json.dump(asdict(manifest), file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(folder / MANIFEST)
    _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
