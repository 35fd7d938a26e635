"""Hears SIGTERM, which SageMaker sends 120 s before it kills: on a stop, a spot reclaim or the end of MaxRuntime."""

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

_listening: "list[SigtermHandler]" = []


def _forget_in_child() -> None:
    """A forked data loader worker is ended with SIGTERM too: it must die of it as it did before."""
    for stopping in _listening:
        stopping.restore()
    _listening.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)


class SigtermHandler:
    """The handler: notes the signal, then calls the Python handler that was there before."""

    def __init__(self, note: Callable[[], None]) -> None:
        self._note = note
        self._before: Any = None

    def listen(self) -> bool:
        """Installs the handler; False outside the main thread, where Python allows none."""
        if threading.current_thread() is not threading.main_thread():
            return False
        self._before = signal.signal(signal.SIGTERM, self)
        _listening.append(self)
        if hasattr(signal, "pthread_sigmask"):
            # launch.py holds an early SIGTERM back until somebody listens.
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        return True

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        self._note()
        if callable(self._before) and self._before is not self:
            self._before(signum, frame)

    def restore(self) -> None:
        """Puts the handler from before back, if ours is still the one."""
        ours = signal.getsignal(signal.SIGTERM) is self
        if ours and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._before if self._before is not None else signal.SIG_DFL)
