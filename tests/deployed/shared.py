"""What the workers of one test run have in common: locks, and a local AWS that the first starts and the last ends."""

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from local.stack import LocalAws


@contextmanager
def locked(file: Path, *, shared: bool = False) -> Iterator[None]:
    """Hold the lock of a file; all who ask for a `shared` one may hold it together."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield


@contextmanager
def joined(state: Path, start: Callable[[], LocalAws], check: Callable[[LocalAws], None]) -> Iterator[LocalAws]:
    """Share the local AWS of this folder: the first user starts it, the last one checks and ends it.

    It runs as a child of the worker that started it. Workers live until the run is over, even those without tests left.
    """
    with locked(state / "lock"):
        aws = LocalAws.attach(state) if _users(state, 0) else start()
        _users(state, +1)
    try:
        yield aws
    finally:
        with locked(state / "lock"):
            if not _users(state, -1):
                try:
                    check(aws)
                finally:
                    aws.stop()


def _users(state: Path, change: int) -> int:
    """Return how many workers use it, after this change."""
    file = state / "users"
    users = (int(file.read_text()) if file.exists() else 0) + change
    file.write_text(str(users))
    return users
