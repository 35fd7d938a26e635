"""Store checkpoints in a folder on disk, or under a prefix in S3."""

import ctypes
import errno
import hashlib
import itertools
import os
import shutil
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import xxhash

from rerail_agent.checkpoints.manifest import (
    MANIFEST,
    METADATA,
    QUARANTINE,
    DamagedCheckpoint,
    Manifest,
    dump,
    find_steps,
    format_now,
    make_folder_name,
    parse,
    read_start,
    require_regular,
)

# The prefix of a folder whose save has no manifest yet.
SAVING = ".saving-"
CHUNK = 1 << 23
NETWORK_FILE_SYSTEMS = ("lustre", "nfs", "nfs4", "fuse.mount-s3", "ceph", "gpfs", "beegfs")


class CheckpointStore(Protocol):
    """The interface of both kinds of store for the Saver; every method may raise OSError."""

    @property
    def uri(self) -> str: ...

    @property
    def durability(self) -> str:
        """`remote` if a finished checkpoint outlives this machine, `local` if it still has to be uploaded."""
        ...

    @property
    def is_shared(self) -> bool | None:
        """Return whether all ranks see the same files; None if that has to be tested."""
        ...

    def file_name(self, rank: int, nonce: int) -> str:
        """Return the name of a rank's file; the nonce is new in every attempt."""
        ...

    def write(self, step: int, name: str, chunks: Iterable[memoryview], *, total: int) -> dict[str, Any]:
        """Write one file of a checkpoint that does not exist yet; return its entry for the manifest."""
        ...

    def reveal(self, step: int) -> None:
        """Move the files written on this disk to their final place; without manifest, no checkpoint yet."""
        ...

    def commit(self, manifest: Manifest, metadata: bytes) -> Manifest:
        """Make a checkpoint of what was written: the index, the final place, and last the manifest."""
        ...

    def discard(self, step: int, name: str) -> None:
        """Delete what a failed save has written, such as the file of this name."""
        ...

    def delete_leftovers(self) -> None:
        """Delete what killed saves have left. There is one writer, so no save is pending here."""
        ...

    def steps(self) -> list[int]:
        """Return the steps that have a folder, newest first, incomplete ones too."""
        ...

    def manifest(self, step: int) -> Manifest | None:
        """Return a checkpoint's manifest, None if there is none; raises DamagedCheckpoint."""
        ...

    def check(self, step: int, entry: dict[str, Any]) -> None:
        """Read one listed file; raise DamagedCheckpoint unless its size and checksum are right."""
        ...

    def drop(self, step: int) -> None:
        """Delete a checkpoint, its manifest first: half deleted, it must not look complete."""
        ...

    def quarantine(self, step: int, attempt: int | str) -> str | None:
        """Move a checkpoint into quarantine, where nothing is replaced; return its new place, in words."""
        ...

    def path(self, step: int) -> str: ...

    def read_note(self, step: int, name: str) -> bytes | None:
        """Return a small file beside the manifest that is not part of the checkpoint; None if there is none."""
        ...

    def write_note(self, step: int, name: str, text: bytes) -> None:
        """Write such a file, completely or not at all."""
        ...

    def reader(self, manifest: Manifest) -> Any:
        """Return a torch.distributed.checkpoint StorageReader of the checkpoint."""
        ...


def open_store(uri: str | os.PathLike[str]) -> CheckpointStore:
    """Return the store of a path or of `s3://bucket/prefix`."""
    text = os.fspath(uri)
    if text.startswith("s3://"):
        from rerail_agent.checkpoints.s3_store import S3Store

        return S3Store.of(text)
    if "://" in text:
        raise ValueError(f"{text}: checkpoints go to a path or to s3://bucket/prefix")
    return LocalStore(os.path.abspath(text))


