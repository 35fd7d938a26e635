"""The memory that a keeper has: shares of snapshots, each in a slot, for at most two moments a rank."""

import mmap
import os
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rerail_agent.checkpoints.snapshot_label import DamagedShare, SnapshotLabel

SPARED = 0.1  # the part of the machine's free memory that is left alone


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
        """Gives the memory back, once no rank maps it any more."""
        os.close(self.file)
        self.file = -1  # its number may be another slot's by now
        with suppress(BufferError):  # a transfer still looks into it; the memory goes with that
            self.view.release()
            self.memory.close()


@dataclass
class SnapshotShare:
    """A rank's part of a snapshot, and where it lies; verified: its checksum was right since the ranks started."""

    label: SnapshotLabel
    slot: MemorySlot
    verified: bool = False


class SnapshotMemory:
    """What one node keeps. Two snapshots a rank at most: the one that is spared, and the one that is being made."""

    def __init__(self, room: Callable[[], int] | None = None) -> None:
        self._room = room or free_bytes
        self._lock = threading.RLock()
        self._shares: dict[tuple[int, str], SnapshotShare] = {}
        self._slots: dict[int, list[MemorySlot]] = {}
        self._staging: dict[int, list[MemorySlot]] = {}  # of ranks of this node
        self._count = 0

    def labels(self) -> list[SnapshotLabel]:
        with self._lock:
            return [share.label for share in self._shares.values()]

    def staging(self, rank: int, size: int) -> list[tuple[MemorySlot, str]]:
        """Two slots for a rank of this node to stage in, and the snapshot that lies in each; raises NoRoom."""
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

    def vacant(self, rank: int, size: int) -> MemorySlot:
        """A slot with nothing in it, for a share that comes from elsewhere; raises NoRoom."""
        with self._lock:
            taken = {share.slot.number for share in self._shares.values()}
            for slot in self._slots.get(rank, [])[:]:
                if slot.number not in taken and slot.size >= size:
                    return slot
                if slot.number not in taken:
                    self._discard(rank, slot)
            return self._new(rank, size)

    def put(self, label: SnapshotLabel, slot: MemorySlot) -> SnapshotShare:
        """Files what lies in a slot; whatever lay there before is gone."""
        share = SnapshotShare(label, slot, verified=True)
        with self._lock:
            if slot not in self._slots.get(label.rank, []):
                raise DamagedShare("its place has been given up meanwhile")
            for key, other in [*self._shares.items()]:
                if other.slot is slot:
                    del self._shares[key]
            self._shares[label.rank, label.snapshot] = share
        return share

    def forget(self, rank: int, keep: Iterable[str]) -> None:
        """Drops what is kept of a rank, but for the snapshots named; their slots are free for the next."""
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
        """Drops everything but one snapshot's shares of some ranks, and gives back all memory that this frees."""
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

    def opened(self, rank: int, snapshot: str) -> SnapshotShare:
        """A share whose bytes are those that were filed; raises DamagedShare, and then it is gone from here."""
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

    def doubt(self) -> None:
        """Has every share verified again before its next use."""
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
    """What this machine or container can still give, less a reserve."""
    table = dict(line.split(":") for line in meminfo.read_text().splitlines())
    free = [int(table["MemAvailable"].split()[0]) * 1024]
    with suppress(OSError, ValueError):  # no limit says "max"
        limit, used = (int((cgroup / name).read_text()) for name in ("memory.max", "memory.current"))
        statistics = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
        free.append(limit - used + int(statistics.get("inactive_file", 0)))
    return int(max(0, min(free)) * (1 - SPARED))
