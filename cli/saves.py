"""The checkpoints in a run's folder in S3, complete or not, and those in quarantine."""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import xxhash
from botocore.exceptions import ClientError

from cli.file_checks import find_damage, open_object
from cli.trouble import get_code
from rerail.decisions.checkpoint_health import assess_health, find_newest_resumable
from rerail.decisions.decision import (
    find_first_signed_step,
    has_agent,
    select_known,
    was_written_unsigned,
    with_attempt_number,
)
from rerail.model import checkpoint_layouts
from rerail.model.checkpoint_layouts import StoredObject
from rerail.model.checkpoints import MANIFEST, Checkpoint, Health, find_newest_usable, read_manifest, split_uri
from rerail.model.errors import BadManifest
from rerail.model.run import Run

FOLDER = re.compile(
    r"(?P<aside>quarantine/a(?:\d+|unknown)-)?(?:step|checkpoint)-(?P<step>\d{1,18})(?:-\d+)?/(?P<name>.+)"
)
CHUNK = 1 << 23
CHECKSUM = "xxh3_64:"
# One stream from S3 carries some 90 MB a second; boto3 keeps ten connections.
READERS = 8
# What S3 answers when an object was written again or deleted since it was listed.
CHANGED = ("PreconditionFailed", "412", "NoSuchKey", "404")


@dataclass(frozen=True, slots=True)
class File:
    """One file as the manifest lists it; of a script without manifests, by its key and without a checksum."""

    name: str
    bytes: int
    checksum: str = ""
    etag: str = ""


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """One folder with what is in it; `checkpoint` is None where there is no manifest, or none that can be read, unless
    it is the save of a script that writes none.

    `damage` says what is wrong with it: what a listing shows, or what a comparison of the checksums brought to light.
    """

    folder: str
    step: int
    is_quarantined: bool
    bytes: int
    has_manifest: bool
    checkpoint: Checkpoint | None = None
    files: tuple[File, ...] = ()
    damage: str = ""
    is_verified: bool = False
    # How many files of a script can be read, as far as their formats show; None: they were not opened.
    readable: int | None = None
    # Of a script without manifests: the frameworks that write this layout, its number in words, and what the pointers
    # beside it say.
    layout: str = ""
    number: str = ""
    pointer: str = ""

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the keys of a script's files."""
        return () if self.has_manifest else tuple(file.name for file in self.files)

    @property
    def is_skipped(self) -> bool:
        """Return whether a relaunch does not resume from it: the supervisor does not read a script's files."""
        return bool(self.damage) and self.readable is None

    @property
    def is_single_file(self) -> bool:
        """A script overwrites it in place, so its step is unknown."""
        return self.checkpoint is not None and self.checkpoint.layout == checkpoint_layouts.Layout.FILE

    @property
    def has_step(self) -> bool:
        """Its name tells a step, not the number of an epoch or a save."""
        return not self.is_single_file

    @property
    def is_folder(self) -> bool:
        """It is a folder; otherwise it is one file, or several beside each other."""
        return not self.keys or any(key.startswith(f"{self.folder}/") for key in self.keys)

    @property
    def is_whole(self) -> bool:
        """Its manifest is there, and every file with its size; or all that its script's layout needs."""
        return self.checkpoint is not None and self.checkpoint.is_whole


def list_checkpoints(s3: Any, uri: str, *, signing_key: str = "") -> list[StoredCheckpoint]:
    """Return all checkpoints, newest step first, quarantined ones last; raise what boto3 raises.

    Signatures are compared with `signing_key`; without one, no checkpoint counts as signed.
    A checkpoint that the job deletes meanwhile is left out.
    """
    bucket, prefix = split_uri(uri)
    stored = [
        StoredObject(item["Key"].removeprefix(prefix), item["Size"], item["LastModified"], item["ETag"])
        for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        for item in page.get("Contents", [])
    ]
    has_manifests = checkpoint_layouts.has_manifests(stored)
    of_a_script = _saves_of_a_script(s3, bucket, prefix, stored, with_files=not has_manifests)
    if of_a_script and not has_manifests:
        return of_a_script
    known = {save.folder for save in of_a_script}
    folders: dict[str, dict[str, StoredObject]] = defaultdict(dict)
    for stored_object in stored:
        if match := FOLDER.fullmatch(stored_object.key):
            folders[stored_object.key.removesuffix(match["name"])][match["name"]] = stored_object
    saves = [_save(s3, bucket, prefix, folder, files, signing_key) for folder, files in folders.items()]
    others = [save for save in saves if save and save.folder not in known]
    return sorted([*others, *of_a_script], key=lambda save: (save.is_quarantined, -save.step, save.folder))


