"""List checkpoints in S3 from their manifests, or from a known layout without manifests."""

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import lru_cache
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from rerail.aws.clients import client
from rerail.aws.error_codes import find_code, find_object_problem
from rerail.aws.folder_listing import ADVICE, FolderListing
from rerail.aws.quarantine import FORBIDDEN, ObjectMover
from rerail.decisions.quarantine import BY_HAND, COPIES_PLACE, plan_moves
from rerail.model.actions import CopyCheckpoint, QuarantineCheckpoints
from rerail.model.checkpoint_layouts import (
    StoredObject,
    find_checkpoints,
    find_pointers,
    find_single_files,
    has_manifests,
    list_save_times,
    make_checkpoint,
)
from rerail.model.checkpoints import MANIFEST, STEP_FOLDER, Checkpoint, find_newest_usable, read_manifest, split_uri
from rerail.model.errors import (
    ActionUnfinished,
    BadManifest,
    BoundsExceeded,
    CallFailed,
    QuarantineFailed,
    StateUnknown,
)
from rerail.model.file_copies import FileCopy
from rerail.ports import ListedSaves

# Checkpoints are read in batches from the newest until one is usable, up to the limit. The newest nearly always is, but
# a divergence that went unnoticed may have made many of them unusable.
BATCH, LIMIT = 20, 400
# A folder with a manifest somewhere is read by its manifests: in a large one, some of the oldest are looked at too.
OLDEST = 3
# Scripts differ in the names of their folders: so that one does not hide another's, the newest of each are listed.
FOLDER_NAMES = (re.compile(r"step-\d+"), re.compile(r"checkpoint-\d+"), re.compile(r"(?!(?:step|checkpoint)-\d+$).*"))
MANIFEST_BYTES = 1 << 20
# Manifests with many files are not kept in memory: as many as this, with a hundred bytes for each file.
CACHE_SIZE, CACHED_FILES = 5000, 100
# A pointer file holds one word, and a run has one in each folder.
POINTER_BYTES, MAX_POINTERS = 200, 20


class S3Checkpoints:
    """The port `Checkpoints` on S3. Where no bucket may be read, no checkpoint is known."""

    def __init__(self, mover: Callable[[str], ObjectMover] = ObjectMover, *, is_allowed: bool = True) -> None:
        self._mover = mover
        self._is_allowed = is_allowed
        # A run in recovery is checked each minute, and its manifests never change.
        self._read = lru_cache(maxsize=CACHE_SIZE)(_read)

    def list_checkpoints(
        self, uri: str, *, upto: int | None = None, signing_key: str = "", signed_only: bool = True
    ) -> Sequence[Checkpoint]:
        if not self._is_allowed:
            return ()
        try:
            listing = _list_some(uri)
            if not has_manifests(listing.objects):
                return _list_by_layout(listing, upto)
            signed_only = signed_only and bool(signing_key)
            found, unread = self._list_by_manifests(listing, upto, signing_key, signed_only=signed_only)
            # An agent resumes from signed manifests alone. Another script may have left manifests beside its own files.
            found += () if signed_only else _find_with_step(listing, with_manifest=False)[0]
            if unread and not find_newest_usable([save for save in found if save.is_signed or not signed_only]):
                raise unread
            return found
        except (ClientError, BotoCoreError) as error:
            raise StateUnknown(f"checkpoints under {uri}: {error}") from error

    def _list_by_manifests(
        self, listing: FolderListing, upto: int | None, key: str, *, signed_only: bool
    ) -> tuple[list[Checkpoint], Exception | None]:
        """Return the newest checkpoints that have a readable manifest, and why another manifest cannot be read."""
        listed = {folder for item in listing.objects if (folder := _folder_of(item.key))}
        top = {folder for folder in listing.steps if STEP_FOLDER.fullmatch(folder.rstrip("/"))}
        wanted = (folder for folder in listed | top if upto is None or _step(folder) <= upto)
        newest = sorted(wanted, key=_step, reverse=True)[:LIMIT]
        found: list[Checkpoint] = []
        unread: Exception | None = None
        for start in range(0, len(newest), BATCH):
            few = newest[start : start + BATCH]
            listing.add(few)
            folders = _group_by_folder(listing.objects)
            for folder in few:
                manifest = folders.get(folder, {}).get(MANIFEST)
                listing.check_time()
                try:
                    if manifest and (read := self._read_cached(listing, folder, folders[folder], key)):
                        found.append(read)
                except (BoundsExceeded, ClientError) as error:
                    unread = _require_unreadable(error)  # if none can be read, nothing is known
            if find_newest_usable([checkpoint for checkpoint in found if checkpoint.is_signed or not signed_only]):
                break
        return found, unread

    def _read_cached(
        self, listing: FolderListing, folder: str, files: dict[str, StoredObject], key: str
    ) -> Checkpoint | None:
        read = self._read if len(files) <= CACHED_FILES else _read
        sizes = tuple((name, item.bytes) for name, item in files.items())
        stored, folder = files[MANIFEST], f"{listing.prefix}{folder}"
        if stored.bytes > MANIFEST_BYTES:
            what = f"s3://{listing.bucket}/{folder}{MANIFEST} has more than the {MANIFEST_BYTES:,} bytes that are read"
            advice = f"save fewer files for each checkpoint; for this run, {ADVICE}"
            raise BoundsExceeded(f"{what} of a manifest", advice=advice)
        try:
            return read(listing.bucket, folder, sizes, stored.etag, stored.at, key)
        except client("s3").exceptions.NoSuchKey:
            return None  # deleted or moved by the job since it was listed

    def list_saves(self, uri: str) -> ListedSaves:
        if not self._is_allowed:
            return ListedSaves(())
        try:
            listing = _list_some(uri)
        except (ClientError, BotoCoreError) as error:
            raise StateUnknown(f"checkpoints under {uri}: {error}") from error
        stored = listing.objects
        if not has_manifests(stored):
            found = [checkpoint for checkpoint in find_checkpoints(stored) if checkpoint.has_step]
            files = [] if found else _find_files(listing)
            saved = sorted(checkpoint.saved_at for checkpoint in found) or list_save_times(files)
            return ListedSaves(saved if listing.is_whole else saved[-BATCH:], files)
        manifests = [item for item in stored if item.key.rpartition("/")[2] == MANIFEST]
        times = [item.at for item in manifests if STEP_FOLDER.fullmatch(item.key.partition("/")[0])]
        others = (found for found in find_checkpoints(stored) if found.has_step and not found.has_manifest)
        times += [found.saved_at for found in others if found.is_whole]
        return ListedSaves(sorted(times)[-BATCH:])

    def copy_file(self, action: CopyCheckpoint, authorize: Callable[[], None]) -> FileCopy | None:
        bucket, prefix = split_uri(action.uri)
        own = f"{COPIES_PLACE}{action.run}/"
        if other := next((copy.key for copy in (action.copy, *action.expired) if not copy.key.startswith(own)), ""):
            raise QuarantineFailed(f"{other} is not below {own}", advice="report this defect; nothing was changed")
        authorize()
        mover = self._mover(bucket)
        etag = mover.copy_version(f"{prefix}{action.copy.name}", action.copy.key, etag=action.copy.etag)
        if not etag:
            return None
        mover.delete([copy.key for copy in action.expired])
        return replace(action.copy, copy_etag=etag)

    def quarantine(self, action: QuarantineCheckpoints, authorize: Callable[[], None]) -> None:
        unlisted: BoundsExceeded | None = None
        try:
            listing = _list_some(action.uri)
            try:
                _add_newer(listing, action.resume_step)
            except BoundsExceeded as error:
                unlisted = error  # what was listed is moved now, the rest in the next turns
            pointers, unread = _read_pointers(listing)
            moves = plan_moves(listing.objects, pointers, action)
            if moves and unread:  # it may name what is moved
                key = next(item.key for item in find_pointers(listing.objects) if item.key not in pointers)
                raise QuarantineFailed(f"{action.uri}: {key} cannot be read: {unread}", advice=BY_HAND)
        except BoundsExceeded as error:
            raise QuarantineFailed(error.message, advice=f"{error.advice}; or {BY_HAND}") from error
        except (ClientError, BotoCoreError) as error:
            raise CallFailed(f"listing the checkpoints to quarantine under {action.uri}: {error}") from error
        if moves:
            authorize()
            self._mover(listing.bucket).move(moves)
        if unlisted and moves:
            raise ActionUnfinished("more checkpoints are left than one turn lists; the next turn continues")
        if unlisted:
            raise QuarantineFailed(unlisted.message, advice=f"{unlisted.advice}; or {BY_HAND}")


def _list_some(uri: str) -> FolderListing:
    """List a small folder, or enough checkpoint folders of a large one to recognize their layout."""
    listing = FolderListing(*split_uri(uri))
    for name in FOLDER_NAMES:
        listing.add(listing.newest(BATCH, named=name))
    listing.add(listing.oldest(OLDEST))
    return listing


def _add_newer(listing: FolderListing, resume_step: int | None) -> None:
    """List the checkpoint folders to move, after those to resume from with neighbours to compare them with."""
    if resume_step is not None:
        listing.add(listing.newest(BATCH, upto=resume_step))
    after = -1 if resume_step is None else resume_step
    listing.add(folder for folder in listing.newest(len(listing.steps)) if listing.steps[folder] > after)


