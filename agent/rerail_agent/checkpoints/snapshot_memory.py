"""Manage the memory of a snapshot process: shares of snapshots in slots, for at most two moments a rank."""

import mmap
import os
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rerail_agent.checkpoints.snapshot_label import DamagedShare, SnapshotLabel

# The part of the machine's free memory that is not used.
SPARED = 0.1


class OutOfMemory(Exception):
    """The machine has too little memory for another share; the message has the figures."""


class MemorySlot:
    """Shared memory of a fixed size that outlives the rank which writes into it: this process has it open."""

    def __init__(self, number: int, size: int) -> None:
        self.number = number
        self.size = max(mmap.PAGESIZE, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE)
        self.file = os.memfd_create("rerail-snapshot", os.MFD_CLOEXEC)
        os.posix_fallocate(self.file, 0, self.size)  # too little memory is an error here, and not a SIGBUS later
        self.memory = mmap.mmap(self.file, self.size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        self.view = memoryview(self.memory)

    def free(self) -> None:
        """Release the memory, once no rank maps it any more."""
        os.close(self.file)
        self.file = -1  # its number may be another slot's by now
        with suppress(BufferError):  # a transfer still looks into it; the memory goes with that
            self.view.release()
            self.memory.close()


@dataclass
class SnapshotShare:
    """A rank's part of a snapshot."""

    label: SnapshotLabel
    slot: MemorySlot
    # Whether its checksum was compared since the ranks started.
    verified: bool = False


class SnapshotMemory:
    """The shares of one node: at most two snapshots a rank, the kept one and the one that is being made."""

    def __init__(self, room: Callable[[], int] | None = None) -> None:
        self._room = room or free_bytes
        self._lock = threading.RLock()
        self._shares: dict[tuple[int, str], SnapshotShare] = {}
        self._slots: dict[int, list[MemorySlot]] = {}
        self._staging: dict[int, list[MemorySlot]] = {}  # of ranks of this node
        self._count = 0

    def list_labels(self) -> list[SnapshotLabel]:
        with self._lock:
            return [share.label for share in self._shares.values()]

    def allocate_staging(self, rank: int, size: int) -> list[tuple[MemorySlot, str]]:
        """Return two slots for a rank of this node, and the snapshot in each; raises OutOfMemory."""
        with self._lock:
            inside = {share.slot.number: name for (owner, name), share in self._shares.items() if owner == rank}
            fit = [slot for slot in self._slots.get(rank, []) if slot.size >= size]
            chosen = sorted(fit, key=lambda slot: slot.number not in inside)[:2]
            for slot in self._slots.get(rank, [])[:]:
                if slot not in chosen and slot.number not in inside:
                    self._discard(rank, slot)
            while len(chosen) < 2:
                chosen.append(self._new(rank, size))
            self._staging[rank] = chosen
            return [(slot, inside.get(slot.number, "")) for slot in chosen]

    def slot(self, rank: int, number: int) -> MemorySlot:
        with self._lock:
            return next(slot for slot in self._slots[rank] if slot.number == number)

    def allocate(self, rank: int, size: int) -> MemorySlot:
        """Return an empty slot for a share from another node; raises OutOfMemory."""
        with self._lock:
            taken = {share.slot.number for share in self._shares.values()}
            for slot in self._slots.get(rank, [])[:]:
                if slot.number not in taken and slot.size >= size:
                    return slot
                if slot.number not in taken:
                    self._discard(rank, slot)
            return self._new(rank, size)

    def add(self, label: SnapshotLabel, slot: MemorySlot) -> SnapshotShare:
        """Add the share in a slot, replacing what was there."""
        share = SnapshotShare(label, slot, verified=True)
        with self._lock:
            if slot not in self._slots.get(label.rank, []):
                raise DamagedShare("its slot has been released in the meantime")
            for key, other in [*self._shares.items()]:
                if other.slot is slot:
                    del self._shares[key]
            self._shares[label.rank, label.snapshot] = share
        return share

    def drop(self, rank: int, keep: Iterable[str]) -> None:
        """Drop the shares of a rank, except for the named snapshots; their slots can be used again."""
        spared = set(keep)
        with self._lock:
            for owner, name in [*self._shares]:
                if owner == rank and name not in spared:
                    del self._shares[owner, name]
            taken = {share.slot.number for share in self._shares.values()}
            for slot in self._slots.get(rank, [])[:]:
                if rank in self._staging and slot not in self._staging[rank] and slot.number not in taken:
                    self._discard(rank, slot)  # from before the state grew

    def retain(self, snapshot: str, ranks: Iterable[int]) -> None:
        """Drop everything except for one snapshot's shares of some ranks, and release the memory."""
        wanted = set(ranks)
        with self._lock:
            for owner, name in [*self._shares]:
                if name != snapshot or owner not in wanted:
                    del self._shares[owner, name]
            self._staging.clear()
            taken = {share.slot.number for share in self._shares.values()}
            for rank, slots in [*self._slots.items()]:
                for slot in slots[:]:
                    if slot.number not in taken:
                        self._discard(rank, slot)

    def open_verified(self, rank: int, snapshot: str) -> SnapshotShare:
        """Return a share with its checksum verified; raises DamagedShare, and then the share is dropped."""
        with self._lock:
            share = self._shares.get((rank, snapshot))
        if share is None:
            raise DamagedShare(f"no share of rank {rank}")
        if not share.verified:
            try:
                share.label.check(share.slot.view)
            except DamagedShare:
                with self._lock:
                    self._shares.pop((rank, snapshot), None)
                raise
            share.verified = True
        return share

    def invalidate(self) -> None:
        """Make every share be verified again before its next use."""
        with self._lock:
            for share in self._shares.values():
                share.verified = False

    def _new(self, rank: int, size: int) -> MemorySlot:
        room = self._room()
        if size > room:
            raise OutOfMemory(f"{size} bytes are wanted for a share of rank {rank}, {room} are free")
        self._count += 1
        try:
            slot = MemorySlot(self._count, size)
        except OSError as error:
            raise OutOfMemory(f"{size} bytes are wanted for a share of rank {rank}: {error}") from error
        self._slots.setdefault(rank, []).append(slot)
        return slot

    def _discard(self, rank: int, slot: MemorySlot) -> None:
        self._slots[rank].remove(slot)
        slot.free()


def free_bytes(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return how much memory this machine or container can still use, less a reserve."""
    table = dict(line.split(":") for line in meminfo.read_text().splitlines())
    free = [int(table["MemAvailable"].split()[0]) * 1024]
    with suppress(OSError, ValueError):  # no limit says "max"
        limit, used = (int((cgroup / name).read_text()) for name in ("memory.max", "memory.current"))
        statistics = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
        free.append(limit - used + int(statistics.get("inactive_file", 0)))
    return int(max(0, min(free)) * (1 - SPARED))
