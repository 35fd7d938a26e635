"""Log lines of one host on their way to CloudWatch Logs."""

import threading
import time
from contextlib import suppress
from typing import Any

LOG_GROUP = "/aws/sagemaker/TrainingJobs"

# PutLogEvents takes 10,000 events and 1,048,576 bytes at most, counting 26 bytes for each event.
_MOST_EVENTS, _MOST_BYTES, _EVENT_OVERHEAD, _LONGEST = 10_000, 1_048_576, 26, 250_000


class HostLog:
    """Lines are added by the reader thread; `flush` blocks and may be called by any other."""

    def __init__(self, logs: Any, *, job: str, host: str) -> None:
        self._logs = logs
        self._stream = f"{job}/{host}-{int(time.time())}"
        self._lines: list[dict[str, Any]] = []
        self._open = False
        self._adding = threading.Lock()
        self._flushing = threading.Lock()

    def add(self, line: str) -> None:
        if line.strip():
            with self._adding:
                self._lines.append({"timestamp": int(time.time() * 1000), "message": line[:_LONGEST]})

    def flush(self) -> None:
        with self._flushing:
            while batch := self._next_batch():
                self._ensure_stream()
                self._logs.put_log_events(logGroupName=LOG_GROUP, logStreamName=self._stream, logEvents=batch)
                with self._adding:
                    del self._lines[: len(batch)]

    def _next_batch(self) -> list[dict[str, Any]]:
        size = 0
        batch: list[dict[str, Any]] = []
        with self._adding:
            for line in self._lines[:_MOST_EVENTS]:
                size += len(line["message"].encode()) + _EVENT_OVERHEAD
                if size > _MOST_BYTES:
                    break
                batch.append(line)
        return batch

    def _ensure_stream(self) -> None:
        if self._open:
            return
        for create, names in (
            (self._logs.create_log_group, {"logGroupName": LOG_GROUP}),
            (self._logs.create_log_stream, {"logGroupName": LOG_GROUP, "logStreamName": self._stream}),
        ):
            with suppress(self._logs.exceptions.ResourceAlreadyExistsException):
                create(**names)
        self._open = True
