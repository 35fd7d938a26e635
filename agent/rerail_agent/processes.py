"""What Linux tells about processes: who descends from whom, who hears SIGTERM, who died of what."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
# What launchers tell their ranks: torchrun, accelerate and DeepSpeed; Open MPI; other MPIs; Slurm.
MARKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
LOCAL_MARKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
SENT = frozenset((*MARKS, *LOCAL_MARKS, ERROR_FILE))


@dataclass(frozen=True)
class Process:
    """One process; `program` is the name of the file that it runs, `hears` whether SIGTERM is caught or held back.

    `told` is what its environment said of its rank when its program began; `age_s` counts from its fork.
    """

    pid: int
    parent: int
    started: int
    age_s: float = 0.0
    program: str = ""
    command: tuple[str, ...] = ()
    told: tuple[tuple[str, str], ...] = ()
    hears: bool = False

    @property
    def key(self) -> tuple[int, int]:
        """A pid is given again, but not with the same time of birth."""
        return self.pid, self.started

    @property
    def rank(self) -> int | None:
        table = dict(self.told)
        return next((int(table[name]) for name in MARKS if table.get(name, "").isdigit()), None)

    @property
    def is_python(self) -> bool:
        return bool(re.fullmatch(r"python[\d.]*t?", self.program))


def descendants(root: int) -> dict[int, Process]:
    """All living processes below one, by pid, parents before their children; with parents and times alone."""
    rows = [row for entry in os.listdir(PROC) if entry.isdigit() and (row := _row(int(entry)))]
    children: dict[int, list[tuple[int, int]]] = {}
    for pid, state, parent, started, _ in rows:
        if state not in "ZX":
            children.setdefault(parent, []).append((pid, started))
    found: dict[int, Process] = {}
    parents = [root]
    while parents:
        parent = parents.pop(0)
        for pid, started in children.get(parent, ()):
            if pid not in found:
                found[pid] = Process(pid, parent, started)
                parents.append(pid)
    return found


def _row(pid: int) -> tuple[int, str, int, int, int] | None:
    """pid, state, parent, time of birth in ticks, and the wait status of a zombie."""
    try:
        # The name in parentheses may hold spaces; the fields after it are those of proc(5), from `state` on.
        fields = (PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return pid, fields[0].decode(), int(fields[1]), int(fields[19]), int(fields[49])


def read_rank_environment(pid: int) -> tuple[tuple[str, str], ...]:
    """What a process's environment says about its rank; nothing where it cannot be read."""
    try:
        words = (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return ()
    pairs = (word.decode(errors="replace").partition("=") for word in words if b"=" in word)
    return tuple(sorted((name, value) for name, _, value in pairs if name in SENT))


def read_details(process: Process) -> Process:
    """The same process with all that is known of it."""
    folder = PROC / str(process.pid)
    try:
        program = os.path.basename(os.readlink(folder / "exe")).removesuffix(" (deleted)")
    except OSError:
        program = ""
    born_s = process.started / os.sysconf("SC_CLK_TCK")
    return Process(
        pid=process.pid,
        parent=process.parent,
        started=process.started,
        age_s=time.clock_gettime(time.CLOCK_BOOTTIME) - born_s,
        program=program,
        command=_command(folder),
        told=read_rank_environment(process.pid),
        hears=catches(process.pid, signal.SIGTERM, held_too=True),
    )


def _command(folder: Path) -> tuple[str, ...]:
    try:
        words = (folder / "cmdline").read_bytes().split(b"\0")[:-1]
    except OSError:
        return ()
    return tuple(word.decode(errors="replace") for word in words)


def catches(pid: int, number: signal.Signals, *, held_too: bool = False) -> bool:
    """Whether the process has a handler for a signal; with `held_too`, also whether it will get it once unblocked."""
    try:
        status = (PROC / str(pid) / "status").read_text(errors="replace")
    except OSError:
        return False
    names = ("SigCgt", "SigBlk") if held_too else ("SigCgt",)
    masks = re.findall(rf"^(?:{'|'.join(names)}):\s*([0-9a-f]+)$", status, re.MULTILINE)
    return any(int(mask, 16) >> (number - 1) & 1 for mask in masks)


def status_of_zombie(pid: int, started: int) -> int | None:
    """How a dead process ended that its parent has not asked about yet: an exit code, or a signal's negative number."""
    row = _row(pid)
    if row is None or row[1] != "Z" or row[3] != started:
        return None
    return os.waitstatus_to_exitcode(row[4])


def status_of_reaped(pidfd: int) -> int | None:
    """The same of one that its parent has asked about already; Linux tells since 6.15."""
    get_info, exit_known, size = 0xC040FF0B, 1 << 3, 64  # linux/pidfd.h
    info = bytearray(size)
    info[0] = exit_known  # the mask of what is wanted, and then of what is there
    try:
        fcntl.ioctl(pidfd, get_info, info)
    except OSError:
        return None
    return os.waitstatus_to_exitcode(int.from_bytes(info[-4:], sys.byteorder)) if info[0] & exit_known else None


def oom_kills(root: Path = Path("/")) -> int:
    """How often the kernel has killed a process of this container for its memory; 0 where it does not tell."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    tree = root / "sys/fs/cgroup"
    places = [tree / "memory.events", tree / "memory/memory.oom_control"]
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            places.insert(0, tree / path.strip("/") / "memory.events")
        elif "memory" in controllers.split(","):
            places.insert(0, tree / "memory" / path.strip("/") / "memory.oom_control")
    # A container sees its own group as the root of the tree, so that its path in /proc may lead nowhere.
    return next((_oom_kills_in(place) for place in places if place.is_file()), 0)


def _oom_kills_in(place: Path) -> int:
    try:
        words: Mapping[str, str] = dict(line.split() for line in place.read_text().splitlines())
    except (OSError, ValueError):
        return 0
    return int(words.get("oom_kill", "0"))
