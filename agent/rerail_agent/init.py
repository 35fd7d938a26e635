"""Run a command as PID 1 of a training container, and forward SIGTERM to the processes that train.

    python -m rerail_agent.init [--] command...

The launchers do not: bash and AWS's toolkit as PID 1 never forward it, torchrun kills its ranks after 30 seconds, and
mpirun after one. So init leaves launchers alone, signals the ranks itself, and gives them RERAIL_GRACE_SECONDS (115) of
SageMaker's 120. Standard library only: it runs in any image, also from a zipped wheel.
"""

from __future__ import annotations

import math
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from rerail_agent import exit_report, failure, gpus
from rerail_agent import processes as proc
from rerail_agent.exit_report import ProcessExit
from rerail_agent.failure import FailureCause, FailureReport
from rerail_agent.in_place_restarts import Restarts, with_another_port
from rerail_agent.init_channel import read_host
from rerail_agent.processes import LinuxProcess
from rerail_agent.ranks import find_marked, find_training_processes
from rerail_agent.snapshot_launch import SnapshotProcessHandle
from rerail_agent.spawn import FORWARDED_SIGNALS, STOP_SIGNALS, become_subreaper, install_signal_pipe, spawn
from rerail_agent.stderr_relay import StderrLine, StderrRelay

if TYPE_CHECKING:
    from rerail.model.mailbox import Command

# Of the 120 that SageMaker waits between SIGTERM and SIGKILL.
GRACE_S = 115.0
# A younger process without a handler for SIGTERM may still install one.
STARTUP_S = 60.0
# For a launcher to end after its ranks have all ended.
LAUNCHER_S = 30.0
# For the processes that a command leaves behind.
ORPHANS_S = 10.0
# From SIGTERM to SIGKILL, for processes that are not ranks.
KILL_S = 3.0
# For processes that even SIGKILL does not end.
UNKILLABLE_S = 10.0
FLUSH_S = 10.0


def main() -> NoReturn:
    command = sys.argv[1:]
    if command[:1] == ["--"]:
        command = command[1:]
    if not command:
        print("usage: python -m rerail_agent.init [--] command...", file=sys.stderr)
        sys.exit(2)
    sys.exit(run(command))


PrepareCommand = Callable[[Mapping[str, str]], tuple[Sequence[str], Mapping[str, str]]]


def run(
    command: Sequence[str],
    *,
    environment: Mapping[str, str] = os.environ,
    pid_as: str = "",
    prepare: PrepareCommand | None = None,
) -> int:
    """Run a command to its end, and everything it has started to theirs; return the exit code, 128+n for signal n.

    The command finds its own pid in the environment variable `pid_as`, if one is named. `prepare(environment)` makes
    the command and its environment for each run, where they depend on it. Call it once, in the main thread of a process
    without other children.
    """
    base = Path(environment.get("SAGEMAKER_BASE_DIR") or "/opt/ml")
    if returned := gpus.find_returned(environment):
        refuse_machine(base, returned)
        return 1
    session = JobSession.start(environment, base)
    prepare = prepare or (lambda environment: (command, with_another_port(environment)))
    while True:
        init = Init(grace_s=_read_grace_s(environment), base=base, session=session)
        init.run_command(*prepare(session.restarts.environment), pid_as)
        if not session.restarts.should_restart(init):
            break
    session.restarts.close()
    if session.snapshot_process is not None:
        session.snapshot_process.stop()
    lines = session.relay.finish(FLUSH_S)
    if init.code and not init.has_ended_on_request:
        init.write_failure(lines)
    return init.code


def refuse_machine(base: Path, returned: str) -> None:
    """Write the failure file of a host whose GPU failed in an earlier attempt: the job may run on another machine."""
    print(f"rerail init: {returned}; not starting on this machine", file=sys.stderr, flush=True)
    error = f"{read_host(base)}: {returned}"
    report = FailureReport(FailureCause.HARDWARE, error, step=None, rank=None, exit_code=1, last_lines=())
    with suppress(OSError):
        failure.write(base / "output" / "failure", report.text())


