"""Run a command with a deadline: at it, report what the command was doing, end all that it started, and fail."""

import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from local import processes
from local.processes import ProcessEntry

# The folder in which each process of pytest names the test that it is in; `tools.time_limits` writes it.
RECORDS = "RERAIL_RUNNING_TESTS"
# The exit status of a command that was ended at its deadline, as of coreutils' `timeout`.
LATE = 124
POLL_S = 2.0
# A process has this long to end after SIGTERM, its last lines to arrive after it has ended, its stacks to be written.
GRACE_S = 5.0
DUMP_S = 2.0
LOG_LINES = 40
COMMAND_CHARS = 300

Show = Callable[[str], None]


def print_line(line: str) -> None:
    """Print a line at once."""
    print(line, flush=True)


class LimitedCommand:
    """A command in a process group of its own, which is ended with all its descendants at the deadline or on `close`.

    With `on_line`, each line that it prints is given to that function; otherwise it prints to this process's output.
    """

    def __init__(
        self,
        name: str,
        command: list[str],
        *,
        limit_s: float,
        records: Path,
        environment: dict[str, str] | None = None,
        folder: Path | None = None,
        on_line: Show | None = None,
    ) -> None:
        self.name, self.limit_s, self.records = name, limit_s, records
        self._began = time.monotonic()
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            env={**(os.environ if environment is None else environment), RECORDS: str(records)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if on_line else None,
            stderr=subprocess.STDOUT if on_line else None,
            start_new_session=True,
        )
        # A process that left the tree, since its parent ended, is still found by its group.
        self._groups = {self._process.pid}
        self._reader = threading.Thread(target=self._read, args=(on_line or print_line,), daemon=True)
        self._reader.start()

    @property
    def seconds(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self._began

    def wait(self, show: Show = print_line) -> int:
        """Return the exit status; at the deadline report, end everything, and return `LATE`."""
        while (status := self._poll()) is None:
            if self.seconds > self.limit_s:
                show(f"DEADLINE: {self.name} is not done after {self.limit_s:.0f} s; it was doing this:")
                for line in describe(self.find_family(), self.records):
                    show(line)
                status = LATE
                break
            self.find_family()
        self.close()
        return status

    def _poll(self) -> int | None:
        try:
            return self._process.wait(max(0.0, min(POLL_S, self.limit_s - self.seconds)))
        except subprocess.TimeoutExpired:
            return None

    def find_family(self) -> list[ProcessEntry]:
        """Return the command's living processes, parents first; call it often, so that no group is missed."""
        tree = [self._process.pid, *(process.pid for process in processes.descendants(self._process.pid))]
        table = processes.table()
        below = [table[pid] for pid in tree if pid in table]
        self._groups |= {process.group for process in below}
        apart = [p for p in table.values() if p.group in self._groups and p.pid not in tree]
        self._groups = {process.group for process in (*below, *apart)} | {self._process.pid}
        return [*below, *apart]

    def close(self) -> None:
        """End what still runs of the command, and what it left behind."""
        if family := self.find_family():
            processes.end_all(family, grace_s=GRACE_S)
            processes.end_all(self.find_family(), grace_s=0)
        self._process.wait(GRACE_S)
        self._reader.join(GRACE_S)

    def _read(self, on_line: Show) -> None:
        for line in self._process.stdout or ():
            on_line(line.decode(errors="replace").rstrip("\n"))


def make_records() -> Path:
    """Return the folder for the running tests: that of the program which started this one, or a new one."""
    return Path(os.environ.get(RECORDS) or tempfile.mkdtemp(prefix="rerail-running-"))


def describe(family: list[ProcessEntry], records: Path) -> list[str]:
    """Return the running tests, the stacks of their processes, all processes, and the end of each local AWS's log."""
    pids = {process.pid for process in family}
    running = [file for file in sorted(records.glob("*.test")) if int(file.stem) in pids]
    lines = ["running tests:", *(f"  {_read_test(file)} (pid {file.stem})" for file in running)]
    if not running:
        lines[0] += " none is known"
    lines += _dump_stacks([p for p in family if (records / f"{p.pid}.stacks").exists()], records)
    lines += ["processes:", *format_tree(family)]
    for log, last_lines in read_logs(family):
        lines += [f"the end of {log}:", *(f"  {line}" for line in last_lines)]
    return lines


def format_tree(family: Iterable[ProcessEntry]) -> list[str]:
    """Return a line for each process: pid, command line, indented below its parent."""
    depths: dict[int, int] = {}
    lines = []
    for process in family:
        depths[process.pid] = depths.get(process.parent, 0) + 1
        lines.append(f"{'  ' * depths[process.pid]}{process.pid} {read_command(process.pid)}")
    return lines


def read_command(pid: int) -> str:
    """Return a process's command line, shortened; "?" where it ended or this system does not tell."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return "?"
    return command if len(command) <= COMMAND_CHARS else f"{command[:COMMAND_CHARS]}..."


def read_logs(family: Iterable[ProcessEntry]) -> list[tuple[Path, list[str]]]:
    """Return the log file of each local AWS among these processes, with its last lines."""
    found = []
    for process in family:
        words = read_command(process.pid).split()
        if "local.emulator" in words and "--state" in words[:-1]:
            log = Path(words[words.index("--state") + 1]).parent / "emulator.log"
            text = log.read_text(errors="replace") if log.exists() else ""
            found.append((log, text.splitlines()[-LOG_LINES:]))
    return found


def _read_test(file: Path) -> str:
    try:
        return f"{file.read_text()}, for {time.time() - file.stat().st_mtime:.0f} s"
    except OSError:  # the test ended while we looked
        return "a test that has just ended"


def _dump_stacks(family: list[ProcessEntry], records: Path) -> list[str]:
    """Have these processes write their stacks; `tools.time_limits` has registered the signal."""
    for process in family:
        processes.send(process, signal.SIGUSR1)
    time.sleep(DUMP_S if family else 0)
    lines = []
    for process in family:
        lines += [f"stacks of {process.pid}, innermost call first:"]
        lines += [f"  {line}" for line in (records / f"{process.pid}.stacks").read_text(errors="replace").splitlines()]
    return lines
