"""Write a rank's file in a process of its own, so that neither the training loop nor its GIL waits for a disk.

The process has no torch. It maps the rank's arena, and performs tasks from its pipe until the pipe closes or its parent
ends.
"""

import ctypes
import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rerail_agent.checkpoints.manifest import Manifest
from rerail_agent.checkpoints.store import CHUNK, CheckpointStore

# A save that is not urgent uses only the time that the training loop leaves, on a machine without a free core too;
# niceness is not enough there (steps took a fifth longer). A save that is urgent or takes long runs at full speed.
NICENESS = 19
IDLE_PRIORITY_LIMIT_S = 30.0


@dataclass(frozen=True)
class Write:
    """Write this rank's file: `image` bytes of the arena, then `values`."""

    place: CheckpointStore
    step: int
    name: str
    image: int
    values: bytes

    def perform(self, memory: mmap.mmap) -> dict[str, Any]:
        return self.place.write(self.step, self.name, self._chunks(memory), total=self.image + len(self.values))

    def _chunks(self, memory: mmap.mmap) -> Iterator[memoryview]:
        with memoryview(memory) as whole:
            for start in range(0, self.image, CHUNK):
                with whole[start : min(start + CHUNK, self.image)] as chunk:
                    yield chunk
        if self.values:
            yield memoryview(self.values)


@dataclass(frozen=True)
class Reveal:
    """Move the files on this disk to their final place."""

    place: CheckpointStore
    step: int

    def perform(self, memory: mmap.mmap) -> None:
        self.place.reveal(self.step)


@dataclass(frozen=True)
class Commit:
    """Make a checkpoint of what all ranks have written."""

    place: CheckpointStore
    manifest: Manifest
    metadata: bytes

    def perform(self, memory: mmap.mmap) -> Manifest:
        return self.place.commit(self.manifest, self.metadata)


Task = Write | Reveal | Commit


class Writer:
    """The writer process as its rank uses it. If it is gone, the tasks are performed in this process."""

    def __init__(self, file: int, memory: mmap.mmap) -> None:
        self.memory = memory
        self.pipe, theirs = Pipe()
        blocked = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2}
        before = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)  # what is blocked stays so across exec
        command = [sys.executable, "-m", "rerail_agent.checkpoints.writer"]
        path = [str(Path(__file__).resolve().parents[2]), *filter(None, sys.path)]
        try:
            self.process: subprocess.Popen[bytes] | None = subprocess.Popen(
                [*command, str(os.getpid()), str(theirs.fileno()), str(file)],
                pass_fds=(theirs.fileno(), file),
                env=os.environ | {"PYTHONPATH": os.pathsep.join(path)},
                stdin=subprocess.DEVNULL,
            )
        except OSError:
            self.process = None
            self.pipe.close()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            theirs.close()

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process else None

    def perform(self, task: Task) -> Any:
        """Return the task's result; raise its exception, or WriterGone if the process has ended."""
        if self.process is None:
            return task.perform(self.memory)
        try:
            self.pipe.send(task)
            if not self.pipe.poll(IDLE_PRIORITY_LIMIT_S):
                self.set_urgent(True)
            succeeded, result = self.pipe.recv()
        except (EOFError, OSError) as error:
            self.end()
            raise WriterGone(type(error).__name__) from error
        if not succeeded:
            raise result
        return result

    def set_urgent(self, wanted: bool) -> None:
        """Let the writer run at full or at idle priority; without root it always stays at low priority."""
        if self.process is not None:
            with suppress(OSError):
                set_priority(self.process.pid, idle=not wanted)

    def end(self) -> None:
        """End the process; a task that it performs is not needed any more."""
        process, self.process = self.process, None
        if process is not None:
            self.pipe.close()
            process.kill()
            process.wait()


class WriterGone(Exception):
    """The writer process ended or was never there."""


def main() -> None:
    """Perform tasks until the parent closes the pipe or ends."""
    parent, pipe, file = map(int, sys.argv[1:])
    die_with_parent(parent)
    set_priority(0, idle=True)
    tasks = Connection(pipe)
    memory = mmap.mmap(file, os.fstat(file).st_size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE, prot=mmap.PROT_READ)
    while True:
        try:
            task: Task = tasks.recv()
        except (EOFError, OSError):
            return
        try:
            answer: tuple[bool, Any] = (True, task.perform(memory))
        except Exception as error:  # of any kind: the rank needs it
            answer = (False, OSError(f"{type(error).__name__}: {error}"))
        tasks.send(answer)


def set_priority(pid: int, *, idle: bool) -> None:
    """Let a process run only when a core is idle, or normally; raises OSError where that is not permitted."""
    os.setpriority(os.PRIO_PROCESS, pid, NICENESS if idle else 0)
    if os.geteuid() == 0:  # without root this could not be undone
        os.sched_setscheduler(pid, os.SCHED_IDLE if idle else os.SCHED_OTHER, os.sched_param(0))


def die_with_parent(parent: int) -> None:
    """End this process with its parent: it must not write beside the successor of a killed rank."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the call above
        os._exit(128 + signal.SIGKILL)


if __name__ == "__main__":
    main()
