"""PID 1 of a training container: `python -m rerail_agent.init [--] command...` runs the command, and passes SIGTERM on
to the processes that train.

Why not the launcher's own way: bash and AWS's toolkit as PID 1 never pass it on, torchrun kills its ranks after 30
seconds, and mpirun after one. So init leaves launchers alone, asks the ranks themselves, and gives them
RERAIL_GRACE_SECONDS (115) of SageMaker's 120. Standard library only: it runs in any image, also from a zipped wheel.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from rerail_agent import exit_report, failure
from rerail_agent import processes as proc
from rerail_agent.exit_report import ProcessExit
from rerail_agent.in_place_restarts import Restarts, with_another_port
from rerail_agent.processes import Process
from rerail_agent.ranks import find_marked, find_training_processes
from rerail_agent.snapshot_keeper import SnapshotKeeper
from rerail_agent.spawn import PASSED_ON, STOPS, become_subreaper, listen, spawn
from rerail_agent.stderr_relay import StderrLine, StderrRelay

if TYPE_CHECKING:
    from rerail.model.mailbox import Command

GRACE_S = 115.0  # of the 120 that SageMaker waits between SIGTERM and SIGKILL
STARTING_S = 60.0  # a younger process without a handler for SIGTERM may still come to have one
LAUNCHER_S = 30.0  # for a launcher whose ranks have all ended, to end too
ORPHANS_S = 10.0  # for what is left of a command that has ended
KILL_S = 3.0  # from SIGTERM to SIGKILL for what is not a rank
DEAF_S = 10.0  # for processes that even SIGKILL does not end
FLUSH_S = 10.0


def main() -> NoReturn:
    command = sys.argv[1:]
    if command[:1] == ["--"]:
        command = command[1:]
    if not command:
        print("usage: python -m rerail_agent.init [--] command...", file=sys.stderr)
        sys.exit(2)
    sys.exit(run(command))


Prepare = Callable[[Mapping[str, str]], tuple[Sequence[str], Mapping[str, str]]]


def run(
    command: Sequence[str],
    *,
    environment: Mapping[str, str] = os.environ,
    pid_as: str = "",
    prepare: Prepare | None = None,
) -> int:
    """Runs a command to its end and everything it has started to theirs; the exit code, 128+n for signal n.

    The command finds its own pid in the environment variable `pid_as`, if one is named. `prepare(environment)` makes
    the command and its environment for each start, where they depend on it. To be called once, in the main thread of a
    process without other children.
    """
    base = Path(environment.get("SAGEMAKER_BASE_DIR") or "/opt/ml")
    house = JobProcesses.furnished(environment, base)
    prepare = prepare or (lambda environment: (command, with_another_port(environment)))
    while True:
        init = Init(grace_s=_grace_s(environment), base=base, house=house)
        init.live(*prepare(house.restarts.environment), pid_as)
        if not house.restarts.after(init):
            break
    house.restarts.end()
    if house.keeping is not None:
        house.keeping.end()
    lines = house.passage.finish(FLUSH_S)
    if init.code and not init.is_obedient:
        init.write_failure(lines)
    return init.code


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
class RankProcess:
    """A process whose death is watched for; without a pidfd (Linux before 5.3) only the tree shows it."""

    process: Process
    pidfd: int | None
    death: ProcessExit | None = None


@dataclass
class JobProcesses:
    """What outlives each start of the command."""

    passage: StderrRelay
    inbox: int
    restarts: Restarts
    keeping: SnapshotKeeper | None  # the process that has snapshots; neither a rank nor started by the command
    is_open: bool = False

    @classmethod
    def furnished(cls, environment: Mapping[str, str], base: Path) -> JobProcesses:
        passage, inbox = StderrRelay(), listen()
        become_subreaper()
        keeping = SnapshotKeeper.start(environment, passage.tell)
        if keeping is not None:
            environment = {**environment, **keeping.told}
        return cls(passage, inbox, Restarts(environment, base, passage.tell), keeping)

    def open(self) -> None:
        """Starts the threads, once: after the first fork."""
        if not self.is_open:
            self.is_open = True
            self.passage.start()
            self.restarts.start()


@dataclass
class Init:
    """One start of the command: what init knows from one look to the next."""

    grace_s: float
    base: Path
    house: JobProcesses
    order: Command | None = None  # for which the command is ended now, to be started again
    is_stopped: bool = False  # somebody wants the job to stop
    command: int = 0  # the pid of what it has started
    ended: ProcessExit | None = None  # the command's
    asked: float | None = None  # when somebody first wanted the job to stop
    rest_told: float | None = None  # when everybody who was left got SIGTERM
    idle_since: float | None = None  # since when no rank is left
    ranks: dict[tuple[int, int], RankProcess] = field(default_factory=dict)
    told: set[tuple[int, int]] = field(default_factory=set)
    elders: set[tuple[int, int]] = field(default_factory=set)  # launchers and shells above ranks
    marks: set[tuple[tuple[str, str], ...]] = field(default_factory=set)  # of ranks that have been told
    reaped: dict[int, int] = field(default_factory=dict)
    patience: bool = False  # a rank is awaited that does not hear yet
    next_look: float = 0.0

    def live(self, command: Sequence[str], environment: Mapping[str, str], pid_as: str) -> None:
        """From the start of the command to the end of everything that it has started."""
        self.began = time.monotonic()
        self.own = proc.read_rank_environment(os.getpid())
        self.oom_kills = proc.oom_kills()
        self.passage, self.inbox, self.keeping = self.house.passage, self.house.inbox, self.house.keeping
        self.command = spawn(command, environment, stderr=self.passage.inlet, pid_as=pid_as)
        self.house.open()
        self.house.restarts.began()
        while not self._is_over():
            self._wait()

    def wait(self, until: Callable[[], bool], seconds: float) -> None:
        """Waits with open ears, until it is so or the job is to stop."""
        deadline = time.monotonic() + seconds
        while not (until() or self.is_stopped) and (left := deadline - time.monotonic()) > 0:
            self._poll(min(left, 1.0))
            self._reap()

    def _is_over(self) -> bool:
        """Nobody is left, or only such as nothing can end (in a device's hands, as a dead GPU has them)."""
        return self.ended is not None and (self.is_given_up or not self._descendants())

    @property
    def is_given_up(self) -> bool:
        late = self.rest_told is not None and time.monotonic() > self.rest_told + KILL_S + DEAF_S
        return late and bool(self._descendants())

    def _wait(self) -> None:
        """Sleeps until something happens or it is time for a look; then sees to all that may have happened."""
        self._poll(self._pause())
        self._bury()
        self._reap()
        now = time.monotonic()
        if self.ended is None and self.asked is None and (order := self.house.restarts.order) is not None:
            self._obey(order, now)
        if self._is_ending:
            self._end(now)
        elif now >= self.next_look:
            self._watch(find_marked(self._family(), own=self.own))
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

    def _living(self) -> list[RankProcess]:
        return [rank for rank in self.ranks.values() if rank.death is None]

    def _hear(self, number: signal.Signals) -> None:
        if number in PASSED_ON:
            self._pass_on(number)
        elif number in STOPS and (not self._is_ending or self.order is not None):
            self.order, self.is_stopped = None, True
            self.asked = time.monotonic()
            self.patience = True
            self.passage.tell(f"{number.name}: asking the ranks to save; what is left in {self.grace_s:g} s is ended")
        elif number in STOPS:
            self.is_stopped = True
            self.passage.tell(f"{number.name}: nothing more to do, the end is under way")

    def _obey(self, order: Command, now: float) -> None:
        """The ranks are asked as for a stop, but given less time."""
        self.order, self.asked, self.patience = order, now, True
        self.passage.tell(f"ending the training processes to restart them: asked, and after {self._leave_s:g} s ended")

    @property
    def _leave_s(self) -> float:
        return self.grace_s if self.order is None else min(self.grace_s, self.house.restarts.grace_s)

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

    def _death(self, rank: RankProcess) -> ProcessExit:
        process = rank.process
        status = self.reaped.get(process.pid)
        if status is None:
            status = proc.status_of_zombie(process.pid, process.started)
        if status is None and rank.pidfd is not None:
            status = proc.status_of_reaped(rank.pidfd)
        testimony = exit_report.read_error_file(dict(process.told).get(proc.ERROR_FILE, ""))
        return ProcessExit(process.rank, status, time.monotonic(), testimony)

    def _reap(self) -> None:
        """Init inherits every orphan, and zombies would fill the process table."""
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    break
                code = os.waitstatus_to_exitcode(status)
                if pid == self.command and self.ended is None:
                    self.ended = ProcessExit(None, code, time.monotonic())
                if any(rank.process.pid == pid for rank in self._living()):
                    self.reaped[pid] = code

    def _watch(self, processes: Iterable[Process]) -> None:
        for process in processes:
            if process.key not in self.ranks:
                self.ranks[process.key] = RankProcess(process, _pidfd(process))

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
            return self.asked + self._leave_s
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
        found = find_marked(family, own=self.own)
        if not found and not any(self.marks):
            found = find_training_processes(family, os.getpid(), own=self.own)
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
        light = self._descendants()
        family = {pid: proc.read_details(process) for pid, process in light.items()}
        self._note_the_lost(family)
        return family

    def _descendants(self) -> dict[int, Process]:
        """All that was started by the command, which is all but the keeper."""
        found = proc.descendants(os.getpid())
        if self.keeping is not None:
            found.pop(self.keeping.pid, None)
        return found

    # What is said about it.

    @property
    def is_obedient(self) -> bool:
        """It ended because it was told to, and did not fail before."""
        return self.asked is not None and (self.ended is None or self.ended.at >= self.asked)

    @property
    def code(self) -> int:
        """The command's, but 0 when all ranks left with 0 after they were asked to: torchrun makes a 1 of that."""
        assert self.ended is not None
        asked = [self.ranks[key].death for key in self.told if key in self.ranks]
        if self.asked is not None and asked and all(death is not None and death.status == 0 for death in asked):
            return 0
        return self.ended.exit_code

    @property
    def failure_file(self) -> Path:
        return self.base / "output" / "failure"

    def failure_text(self) -> str:
        """What the failure file says, or would say."""
        with suppress(OSError):
            return self.failure_file.read_text(errors="replace")
        return self._inquest(self.passage.so_far(FLUSH_S))

    def write_failure(self, lines: Sequence[StderrLine]) -> None:
        """Unless the script has written one itself."""
        if self.failure_file.exists() or not self.base.is_dir():
            return
        with suppress(OSError):
            failure.write(self.failure_file, self._inquest(lines))

    def _inquest(self, lines: Sequence[StderrLine]) -> str:
        deaths = [rank.death for rank in self.ranks.values() if rank.death]
        assert self.ended is not None
        mine = [line for line in lines if line.at >= self.began]  # not what the start before this one had to say
        oom_killed = proc.oom_kills() > self.oom_kills
        return exit_report.make_report(self.ended, deaths, mine, oom_killed=oom_killed).text()


def _elders(process: Process, family: Mapping[int, Process]) -> Iterable[Process]:
    while process.parent in family:
        process = family[process.parent]
        yield process


def _pidfd(process: Process) -> int | None:
    try:
        return os.pidfd_open(process.pid)
    except (AttributeError, OSError):
        return None


if __name__ == "__main__":
    main()
