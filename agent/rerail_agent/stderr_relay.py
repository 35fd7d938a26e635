"""Forward the job's stderr, byte for byte, and remember its last lines."""

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
    """A pipe whose `inlet` is the job's stderr, and a thread that copies it to our stderr.

    In a thread, because a slow reader of our stderr may block the job, as without init, but must never block init.
    """

    def __init__(self, to: int = 2) -> None:
        self._outlet, self.inlet = os.pipe()
        with suppress(OSError):  # an unprivileged user may not have as much
            fcntl.fcntl(self.inlet, SET_PIPE_SIZE, PIPE_BYTES)
        self._to: int | None = to
        self._pending = b""
        self._lines: deque[StderrLine] = deque(maxlen=LINES)
        self._thread = threading.Thread(target=self._run, name="stderr", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def log(self, message: str) -> None:
        """Write a line of init's own, in order with the job's; drop it if writing would block."""
        line = f"rerail init: {message}\n".encode()[: select.PIPE_BUF]
        if select.select([], [self.inlet], [], 0)[1]:
            os.write(self.inlet, line)

    def finish(self, timeout_s: float) -> list[StderrLine]:
        """Wait until everything is forwarded, if all writers are gone; return the last lines, oldest first."""
        os.close(self.inlet)
        self._thread.join(timeout_s)
        return list(self._lines)

    def read_lines(self, timeout_s: float) -> list[StderrLine]:
        """Return the last lines, oldest first, once all that was written so far has come through."""
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
        """Write to our stderr; when its reader is gone, keep reading, so that the job does not block."""
        while chunk and self._to is not None:
            try:
                chunk = chunk[os.write(self._to, chunk) :]
            except BlockingIOError:
                select.select([], [self._to], [])
            except OSError:
                self._to = None

    def _remember(self, chunk: bytes) -> None:
        *whole, rest = (self._pending + chunk).split(b"\n")
        # A progress bar is one long line, of which only the text after the last carriage return is visible.
        self._pending = rest.rpartition(b"\r")[2][-LINE_LIMIT:] if not rest.endswith(b"\r") else rest[-LINE_LIMIT:]
        now = time.monotonic()
        for line in whole:
            shown = line.rstrip(b"\r").rpartition(b"\r")[2][:LINE_LIMIT]
            self._lines.append(StderrLine(now, shown.decode(errors="replace")))
