"""List checkpoints in S3 from their manifests, or from a known layout without manifests."""

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
from rerail.model.checkpoints import MANIFEST, STEP_FOLDER, Checkpoint, find_newest_usable, read_manifest, split_uri
from rerail.model.errors import BadManifest, CallFailed, StateUnknown

# Manifests are read in batches from the newest until one is usable, up to the limit. The newest nearly always is, but a
# divergence that went unnoticed may have made many of them unusable.
MANIFEST_BATCH, MANIFEST_LIMIT = 20, 400
MANIFEST_CACHE_SIZE = 5000
# Members of each object in a listing.
LISTED = {"Key", "Size", "LastModified", "ETag"}
# A pointer file holds one word.
POINTER_BYTES = 200


class S3Checkpoints:
    """The port `Checkpoints` on S3."""

    def __init__(self, mover: Callable[[str], ObjectMover] = ObjectMover) -> None:
        self._mover = mover
        # A run in recovery is checked each minute, and its manifests never change.
        self._read = lru_cache(maxsize=MANIFEST_CACHE_SIZE)(_read)

    def list_checkpoints(self, uri: str, *, upto: int | None = None) -> Sequence[Checkpoint]:
        bucket, prefix = split_uri(uri)
        try:
            stored = _list_objects(bucket, prefix)
            folders = _group_by_folder(stored, prefix)
            if not has_manifests(stored):
                listed = find_checkpoints(stored, _read_pointers(bucket, prefix, stored))
                return [make_checkpoint(checkpoint, uri=f"s3://{bucket}/{prefix}") for checkpoint in listed]
            wanted = (folder for folder in folders if upto is None or _step(folder) <= upto)
            newest = sorted(wanted, key=_step, reverse=True)[:MANIFEST_LIMIT]
            etags = {f"{prefix}{item.key}": item.etag for item in stored}
            found: list[Checkpoint] = []
            for start in range(0, len(newest), MANIFEST_BATCH):
                few = newest[start : start + MANIFEST_BATCH]
                found += filter(None, (self._read_cached(bucket, folder, folders[folder], etags) for folder in few))
                if find_newest_usable(found):
                    break
        except (ClientError, BotoCoreError) as error:
            raise StateUnknown(f"checkpoints under {uri}: {error}") from error
        return found

    def _read_cached(self, bucket: str, folder: str, sizes: dict[str, int], etags: dict[str, str]) -> Checkpoint | None:
        if MANIFEST not in sizes:
            return None  # the checkpoint was never finished
        try:
            return self._read(bucket, folder, tuple(sizes.items()), etags.get(f"{folder}{MANIFEST}", ""))
        except client("s3").exceptions.NoSuchKey:
            return None  # deleted or moved by the job since it was listed

    def list_times(self, uri: str) -> Sequence[datetime]:
        bucket, prefix = split_uri(uri)
        try:
            stored = _list_objects(bucket, prefix)
        except (ClientError, BotoCoreError) as error:
            raise StateUnknown(f"checkpoints under {uri}: {error}") from error
        if not has_manifests(stored):
            return [checkpoint.saved_at for checkpoint in find_checkpoints(stored)]
        manifests = [item for item in stored if item.key.rpartition("/")[2] == MANIFEST]
        times = sorted(item.at for item in manifests if STEP_FOLDER.fullmatch(item.key.partition("/")[0]))
        return times[-MANIFEST_BATCH:]

    def quarantine(self, action: QuarantineCheckpoints, authorize: Callable[[], None]) -> None:
        bucket, prefix = split_uri(action.uri)
        try:
            stored = _list_objects(bucket, prefix)
            moves = [] if has_manifests(stored) else plan_moves(stored, _read_pointers(bucket, prefix, stored), action)
        except (ClientError, BotoCoreError) as error:
            raise CallFailed(f"listing the checkpoints to quarantine under {action.uri}: {error}") from error
        if moves:
            authorize()
            self._mover(bucket).move(moves)


def _list_objects(bucket: str, prefix: str) -> list[StoredObject]:
    """Return every object below the prefix, with keys relative to it."""
    pages = client("s3").get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    return [
        StoredObject(item["Key"].removeprefix(prefix), item["Size"], item["LastModified"].astimezone(UTC), item["ETag"])
        for page in pages
        for item in page.get("Contents", [])
        if item.keys() >= LISTED
    ]


def _read_pointers(bucket: str, prefix: str, stored: Sequence[StoredObject]) -> dict[str, str]:
    """Return key and text of the files that name the newest checkpoint."""
    texts = {}
    for pointer in find_pointers(stored):
        body: Any = client("s3").get_object(Bucket=bucket, Key=f"{prefix}{pointer.key}")["Body"]
        texts[pointer.key] = body.read(POINTER_BYTES).decode(errors="replace")
    return texts


def _group_by_folder(stored: Sequence[StoredObject], prefix: str) -> dict[str, dict[str, int]]:
    """Return the sizes in bytes of the objects in each checkpoint folder, by the folder's prefix."""
    folders: dict[str, dict[str, int]] = defaultdict(dict)
    for item in stored:
        folder, slash, name = item.key.partition("/")
        if slash and STEP_FOLDER.fullmatch(folder):
            folders[f"{prefix}{folder}/"][name] = item.bytes
    return folders


def _read(bucket: str, folder: str, files: tuple[tuple[str, int], ...], etag: str) -> Checkpoint | None:
    """Return the checkpoint of a manifest, None if it is malformed; `etag` is only for the cache."""
    uri = f"s3://{bucket}/{folder}{MANIFEST}"
    body: Any = client("s3").get_object(Bucket=bucket, Key=f"{folder}{MANIFEST}")["Body"]
    try:
        checkpoint = read_manifest(body.read(), uri=uri, sizes=dict(files))
    except BadManifest:
        return None  # not a checkpoint to resume from; it is left in place
    return checkpoint if checkpoint.step == _step(folder) else None


def _step(folder: str) -> int:
    match = STEP_FOLDER.search(folder.rstrip("/").rpartition("/")[2])
    return int(match[1]) if match else -1