def _read_grace_s(environment: Mapping[str, str]) -> float:
    text = environment.get("RERAIL_GRACE_SECONDS", "")
    try:
        seconds = float(text or GRACE_S)
        if not 0 <= seconds < math.inf:
            raise ValueError
    except ValueError:
        print(
            f"rerail init: RERAIL_GRACE_SECONDS={text!r}: must be a number of seconds; taking {GRACE_S:g}",
            file=sys.stderr,
        )
        return GRACE_S
    return seconds


@dataclass
class RankProcess:
    """A process whose exit is recorded; without a pidfd (Linux before 5.3) only the process tree shows it."""

    process: LinuxProcess
    pidfd: int | None
    process_exit: ProcessExit | None = None


@dataclass
class JobSession:
    """State that is kept across all runs of the command."""

    relay: StderrRelay
    signal_pipe: int
    restarts: Restarts
    # The process that holds snapshots; neither a rank nor started by the command.
    snapshot_process: SnapshotProcessHandle | None
    is_open: bool = False

    @classmethod
    def start(cls, environment: Mapping[str, str], base: Path) -> JobSession:
        relay, signal_pipe = StderrRelay(), install_signal_pipe()
        become_subreaper()
        snapshot_process = SnapshotProcessHandle.start(environment, relay.log)
        if snapshot_process is not None:
            environment = {**environment, **snapshot_process.rank_environment}
        return cls(relay, signal_pipe, Restarts(environment, base, relay.log), snapshot_process)

    def open(self) -> None:
        """Start the threads, once: after the first fork."""
        if not self.is_open:
            self.is_open = True
            self.relay.start()
            self.restarts.start()


