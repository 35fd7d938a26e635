"""Check whether the files of a checkpoint without checksums can be read: archives of PyTorch, safetensors and JSON."""

import io
import json
import struct
import zlib
from collections.abc import Callable
from typing import Any, BinaryIO
from zipfile import ZIP_STORED, BadZipFile, ZipFile

CHUNK = 1 << 23
ARCHIVES = (".pt", ".pth", ".bin", ".ckpt", ".tar", ".npz")
# Larger ones are tokens or tables, and not what a checkpoint is loaded by.
LARGEST_JSON = 1 << 25
UNREADABLE = (BadZipFile, EOFError, NotImplementedError, RuntimeError, ValueError, struct.error, zlib.error)


class ObjectReader(io.RawIOBase):
    """An object in S3 as a file that can be read from any place; `advance` is called with the bytes of each read."""

    def __init__(self, s3: Any, bucket: str, key: str, size: int, advance: Callable[[int], None]) -> None:
        self.s3, self.bucket, self.key, self.size, self.advance = s3, bucket, key, size, advance
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
        answer = self.s3.get_object(Bucket=self.bucket, Key=self.key, Range=f"bytes={self.position}-{end - 1}")
        data = answer["Body"].read()
        buffer[: len(data)] = data
        self.position += len(data)
        self.advance(len(data))
        return len(data)


def open_object(s3: Any, bucket: str, key: str, size: int, advance: Callable[[int], None]) -> BinaryIO:
    """Return an object of this size as a file that is read in large chunks."""
    return io.BufferedReader(ObjectReader(s3, bucket, key, size, advance), CHUNK)


def find_damage(name: str, file: BinaryIO, size: int) -> str | None:
    """Return what is wrong with a file of this size, "" if nothing is; None if its format does not show that."""
    try:
        if name.endswith(ARCHIVES):
            # Older versions of PyTorch wrote pickles, which only their reader can check.
            return _check_archive(file, size) if size == 0 or file.read(4) == b"PK\x03\x04" else None
        if name.endswith(".safetensors"):
            return _check_safetensors(file, size)
        if name.endswith(".json") and size <= LARGEST_JSON:
            json.loads(file.read())
            return ""
    except (*UNREADABLE, RecursionError, TypeError, KeyError, AttributeError) as error:
        return f"cannot be read: {error}"
    return None


def _check_archive(file: BinaryIO, size: int) -> str:
    """Compare the checksums of what is stored as it is; compressed members may be of any size."""
    with ZipFile(file) as archive:
        # Members that overlap would make a small archive take hours.
        if sum(member.compress_size for member in archive.infolist()) > size:
            return "cannot be read: a member is cut off"
        for member in archive.infolist():
            # torch.serialization.set_crc32_options(False) leaves the checksum out.
            if member.CRC and member.compress_type == ZIP_STORED:
                with archive.open(member) as stored:
                    while stored.read(CHUNK):
                        pass
    return ""


def _check_safetensors(file: BinaryIO, size: int) -> str:
    """Compare the size with the end of the last tensor that the header lists."""
    length = int.from_bytes(file.read(8), "little")
    if 8 + length > size:
        return f"cannot be read: {size} bytes are too few for its header"
    header = json.loads(file.read(length))
    end = max((tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"), default=0)
    return "" if 8 + length + end == size else f"cannot be read: it has {size} of {8 + length + end} bytes"
