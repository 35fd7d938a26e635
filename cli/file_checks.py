"""Check whether the files of a checkpoint without checksums can be read: archives of PyTorch, safetensors and JSON."""

import io
import json
import struct
import zlib
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, BinaryIO
from zipfile import ZIP_STORED, BadZipFile, ZipFile

CHUNK = 1 << 23
ARCHIVES = (".pt", ".pth", ".bin", ".ckpt", ".tar", ".npz")
# Larger ones are tokens or tables, and not what a checkpoint is loaded by.
LARGEST_JSON = 1 << 25
# What safetensors itself allows.
LARGEST_HEADER = 100_000_000
# The list of an archive's members is read at once.
LARGEST_READ = 1 << 28
UNREADABLE = (BadZipFile, EOFError, NotImplementedError, RuntimeError, ValueError, struct.error, zlib.error)
MALFORMED = (RecursionError, TypeError, LookupError, AttributeError)


class TooLarge(Exception):
    """So much would have to be read at once that others may have written it to use up the memory."""


class ObjectReader(io.RawIOBase):
    """An object in S3 as a file that can be read from any place; `advance` is called with the bytes of each read.

    Boto3's error is raised once the object is another than that of the ETag.
    """

    def __init__(self, s3: Any, where: Mapping[str, str], size: int, advance: Callable[[int], None]) -> None:
        """`where` has the Bucket, the Key and the ETag as IfMatch."""
        self.s3, self.where, self.size, self.advance = s3, where, size, advance
        self.position = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a place in the object, and return it."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self.position, io.SEEK_END: self.size}[whence]
        self.position = max(0, start + offset)
        return self.position

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer with the next bytes, and return their number."""
        end = min(self.size, self.position + len(buffer))
        if end <= self.position:
            return 0
        if end - self.position > LARGEST_READ:
            raise TooLarge
        answer = self.s3.get_object(**self.where, Range=f"bytes={self.position}-{end - 1}")
        data = answer["Body"].read()
        buffer[: len(data)] = data
        self.position += len(data)
        self.advance(len(data))
        return len(data)


def open_object(s3: Any, where: Mapping[str, str], size: int, advance: Callable[[int], None]) -> BinaryIO:
    """Return an object of this size as a file that is read in large chunks; see `ObjectReader`."""
    return io.BufferedReader(ObjectReader(s3, where, size, advance), CHUNK)


def find_damage(name: str, file: BinaryIO, size: int) -> str | None:
    """Return what is wrong with a file of this size, "" if nothing is; None if its format does not show that."""
    try:
        if name.endswith(ARCHIVES):
            begin = file.read(4)
            if not begin.strip(b"\0"):
                return "is empty" if not begin else "cannot be read: it begins with zeros"
            # Older versions of PyTorch wrote pickles, which only their reader can check.
            return _check_archive(file, size) if begin == b"PK\x03\x04" else None
        if name.endswith(".safetensors"):
            return _check_safetensors(file, size)
        if name.endswith(".json") and size <= LARGEST_JSON:
            json.loads(file.read())
            return ""
    except TooLarge:
        return None
    except json.JSONDecodeError as error:
        # A line for each object, as detectron2 writes.
        return None if error.msg == "Extra data" else f"cannot be read: {error}"
    except (*UNREADABLE, *MALFORMED) as error:
        return f"cannot be read: {error}"
    return None


def _check_archive(file: BinaryIO, size: int) -> str | None:
    """Compare the checksums of what is stored as it is; None if members are compressed, which may be of any size."""
    with ZipFile(file) as archive:
        members = sorted(archive.infolist(), key=attrgetter("header_offset"))
        # Members that overlap would make a small archive take hours.
        if sum(member.compress_size for member in members) > size:
            return "cannot be read: a member is cut off"
        if any(member.compress_type != ZIP_STORED for member in members):
            return None
        for member in members:
            # torch.serialization.set_crc32_options(False) leaves the checksum out.
            if member.CRC:
                with archive.open(member) as stored:
                    while stored.read(CHUNK):
                        pass
    return ""


def _check_safetensors(file: BinaryIO, size: int) -> str:
    """Compare the size with the end of the last tensor that the header lists."""
    length = int.from_bytes(file.read(8), "little")
    if 8 + length > size or length > LARGEST_HEADER:
        return f"cannot be read: a header of {length} bytes in {size}"
    header = json.loads(file.read(length))
    end = max((tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"), default=0)
    return "" if 8 + length + end == size else f"cannot be read: it has {size} of {8 + length + end} bytes"
