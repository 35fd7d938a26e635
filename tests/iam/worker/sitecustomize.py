"""Runs in each function worker that has this folder on its path: notes every AWS call with its parameters.

`CALLS_FILE` gets a line of JSON a call: which function, service, operation and call site, and what was asked for. Long
texts are cut, for who may do what depends on names alone. A link that is signed is noted as the call that its reader
will make."""

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

from botocore import signers
from botocore.client import BaseClient

FILE = Path(os.environ.get("CALLS_FILE", os.devnull))
FUNCTION = os.environ.get("POWERTOOLS_SERVICE_NAME", "")
LONGEST = 200
stock, stock_link = BaseClient._make_api_call, signers.generate_presigned_url
lock = threading.Lock()


def site() -> str:
    """The adapter's module and function from which the call is made."""
    frame = sys._getframe(2)
    # The adapters' own client class stands between a call and its caller.
    while frame and ("/rerail/aws/" not in frame.f_code.co_filename or frame.f_code.co_name == "_make_api_call"):
        frame = frame.f_back  # type: ignore[assignment]
    if frame is None:
        return "elsewhere"
    # What is defined within a function, a comprehension too, is that function's.
    outermost = frame.f_code.co_qualname.partition(".<locals>")[0]
    return f"{Path(frame.f_code.co_filename).stem}.{outermost.rpartition('.')[2]}"


def note(service: str, operation: str, where: str, asked: Any) -> None:
    """One line, written at once: another worker may write the next."""
    line = {"function": FUNCTION, "service": service, "operation": operation, "site": where, "asked": short(asked)}
    with lock, FILE.open("a", encoding="utf-8") as calls:
        calls.write(json.dumps(line, default=str) + "\n")


def short(asked: Any) -> Any:
    """The same, with nothing long in it."""
    match asked:
        case dict():
            return {name: short(value) for name, value in asked.items()}
        case list() | tuple():
            return [short(value) for value in asked]
        case str():
            return asked[:LONGEST]
        case bytes() | bytearray():
            return ""
    return asked


def call(self: Any, operation: str, arguments: Any) -> Any:
    """One API call of this worker."""
    note(self.meta.service_model.service_name, operation, site(), arguments)
    return stock(self, operation, arguments)


def link(self: Any, ClientMethod: str, Params: Any = None, *rest: Any, **more: Any) -> str:
    """One signed link: nothing is asked of AWS now."""
    name = self.meta.method_to_api_mapping[ClientMethod]
    note(self.meta.service_model.service_name, f"Signed{name}", site(), Params or {})
    return str(stock_link(self, ClientMethod, Params, *rest, **more))


if FILE.parent.is_dir() and FILE.name != Path(os.devnull).name:
    BaseClient._make_api_call = call
    signers.generate_presigned_url = link
