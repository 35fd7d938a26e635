"""Functions on a clock that is made up: each call of AWS takes as long as the made-up AWS says, and each second of CPU
counts as Lambda with half a gigabyte would take for it.

An `Environment` is one environment of Lambda, in a process of its own. It thinks as fast as it can, and says with each
call when, by its own clock, it makes it; so whoever answers can take the calls of all in the order of their times.
botocore's own waiting (retries, its adaptive rate) passes on that clock too."""

import importlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from multiprocessing import get_context
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from botocore.awsrequest import AWSResponse

from bench.evidence import ROOT
from bench.made_aws import Answer, wire_headers
from bench.sweep_worker import Context

# 512 MB of 1,769 MB, which are one core: https://docs.aws.amazon.com/lambda/latest/dg/configuration-memory.html
CORES = 512 / 1769
# A wait is never shorter: less than this is lost in a clock that counts from 1970, and would be waited for forever.
A_MOMENT_S = 0.001


@dataclass(frozen=True, slots=True)
class Invocation:
    """What an environment is asked to do, at `at` seconds since 1970, and for how long at most."""

    event: dict[str, Any]
    at: float
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Call:
    """A request of AWS, made at `at`; headers in lower case."""

    at: float
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Done:
    """The invocation is over: what it returned, None where Lambda had to end it or it failed with `error`."""

    at: float
    result: Any
    error: str = ""


class Environment:
    """One environment of a function, seen from outside; `readers` is how many calls its threads make at once."""

    def __init__(self, function: str, *, readers: int = 1) -> None:
        self._heard: Call | Done | None = None
        self._connection, theirs = get_context("spawn").Pipe()
        self._process = get_context("spawn").Process(target=_serve, args=(theirs, function, readers), daemon=True)
        self._process.start()
        theirs.close()

    def invoke(self, event: dict[str, Any], *, at: float, timeout_s: float) -> None:
        """Begin; what comes of it is heard of later."""
        self._connection.send(Invocation(event, at, timeout_s))

    def listen(self) -> Call | Done:
        """Its next call, or its end; waits until it has thought so far."""
        if self._heard is None:
            self._heard = self._connection.recv()
        return self._heard

    def answer(self, answer: Answer) -> None:
        """To the call that was heard."""
        self._heard = None
        self._connection.send(answer)

    def rest(self) -> None:
        """Its end was heard: it is idle."""
        self._heard = None

    def kill(self) -> None:
        """Whatever it is doing."""
        self._process.kill()
        self._process.join()


class Killed(BaseException):
    """Lambda has ended the function: its time was up."""


class Clock:
    """An environment's own."""

    def __init__(self, connection: Connection, readers: int) -> None:
        self.connection, self.readers = connection, readers
        self.at, self.ends_at, self.busy_s = 0.0, float("inf"), 0.0
        self.lock = threading.RLock()

    def passes(self, seconds: float) -> None:
        """Time passes; raises Killed where that was too much."""
        at_once = 1 if threading.current_thread() is threading.main_thread() else self.readers
        with self.lock:
            self.at += max(0.0, seconds) / at_once
            if self.at > self.ends_at:
                raise Killed

    def thought(self) -> None:
        """What was computed since it was asked last has taken its time too."""
        busy_s = time.process_time()
        spent_s, self.busy_s = busy_s - self.busy_s, busy_s
        self.at += spent_s / CORES

    def run(self, handler: Any, asked: Invocation) -> Done:
        """Do this by this clock."""
        self.at, self.ends_at, self.busy_s = asked.at, asked.at + asked.timeout_s, time.process_time()
        try:
            result, error = handler(asked.event, Context()), ""
        except Killed:
            return Done(self.ends_at, None)
        except Exception as failure:  # what Lambda would log, and the bench counts
            result, error = None, f"{type(failure).__name__}: {failure}"
        self.thought()
        return Done(self.at, result, error)

    def answered(self, request: Any) -> AWSResponse:
        """In place of the network."""
        headers = {name.lower(): _text(value) for name, value in request.headers.items()}
        _, _, path = request.url.partition("//")[2].partition("/")
        body = request.body or b""
        body = body.encode() if isinstance(body, str) else body if isinstance(body, bytes) else body.read()
        with self.lock:
            self.thought()
            self.connection.send(Call(self.at, request.method, f"/{path}", headers, bytes(body)))
            answer = self.connection.recv()
            self.passes(answer.delay_s)
        return AWSResponse(request.url, answer.status, dict(wire_headers(answer, 1)), _Raw(answer.body))


class _Raw:
    """The body of an answer, as urllib3 hands it out."""

    def __init__(self, body: bytes) -> None:
        self.body = body

    def stream(self, *_: Any, **__: Any) -> Iterator[bytes]:
        yield self.body

    def read(self, amount: int | None = None, *_: Any, **__: Any) -> bytes:
        taken, self.body = (self.body, b"") if amount is None else (self.body[:amount], self.body[amount:])
        return taken

    def close(self) -> None:
        """Nothing is held."""

    def release_conn(self) -> None:
        """Nothing is held."""


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _serve(connection: Connection, function: str, readers: int) -> None:
    """The environment's process, until nothing more is asked for."""
    sys.path[:0] = [str(ROOT / "lambdas")]
    clock = Clock(connection, readers)
    with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):  # what it logs is nobody's
        handler = importlib.import_module(function).handler
        with _on(clock):
            while asked := connection.recv():
                connection.send(clock.run(handler, asked))


@contextmanager
def _on(clock: Clock) -> Iterator[None]:
    """While this lasts all calls and all clocks are these."""
    import botocore.endpoint
    import botocore.retries.bucket as bucket
    from botocore.httpsession import URLLib3Session

    import wiring

    class Condition(threading.Condition):
        def wait(self, timeout: float | None = None) -> bool:
            clock.passes(max(timeout or 0.0, A_MOMENT_S))
            return False

    class Datetime(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> "Datetime":
            return cls.fromtimestamp(clock.at, tz or UTC)

    threads = SimpleNamespace(Lock=threading.Lock, Condition=Condition)
    with ExitStack() as patches:
        patches.enter_context(patch.object(URLLib3Session, "send", lambda _, request: clock.answered(request)))
        patches.enter_context(patch.object(bucket, "threading", threads))
        patches.enter_context(patch.object(bucket.Clock, "sleep", lambda _, amount: clock.passes(amount)))
        patches.enter_context(patch.object(bucket.Clock, "current_time", lambda _: clock.at))
        patches.enter_context(patch.object(botocore.endpoint, "time", SimpleNamespace(sleep=clock.passes)))
        patches.enter_context(patch.object(wiring, "datetime", Datetime))
        yield
