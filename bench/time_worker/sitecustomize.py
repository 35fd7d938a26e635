"""Runs in each function worker that has this folder on its path: notes when the worker began, and when each of its AWS
calls began and ended, a line each in `TIMES_FILE`."""

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

from botocore.client import BaseClient

FILE = Path(os.environ.get("TIMES_FILE", os.devnull))
FUNCTION = os.environ.get("POWERTOOLS_SERVICE_NAME", "")
stock = BaseClient._make_api_call
lock = threading.Lock()


def note(operation: str, began: float, ended: float) -> None:
    """One line, written at once; who reads it may wait for it."""
    line = {"function": FUNCTION, "worker": os.getpid(), "operation": operation, "began": began, "ended": ended}
    with lock, FILE.open("a", encoding="utf-8") as times:
        times.write(json.dumps(line) + "\n")


def call(self: Any, operation: str, arguments: Any) -> Any:
    """One API call of this worker."""
    began = time.time()
    try:
        return stock(self, operation, arguments)
    finally:
        note(operation, began, time.time())


if FUNCTION:
    note("", BORN := time.time(), BORN)
    BaseClient._make_api_call = call
