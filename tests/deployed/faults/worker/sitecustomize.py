"""Runs in each function worker that has this folder on its path: notes every AWS call, breaks the one asked for.

`FAULT_FOLDER` holds `now.json`: which run lives, in which part of its life it is, and where a call is to be broken,
which call site and how. `calls.jsonl` gets a line a call. A call that names other runs is none of this one's: it is
neither noted nor broken. Whoever breaks the call leaves the fault's `fired` file, so that it happens once, whichever
worker that is."""

import json
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import botocore.endpoint
from botocore.client import BaseClient
from botocore.exceptions import ConnectTimeoutError, ReadTimeoutError

FOLDER = Path(os.environ.get("FAULT_FOLDER", os.devnull))
FUNCTION = os.environ.get("POWERTOOLS_SERVICE_NAME", "")
# How many times faster calls time out here, and the function that makes them: it has so many seconds.
PACE = float(os.environ.get("FAULT_PACE", "1"))
TIMEOUT_S = float(os.environ.get("FAULT_TIMEOUT", "60"))
STATUS = {"InternalServerError": 500, "AccessDeniedException": 403}
RUN = re.compile(r"crash-\d{5}-\d+")
ADAPTERS = "/rerail/aws/"
ALL_TRIES = 1_000
SPEAKS_FOR_OTHERS = ("_call", "_make_api_call")
stock = BaseClient._make_api_call
lock = threading.Lock()


def site() -> str:
    """The adapter's module, the port's method that was called there, and the function that makes the call."""
    frame = sys._getframe(2)
    names: list[tuple[str, str]] = []
    while frame:
        code = frame.f_code
        if ADAPTERS in code.co_filename and code.co_name not in SPEAKS_FOR_OTHERS:
            names.append((Path(code.co_filename).stem, named(code.co_qualname)))
        frame = frame.f_back  # type: ignore[assignment]
    if not names:
        return "elsewhere"
    inner, outer = names[0], names[-1]
    if inner == outer:
        return f"{inner[0]}.{inner[1]}"
    entered = outer[1] if outer[0] == inner[0] else ".".join(outer)
    return f"{inner[0]}.{inner[1]} for {entered}"


def named(qualified: str) -> str:
    """`ObjectMover._copy_parts.<locals>.copy` is `_copy_parts`: what is nested belongs to what it stands in."""
    return qualified.split(".<locals>")[0].rpartition(".")[2]


def call(self: Any, operation: str, arguments: Any) -> Any:
    """One API call of this worker."""
    now = known()
    runs = RUN.findall(json.dumps(arguments, default=str))
    if not now or (runs and now["run"] not in runs):
        return stock(self, operation, arguments)
    place = f"{FUNCTION} {self.meta.service_model.service_name}:{operation} {site()}"
    with lock, (FOLDER / "calls.jsonl").open("a") as calls:
        calls.write(json.dumps({"run": now["run"], "phase": now["phase"], "site": place}) + "\n")
    fault = now["fault"]
    if fault is None or fault["site"] != place or not first(fault["fired"]):
        return stock(self, operation, arguments)
    return broken(fault["how"], self, operation, arguments)


def known() -> dict[str, Any] | None:
    try:
        return dict(json.loads((FOLDER / "now.json").read_text()))
    except FileNotFoundError:
        return None


def first(name: str) -> bool:
    """Nobody has met this fault before."""
    try:
        (FOLDER / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def broken(how: str, self: Any, operation: str, arguments: Any) -> Any:
    """The call as it goes wrong."""
    match how:
        case "killed before":
            os.kill(os.getpid(), signal.SIGKILL)
        case "killed after":
            stock(self, operation, arguments)
            os.kill(os.getpid(), signal.SIGKILL)
        case "answer lost":
            stock(self, operation, arguments)
            raise ReadTimeoutError(endpoint_url=self.meta.endpoint_url)
        case "not reached":
            raise ConnectTimeoutError(endpoint_url=self.meta.endpoint_url)
        case "hangs once":
            return hung(self, operation, arguments, tries=1)
        case "hangs on":
            return hung(self, operation, arguments, tries=ALL_TRIES)
    status = STATUS.get(how, 400)
    answer = {"Error": {"Code": how, "Message": "as asked"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    raise self.exceptions.from_code(how)(answer, operation)


def hung(self: Any, operation: str, arguments: Any, *, tries: int) -> Any:
    """Nobody answers so many of the SDK's tries: each ends when its read times out, and the SDK decides what then;
    until the function's time is up, and Lambda ends it."""
    session, caller, left = self._endpoint.http_session, threading.get_ident(), [tries]
    end = time.monotonic() + TIMEOUT_S / PACE

    def send(request: Any) -> Any:
        if threading.get_ident() != caller or not left[0]:
            return session.send(request)
        left[0] -= 1
        time.sleep(min(self.meta.config.read_timeout / PACE, end - time.monotonic()))
        if time.monotonic() >= end:
            os.kill(os.getpid(), signal.SIGKILL)
        raise ReadTimeoutError(endpoint_url=request.url)

    botocore.endpoint.time = SimpleNamespace(sleep=lambda seconds: time.sleep(seconds / PACE))
    self._endpoint.http_session = SimpleNamespace(send=send, close=session.close)
    try:
        return stock(self, operation, arguments)
    finally:
        self._endpoint.http_session = session
        botocore.endpoint.time = time


if FOLDER.is_dir():
    BaseClient._make_api_call = call
