"""Start a command below init, with the default signal handlers, and make init the parent of its orphans."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import FrameType

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
FORWARDED_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def install_signal_pipe() -> int:
    """Return the read end of a pipe to which each signal writes its number."""
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    for number in (*STOP_SIGNALS, *FORWARDED_SIGNALS, signal.SIGCHLD):
        signal.signal(number, _ignore_signal)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)  # the caller may have blocked them until now
    return read_end


def _ignore_signal(number: int, frame: FrameType | None) -> None:
    """Do nothing: the wakeup descriptor has the number already."""


def become_subreaper() -> None:
    """Become the parent of orphans, which only PID 1 is by default."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def spawn(command: Sequence[str], environment: Mapping[str, str], *, stderr: int, pid_as: str = "") -> int:
    """Start the command with our stdin and stdout; it ends when init is killed.

    Call it in the main thread. Other threads may run: between fork and exec the child takes none of their locks.
    """
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
        for number in (*STOP_SIGNALS, *FORWARDED_SIGNALS, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
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
