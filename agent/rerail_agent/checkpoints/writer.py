"""The process that writes a rank's file, so that neither the training loop nor its GIL waits for a disk.

It has no torch: it maps the rank's arena, and does what comes over its pipe until the pipe closes or its parent dies.
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

# A save that nobody waits for takes only the time that the training loop leaves, on a machine without a free core too;
# being nice is not enough there (steps took a fifth longer). What is urgent or takes long runs at full speed.
NICENESS = 19
LONGEST_LEISURE_S = 30.0


@dataclass(frozen=True)
class Write:
    """Write this rank's file: `image` bytes of the arena, and `values` behind them."""

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
    """Give the files on this disk their final place."""

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
    """The writer process as its rank sees it. When it is gone, the tasks are performed here instead."""

    def __init__(self, file: int, memory: mmap.mmap) -> None:
        self.memory = memory
        self.pipe, theirs = Pipe()
        blocked = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2}
        before = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)  # what is blocked stays so across exec
        command = [sys.executable, "-m", "rerail_agent.checkpoints.writer"]
        try:
            self.process: subprocess.Popen[bytes] | None = subprocess.Popen(
                [*command, str(os.getpid()), str(theirs.fileno()), str(file)],
                pass_fds=(theirs.fileno(), file),
                env=os.environ | {"PYTHONPATH": os.pathsep.join(_import_path())},
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
        """The task's result; raises what it raised, or WriterGone when nobody is there to say how it ended."""
        if self.process is None:
            return task.perform(self.memory)
        try:
            self.pipe.send(task)
            if not self.pipe.poll(LONGEST_LEISURE_S):
                self.hurry(True)
            succeeded, result = self.pipe.recv()
        except (EOFError, OSError) as error:
            self.end()
            raise WriterGone(type(error).__name__) from error
        if not succeeded:
            raise result
        return result

    def hurry(self, wanted: bool) -> None:
        """Lets the writer run at full speed, or at leisure again. Only root may; anyone else's writer stays nice."""
        if self.process is not None:
            with suppress(OSError):
                pace(self.process.pid, at_leisure=not wanted)

    def end(self) -> None:
        """Ends the process, which is not in the middle of a task unless nobody waits for it any more."""
        process, self.process = self.process, None
        if process is not None:
            self.pipe.close()
            process.kill()
            process.wait()


class WriterGone(Exception):
    """The writer process died or was never there."""


def _import_path() -> list[str]:
    return [str(Path(__file__).resolve().parents[2]), *(path for path in sys.path if path)]


def main() -> None:
    """Performs tasks until the parent closes the pipe or dies."""
    parent, pipe, file = map(int, sys.argv[1:])
    die_with(parent)
    pace(0, at_leisure=True)
    tasks = Connection(pipe)
    memory = mmap.mmap(file, os.fstat(file).st_size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE, prot=mmap.PROT_READ)
    while True:
        try:
            task: Task = tasks.recv()
        except (EOFError, OSError):
            return
        try:
            answer: tuple[bool, Any] = (True, task.perform(memory))
        except Exception as error:  # whatever it is, the rank has to hear of it
            answer = (False, OSError(f"{type(error).__name__}: {error}"))
        tasks.send(answer)


def pace(pid: int, *, at_leisure: bool) -> None:
    """Makes a process yield to every other one, or not; raises OSError for a process that may not be made faster."""
    os.setpriority(os.PRIO_PROCESS, pid, NICENESS if at_leisure else 0)
    if os.geteuid() == 0:  # anyone else could not take it back
        os.sched_setscheduler(pid, os.SCHED_IDLE if at_leisure else os.SCHED_OTHER, os.sched_param(0))


def die_with(parent: int) -> None:
    """A writer that outlived a killed rank would go on writing beside its successor."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the call above could arm
        os._exit(128 + signal.SIGKILL)


if __name__ == "__main__":
    main()
