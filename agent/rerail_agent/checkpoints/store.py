"""Where checkpoints are kept: a folder on disk, or a prefix in S3."""

import ctypes
import errno
import itertools
import os
import shutil
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import xxhash

from rerail_agent.checkpoints.manifest import (
    MANIFEST,
    METADATA,
    QUARANTINE,
    STEP,
    DamagedCheckpoint,
    Manifest,
    dump,
    folder_name,
    format_now,
    parse,
)

SAVING = ".saving-"  # the prefix of a folder whose save has not come to its manifest yet
CHUNK = 1 << 23
NETWORK_FILE_SYSTEMS = ("lustre", "nfs", "nfs4", "fuse.mount-s3", "ceph", "gpfs", "beegfs")


class CheckpointStore(Protocol):
    """What the Saver needs of either kind; every method may raise OSError."""

    @property
    def uri(self) -> str: ...

    @property
    def durability(self) -> str:
        """`remote` when a finished checkpoint outlives this machine, `local` when somebody has still to upload it."""
        ...

    @property
    def is_shared(self) -> bool | None:
        """Whether all ranks see the same files; None when that has to be found out."""
        ...

    def file_name(self, rank: int, nonce: int) -> str:
        """The name of a rank's file; the nonce is new in every attempt."""
        ...

    def write(self, step: int, name: str, chunks: Iterable[memoryview], *, total: int) -> dict[str, Any]:
        """Writes one file of a checkpoint that does not exist yet; its entry for the manifest."""
        ...

    def reveal(self, step: int) -> None:
        """Gives the files written on this disk their final place; still no checkpoint."""
        ...

    def commit(self, manifest: Manifest, metadata: bytes) -> Manifest:
        """Makes a checkpoint of what was written: the index, the final place, and last the manifest."""
        ...

    def discard(self, step: int) -> None:
        """Deletes what a failed save has written."""
        ...

    def sweep_up(self) -> None:
        """Deletes what killed saves have left. There is one writer, so no save is under way here."""
        ...

    def steps(self) -> list[int]:
        """The steps that have a folder, newest first, torn ones too."""
        ...

    def manifest(self, step: int) -> Manifest | None:
        """What a checkpoint says of itself, None when there is none; raises DamagedCheckpoint."""
        ...

    def check(self, step: int, entry: dict[str, Any]) -> None:
        """Reads one listed file; raises DamagedCheckpoint unless its size and checksum are right."""
        ...

    def drop(self, step: int) -> None:
        """Deletes a checkpoint, manifest first: half deleted, it must not look whole."""
        ...

    def set_aside(self, step: int, attempt: int | str) -> str | None:
        """Moves a checkpoint into quarantine, where nothing is replaced; returns its new place."""
        ...

    def path(self, step: int) -> str: ...

    def note(self, step: int, name: str) -> bytes | None:
        """A small file beside the manifest that is not one of the checkpoint's; None where there is none."""
        ...

    def leave_note(self, step: int, name: str, text: bytes) -> None:
        """Writes it, whole or not at all."""
        ...

    def reader(self, step: int) -> Any:
        """A torch.distributed.checkpoint StorageReader."""
        ...


