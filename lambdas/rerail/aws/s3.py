"""Checkpoints in S3: a listing for the sizes, and the manifests of the newest steps."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from rerail.aws.clients import client
from rerail.checkpoints import MANIFEST, STEP_FOLDER, Checkpoint, bucket_and_folder, read_manifest
from rerail.errors import BadManifest, Blind

# The newest is nearly always whole and clean; the rest is for the rare night when it is not.
MANIFESTS_READ = 20


class S3Checkpoints:
    """The port `Checkpoints` on S3."""

    def under(self, uri: str) -> Sequence[Checkpoint]:
        bucket, prefix = bucket_and_folder(uri)
        try:
            folders = _folders(bucket, prefix)
            newest = sorted(folders, key=_step, reverse=True)[:MANIFESTS_READ]
            found = [_read(bucket, folder, folders[folder]) for folder in newest]
        except (ClientError, BotoCoreError) as error:
            raise Blind(f"checkpoints under {uri}: {error}") from error
        return [checkpoint for checkpoint in found if checkpoint]


def _folders(bucket: str, prefix: str) -> dict[str, dict[str, int]]:
    """Folder prefix to the sizes in bytes of the objects in it, for folders that look like a checkpoint."""
    folders: dict[str, dict[str, int]] = defaultdict(dict)
    for page in client("s3").get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
        for item in page.get("Contents", []):
            folder, slash, name = item["Key"].removeprefix(prefix).partition("/")
            if slash and STEP_FOLDER.fullmatch(folder):
                folders[f"{prefix}{folder}/"][name] = item["Size"]
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