@dataclass
class Init:
    """One run of the command, and its state from one check to the next."""

    grace_s: float
    base: Path
    session: JobSession
    # For which the command is ended now, to be started again.
    restart_command: Command | None = None
    # Whether the job is to stop.
    is_stopped: bool = False
    # The pid of the started command.
    command_pid: int = 0
    # The exit of the command.
    command_exit: ProcessExit | None = None
    # When a stop was first requested.
    stop_requested_at: float | None = None
    # When all remaining processes got SIGTERM.
    rest_signalled_at: float | None = None
    # Since when no rank is left.
    idle_since: float | None = None
    ranks: dict[tuple[int, int], RankProcess] = field(default_factory=dict)
    # The ranks that were signalled.
    signalled: set[tuple[int, int]] = field(default_factory=set)
    # Launchers and shells above ranks.
    ancestors: set[tuple[int, int]] = field(default_factory=set)
    # The rank variables of the ranks that were signalled.
    signalled_marks: set[tuple[tuple[str, str], ...]] = field(default_factory=set)
    reaped: dict[int, int] = field(default_factory=dict)
    # Whether a rank has no handler for SIGTERM yet.
    is_waiting_for_handler: bool = False
    next_look: float = 0.0

    def run_command(self, command: Sequence[str], environment: Mapping[str, str], pid_as: str) -> None:
        """Start the command, and return when everything that it has started has ended."""
        self.on_started = time.monotonic()
        self.own = proc.read_rank_environment(os.getpid())
        self.oom_kills = proc.count_oom_kills()
        session = self.session
        self.relay, self.signal_pipe, self.snapshot_process = (
            session.relay,
            session.signal_pipe,
            session.snapshot_process,
        )
        self.command_pid = spawn(command, environment, stderr=self.relay.inlet, pid_as=pid_as)
        self.session.open()
        self.session.restarts.on_started()
        # What SIGKILL does not end, blocked in a device driver, is not waited for.
        while self.command_exit is None or (not self.is_unkillable and self._list_descendants()):
            self._wait()

    def wait(self, until: Callable[[], bool], seconds: float) -> None:
        """Wait until the predicate is true, the time is over or a stop is requested; signals stay handled."""
        deadline = time.monotonic() + seconds
        while not (until() or self.is_stopped) and (left := deadline - time.monotonic()) > 0:
            self._poll(min(left, 1.0))
            self._reap()

    @property
    def is_unkillable(self) -> bool:
        late = self.rest_signalled_at is not None and time.monotonic() > self.rest_signalled_at + KILL_S + UNKILLABLE_S
        return late and bool(self._list_descendants())

    def _wait(self) -> None:
        """Wait for an event or the time of the next check, then handle everything that has happened."""
        self._poll(self._choose_timeout_s())
        self._record_exits()
        self._reap()
        now = time.monotonic()
        if (
            self.command_exit is None
            and self.stop_requested_at is None
            and (restart_command := self.session.restarts.restart_command) is not None
        ):
            self._begin_restart(restart_command, now)
        if self._is_shutting_down:
            self._shut_down(now)
        elif now >= self.next_look:
            self._track(find_marked(self._list_processes(), own=self.own))
            self.next_look = now + (0.5 if now < self.on_started + 60 else 2.0)

    @property
    def _is_shutting_down(self) -> bool:
        return self.stop_requested_at is not None or self.command_exit is not None

    def _choose_timeout_s(self) -> float:
        if self._is_shutting_down:
            is_soon = self.is_waiting_for_handler or self.rest_signalled_at is not None or self.command_exit
            return 0.05 if is_soon else 0.5
        return max(0.0, self.next_look - time.monotonic())

    def _poll(self, seconds: float) -> None:
        poll = select.poll()
        poll.register(self.signal_pipe, select.POLLIN)
        for rank in self._list_running_ranks():
            if rank.pidfd is not None:
                poll.register(rank.pidfd, select.POLLIN)
        poll.poll(seconds * 1000)
        with suppress(BlockingIOError):
            for number in os.read(self.signal_pipe, 4096):
                self._handle_signal(signal.Signals(number))

    def _list_running_ranks(self) -> list[RankProcess]:
        return [rank for rank in self.ranks.values() if rank.process_exit is None]

    def _handle_signal(self, number: signal.Signals) -> None:
        if number in FORWARDED_SIGNALS:
            self._forward(number)
        elif number in STOP_SIGNALS and (not self._is_shutting_down or self.restart_command is not None):
            self.restart_command, self.is_stopped = None, True
            self.stop_requested_at = time.monotonic()
            self.is_waiting_for_handler = True
            self.relay.log(f"{number.name}: asking the ranks to save; what is left in {self.grace_s:g} s is ended")
        elif number in STOP_SIGNALS:
            self.is_stopped = True
            self.relay.log(f"{number.name}: nothing more to do, the processes are being ended")

    def _begin_restart(self, restart_command: Command, now: float) -> None:
        """Signal the ranks as for a stop, but give them less time."""
        self.restart_command, self.stop_requested_at, self.is_waiting_for_handler = restart_command, now, True
        self.relay.log(
            f"ending the training processes to restart them: asked, and after {self._rank_grace_s:g} s ended"
        )

    @property
    def _rank_grace_s(self) -> float:
        return self.grace_s if self.restart_command is None else min(self.grace_s, self.session.restarts.grace_s)

    def _forward(self, number: signal.Signals) -> None:
        """Forward the signal to ranks with a handler for it; it would end the others, as with torchrun."""
        receivers = [
            process for process in self._find_ranks(self._list_processes()) if proc.has_handler(process.pid, number)
        ]
        for rank in receivers:
            self._send(rank, number)
        self.relay.log(f"{number.name}: passed on to {len(receivers)} ranks that have a handler for it")

    # Exits. A parent reaps its children soon, and then no other process can read how they ended: so first the
    # pidfds, which come at once, and only then init's own children.

    def _record_exits(self) -> None:
        """Record how watched processes ended."""
        running = self._list_running_ranks()
        poll = select.poll()
        for rank in running:
            if rank.pidfd is not None:
                poll.register(rank.pidfd, select.POLLIN)
        dead = {handle for handle, _ in poll.poll(0)}
        for rank in running:
            if rank.pidfd is not None and rank.pidfd in dead:
                rank.process_exit = self._read_exit(rank)
                os.close(rank.pidfd)

    def _read_exit(self, rank: RankProcess) -> ProcessExit:
        process = rank.process
        status = self.reaped.get(process.pid)
        if status is None:
            status = proc.read_zombie_status(process.pid, process.started)
        if status is None and rank.pidfd is not None:
            status = proc.read_reaped_status(rank.pidfd)
        error_text = exit_report.read_error_file(dict(process.rank_variables).get(proc.ERROR_FILE, ""))
        return ProcessExit(process.rank, status, time.monotonic(), error_text, process.rank_variables)

    def _reap(self) -> None:
        """Reap all children: init inherits every orphan, and zombies would fill the process table."""
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    break
                code = os.waitstatus_to_exitcode(status)
                if pid == self.command_pid and self.command_exit is None:
                    self.command_exit = ProcessExit(None, code, time.monotonic())
                if any(rank.process.pid == pid for rank in self._list_running_ranks()):
                    self.reaped[pid] = code

    def _track(self, processes: Iterable[LinuxProcess]) -> None:
        for process in processes:
            if process.key not in self.ranks:
                self.ranks[process.key] = RankProcess(process, _open_pidfd(process))

    def _record_unseen_exits(self, tree: Mapping[int, LinuxProcess]) -> None:
        """Record exits that no pidfd has reported."""
        keys = {process.key for process in tree.values()}
        for rank in self._list_running_ranks():
            if rank.pidfd is None and rank.process.key not in keys:
                rank.process_exit = self._read_exit(rank)

    # The end: the ranks are signalled, then all others, then what is left is killed.

    def _shut_down(self, now: float) -> None:
        tree = self._list_processes()
        if self.rest_signalled_at is not None:
            self._kill(tree, now)
        elif self._is_waiting_for_ranks(tree, now):
            return
        else:
            self.rest_signalled_at = now
            for process in tree.values():
                if process.key not in self.signalled:
                    self._send(process, signal.SIGTERM)

    def _is_waiting_for_ranks(self, tree: Mapping[int, LinuxProcess], now: float) -> bool:
        """Signal the ranks that were not signalled yet; return whether a rank or launcher still runs and may."""
        busy = self._signal_ranks(tree)
        self.idle_since = None if busy else self.idle_since or now
        launching = self.command_exit is None and now < (self.idle_since or now) + LAUNCHER_S
        return (busy or launching) and now < self._deadline()

    def _deadline(self) -> float:
        if self.stop_requested_at is not None:
            return self.stop_requested_at + self._rank_grace_s
        assert self.command_exit is not None, "only then is there an end to wait for"
        return self.command_exit.at + ORPHANS_S

    def _signal_ranks(self, tree: Mapping[int, LinuxProcess]) -> bool:
        """Send SIGTERM to every rank with a handler, and to one without once it is too old to be starting."""
        unsignalled = [process for process in self._find_ranks(tree) if process.key not in self.signalled]
        self._track(unsignalled)
        self.is_waiting_for_handler = False
        for process in unsignalled:
            if process.handles_sigterm or process.age_s >= STARTUP_S or self.command_exit is not None:
                self.signalled.add(process.key)
                self.signalled_marks.add(process.rank_variables)
                self.ancestors |= {ancestor.key for ancestor in _find_ancestors(process, tree)}
                self._send(process, signal.SIGTERM)
            else:
                self.is_waiting_for_handler = True
        return self.is_waiting_for_handler or any(process.key in self.signalled for process in tree.values())

    def _find_ranks(self, tree: Mapping[int, LinuxProcess]) -> list[LinuxProcess]:
        """Return the current ranks; ancestors and orphaned helpers of signalled ranks do not count."""
        descendants = find_marked(tree, own=self.own)
        if not descendants and not any(self.signalled_marks):
            descendants = find_training_processes(tree, os.getpid(), own=self.own)
        return [
            process
            for process in descendants
            if process.key in self.signalled
            or (
                process.key not in self.ancestors
                and (not process.rank_variables or process.rank_variables not in self.signalled_marks)
            )
        ]

    def _kill(self, tree: Mapping[int, LinuxProcess], now: float) -> None:
        assert self.rest_signalled_at is not None
        if now >= self.rest_signalled_at + KILL_S:
            for process in tree.values():
                self._send(process, signal.SIGKILL)

    def _send(self, process: LinuxProcess, number: signal.Signals) -> None:
        rank = self.ranks.get(process.key)
        with suppress(ProcessLookupError, PermissionError):
            if rank is not None and rank.pidfd is not None and rank.process_exit is None:
                signal.pidfd_send_signal(rank.pidfd, number)
            elif rank is None or rank.process_exit is None:
                os.kill(process.pid, number)

    def _list_processes(self) -> dict[int, LinuxProcess]:
        light = self._list_descendants()
        tree = {pid: proc.read_details(process) for pid, process in light.items()}
        self._record_unseen_exits(tree)
        return tree

    def _list_descendants(self) -> dict[int, LinuxProcess]:
        """Return all processes that the command started, which excludes the snapshot process."""
        descendants = proc.list_descendants(os.getpid())
        if self.snapshot_process is not None:
            descendants.pop(self.snapshot_process.pid, None)
        return descendants

    # The results.

    @property
    def has_ended_on_request(self) -> bool:
        """Return whether the command ended because a stop was requested, and had not failed before."""
        return self.stop_requested_at is not None and (
            self.command_exit is None or self.command_exit.at >= self.stop_requested_at
        )

    @property
    def code(self) -> int:
        """Return the command's exit code, but 0 if all signalled ranks ended with 0: torchrun makes a 1 of that."""
        assert self.command_exit is not None
        exits = [self.ranks[key].process_exit for key in self.signalled if key in self.ranks]
        if (
            self.stop_requested_at is not None
            and exits
            and all(process_exit is not None and process_exit.status == 0 for process_exit in exits)
        ):
            return 0
        return self.command_exit.exit_code

    @property
    def failure_file(self) -> Path:
        return self.base / "output" / "failure"

    def failure_text(self) -> str:
        """Return what the failure file says, or would say."""
        with suppress(OSError):
            return self.failure_file.read_text(errors="replace")
        return self._make_exit_report(self.relay.read_lines(FLUSH_S))

    def write_failure(self, lines: Sequence[StderrLine]) -> None:
        """Write the failure file, unless the script has written one itself."""
        if self.failure_file.exists() or not self.base.is_dir():
            return
        with suppress(OSError):
            failure.write(self.failure_file, self._make_exit_report(lines))

    def _make_exit_report(self, lines: Sequence[StderrLine]) -> str:
        exits = [rank.process_exit for rank in self.ranks.values() if rank.process_exit]
        assert self.command_exit is not None
        own_lines = [line for line in lines if line.at >= self.on_started]  # without those of the run before this one
        oom_killed = proc.count_oom_kills() > self.oom_kills
        report = exit_report.make_report(self.command_exit, exits, own_lines, oom_killed=oom_killed)
        variables = next((each.rank_variables for each in exits if each.rank == report.rank), ())
        return replace(report, gpu=gpus.describe_own_gpu(report.error, {**os.environ, **dict(variables)})).text()


def _find_ancestors(process: LinuxProcess, tree: Mapping[int, LinuxProcess]) -> Iterable[LinuxProcess]:
    while process.parent in tree:
        process = tree[process.parent]
        yield process


def _open_pidfd(process: LinuxProcess) -> int | None:
    try:
        return os.pidfd_open(process.pid)
    except (AttributeError, OSError):
        return None


if __name__ == "__main__":
    main()