def _saves_of_a_script(
    s3: Any, bucket: str, prefix: str, stored: Sequence[StoredObject], *, with_files: bool
) -> list[StoredCheckpoint]:
    """Return the checkpoints without a manifest, and single files if none of them has a step.

    With manifests in the folder, they count only if one of them is complete by its layout.
    """
    pointers = {
        pointer.key: s3.get_object(Bucket=bucket, Key=f"{prefix}{pointer.key}")["Body"].read().decode(errors="replace")
        for pointer in checkpoint_layouts.find_pointers(stored)
    }
    found = [save for save in checkpoint_layouts.find_checkpoints(stored, pointers) if not save.has_manifest]
    if not with_files:
        found = [save for save in found if save.has_step]
        if not any(save.is_whole for save in found):
            return []
    saves = [
        StoredCheckpoint(
            save.place.rstrip("/"),
            save.step,
            is_quarantined=False,
            bytes=sum(file.bytes for file in save.files.values()),
            has_manifest=False,
            checkpoint=checkpoint_layouts.make_checkpoint(save, uri=f"s3://{bucket}/{prefix}"),
            damage=f"lacks {', '.join(save.missing)}" if save.missing else "",
            layout=save.name,
            number=f"{save.counts} {save.step}",
            files=tuple(File(file.key, file.bytes, etag=file.etag) for file in save.files.values()),
            pointer=_describe_pointers(save.parent, pointers),
        )
        for save in found
    ]
    if not with_files or any(save.has_step for save in found):
        return saves
    known = {key for save in saves for key in (save.folder, *save.keys)}
    return [*saves, *(file for file in _single_files(bucket, prefix, stored) if file.folder.rstrip("/") not in known)]


def _describe_pointers(parent: str, pointers: Mapping[str, str]) -> str:
    """Return what the pointers in a folder name, in words; "" if there is none."""
    beside = {key: text for key, text in pointers.items() if key.rpartition("/")[0] == parent.rstrip("/")}
    return ", ".join(f"{key.rpartition('/')[2]} names {text.strip()[:80]!r}" for key, text in beside.items())


def _single_files(bucket: str, prefix: str, stored: Sequence[StoredObject]) -> list[StoredCheckpoint]:
    """Files that a script overwrites in place; it may resume from them, though their step is unknown."""
    uri, known = f"s3://{bucket}/{prefix}", {item.key: item for item in stored}
    return [
        StoredCheckpoint(
            name := file.uri.removeprefix(uri),
            0,
            is_quarantined=False,
            bytes=known[name].bytes,
            has_manifest=False,
            checkpoint=file,
            files=(File(name, known[name].bytes, etag=known[name].etag),),
        )
        for file in checkpoint_layouts.find_single_files(stored, uri=uri)
    ]


def _save(
    s3: Any, bucket: str, prefix: str, folder: str, stored: Mapping[str, StoredObject], signing_key: str
) -> StoredCheckpoint | None:
    sizes = {name: item.bytes for name, item in stored.items()}
    match = FOLDER.fullmatch(f"{folder}{MANIFEST}")
    assert match, "found by the same expression"
    save = StoredCheckpoint(
        folder.rstrip("/"), int(match["step"]), bool(match["aside"]), sum(sizes.values()), MANIFEST in sizes
    )
    if not save.has_manifest:
        return save
    try:
        text = s3.get_object(Bucket=bucket, Key=f"{prefix}{folder}{MANIFEST}")["Body"].read()
        checkpoint = read_manifest(
            text,
            uri=f"s3://{bucket}/{prefix}{folder}{MANIFEST}",
            sizes=sizes,
            signing_key=signing_key,
            written_at=stored[MANIFEST].at,
        )
    except s3.exceptions.NoSuchKey:
        return None
    except BadManifest as error:
        return replace(save, damage=str(error).removeprefix(f"s3://{bucket}/{prefix}{folder}"))
    if checkpoint.step != save.step:
        return replace(save, damage=f"its manifest is of step {checkpoint.step}")
    listed = json.loads(text)["files"]
    return replace(
        save,
        checkpoint=checkpoint,
        files=tuple(File(entry["name"], entry["bytes"], str(entry.get("checksum", ""))) for entry in listed),
        damage=f"missing or of another size: {', '.join(checkpoint.missing)}" if checkpoint.missing else "",
    )


