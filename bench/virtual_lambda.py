"""Functions on a clock that is made up: each call of AWS takes as long as the made-up AWS says, and each second of CPU
counts as Lambda with half a gigabyte would take for it.

A `Worker` is one environment of Lambda, with clients and a clock of its own; what it runs happens at once, and its
clock says when. botocore's own waiting (retries, its adaptive rate) passes on that clock too."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, tzinfo
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from botocore.awsrequest import AWSResponse

from bench.made_aws import MadeAws, wire_headers

# 512 MB of 1,769 MB, which are one core: https://docs.aws.amazon.com/lambda/latest/dg/configuration-memory.html
CORES = 512 / 1769
# A wait is never shorter: less than this is lost in a clock that counts from 1970, and would be waited for forever.
A_MOMENT_S = 0.001
SERVICES = ("dynamodb", "ssm", "sagemaker", "s3", "cloudwatch", "sqs", "events", "lambda")


class Killed(BaseException):
    """Lambda has ended the function: its time was up."""


class Worker:
    """One environment: `at` is its clock, in seconds since 1970; `readers` is how many calls its threads make at
    once."""

    def __init__(self, name: str, at: float, *, readers: int = 1) -> None:
        self.name, self.at, self.readers = name, at, readers
        self.ends_at = float("inf")
        self.clients: dict[str, Any] = {}
        self.lock = threading.RLock()

    def passes(self, seconds: float) -> None:
        """Time passes; raises Killed where that was too much."""
        at_once = 1 if threading.current_thread() is threading.main_thread() else self.readers
        with self.lock:
            self.at += max(0.0, seconds) / at_once
            if self.at > self.ends_at:
                raise Killed(self.name)


class Lambda:
    """The workers, of whom one is at work at any time, and the services that they call."""

    def __init__(self, aws: MadeAws, begins_at: float) -> None:
        self.aws = aws
        self.worker = Worker("nobody", begins_at)
        aws.clock = lambda: self.worker.at

    def client(self, service: str, **_: Any) -> Any:
        """The worker's own client."""
        found = self.worker.clients.get(service)
        if found is None:
            from rerail.aws import clients

            found = clients.client_as(clients.CONFIG, service)
            found.meta.events.register("before-send", self._answer)
            self.worker.clients[service] = found
        return found

    def run(self, worker: Worker, work: Callable[[], Any], *, timeout_s: float) -> Any:
        """Do this on the worker's clock; None where Lambda had to end it."""
        self.worker = worker
        began, busy = worker.at, time.process_time()
        worker.ends_at = began + timeout_s
        try:
            done = work()
        except Killed:
            done, worker.at = None, worker.ends_at
        worker.ends_at = float("inf")
        worker.at += (time.process_time() - busy) / CORES
        return done

    def _answer(self, request: Any, **_: Any) -> AWSResponse:
        headers = {name.lower(): _text(value) for name, value in request.headers.items()}
        _, _, path = request.url.partition("//")[2].partition("/")
        body = request.body or b""
        body = body.encode() if isinstance(body, str) else body if isinstance(body, bytes) else body.read()
        with self.worker.lock:
            answer = self.aws.answer(request.method, f"/{path}", headers, body)
        self.worker.passes(answer.delay_s)
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


@contextmanager
def on_virtual_time(runner: Lambda) -> Iterator[None]:
    """While this lasts the adapters use the worker's clients, and all clocks are the worker's."""
    import botocore.endpoint
    import botocore.retries.bucket as bucket

    import wiring

    class Condition(threading.Condition):
        def wait(self, timeout: float | None = None) -> bool:
            runner.worker.passes(max(timeout or 0.0, A_MOMENT_S))
            return False

    class Datetime(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> "Datetime":
            return cls.fromtimestamp(runner.worker.at, tz or UTC)

    threads = SimpleNamespace(Lock=threading.Lock, Condition=Condition)
    with ExitStack() as patches:
        patches.enter_context(patch.object(bucket, "threading", threads))
        patches.enter_context(patch.object(bucket.Clock, "sleep", lambda _, amount: runner.worker.passes(amount)))
        patches.enter_context(patch.object(bucket.Clock, "current_time", lambda _: runner.worker.at))
        sleep = SimpleNamespace(sleep=lambda seconds: runner.worker.passes(seconds))
        patches.enter_context(patch.object(botocore.endpoint, "time", sleep))
        patches.enter_context(patch.object(wiring, "datetime", Datetime))
        for name, module in list(sys.modules.items()):
            if name.startswith("rerail.aws.") and name != "rerail.aws.clients" and hasattr(module, "client"):
                patches.enter_context(patch.object(module, "client", runner.client))
        yield
