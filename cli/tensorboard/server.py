"""TensorBoard as a child of this process, on this machine alone, ended with it."""

import contextlib
import importlib.util
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import IO, Any

HOST = "127.0.0.1"
USUAL_PORT = 6006
PACKAGE = "tensorboard==2.21.0"
READY_WITHIN_S, GRACE_S, RELOAD_S = 60.0, 5.0, 5
# Loopback traffic must not go through a proxy that the environment names.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class NotServed(Exception):
    """TensorBoard is not there, or did not start; the message says why."""


def is_installed() -> bool:
    return importlib.util.find_spec("tensorboard") is not None


def find_free_port(asked: int) -> int:
    """Return the given port, TensorBoard's default or any free one; raise NotServed if the given one is taken."""
    for port in (asked,) if asked else (USUAL_PORT, 0):
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind((HOST, port))
            except OSError as error:
                if asked:
                    raise NotServed(f"the port {asked} is taken: {error.strerror}") from error
                continue
            return int(tried.getsockname()[1])
    raise NotServed("there is no free port")


class Server:
    """Use it as a context manager: the child is gone afterwards, however that comes about."""

    def __init__(self, folder: Path, port: int, output: IO[Any] | int = subprocess.DEVNULL) -> None:
        self.url = f"http://{HOST}:{port}/"
        command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(folder), "--host", HOST]
        command += ["--port", str(port), "--reload_interval", str(RELOAD_S), "--reload_multifile", "true"]
        self._command, self._output = command, output
        self._child: subprocess.Popen[bytes] | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Server":
        # A signal to this process is meant for the child too; a script's background jobs ignore Ctrl-C.
        self._before = {number: signal.signal(number, _interrupted) for number in (signal.SIGINT, signal.SIGTERM)}
        self._child = subprocess.Popen(self._command, stdout=self._output, stderr=self._output, start_new_session=True)
        try:
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *what: object) -> None:
        self.stop()

    @property
    def is_up(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def stop(self) -> None:
        """End the child process, with SIGTERM first; a second Ctrl-C does not interrupt it."""
        for number in self._before:
            signal.signal(number, signal.SIG_IGN)
        if self._child is not None and self._child.poll() is None:
            self._child.terminate()
            try:
                self._child.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                self._child.kill()
                self._child.wait()
        for number, before in self._before.items():
            signal.signal(number, before or signal.SIG_DFL)

    def _wait_until_ready(self) -> None:
        end = time.monotonic() + READY_WITHIN_S
        while time.monotonic() < end:
            if not self.is_up:
                raise NotServed(f"tensorboard ended with {self._child and self._child.returncode}")
            with contextlib.suppress(urllib.error.URLError, OSError), _OPENER.open(self.url, timeout=2):
                return
            time.sleep(0.1)
        raise NotServed(f"tensorboard is not ready after {READY_WITHIN_S:.0f} s")


def wait_until_ended(server: Server, refresh: Callable[[], None], *, every_s: float) -> None:
    """Refresh now and then, until Ctrl-C, SIGTERM or the child's own end."""
    try:
        due = time.monotonic() + every_s
        while server.is_up:
            time.sleep(0.2)
            if time.monotonic() >= due:
                refresh()
                due = time.monotonic() + every_s
    except KeyboardInterrupt:
        return


def _interrupted(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
