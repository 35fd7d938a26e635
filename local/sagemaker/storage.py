"""S3 as a job sees it: list a prefix, fetch, store, delete; every call blocks, so call from worker threads."""

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit


class Storage:
    def __init__(self, s3: Any) -> None:
        self._s3 = s3

    def keys(self, bucket: str, prefix: str) -> list[str]:
        """Plain prefix match as S3 does it: `runs/a` also finds `runs/a0/...`. Folder markers are left out."""
        pages = self._s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        return [item["Key"] for page in pages for item in page.get("Contents", []) if not item["Key"].endswith("/")]

    def fetch(self, bucket: str, key: str, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self._s3.get_object(Bucket=bucket, Key=key)["Body"].read())

    def store(self, bucket: str, key: str, content: bytes) -> None:
        self._s3.put_object(Bucket=bucket, Key=key, Body=content)

    def delete(self, bucket: str, key: str) -> None:
        self._s3.delete_object(Bucket=bucket, Key=key)


def split_uri(uri: str) -> tuple[str, str]:
    """`s3://bucket/some/prefix/` -> (`bucket`, `some/prefix/`)."""
    parts = urlsplit(uri)
    return parts.netloc, parts.path.lstrip("/")


def below(folder: Path, relative: str) -> Path:
    """Return the path in the folder; raise ValueError if a key with `..` leads out of it."""
    path = (folder / relative.lstrip("/")).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise ValueError(f"S3 key leads out of {folder}: {relative}")
    return path