def _list_by_layout(listing: FolderListing, upto: int | None) -> Sequence[Checkpoint]:
    """Return the checkpoints of a known layout; of a large folder, the newest until one up to the step is usable."""
    count = BATCH
    while True:
        found, unread = _find_with_step(listing)
        older = [checkpoint for checkpoint in found if upto is None or checkpoint.step <= upto]
        more = listing.newest(count, upto=upto)
        newest = find_newest_usable(older)
        # Of a large folder, the oldest are listed too: what lies between them is not skipped.
        is_found = newest and not (more and listing.steps[more[0]] > newest.step)
        if is_found or not more or 2 * count > LIMIT:  # so many are listed already
            if unread and found and not newest:
                raise unread
            return found or _find_files(listing)
        listing.add(more)
        count *= 2


def _find_with_step(listing: FolderListing, *, with_manifest: bool = True) -> tuple[list[Checkpoint], Exception | None]:
    """Return the listed checkpoints of a known layout, and why a pointer to one cannot be read."""
    pointers, unread = _read_pointers(listing)
    found, uri = find_checkpoints(listing.objects, pointers), f"s3://{listing.bucket}/{listing.prefix}"
    wanted = (item for item in found if item.has_step and (with_manifest or not item.has_manifest))
    return [make_checkpoint(item, uri=uri) for item in wanted], unread


def _find_files(listing: FolderListing) -> list[Checkpoint]:
    """Return the files that a script overwrites in place, newest first."""
    return find_single_files(listing.objects, uri=f"s3://{listing.bucket}/{listing.prefix}")


def _read_pointers(listing: FolderListing) -> tuple[dict[str, str], Exception | None]:
    """Return key and text of the files that name the newest checkpoint, and why another cannot be read."""
    texts, unread = {}, None
    pointers = find_pointers(listing.objects)
    if len(pointers) > MAX_POINTERS:
        what = f"s3://{listing.bucket}/{listing.prefix} has {len(pointers)} files that name a checkpoint"
        raise BoundsExceeded(f"{what}, of which at most {MAX_POINTERS} are read", advice=ADVICE)
    for pointer in pointers:
        listing.check_time()
        try:
            body = _open(listing.bucket, f"{listing.prefix}{pointer.key}")
            texts[pointer.key] = body.read(POINTER_BYTES).decode(errors="replace")
        except (BoundsExceeded, ClientError) as error:
            unread = _require_unreadable(error)
    return texts, unread


def _require_unreadable(error: Exception) -> Exception:
    """Return the error if the object's writer may have caused it, otherwise raise it."""
    if find_code(error) not in ("", *FORBIDDEN):
        raise error
    return error


def _open(bucket: str, key: str, **more: str) -> Any:
    """Return an object's content, to be read; raise BoundsExceeded if its writer has made it unreadable."""
    try:
        return client("s3").get_object(Bucket=bucket, Key=key, **more)["Body"]
    except ClientError as error:
        if problem := find_object_problem(error):
            advice = (
                "list its key in checkpointKeyArns, or move it out of the folder; then release the run if it is held"
            )
            raise BoundsExceeded(f"s3://{bucket}/{key} cannot be read: {problem}", advice=advice) from error
        raise


def _folder_of(key: str) -> str:
    """Return the checkpoint folder of Rerail's layout that an object is in, with its final slash, or ""."""
    folder, slash, _ = key.partition("/")
    return f"{folder}/" if slash and STEP_FOLDER.fullmatch(folder) else ""


def _group_by_folder(stored: Sequence[StoredObject]) -> dict[str, dict[str, StoredObject]]:
    """Return the objects in each checkpoint folder by their names, by the folder's key."""
    folders: dict[str, dict[str, StoredObject]] = defaultdict(dict)
    for item in stored:
        if folder := _folder_of(item.key):
            folders[folder][item.key.removeprefix(folder)] = item
    return folders


def _read(
    bucket: str, folder: str, files: tuple[tuple[str, int], ...], etag: str, written_at: datetime, key: str
) -> Checkpoint | None:
    """Return the checkpoint of a manifest, None if it is malformed; `etag` is only for the cache."""
    uri = f"s3://{bucket}/{folder}{MANIFEST}"
    if not dict(files)[MANIFEST]:
        return None  # S3 refuses a range of an empty object
    # It may have grown since it was listed.
    part = f"bytes=0-{MANIFEST_BYTES}"
    body = _open(bucket, f"{folder}{MANIFEST}", Range=part)
    try:
        text = body.read(MANIFEST_BYTES + 1)
        checkpoint = read_manifest(text, uri=uri, sizes=dict(files), signing_key=key, written_at=written_at)
    except BadManifest:
        return None  # not a checkpoint to resume from; it is left in place
    return checkpoint if checkpoint.step == _step(folder) else None


def _step(folder: str) -> int:
    match = STEP_FOLDER.search(folder.rstrip("/").rpartition("/")[2])
    return int(match[1]) if match else -1
