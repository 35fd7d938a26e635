"""The processes of one host: the entrypoint as its PID 1, and everything that descends from it."""

import asyncio
import os
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MARKER = "RERAIL_LOCAL_HOST"

_PROC = Path("/proc")
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126
# Between two looks at whether a process still blocks SIGTERM.
BLOCKED_POLL_S = 0.01


class HostProcess:
    """One host's entrypoint in a session of its own; when it exits, all its descendants die, as in a container."""

    def __init__(
        self, command: list[str], *, cwd: Path, environment: Mapping[str, str], on_line: Callable[[str], None]
    ) -> None:
        self.exit_code: int | None = None
        self.exited = asyncio.Event()
        self._command = command
        self._cwd = cwd
        self._marker = uuid.uuid4().hex
        self._environment = {**environment, MARKER: self._marker}
        self._on_line = on_line
        self._process: subprocess.Popen[bytes] | None = None
        self._waiter: threading.Thread | None = None
        self._starting = threading.Lock()
        self._forbidden = False

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the process; block for the duration of a fork. `exited` is set on the loop."""
        with self._starting:
            if self._forbidden:
                return
            try:
                self._process = self._spawn()
            except OSError as error:
                self._on_line(f"exec of {self._command[0]} failed: {error}")
                self.exit_code = _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE
                loop.call_soon_threadsafe(self.exited.set)
                return
            reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
            reader.start()
            self._waiter = threading.Thread(target=self._wait, args=(self._process, reader, loop), daemon=True)
            self._waiter.start()

    def _spawn(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self._command,
            cwd=self._cwd,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    @property
    def started(self) -> bool:
        return self._process is not None or self.exit_code is not None

    @property
    def running(self) -> bool:
        return self._process is not None and self.exit_code is None

    def terminate(self) -> None:
        """Send SIGTERM to the entrypoint alone, as `docker stop` does.

        PID 1 without a handler never sees it. Linux keeps a signal that PID 1 blocks: it arrives once PID 1 unblocks
        it, if there is a handler by then. A shell blocks signals for a moment whenever it starts a command."""
        if self._process and self.running and not self._send_sigterm(self._process.pid):
            threading.Thread(target=self._send_sigterm_once_unblocked, args=(self._process.pid,), daemon=True).start()

    def _send_sigterm(self, pid: int) -> bool:
        """Send SIGTERM if the process has a handler; return False if it only blocks the signal."""
        caught, blocked = read_handling(pid, signal.SIGTERM)
        if caught:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        return caught or not blocked

    def _send_sigterm_once_unblocked(self, pid: int) -> None:
        while self.running and not self._send_sigterm(pid):
            time.sleep(BLOCKED_POLL_S)

    def kill(self) -> None:
        """SIGKILL to the whole tree: the entrypoint, its descendants, and orphans that left its session."""
        if self._process and self.running:
            _kill_tree(self._process.pid, self._marker)

    def freeze(self) -> None:
        """SIGSTOP to the training processes: the entrypoint itself goes on unless it is the only process."""
        self._signal_training(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT to the training processes."""
        self._signal_training(signal.SIGCONT)

    def _signal_training(self, number: signal.Signals) -> None:
        if self._process and self.running:
            tree = tree_of(self._process.pid, self._marker)
            below = [info for info in tree if info.pid != self._process.pid]
            for info in below or tree:
                with suppress(ProcessLookupError):
                    os.kill(info.pid, number)

    def destroy(self) -> None:
        """Kills, waits until all is dead, and lets no later `start` succeed."""
        with self._starting:
            self._forbidden = True
        self.kill()
        if self._waiter:
            self._waiter.join(5)

    def usage(self) -> "Usage":
        if self._process and self.running:
            return usage_of(tree_of(self._process.pid, self._marker))
        return Usage(0.0, 0)

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout, "started with a pipe"
        with process.stdout as output:
            for line in output:
                self._on_line(line.decode(errors="replace").rstrip("\r\n"))

    def _wait(
        self, process: subprocess.Popen[bytes], reader: threading.Thread, loop: asyncio.AbstractEventLoop
    ) -> None:
        _wait_without_reaping(process.pid)
        # The entrypoint is still a zombie here, so its id cannot have passed to a stranger.
        _kill_tree(process.pid, self._marker)
        code = process.wait()
        reader.join(5)
        self.exit_code = 128 - code if code < 0 else code
        with suppress(RuntimeError):  # the loop may be closed by now
            loop.call_soon_threadsafe(self.exited.set)


@dataclass(frozen=True)
class ProcessInfo:
    pid: int
    parent: int
    group: int
    session: int
    state: str
    cpu_ticks: int
    resident_pages: int


@dataclass(frozen=True)
class Usage:
    cpu_seconds: float
    resident_bytes: int


def read_handling(pid: int, number: signal.Signals) -> tuple[bool, bool]:
    """Return whether the process catches the signal, and whether it blocks it; True and False if the kernel does not
    report them.

    Both come from one read: between two, a process may set its handler and unblock the signal."""
    try:
        status = (_PROC / str(pid) / "status").read_text()
    except OSError:
        return True, False
    masks = dict(line.split()[:2] for line in status.splitlines() if line.startswith(("SigCgt", "SigBlk")))
    if len(masks) < 2:
        return True, False
    caught, blocked = (bool(int(masks[name], 16) >> (number - 1) & 1) for name in ("SigCgt:", "SigBlk:"))
    return caught, blocked


def tree_of(root: int, marker: str) -> list[ProcessInfo]:
    """Return every living process of the host: by session, process group, environment marker and descent."""
    table = {info.pid: info for info in _process_table()}
    found = {info.pid for info in table.values() if root in (info.session, info.group) or _has_marker(info.pid, marker)}
    while more := {info.pid for info in table.values() if info.parent in found} - found:
        found |= more
    return [table[pid] for pid in found if table[pid].state not in "ZX"]


def usage_of(processes: list[ProcessInfo]) -> Usage:
    ticks = sum(info.cpu_ticks for info in processes)
    pages = sum(info.resident_pages for info in processes)
    return Usage(ticks / os.sysconf("SC_CLK_TCK"), pages * os.sysconf("SC_PAGE_SIZE"))


def _wait_without_reaping(pid: int) -> None:
    if hasattr(os, "waitid"):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def _kill_tree(root: int, marker: str) -> None:
    """Kill until no process is left, since a process may fork between two listings."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(root, signal.SIGKILL)
    for _ in range(100):
        alive = tree_of(root, marker)
        if not alive:
            return
        for info in alive:
            with suppress(ProcessLookupError):
                os.kill(info.pid, signal.SIGKILL)


def _process_table() -> list[ProcessInfo]:
    if not _PROC.is_dir():
        return []
    entries = (_info(int(entry.name)) for entry in _PROC.iterdir() if entry.name.isdigit())
    return [info for info in entries if info is not None]


def _info(pid: int) -> ProcessInfo | None:
    try:
        # The name in parentheses may hold spaces; the fields after it are those of proc(5), from `state` on.
        fields = (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    state, parent, group, session = fields[0], *map(int, fields[1:4])
    return ProcessInfo(pid, parent, group, session, state, int(fields[11]) + int(fields[12]), int(fields[21]))


def _has_marker(pid: int, marker: str) -> bool:
    try:
        return f"{MARKER}={marker}".encode() in (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
