"""Checkpoints in S3: a listing for the sizes, and the manifests of the newest steps; else what a layout tells."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from rerail.aws.clients import client
from rerail.aws.quarantine import ObjectMover
from rerail.decisions.quarantine import plan_moves
from rerail.model.actions import QuarantineCheckpoints
from rerail.model.checkpoint_layouts import (
    StoredObject,
    find_checkpoints,
    find_pointers,
    has_manifests,
    make_checkpoint,
)
from rerail.model.checkpoints import MANIFEST, STEP_FOLDER, Checkpoint, bucket_and_folder, newest_usable, read_manifest
from rerail.model.errors import BadManifest, CallFailed, StateUnknown

# The newest is nearly always whole and clean; the rest is for the rare night when it is not. Where none of so many is,
# older ones are read, up to the most: a loss that went wrong unseen has spoilt all that was saved since.
MANIFESTS_READ, MOST_MANIFESTS_READ = 20, 400
MANIFESTS_KEPT = 5000
# What an object is listed with.
LISTED = {"Key", "Size", "LastModified", "ETag"}
# A pointer holds one word.
POINTER_BYTES = 200


class S3Checkpoints:
    """The port `Checkpoints` on S3; `mover` is made for a bucket."""

    def __init__(self, mover: Callable[[str], ObjectMover] = ObjectMover) -> None:
        self._mover = mover
        # A run that proves its progress is looked at each minute, and none of its manifests ever changes.
        self._read = lru_cache(maxsize=MANIFESTS_KEPT)(_read)

    def under(self, uri: str, *, upto: int | None = None) -> Sequence[Checkpoint]:
        bucket, prefix = bucket_and_folder(uri)
        try:
            stored = _stored(bucket, prefix)
            folders = _folders(stored, prefix)
            if not has_manifests(stored):
                found_saves = find_checkpoints(stored, _pointers(bucket, prefix, stored))
                return [make_checkpoint(save, uri=f"s3://{bucket}/{prefix}") for save in found_saves]
            wanted = (folder for folder in folders if upto is None or _step(folder) <= upto)
            newest = sorted(wanted, key=_step, reverse=True)[:MOST_MANIFESTS_READ]
            etags = {f"{prefix}{each.key}": each.etag for each in stored}
            found: list[Checkpoint] = []
            for start in range(0, len(newest), MANIFESTS_READ):
                few = newest[start : start + MANIFESTS_READ]
                found += filter(None, (self._known(bucket, folder, folders[folder], etags) for folder in few))
                if newest_usable(found):
                    break
        except (ClientError, BotoCoreError) as error:
            raise StateUnknown(f"checkpoints under {uri}: {error}") from error
        return found

    def _known(self, bucket: str, folder: str, sizes: dict[str, int], etags: dict[str, str]) -> Checkpoint | None:
        if MANIFEST not in sizes:
            return None  # a save that never finished
        try:
            return self._read(bucket, folder, tuple(sizes.items()), etags.get(f"{folder}{MANIFEST}", ""))
        except client("s3").exceptions.NoSuchKey:
            return None  # deleted or put aside by the job since it was listed

    def times(self, uri: str) -> Sequence[datetime]:
        bucket, prefix = bucket_and_folder(uri)
        try:
            stored = _stored(bucket, prefix)
        except (ClientError, BotoCoreError) as error:
            raise StateUnknown(f"checkpoints under {uri}: {error}") from error
        if not has_manifests(stored):
            return [save.saved_at for save in find_checkpoints(stored)]
        whole = [each for each in stored if each.key.rpartition("/")[2] == MANIFEST]
        return sorted(each.at for each in whole if STEP_FOLDER.fullmatch(each.key.partition("/")[0]))[-MANIFESTS_READ:]

    def set_aside(self, action: QuarantineCheckpoints) -> None:
        bucket, prefix = bucket_and_folder(action.uri)
        try:
            stored = _stored(bucket, prefix)
            moves = [] if has_manifests(stored) else plan_moves(stored, _pointers(bucket, prefix, stored), action)
        except (ClientError, BotoCoreError) as error:
            raise CallFailed(f"what is to be set aside under {action.uri}: {error}") from error
        if moves:
            self._mover(bucket).move(moves)


def _stored(bucket: str, prefix: str) -> list[StoredObject]:
    """Every object below the prefix, by its key from there on."""
    pages = client("s3").get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    return [
        StoredObject(item["Key"].removeprefix(prefix), item["Size"], item["LastModified"].astimezone(UTC), item["ETag"])
        for page in pages
        for item in page.get("Contents", [])
        if item.keys() >= LISTED
    ]


def _pointers(bucket: str, prefix: str, stored: Sequence[StoredObject]) -> dict[str, str]:
    """The texts of the files that name the newest save."""
    texts = {}
    for each in find_pointers(stored):
        body: Any = client("s3").get_object(Bucket=bucket, Key=f"{prefix}{each.key}")["Body"]
        texts[each.key] = body.read(POINTER_BYTES).decode(errors="replace")
    return texts


def _folders(stored: Sequence[StoredObject], prefix: str) -> dict[str, dict[str, int]]:
    """Folder prefix to the sizes in bytes of the objects in it, for folders that look like a checkpoint."""
    folders: dict[str, dict[str, int]] = defaultdict(dict)
    for each in stored:
        folder, slash, name = each.key.partition("/")
        if slash and STEP_FOLDER.fullmatch(folder):
            folders[f"{prefix}{folder}/"][name] = each.bytes
    return folders


def _read(bucket: str, folder: str, files: tuple[tuple[str, int], ...], etag: str) -> Checkpoint | None:
    """The manifest of that ETag, with the sizes of the files beside it; raises NoSuchKey."""
    uri = f"s3://{bucket}/{folder}{MANIFEST}"
    body: Any = client("s3").get_object(Bucket=bucket, Key=f"{folder}{MANIFEST}")["Body"]
    try:
        checkpoint = read_manifest(body.read(), uri=uri, sizes=dict(files))
    except BadManifest:
        return None  # not a checkpoint that we could resume from; it is left where it is
    return checkpoint if checkpoint.step == _step(folder) else None


def _step(folder: str) -> int:
    match = STEP_FOLDER.search(folder.rstrip("/").rpartition("/")[2])
    return int(match[1]) if match else -1
