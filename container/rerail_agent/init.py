"""PID 1 of a training container: `python -m rerail_agent.init [--] command...` runs the command, and passes SIGTERM on
to the processes that train.

Why not the launcher's own way: bash and AWS's toolkit as PID 1 never pass it on, torchrun kills its ranks after 30
seconds, and mpirun after one. So init leaves launchers alone, asks the ranks themselves, and gives them
RERAIL_GRACE_SECONDS (115) of SageMaker's 120. Standard library only: it runs in any image, also from a zipped wheel.
"""

from __future__ import annotations

import ctypes
import math
import os
import select
import signal
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import NoReturn

from rerail_agent import failure, inquest, proc
from rerail_agent.inquest import Death
from rerail_agent.passage import Line, Passage
from rerail_agent.proc import Process
from rerail_agent.ranks import marked, training

GRACE_S = 115.0  # of the 120 that SageMaker waits between SIGTERM and SIGKILL
STARTING_S = 60.0  # a younger process without a handler for SIGTERM may still come to have one
LAUNCHER_S = 30.0  # for a launcher whose ranks have all ended, to end too
ORPHANS_S = 10.0  # for what is left of a command that has ended
KILL_S = 3.0  # from SIGTERM to SIGKILL for what is not a rank
DEAF_S = 10.0  # for processes that even SIGKILL does not end
FLUSH_S = 10.0

STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def main() -> NoReturn:
    command = sys.argv[1:]
    if command[:1] == ["--"]:
        command = command[1:]
    if not command:
        print("usage: python -m rerail_agent.init [--] command...", file=sys.stderr)
        sys.exit(2)
    sys.exit(run(command))


def run(command: Sequence[str], *, environment: Mapping[str, str] = os.environ, pid_as: str = "") -> int:
    """Runs a command to its end and everything it has started to theirs; the exit code, 128+n for signal n.

    The command finds its own pid in the environment variable `pid_as`, if one is named. To be called once, in the main
    thread of a process without other children.
    """
    init = Init(grace_s=_grace_s(environment), base=Path(environment.get("SAGEMAKER_BASE_DIR") or "/opt/ml"))
    return init.run(command, environment, pid_as)


def _grace_s(environment: Mapping[str, str]) -> float:
    text = environment.get("RERAIL_GRACE_SECONDS", "")
    try:
        seconds = float(text or GRACE_S)
        if not 0 <= seconds < math.inf:
            raise ValueError
    except ValueError:
        print(f"rerail init: RERAIL_GRACE_SECONDS={text!r}: no number of seconds; taking {GRACE_S:g}", file=sys.stderr)
        return GRACE_S
    return seconds


@dataclass
class Rank:
    """A process whose death is watched for; without a pidfd (Linux before 5.3) only the tree shows it."""

    process: Process
    pidfd: int | None
    death: Death | None = None


