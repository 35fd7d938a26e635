"""Starts a command below init: with the signals that it would have without one, and with init as its orphans' heir."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import FrameType

STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def listen() -> int:
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


def become_subreaper() -> None:
    """Orphans come to PID 1 by themselves; to others only on request."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def spawn(command: Sequence[str], environment: Mapping[str, str], *, stderr: int, pid_as: str = "") -> int:
    """Starts the command with our stdin and stdout; it dies when init is killed.

    To be called in the main thread. Others may run: between fork and exec the child takes no lock of theirs."""
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
