"""Read from Linux how processes descend from each other, which signals they handle, and how they ended."""

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
# The variables that launchers set for their ranks: torchrun, accelerate and DeepSpeed; Open MPI; other MPIs; Slurm.
MARKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
LOCAL_MARKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
RANK_VARIABLES = frozenset((*MARKS, *LOCAL_MARKS, ERROR_FILE))


@dataclass(frozen=True)
class LinuxProcess:
    """One process."""

    pid: int
    parent: int
    # The time of its start, in ticks since the boot.
    started: int
    # Since its fork.
    age_s: float = 0.0
    # The name of the file that it runs.
    program: str = ""
    command: tuple[str, ...] = ()
    # The variables about its rank that its environment had when its program began.
    rank_variables: tuple[tuple[str, str], ...] = ()
    # Whether SIGTERM is caught or blocked.
    handles_sigterm: bool = False

    @property
    def key(self) -> tuple[int, int]:
        """Return the pid and start time: a pid is used again, but not with the same start time."""
        return self.pid, self.started

    @property
    def rank(self) -> int | None:
        """Return the rank that its launcher has set, or None."""
        table = dict(self.rank_variables)
        return next((int(table[name]) for name in MARKS if table.get(name, "").isdigit()), None)

    @property
    def is_python(self) -> bool:
        return bool(re.fullmatch(r"python[\d.]*t?", self.program))


def list_descendants(root: int, *, zombies: bool = False) -> dict[int, LinuxProcess]:
    """Return all living processes below one, or also zombies, by pid, parents first; sets pids, parents and starts."""
    rows = [row for entry in os.listdir(PROC) if entry.isdigit() and (row := _read_stat(int(entry)))]
    children: dict[int, list[tuple[int, int]]] = {}
    for pid, state, parent, started, _ in rows:
        if zombies or state not in "ZX":
            children.setdefault(parent, []).append((pid, started))
    found: dict[int, LinuxProcess] = {}
    parents = [root]
    while parents:
        parent = parents.pop(0)
        for pid, started in children.get(parent, ()):
            if pid not in found:
                found[pid] = LinuxProcess(pid, parent, started)
                parents.append(pid)
    return found


def _read_stat(pid: int) -> tuple[int, str, int, int, int] | None:
    """Return pid, state, parent, start time in ticks, and the wait status of a zombie."""
    fields = _read_fields(pid)
    return (pid, fields[0].decode(), int(fields[1]), int(fields[19]), int(fields[49])) if fields else None


def _read_fields(pid: int) -> list[bytes]:
    try:
        # The name in parentheses may hold spaces; the fields after it are those of proc(5), from `state` on.
        return (PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return []


def measure_child_cpu_s() -> float:
    """Return the CPU time of all processes below this one, of those that have ended too; reaping adds nothing."""
    ticks = [sum(map(int, _read_fields(pid)[11:15])) for pid in list_descendants(os.getpid(), zombies=True)]
    ended = os.times()
    return sum(ticks) / os.sysconf("SC_CLK_TCK") + ended.children_user + ended.children_system


def count_io_bytes() -> int:
    """Return how much this process has read and written, without sockets; 0 where Linux does not say."""
    try:
        counters = dict(line.split(": ") for line in (PROC / "self/io").read_text().splitlines())
    except (OSError, ValueError):
        return 0
    return int(counters.get("rchar", 0)) + int(counters.get("wchar", 0))


def read_rank_environment(pid: int) -> tuple[tuple[str, str], ...]:
    """Return the variables about its rank in a process's environment; empty if it cannot be read."""
    try:
        words = (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return ()
    pairs = (word.decode(errors="replace").partition("=") for word in words if b"=" in word)
    return tuple(sorted((name, value) for name, _, value in pairs if name in RANK_VARIABLES))


def read_details(process: LinuxProcess) -> LinuxProcess:
    """Return the same process with all fields set."""
    folder = PROC / str(process.pid)
    try:
        program = os.path.basename(os.readlink(folder / "exe")).removesuffix(" (deleted)")
    except OSError:
        program = ""
    born_s = process.started / os.sysconf("SC_CLK_TCK")
    return LinuxProcess(
        pid=process.pid,
        parent=process.parent,
        started=process.started,
        age_s=time.clock_gettime(time.CLOCK_BOOTTIME) - born_s,
        program=program,
        command=_read_command(folder),
        rank_variables=read_rank_environment(process.pid),
        handles_sigterm=has_handler(process.pid, signal.SIGTERM, or_blocked=True),
    )


def _read_command(folder: Path) -> tuple[str, ...]:
    try:
        words = (folder / "cmdline").read_bytes().split(b"\0")[:-1]
    except OSError:
        return ()
    return tuple(word.decode(errors="replace") for word in words)


def has_handler(pid: int, number: signal.Signals, *, or_blocked: bool = False) -> bool:
    """Return whether the process has a handler for a signal; with `or_blocked`, also whether it blocks it.

    A mask of all signals does not count: the C library has it for an instant in each creation of a thread or process.
    """
    try:
        status = (PROC / str(pid) / "status").read_text(errors="replace")
    except OSError:
        return False
    caught, blocked = (_read_mask(name, status) for name in ("SigCgt", "SigBlk"))
    return number in caught or (or_blocked and number in blocked and signal.SIGSEGV not in blocked)


def _read_mask(name: str, status: str) -> set[int]:
    """Return the numbers of the signals in one of the masks of /proc/PID/status."""
    found = re.search(rf"^{name}:\s*([0-9a-f]+)$", status, re.MULTILINE)
    mask = int(found[1], 16) if found else 0
    return {number for number in range(1, 65) if mask >> (number - 1) & 1}


def read_zombie_status(pid: int, started: int) -> int | None:
    """Return how a process ended that its parent has not reaped: an exit code, or a signal's negative number."""
    row = _read_stat(pid)
    if row is None or row[1] != "Z" or row[3] != started:
        return None
    return os.waitstatus_to_exitcode(row[4])


def read_reaped_status(pidfd: int) -> int | None:
    """Return how a process ended that its parent has reaped; Linux knows it since 6.15."""
    get_info, exit_known, size = 0xC040FF0B, 1 << 3, 64  # linux/pidfd.h
    info = bytearray(size)
    info[0] = exit_known  # the mask of the wanted fields, and in the answer of the present ones
    try:
        fcntl.ioctl(pidfd, get_info, info)
    except OSError:
        return None
    return os.waitstatus_to_exitcode(int.from_bytes(info[-4:], sys.byteorder)) if info[0] & exit_known else None


def count_oom_kills(root: Path = Path("/")) -> int:
    """Return how often the kernel has killed a process of this container for its memory; 0 if unknown."""
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
    return next((_read_oom_kills(place) for place in places if place.is_file()), 0)


def _read_oom_kills(place: Path) -> int:
    try:
        words: Mapping[str, str] = dict(line.split() for line in place.read_text().splitlines())
    except (OSError, ValueError):
        return 0
    return int(words.get("oom_kill", "0"))