@dataclass
class Init:
    """What init knows from one look to the next."""

    grace_s: float
    base: Path
    command: int = 0  # the pid of what it has started
    ended: Death | None = None  # the command's
    asked: float | None = None  # when somebody first wanted the job to stop
    rest_told: float | None = None  # when everybody who was left got SIGTERM
    idle_since: float | None = None  # since when no rank is left
    ranks: dict[tuple[int, int], Rank] = field(default_factory=dict)
    told: set[tuple[int, int]] = field(default_factory=set)
    elders: set[tuple[int, int]] = field(default_factory=set)  # launchers and shells above ranks
    marks: set[tuple[tuple[str, str], ...]] = field(default_factory=set)  # of ranks that have been told
    reaped: dict[int, int] = field(default_factory=dict)
    patience: bool = False  # a rank is awaited that does not hear yet
    next_look: float = 0.0

    def run(self, command: Sequence[str], environment: Mapping[str, str], pid_as: str) -> int:
        self.began = time.monotonic()
        self.own = proc.told(os.getpid())
        self.oom_kills = proc.oom_kills()
        self.passage = Passage()
        self.inbox = _listen()
        _become_subreaper()
        self.command = spawn(command, environment, stderr=self.passage.inlet, pid_as=pid_as)
        self.passage.start()
        while not self._is_over():
            self._wait()
        lines = self.passage.finish(FLUSH_S)
        code = self._exit_code()
        assert self.ended is not None, "the loop ends after the command"
        if code and self.asked is None:
            self._write_failure(lines)
        return code

    def _is_over(self) -> bool:
        """Nobody is left, or only such as nothing can end (in a device's hands, as a dead GPU has them)."""
        if self.ended is None:
            return False
        given_up = self.rest_told is not None and time.monotonic() > self.rest_told + KILL_S + DEAF_S
        return given_up or not proc.descendants(os.getpid())

    def _wait(self) -> None:
        """Sleeps until something happens or it is time for a look; then sees to all that may have happened."""
        self._poll(self._pause())
        self._bury()
        self._reap()
        now = time.monotonic()
        if self._is_ending:
            self._end(now)
        elif now >= self.next_look:
            self._watch(marked(self._family(), own=self.own))
            self.next_look = now + (0.5 if now < self.began + 60 else 2.0)

    @property
    def _is_ending(self) -> bool:
        return self.asked is not None or self.ended is not None

    def _pause(self) -> float:
        if self._is_ending:
            return 0.05 if self.patience or self.rest_told is not None or self.ended else 0.5
        return max(0.0, self.next_look - time.monotonic())

    def _poll(self, seconds: float) -> None:
        poll = select.poll()
        poll.register(self.inbox, select.POLLIN)
        for rank in self._living():
            if rank.pidfd is not None:
                poll.register(rank.pidfd, select.POLLIN)
        poll.poll(seconds * 1000)
        with suppress(BlockingIOError):
            for number in os.read(self.inbox, 4096):
                self._hear(signal.Signals(number))

    def _living(self) -> list[Rank]:
        return [rank for rank in self.ranks.values() if rank.death is None]

    def _hear(self, number: signal.Signals) -> None:
        if number in PASSED_ON:
            self._pass_on(number)
        elif number in STOPS and not self._is_ending:
            self.asked = time.monotonic()
            self.patience = True
            self.passage.tell(f"{number.name}: asking the ranks to save; what is left in {self.grace_s:g} s is ended")
        elif number in STOPS:
            self.passage.tell(f"{number.name}: nothing more to do, the end is under way")

    def _pass_on(self, number: signal.Signals) -> None:
        """To the ranks that want it; whoever has no handler would die of it, as torchrun does."""
        hearers = [each for each in self._training(self._family()) if proc.catches(each.pid, number)]
        for rank in hearers:
            self._send(rank, number)
        self.passage.tell(f"{number.name}: passed on to {len(hearers)} ranks that have a handler for it")

    # Deaths. A parent asks about its dead children soon, and then nobody else learns how they ended: so first the
    # pidfds, which come at once, and only then init's own children.

    def _bury(self) -> None:
        """Notes how watched processes ended."""
        living = self._living()
        poll = select.poll()
        for rank in living:
            if rank.pidfd is not None:
                poll.register(rank.pidfd, select.POLLIN)
        dead = {handle for handle, _ in poll.poll(0)}
        for rank in living:
            if rank.pidfd is not None and rank.pidfd in dead:
                rank.death = self._death(rank)
                os.close(rank.pidfd)

    def _death(self, rank: Rank) -> Death:
        process = rank.process
        status = self.reaped.get(process.pid)
        if status is None:
            status = proc.status_of_zombie(process.pid, process.started)
        if status is None and rank.pidfd is not None:
            status = proc.status_of_reaped(rank.pidfd)
        testimony = inquest.read_testimony(dict(process.told).get(proc.ERROR_FILE, ""))
        return Death(process.rank, status, time.monotonic(), testimony)

    def _reap(self) -> None:
        """Init inherits every orphan, and zombies would fill the process table."""
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    break
                code = os.waitstatus_to_exitcode(status)
                if pid == self.command and self.ended is None:
                    self.ended = Death(None, code, time.monotonic())
                if any(rank.process.pid == pid for rank in self._living()):
                    self.reaped[pid] = code

    def _watch(self, processes: Iterable[Process]) -> None:
        for process in processes:
            if process.key not in self.ranks:
                self.ranks[process.key] = Rank(process, _pidfd(process))

    def _note_the_lost(self, family: Mapping[int, Process]) -> None:
        """Deaths that no pidfd has told of."""
        keys = {process.key for process in family.values()}
        for rank in self._living():
            if rank.pidfd is None and rank.process.key not in keys:
                rank.death = self._death(rank)

    # The end: the ranks are asked, then the rest is told, then killed.

    def _end(self, now: float) -> None:
        family = self._family()
        if self.rest_told is not None:
            self._kill(family, now)
        elif self._is_waiting(family, now):
            return
        else:
            self.rest_told = now
            for process in family.values():
                if process.key not in self.told:
                    self._send(process, signal.SIGTERM)

    def _is_waiting(self, family: Mapping[int, Process], now: float) -> bool:
        """Asks the ranks that have not been asked yet; whether any is still at work, or its launcher, and may be."""
        busy = self._ask(family)
        self.idle_since = None if busy else self.idle_since or now
        launching = self.ended is None and now < (self.idle_since or now) + LAUNCHER_S
        return (busy or launching) and now < self._deadline()

    def _deadline(self) -> float:
        if self.asked is not None:
            return self.asked + self.grace_s
        assert self.ended is not None, "only then is there an end to wait for"
        return self.ended.at + ORPHANS_S

    def _ask(self, family: Mapping[int, Process]) -> bool:
        """SIGTERM to every rank that hears it; to one that does not, once it is too old to be starting up."""
        waited_for = [each for each in self._training(family) if each.key not in self.told]
        self._watch(waited_for)
        self.patience = False
        for process in waited_for:
            if process.hears or process.age_s >= STARTING_S or self.ended is not None:
                self.told.add(process.key)
                self.marks.add(process.told)
                self.elders |= {elder.key for elder in _elders(process, family)}
                self._send(process, signal.SIGTERM)
            else:
                self.patience = True
        return self.patience or any(process.key in self.told for process in family.values())

    def _training(self, family: Mapping[int, Process]) -> list[Process]:
        """The ranks now. What was above one does not become one when that is gone, nor do its orphaned helpers."""
        found = marked(family, own=self.own)
        if not found and not any(self.marks):
            found = training(family, os.getpid(), own=self.own)
        return [
            each
            for each in found
            if each.key in self.told or (each.key not in self.elders and (not each.told or each.told not in self.marks))
        ]

    def _kill(self, family: Mapping[int, Process], now: float) -> None:
        assert self.rest_told is not None
        if now >= self.rest_told + KILL_S:
            for process in family.values():
                self._send(process, signal.SIGKILL)

    def _send(self, process: Process, number: signal.Signals) -> None:
        rank = self.ranks.get(process.key)
        with suppress(ProcessLookupError, PermissionError):
            if rank is not None and rank.pidfd is not None and rank.death is None:
                signal.pidfd_send_signal(rank.pidfd, number)
            elif rank is None or rank.death is None:
                os.kill(process.pid, number)

    def _family(self) -> dict[int, Process]:
        light = proc.descendants(os.getpid())
        family = {pid: proc.in_full(process) for pid, process in light.items()}
        self._note_the_lost(family)
        return family

    # What is said about it.

    def _exit_code(self) -> int:
        """The command's, but 0 when all ranks left with 0 after they were asked to: torchrun makes a 1 of that."""
        assert self.ended is not None
        asked = [self.ranks[key].death for key in self.told if key in self.ranks]
        if self.asked is not None and asked and all(death is not None and death.status == 0 for death in asked):
            return 0
        return self.ended.exit_code

    def _write_failure(self, lines: Sequence[Line]) -> None:
        path = self.base / "output" / "failure"
        if path.exists() or not self.base.is_dir():
            return
        deaths = [rank.death for rank in self.ranks.values() if rank.death]
        assert self.ended is not None
        report = inquest.report(self.ended, deaths, lines, oom_killed=proc.oom_kills() > self.oom_kills)
        with suppress(OSError):
            failure.write(path, report.text())


