"""Passes the job's stderr on, byte for byte, and remembers its last lines."""

from __future__ import annotations

import fcntl
import os
import select
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass

LINES, LINE_LIMIT = 2_000, 4_000  # characters a line
CHUNK = 1 << 16
PIPE_BYTES = 1 << 20
SET_PIPE_SIZE = 1031  # F_SETPIPE_SZ, which Python names since 3.10


@dataclass(frozen=True)
class StderrLine:
    """A line without its end, and when it came (time.monotonic)."""

    at: float
    text: str


class StderrRelay:
    """A pipe whose `inlet` is the job's stderr, and a thread that writes to ours what comes out of it.

    A thread, because a reader of our stderr who does not read may hold up the job, as without us, but never init.
    """

    def __init__(self, to: int = 2) -> None:
        self._outlet, self.inlet = os.pipe()
        with suppress(OSError):  # more than an unprivileged user may have
            fcntl.fcntl(self.inlet, SET_PIPE_SIZE, PIPE_BYTES)
        self._to: int | None = to
        self._pending = b""
        self._lines: deque[StderrLine] = deque(maxlen=LINES)
        self._thread = threading.Thread(target=self._run, name="stderr", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def tell(self, message: str) -> None:
        """A line of init's own, in order with the job's; given up where writing it would have to wait."""
        line = f"rerail init: {message}\n".encode()[: select.PIPE_BUF]
        if select.select([], [self.inlet], [], 0)[1]:
            os.write(self.inlet, line)

    def finish(self, timeout_s: float) -> list[StderrLine]:
        """Waits until everything is passed on, if those who write are gone; the last lines, oldest first."""
        os.close(self.inlet)
        self._thread.join(timeout_s)
        return list(self._lines)

    def so_far(self, timeout_s: float) -> list[StderrLine]:
        """The last lines, oldest first, once all that was written has come through; those who write go on."""
        deadline = time.monotonic() + timeout_s
        while select.select([self._outlet], [], [], 0)[0] and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.05)  # for what was read and is not remembered yet
        return list(self._lines)

    def _run(self) -> None:
        while chunk := os.read(self._outlet, CHUNK):
            self._pass_on(chunk)
            self._remember(chunk)
        self._remember(b"\n" if self._pending else b"")

    def _pass_on(self, chunk: bytes) -> None:
        """When nobody reads our stderr any more, the job's still has to flow."""
        while chunk and self._to is not None:
            try:
                chunk = chunk[os.write(self._to, chunk) :]
            except BlockingIOError:
                select.select([], [self._to], [])
            except OSError:
                self._to = None

    def _remember(self, chunk: bytes) -> None:
        *whole, rest = (self._pending + chunk).split(b"\n")
        # A progress bar is one endless line, of which only what follows the last return is on the screen.
        self._pending = rest.rpartition(b"\r")[2][-LINE_LIMIT:] if not rest.endswith(b"\r") else rest[-LINE_LIMIT:]
        now = time.monotonic()
        for line in whole:
            shown = line.rstrip(b"\r").rpartition(b"\r")[2][:LINE_LIMIT]
            self._lines.append(StderrLine(now, shown.decode(errors="replace")))