def open_store(uri: str | os.PathLike[str]) -> CheckpointStore:
    """The place that a path or `s3://bucket/prefix` names."""
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
        return "remote" if file_system_of(self.root) in NETWORK_FILE_SYSTEMS else "local"

    @property
    def is_shared(self) -> bool | None:
        return None

    def file_name(self, rank: int, nonce: int) -> str:
        return f"__{rank}_0.distcp"  # a folder of its own keeps it apart from what another attempt wrote

    def path(self, step: int) -> str:
        return str(self._folder(step))

    def write(self, step: int, name: str, chunks: Iterable[memoryview], *, total: int) -> dict[str, Any]:
        folder = self._saving(step)
        folder.mkdir(parents=True, exist_ok=True)
        return write_file(folder / name, chunks, total=total)

    def reveal(self, step: int) -> None:
        saving, final = self._saving(step), self._folder(step)
        sync_folder(saving)
        if (final / MANIFEST).exists():
            raise FileExistsError(f"{final} is there already, and nothing whole is written over")
        self.drop(step)
        saving.rename(final)
        sync_folder(Path(self.root))

    def commit(self, manifest: Manifest, metadata: bytes) -> Manifest:
        index = write_file(self._saving(manifest.step) / METADATA, [memoryview(metadata)], total=len(metadata))
        self.reveal(manifest.step)
        complete = replace(manifest, files=(*manifest.files, index), saved_at=format_now())
        final = self._folder(manifest.step)
        text = dump(complete)
        write_file(final / f"{MANIFEST}.tmp", [memoryview(text)], total=len(text))
        (final / f"{MANIFEST}.tmp").rename(final / MANIFEST)
        sync_folder(final)
        return complete

    def discard(self, step: int) -> None:
        shutil.rmtree(self._saving(step), ignore_errors=True)

    def sweep_up(self) -> None:
        for folder in Path(self.root).glob(f"{SAVING}*"):
            shutil.rmtree(folder, ignore_errors=True)

    def steps(self) -> list[int]:
        matches = (STEP.fullmatch(path.name) for path in Path(self.root).glob("step-*"))
        return sorted((int(match[1]) for match in matches if match), reverse=True)

    def manifest(self, step: int) -> Manifest | None:
        folder = self._folder(step)
        try:
            text = (folder / MANIFEST).read_bytes()
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
        folder = self._folder(step)
        if not folder.exists():
            return
        (folder / MANIFEST).unlink(missing_ok=True)
        sync_folder(folder)
        shutil.rmtree(folder)

    def set_aside(self, step: int, attempt: int | str) -> str | None:
        # One rename, so a kill leaves it either here or there.
        folder = self._folder(step)
        place = find_free_path(Path(self.root) / QUARANTINE / f"a{attempt}-{folder.name}")
        place.parent.mkdir(exist_ok=True)
        folder.rename(place)
        sync_folder(place.parent)
        sync_folder(Path(self.root))
        return str(place.relative_to(self.root))

    def note(self, step: int, name: str) -> bytes | None:
        try:
            return (self._folder(step) / name).read_bytes()
        except FileNotFoundError:
            return None

    def leave_note(self, step: int, name: str, text: bytes) -> None:
        temporary = self._folder(step) / f"{name}.tmp"
        temporary.write_bytes(text)
        temporary.rename(temporary.with_name(name))

    def reader(self, step: int) -> Any:
        from torch.distributed.checkpoint import FileSystemReader

        return FileSystemReader(self._folder(step))

    def _folder(self, step: int) -> Path:
        return Path(self.root) / folder_name(step)

    def _saving(self, step: int) -> Path:
        return Path(self.root) / f"{SAVING}{folder_name(step)}"


def write_file(path: Path, chunks: Iterable[memoryview], *, total: int) -> dict[str, Any]:
    """Writes and syncs a file, summing up each piece while it is warm; the file's entry for a manifest."""
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
            raise OSError(f"{path.name}: {offset} bytes came to be written instead of {total}")
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
    with open(path, "rb", buffering=0) as file:
        buffer = memoryview(bytearray(CHUNK))
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
    return f"xxh3_64:{digest.hexdigest()}"


def sync_folder(folder: Path) -> None:
    with _opened(folder) as handle:
        os.fsync(handle)


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    handle = os.open(folder, os.O_RDONLY)
    try:
        yield handle
    finally:
        os.close(handle)


def find_free_path(wanted: Path) -> Path:
    """The path itself, or with the first number behind it that nothing is called by yet."""
    # A sync that was cut short between its upload and its delete brings a checkpoint back that was moved before.
    places = (wanted.with_name(f"{wanted.name}-{number}") for number in itertools.count(2))
    return next(place for place in itertools.chain([wanted], places) if not place.exists())


def file_system_of(path: str) -> str:
    """The type of the file system that a path is or will be on, "" where the system does not say."""
    try:
        lines = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return ""
    mounts = [line.split()[1:3] for line in lines]
    real = os.path.realpath(path)
    over = [(len(at), kind) for at, kind in mounts if real == at or real.startswith(at.rstrip("/") + "/")]
    return max(over, key=lambda entry: entry[0], default=(0, ""))[1]


def make_machine_name() -> str:
    """A name that two ranks share only on the same machine."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    return f"{socket.gethostname()}/{boot}"