@dataclass(frozen=True)
class LocalStore:
    """A folder on a disk of this machine, or on a file system that several machines share."""

    root: str

    @property
    def uri(self) -> str:
        return self.root

    @property
    def durability(self) -> str:
        return "remote" if find_file_system(self.root) in NETWORK_FILE_SYSTEMS else "local"

    @property
    def is_shared(self) -> bool | None:
        return None

    def file_name(self, rank: int, nonce: int) -> str:
        return f"__{rank}_0.distcp"  # a folder of its own keeps it apart from what another attempt wrote

    def path(self, step: int) -> str:
        return str(self._folder(step))

    def write(self, step: int, name: str, chunks: Iterable[memoryview], *, total: int) -> dict[str, Any]:
        folder = self._saving(step)
        make_folder(folder)
        return write_file(folder / name, chunks, total=total)

    def reveal(self, step: int) -> None:
        saving, final = self._saving(step), self._folder(step)
        sync_folder(saving)
        if (final / MANIFEST).exists():
            raise FileExistsError(f"{final} exists already, and a complete checkpoint is never replaced")
        self.drop(step)
        saving.rename(final)
        sync_folder(Path(self.root))

    def commit(self, manifest: Manifest, metadata: bytes) -> Manifest:
        index = write_file(self._saving(manifest.step) / METADATA, [memoryview(metadata)], total=len(metadata))
        index["sha256"] = hashlib.sha256(metadata).hexdigest()
        self.reveal(manifest.step)
        complete = replace(manifest, files=(*manifest.files, index), saved_at=format_now())
        final = self._folder(manifest.step)
        text = dump(complete)
        write_file(final / f"{MANIFEST}.tmp", [memoryview(text)], total=len(text))
        (final / f"{MANIFEST}.tmp").rename(final / MANIFEST)
        sync_folder(final)
        return complete

    def discard(self, step: int, name: str) -> None:
        shutil.rmtree(self._saving(step), ignore_errors=True)

    def delete_leftovers(self) -> None:
        for path in Path(self.root).glob(f"{SAVING}*"):
            with suppress(OSError):
                delete_path(path)

    def steps(self) -> list[int]:
        return find_steps(path.name for path in Path(self.root).glob("step-*") if path.is_dir())

    def manifest(self, step: int) -> Manifest | None:
        folder = self._folder(step)
        try:
            text = read_start(folder / MANIFEST)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise DamagedCheckpoint(f"{MANIFEST} cannot be read: {error}") from error
        return parse(text, folder=folder.name)

    def check(self, step: int, entry: dict[str, Any]) -> None:
        path = self._folder(step) / entry["name"]
        try:
            size = path.stat().st_size
            if size != entry["bytes"]:
                raise DamagedCheckpoint(f"{path.name} has {size} bytes instead of {entry['bytes']}")
            found = compute_checksum(path)
        except FileNotFoundError as error:
            raise DamagedCheckpoint(f"{path.name} is missing") from error
        except OSError as error:
            raise DamagedCheckpoint(f"{path.name} cannot be read: {error}") from error
        if found != entry["checksum"]:
            raise DamagedCheckpoint(f"{path.name} does not match its checksum")

    def drop(self, step: int) -> None:
        delete_folder(self._folder(step))

    def quarantine(self, step: int, attempt: int | str) -> str | None:
        # One rename, so a kill leaves it either here or there.
        folder = self._folder(step)
        place = find_free_path(Path(self.root) / QUARANTINE / f"a{attempt}-{folder.name}")
        make_folder(place.parent)
        folder.rename(place)
        sync_folder(place.parent)
        sync_folder(Path(self.root))
        return str(place.relative_to(self.root))

    def read_note(self, step: int, name: str) -> bytes | None:
        try:
            return read_start(self._folder(step) / name)
        except FileNotFoundError:
            return None

    def write_note(self, step: int, name: str, text: bytes) -> None:
        temporary = self._folder(step) / f"{name}.tmp"
        temporary.write_bytes(text)
        temporary.rename(temporary.with_name(name))

    def reader(self, manifest: Manifest) -> Any:
        from rerail_agent.checkpoints.safe_load import CheckpointReader

        return CheckpointReader(self._folder(manifest.step), manifest.index)

    def _folder(self, step: int) -> Path:
        return Path(self.root) / make_folder_name(step)

    def _saving(self, step: int) -> Path:
        return Path(self.root) / f"{SAVING}{make_folder_name(step)}"


def write_file(path: Path, chunks: Iterable[memoryview], *, total: int) -> dict[str, Any]:
    """Write and sync a file, with a checksum of each chunk while it is in the cache; return its manifest entry."""
    digest = xxhash.xxh3_64()
    with open(path, "wb", buffering=0) as file:
        _reserve(file.fileno(), total)
        offset = 0
        for chunk in chunks:
            digest.update(chunk)
            _write_all(file.fileno(), chunk)
            _start_writeback(file.fileno(), offset, len(chunk))
            offset += len(chunk)
        if offset != total:
            raise OSError(f"{path.name}: {offset} bytes were to be written instead of {total}")
        os.fsync(file.fileno())
    return {"name": path.name, "bytes": offset, "checksum": f"xxh3_64:{digest.hexdigest()}"}


def _write_all(handle: int, chunk: memoryview) -> None:
    while chunk:
        chunk = chunk[os.write(handle, chunk) :]


def _reserve(handle: int, total: int) -> None:
    # A full disk is then found before anything is written, and the file lies in fewer pieces. Network file systems
    # may lack it, and glibc's substitute for it would write every block twice: hence not posix_fallocate.
    if total <= CHUNK or _libc is None:
        return
    if _libc.fallocate(handle, 0, ctypes.c_int64(0), ctypes.c_int64(total)) and ctypes.get_errno() == errno.ENOSPC:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _start_writeback(handle: int, offset: int, length: int) -> None:
    # Otherwise the disk would idle until the fsync at the end.
    if length >= CHUNK // 2 and _libc is not None:
        sync_file_range_write = 2
        _libc.sync_file_range(handle, ctypes.c_int64(offset), ctypes.c_int64(length), sync_file_range_write)


def _load_libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    return libc if hasattr(libc, "sync_file_range") and hasattr(libc, "fallocate") else None


_libc = _load_libc()


def compute_checksum(path: Path) -> str:
    digest = xxhash.xxh3_64()
    require_regular(path)
    with open(path, "rb", buffering=0) as file:
        buffer = memoryview(bytearray(CHUNK))
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
    return f"xxh3_64:{digest.hexdigest()}"


def make_folder(folder: Path) -> None:
    """Create a folder if it does not exist; a file that others have put in its place is deleted."""
    if not folder.is_dir():
        with suppress(OSError):
            folder.unlink()
    folder.mkdir(parents=True, exist_ok=True)


def delete_folder(folder: Path) -> None:
    """Delete a checkpoint's folder, its manifest first: half deleted, it must not look complete."""
    if folder.is_dir() and not folder.is_symlink():
        delete_path(folder / MANIFEST)
        sync_folder(folder)
    delete_path(folder)


def delete_path(path: Path) -> None:
    """Delete a file, a link or a folder, whatever others have put there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    with _open_folder(folder) as handle:
        os.fsync(handle)


@contextmanager
def _open_folder(folder: Path) -> Iterator[int]:
    handle = os.open(folder, os.O_RDONLY)
    try:
        yield handle
    finally:
        os.close(handle)


def find_free_path(wanted: Path) -> Path:
    """Return the path itself, or with the first number appended that makes it unused."""
    # A sync that was cut short between its upload and its delete brings a checkpoint back that was moved before.
    places = (wanted.with_name(f"{wanted.name}-{number}") for number in itertools.count(2))
    return next(place for place in itertools.chain([wanted], places) if not place.exists())


def find_file_system(path: str) -> str:
    """Return the type of the file system that a path is or will be on, "" if it is not known."""
    try:
        lines = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return ""
    mounts = [line.split()[1:3] for line in lines]
    real = os.path.realpath(path)
    over = [(len(at), kind) for at, kind in mounts if real == at or real.startswith(at.rstrip("/") + "/")]
    return max(over, key=lambda entry: entry[0], default=(0, ""))[1]


def make_machine_name() -> str:
    """Return a name that two ranks share only on the same machine."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    return f"{socket.gethostname()}/{boot}"