def _elders(process: Process, family: Mapping[int, Process]) -> Iterable[Process]:
    while process.parent in family:
        process = family[process.parent]
        yield process


def _pidfd(process: Process) -> int | None:
    try:
        return os.pidfd_open(process.pid)
    except (AttributeError, OSError):
        return None


def _listen() -> int:
    """The end of a pipe where each signal arrives as its number."""
    inbox, wakeup = os.pipe()
    os.set_blocking(inbox, False)
    os.set_blocking(wakeup, False)
    signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    for number in (*STOPS, *PASSED_ON, signal.SIGCHLD):
        signal.signal(number, _wake)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)  # whoever calls may hold back what comes before this
    return inbox


def _wake(number: int, frame: FrameType | None) -> None:
    """The wakeup descriptor has the number already."""


def _become_subreaper() -> None:
    """Orphans come to PID 1 by themselves; to others only on request."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def spawn(command: Sequence[str], environment: Mapping[str, str], *, stderr: int, pid_as: str = "") -> int:
    """Starts the command with our stdin and stdout; it dies when init is killed. Before there are other threads."""
    try:
        prctl = ctypes.CDLL(None).prctl
    except (OSError, AttributeError):
        prctl = None
    init = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    try:
        for number in (*STOPS, *PASSED_ON, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(stderr, 2)
        if prctl:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != init:
            os._exit(128 + signal.SIGKILL)
        own = {pid_as: str(os.getpid())} if pid_as else {}
        os.execvpe(command[0], list(command), {**environment, **own})
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)
    finally:
        os._exit(126)


if __name__ == "__main__":
    main()
