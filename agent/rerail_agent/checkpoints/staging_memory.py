"""Allocate memory that a save is copied into: faulted in beforehand, and shared with the process that writes it."""

import ctypes
import mmap
import os
from types import TracebackType

import torch

PAGE = mmap.PAGESIZE


class Arena:
    """Anonymous shared memory of a fixed size.

    It is from memfd_create and not /dev/shm, whose mount is 64 MB in many containers. Every page exists before the
    first save: copying into new pages takes about eight times as long. The first save may be the important one.
    """

    def __init__(self, size: int, *, pinned: bool = False) -> None:
        self.size = max(PAGE, -(-size // PAGE) * PAGE)
        self.file = os.memfd_create("rerail-arena", os.MFD_CLOEXEC)
        os.posix_fallocate(self.file, 0, self.size)  # too little memory is an error here, and not a SIGBUS later
        self.memory = mmap.mmap(self.file, self.size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        self._pinned = pinned and _pin(self.memory, self.size)

    @classmethod
    def over(cls, file: int, *, pinned: bool = False) -> "Arena":
        """Map the memory of another process; this arena closes its file."""
        arena = cls.__new__(cls)
        arena.size, arena.file = os.fstat(file).st_size, file
        size = arena.size
        arena.memory = mmap.mmap(file, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        arena._pinned = pinned and _pin(arena.memory, size)
        return arena

    @property
    def is_pinned(self) -> bool:
        """Return whether the memory is registered with CUDA."""
        return self._pinned

    def tensor(self, *, offset: int, sizes: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return a contiguous tensor at an offset, which must be a multiple of the element's size."""
        count = torch.Size(sizes).numel()
        if count == 0:
            return torch.empty(sizes, dtype=dtype)
        width = torch.empty((), dtype=dtype).element_size()
        flat = torch.frombuffer(self.memory, dtype=torch.uint8, offset=offset, count=count * width)
        return flat.view(dtype).view(sizes)

    def write(self, offset: int, content: bytes) -> None:
        self.memory[offset : offset + len(content)] = content

    def close(self) -> None:
        """Release the memory, once no tensor uses it any more."""
        if self._pinned:
            torch.cuda.cudart().cudaHostUnregister(_address(self.memory))
            self._pinned = False
        if self.file >= 0:
            os.close(self.file)
            self.file = -1
        try:
            self.memory.close()
        except BufferError:  # a tensor still does; the memory goes with it
            return

    def __enter__(self) -> "Arena":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _pin(memory: mmap.mmap, size: int) -> bool:
    """Register the memory with CUDA; otherwise copies from a GPU are several times slower and not asynchronous."""
    result = torch.cuda.cudart().cudaHostRegister(_address(memory), size, 0)
    return int(result) == 0


def _address(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))
