"""Finds and ends the processes that one process started, by pid and never by name."""

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import NamedTuple


class ProcessEntry(NamedTuple):
    """A process together with its start time, so that a pid that was handed out again is not mistaken for it."""

    pid: int
    parent: int
    started: str
    group: int


def table() -> dict[int, ProcessEntry]:
    """Return every process of this machine by pid, without zombies, which have ended."""
    processes = _from_proc() if Path("/proc/self/stat").exists() else _from_ps()
    return {process.pid: process for process in processes}


def _from_proc() -> list[ProcessEntry]:
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # The command may hold spaces and brackets; the fields start after its last bracket (proc(5)).
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # ended while we looked
            continue
        if fields[0] != "Z":
            found.append(ProcessEntry(int(entry.name), int(fields[1]), fields[19], int(fields[2])))
    return found


def _from_ps() -> list[ProcessEntry]:
    columns = "pid=,ppid=,stat=,pgid=,lstart="
    listing = subprocess.run(["ps", "-A", "-o", columns], capture_output=True, text=True, check=True)
    rows = (line.split(None, 4) for line in listing.stdout.splitlines())
    return [ProcessEntry(int(row[0]), int(row[1]), row[4], int(row[3])) for row in rows if not row[2].startswith("Z")]


def descendants(pid: int) -> list[ProcessEntry]:
    """Return the living processes below `pid`, parents before their children."""
    processes = table()
    found: list[ProcessEntry] = []
    parents = {pid}
    while parents:
        children = [process for process in processes.values() if process.parent in parents]
        found += children
        parents = {process.pid for process in children}
    return found


def alive(process: ProcessEntry) -> bool:
    """Return whether exactly this process still runs."""
    now = table().get(process.pid)
    return now is not None and now.started == process.started


def end_tree(pid: int, *, grace_s: float) -> None:
    """Ask `pid` to end and wait `grace_s`; kill what is then left of it and of everything it had started."""
    root = table().get(pid)
    if root is None:
        return
    family = [root, *descendants(pid)]
    send(root, signal.SIGTERM)
    wait_until_ended([root], grace_s)
    # What it started meanwhile, while it still stands above it.
    family += [process for process in descendants(pid) if process not in family]
    end_all(family, grace_s=0)


def end_all(family: list[ProcessEntry], *, grace_s: float) -> None:
    """End these processes: with SIGTERM first if there is a grace period, then with SIGKILL."""
    if grace_s:
        for process in family:
            send(process, signal.SIGTERM)
        wait_until_ended(family, grace_s)
    for process in family:
        send(process, signal.SIGKILL)
    wait_until_ended(family, 1.0)


def send(process: ProcessEntry, number: signal.Signals) -> None:
    """Signal this very process; one that has ended is left in peace."""
    if alive(process):
        try:
            os.kill(process.pid, number)
        except ProcessLookupError:
            return


def wait_until_ended(family: list[ProcessEntry], seconds: float) -> None:
    """Return when all of these have ended, or after `seconds`."""
    deadline = time.monotonic() + seconds
    while any(alive(process) for process in family) and time.monotonic() < deadline:
        time.sleep(0.02)
