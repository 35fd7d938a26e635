"""Functions that run as jobs of the deployed stack's tests."""

import os
import signal
import time

from rerail_cli import checkpoint_folder, remote

local = remote(local=True, source=None)


class BadBatch(ValueError):
    """An exception of the caller's own module, with arguments of its own."""

    def __init__(self, batch: int, why: str) -> None:
        super().__init__(batch, why)
        self.batch, self.why = batch, why


@local
def add(first: int, *others: int) -> int:
    """Return the sum."""
    return first + sum(others)


@local
def fail(batch: int) -> None:
    """Raise from a depth of two."""

    def read(number: int) -> None:
        raise BadBatch(number, "it is empty")

    read(batch)


@local
def count(steps: int, killed_at: int) -> tuple[int, str]:
    """Note each step in a checkpoint; be killed once. Return where the last attempt began, and all steps in order."""
    done = checkpoint_folder() / "done"
    start = len(done.read_text().split()) if done.exists() else 0
    print(f"began at step {start}", flush=True)
    for step in range(start, steps):
        if step == killed_at and start == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        with done.open("a") as file:
            file.write(f"{step} ")
    return start, done.read_text()


@remote(local=True, source=None, retry_on=[KeyError])
def look_up(name: str) -> None:
    """Raise what is retried, in each attempt."""
    raise KeyError(name)


@local
def wait_for(seconds: float) -> None:
    """Sleep."""
    time.sleep(seconds)
