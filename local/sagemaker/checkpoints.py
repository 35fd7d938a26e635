"""CheckpointConfig: restores the S3 prefix to every host at start, then mirrors what hosts write and delete."""

import logging
import threading
from dataclasses import dataclass, field
from pathlib import Path

from .storage import Storage, below, split_uri

log = logging.getLogger(__name__)

_Stamp = tuple[int, int]


@dataclass
class _Side:
    """One host's folder, and what of it is already in S3."""

    folder: Path
    synced: dict[str, _Stamp] = field(default_factory=dict)


class CheckpointMirror:
    """Blocking; one sync at a time. Objects added to S3 by others after the start are neither fetched nor deleted."""

    def __init__(self, storage: Storage, *, uri: str, folders: list[Path]) -> None:
        self._storage = storage
        self._bucket, self._prefix = split_uri(uri)
        self._sides = [_Side(folder.resolve()) for folder in folders]
        self._lock = threading.Lock()
        self._abandoned = threading.Event()

    def restore(self) -> None:
        """Download the prefix to every host. It is matched as text: `runs/a` also matches the objects of `runs/a0`."""
        keys = self._storage.keys(self._bucket, self._prefix)
        for side in self._sides:
            side.folder.mkdir(parents=True, exist_ok=True)
            for key in keys:
                path = below(side.folder, key.removeprefix(self._prefix))
                self._storage.fetch(self._bucket, key, path)
                side.synced[_relative(path, side.folder)] = _stamp(path)

    def sync(self) -> None:
        """Upload file by file in name order, without atomicity: a manifest may reach S3 before its shards."""
        with self._lock:
            for side in self._sides:
                self._sync_side(side)

    def abandon(self) -> None:
        """Stop every upload, including the rest of a running sync, because the node is gone."""
        self._abandoned.set()

    def _sync_side(self, side: _Side) -> None:
        present = _files(side.folder)
        for relative, stamp in sorted(present.items()):
            if side.synced.get(relative) != stamp and not self._abandoned.is_set():
                self._upload(side, relative, stamp)
        for relative in sorted(side.synced.keys() - present.keys()):
            if not self._abandoned.is_set():
                self._storage.delete(self._bucket, self._key(relative))
                del side.synced[relative]

    def _upload(self, side: _Side, relative: str, stamp: _Stamp) -> None:
        try:
            content = (side.folder / relative).read_bytes()
        except FileNotFoundError:
            return  # deleted or renamed since the listing; the next sync sees it
        self._storage.store(self._bucket, self._key(relative), content)
        side.synced[relative] = stamp

    def _key(self, relative: str) -> str:
        folder = self._prefix.rstrip("/")
        return f"{folder}/{relative}" if folder else relative


def _files(folder: Path) -> dict[str, _Stamp]:
    found = {}
    for path in folder.rglob("*"):
        if path.name.endswith(".tmp") or ".sagemaker-" in path.name:
            continue
        try:
            if path.is_file():
                found[_relative(path, folder)] = _stamp(path)
        except FileNotFoundError:
            continue
    return found


def _relative(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix()


def _stamp(path: Path) -> _Stamp:
    status = path.stat()
    return status.st_mtime_ns, status.st_size
