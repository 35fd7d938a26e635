"""Handle SIGTERM, which SageMaker sends 120 s before SIGKILL: on a stop, a spot reclaim or the end of MaxRuntime."""

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

_listening: "list[SigtermHandler]" = []


def _forget_in_child() -> None:
    """Restore the former handler in a child: SIGTERM must still end a forked data loader worker."""
    for handler in _listening:
        handler.restore()
    _listening.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)


class SigtermHandler:
    """A handler that notes the signal, then calls the former Python handler."""

    def __init__(self, note: Callable[[], None]) -> None:
        self._note = note
        self._before: Any = None

    def listen(self) -> bool:
        """Install the handler; return False outside the main thread, where Python does not allow it."""
        if threading.current_thread() is not threading.main_thread():
            return False
        self._before = signal.signal(signal.SIGTERM, self)
        _listening.append(self)
        if hasattr(signal, "pthread_sigmask"):
            # launch.py blocks an early SIGTERM until a handler is installed.
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        return True

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        self._note()
        if callable(self._before) and self._before is not self:
            self._before(signum, frame)

    def restore(self) -> None:
        """Install the former handler again, if this one is still installed."""
        ours = signal.getsignal(signal.SIGTERM) is self
        if ours and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._before if self._before is not None else signal.SIG_DFL)
