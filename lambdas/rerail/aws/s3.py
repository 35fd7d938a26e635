"""Checkpoints in S3: a listing for the sizes, and the manifests of the newest steps; else what a layout tells."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from rerail.actions import SetAside
from rerail.aside import plan
from rerail.aws.clients import client
from rerail.aws.quarantine import Mover
from rerail.checkpoints import MANIFEST, STEP_FOLDER, Checkpoint, bucket_and_folder, read_manifest
from rerail.errors import BadManifest, Blind, Unanswered
from rerail.layouts import Stored, checkpoint_of, has_manifests, pointer_files, saves

# The newest is nearly always whole and clean; the rest is for the rare night when it is not.
MANIFESTS_READ = 20
# A pointer holds one word.
POINTER_BYTES = 200


class S3Checkpoints:
    """The port `Checkpoints` on S3; `mover` is made for a bucket."""

    def __init__(self, mover: Callable[[str], Mover] = Mover) -> None:
        self._mover = mover

    def under(self, uri: str, *, upto: int | None = None) -> Sequence[Checkpoint]:
        bucket, prefix = bucket_and_folder(uri)
        try:
            stored = _stored(bucket, prefix)
            folders = _folders(stored, prefix)
            if not has_manifests(stored):
                found_saves = saves(stored, _pointers(bucket, prefix, stored))
                return [checkpoint_of(save, uri=f"s3://{bucket}/{prefix}") for save in found_saves]
            wanted = (folder for folder in folders if upto is None or _step(folder) <= upto)
            newest = sorted(wanted, key=_step, reverse=True)[:MANIFESTS_READ]
            found = [_read(bucket, folder, folders[folder]) for folder in newest]
        except (ClientError, BotoCoreError) as error:
            raise Blind(f"checkpoints under {uri}: {error}") from error
        return [checkpoint for checkpoint in found if checkpoint]

    def set_aside(self, action: SetAside) -> None:
        bucket, prefix = bucket_and_folder(action.uri)
        try:
            stored = _stored(bucket, prefix)
            moves = [] if has_manifests(stored) else plan(stored, _pointers(bucket, prefix, stored), action)
        except (ClientError, BotoCoreError) as error:
            raise Unanswered(f"what is to be set aside under {action.uri}: {error}") from error
        if moves:
            self._mover(bucket).move(moves)


def _stored(bucket: str, prefix: str) -> list[Stored]:
    """Every object below the prefix, by its key from there on."""
    pages = client("s3").get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    return [
        Stored(item["Key"].removeprefix(prefix), item["Size"], item["LastModified"].astimezone(UTC), item["ETag"])
        for page in pages
        for item in page.get("Contents", [])
    ]


def _pointers(bucket: str, prefix: str, stored: Sequence[Stored]) -> dict[str, str]:
    """The texts of the files that name the newest save."""
    texts = {}
    for each in pointer_files(stored):
        body: Any = client("s3").get_object(Bucket=bucket, Key=f"{prefix}{each.key}")["Body"]
        texts[each.key] = body.read(POINTER_BYTES).decode(errors="replace")
    return texts


def _folders(stored: Sequence[Stored], prefix: str) -> dict[str, dict[str, int]]:
    """Folder prefix to the sizes in bytes of the objects in it, for folders that look like a checkpoint."""
    folders: dict[str, dict[str, int]] = defaultdict(dict)
    for each in stored:
        folder, slash, name = each.key.partition("/")
        if slash and STEP_FOLDER.fullmatch(folder):
            folders[f"{prefix}{folder}/"][name] = each.bytes
    return folders


def _read(bucket: str, folder: str, sizes: dict[str, int]) -> Checkpoint | None:
    if MANIFEST not in sizes:
        return None  # a save that never finished
    uri = f"s3://{bucket}/{folder}{MANIFEST}"
    body: Any = client("s3").get_object(Bucket=bucket, Key=f"{folder}{MANIFEST}")["Body"]
    try:
        checkpoint = read_manifest(body.read(), uri=uri, sizes=sizes)
    except BadManifest:
        return None  # not a checkpoint that we could resume from; it is left where it is
    return checkpoint if checkpoint.step == _step(folder) else None


def _step(folder: str) -> int:
    match = STEP_FOLDER.search(folder.rstrip("/").rpartition("/")[2])
    return int(match[1]) if match else -1
