"""Raise an error before or after one of the calls that a program makes to its ports."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


class Crash(BaseException):
    """The end of a program at a call; it is not an Exception, so that no handler catches it."""


@dataclass
class FaultInjector:
    """Stand between a program and its ports, and raise an error before or after one call."""

    fail_at: int = 0
    after: bool = False
    error: Callable[[], BaseException] = Crash
    calls: int = 0
    lock: Any = field(default_factory=threading.Lock)

    def wrap(self, port: Any) -> Any:
        injector = self

        class Port:
            def __getattr__(self, name: str) -> Any:
                method = getattr(port, name)
                if not callable(method) or name == "get_paginator":
                    return method
                return lambda *args, **kwargs: injector.call(method, args, kwargs)

        return Port()

    def call(self, method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with self.lock:
            self.calls += 1
            fails_here = self.calls == self.fail_at
        if fails_here and not self.after:
            raise self.error()
        result = method(*args, **kwargs)
        if fails_here:
            raise self.error()
        return result