def verify_checksums(s3: Any, uri: str, save: StoredCheckpoint, advance: Callable[[int], None]) -> StoredCheckpoint:
    """Read every file that the manifest lists and compare its checksum; call `advance` with the size of each chunk."""
    bucket, prefix = split_uri(uri)

    def wrong(file: File) -> str:
        if not file.checksum.startswith(CHECKSUM):
            return f"{file.name} has no checksum to compare"
        found = _checksum(s3, bucket, f"{prefix}{save.folder}/{file.name}", advance)
        return "" if found == file.checksum else f"{file.name} does not match its checksum"

    with ThreadPoolExecutor(READERS) as readers:
        damage = "; ".join(filter(None, readers.map(wrong, save.files)))
    return replace(save, damage=damage, is_verified=True)


def verify_readable(s3: Any, uri: str, save: StoredCheckpoint, advance: Callable[[int], None]) -> StoredCheckpoint:
    """Open the files of a script's checkpoint, and report the damage that their formats show.

    Call `advance` with the bytes of each read. A file that the script writes or deletes meanwhile is not judged.
    """
    bucket, prefix = split_uri(uri)

    def check(file: File) -> str | None:
        where = {"Bucket": bucket, "Key": f"{prefix}{file.name}", "IfMatch": file.etag}
        try:
            with open_object(s3, where, file.bytes, advance) as opened:
                return find_damage(file.name, opened, file.bytes)
        except ClientError as error:
            if get_code(error) in CHANGED:
                return None
            raise

    with ThreadPoolExecutor(READERS) as readers:
        found = list(readers.map(check, save.files))
    names = (file.name.removeprefix(f"{save.folder}/") for file in save.files)
    damage = "; ".join(f"{name} {wrong}" for name, wrong in zip(names, found, strict=True) if wrong)
    readable = found.count("")
    return replace(save, damage=damage, is_verified=readable == len(found), readable=readable)


def _checksum(s3: Any, bucket: str, key: str, advance: Callable[[int], None]) -> str:
    digest = xxhash.xxh3_64()
    for chunk in s3.get_object(Bucket=bucket, Key=key)["Body"].iter_chunks(CHUNK):
        digest.update(chunk)
        advance(len(chunk))
    return f"{CHECKSUM}{digest.hexdigest()}"


def find_resume_point(run: Run, saves: Sequence[StoredCheckpoint]) -> StoredCheckpoint | None:
    """Return the checkpoint from which a relaunch of the run would resume, by the supervisor's own rule."""
    sound = {
        save.checkpoint.uri: save
        for save in saves
        if save.checkpoint and not save.is_quarantined and not save.is_skipped
    }
    known = [save.checkpoint for save in sound.values() if save.checkpoint]
    before = run.stop.before_step if run.stop else None
    now = select_known(run, known)
    chosen = find_newest_resumable(now) if before is None else find_newest_usable(now, before_step=before)
    return sound[chosen.uri] if chosen else None


def explain_passed_over(run: Run, save: StoredCheckpoint, saves: Sequence[StoredCheckpoint]) -> str:
    """Return why a relaunch would not resume from this checkpoint, one of these; "" if it may."""
    if save.is_quarantined:
        return "quarantined by a rollback"
    if not save.has_manifest and (save.checkpoint is None or has_agent(run)):
        return "no manifest: a save that is under way, or never ended"
    if save.is_skipped or save.checkpoint is None:
        return save.damage
    if run.stop and run.stop.before_step is not None and save.step >= run.stop.before_step:
        return f"not older than step {run.stop.before_step}, where {run.stop.reason} began"
    if was_written_unsigned(run, save.checkpoint):
        return "its manifest is not signed with the run's key"
    sound = [other.checkpoint for other in saves if other.checkpoint and not other.is_quarantined and not other.damage]
    first = find_first_signed_step(sound)
    if has_agent(run) and not save.checkpoint.is_signed and first is not None and save.step >= first:
        return f"its manifest is not signed, and those from step {first} on are"
    health, why = assess_health(run, with_attempt_number(run, save.checkpoint))
    return "" if health is Health.CLEAN else why
