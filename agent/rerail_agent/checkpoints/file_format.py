"""Make the bytes of tensors and values as they are inside a file of torch.distributed.checkpoint."""

import io
import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

# torch.save puts a tensor's bytes at a multiple of it; each record starts at one, to keep that true.
ALIGNMENT = 64
END_OF_ZIP = b"PK\x05\x06"
LONGEST_COMMENT = 0xFFFF
SLOT = 1024


@dataclass(frozen=True)
class TensorFrame:
    """The bytes that torch.save writes around those of a tensor of one type and shape."""

    before: bytes
    after: bytes


@lru_cache(maxsize=4096)
def make_frame(dtype: torch.dtype, sizes: tuple[int, ...]) -> TensorFrame:
    """Return the frame of a contiguous tensor; saving it then means copying its bytes between the two parts.

    The CRC-32 in the zip's headers is not that of the bytes. PyTorch does not check it (it is built with
    MINIZ_DISABLE_ZIP_READER_CRC32_CHECKS, and since 2.6 torch.save can omit it); the manifest has a better checksum.
    """
    tensor = torch.empty(sizes, dtype=dtype)
    sink = _Sink(tensor.nbytes)
    torch.save(tensor, sink)
    return sink.frame()


class _Sink(io.RawIOBase):
    """Collect what torch.save writes, except for the tensor's bytes, which come in one call."""

    def __init__(self, payload: int) -> None:
        self.payload = payload
        self.head = io.BytesIO()
        self.tail: io.BytesIO | None = None

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if len(data) == self.payload and self.tail is None and self.payload > 4096:  # no header is as long
            self.tail = io.BytesIO()
        else:
            (self.head if self.tail is None else self.tail).write(data)
        return len(data)

    def frame(self) -> TensorFrame:
        if self.tail is not None:
            return TensorFrame(self.head.getvalue(), self.tail.getvalue())
        content = self.head.getvalue()
        start = torch._C.PyTorchFileReader(io.BytesIO(content)).get_record_offset("data/0") if self.payload else 0
        return TensorFrame(content[:start], content[start + self.payload :])


def make_value_blob(value: Any, *, room: int = 0) -> bytes:
    """Return a plain value as torch.save writes it, padded to `room` bytes or the next KiB.

    The padding is a comment at the end of the zip, as the format allows. With it a value that grows by a few bytes does
    not move those behind it, and the checkpoint's index stays the same.
    """
    buffer = io.BytesIO()
    torch.save(value, buffer)
    content = buffer.getvalue()
    filling = max(room, -(-len(content) // SLOT) * SLOT) - len(content)
    if not 0 < filling <= LONGEST_COMMENT or content[-22:-18] != END_OF_ZIP or content[-2:] != b"\0\0":
        return content
    return content[:-2] + struct.pack("<H", filling) + bytes(filling)


def align(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT
