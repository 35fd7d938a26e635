"""Runs in each function worker that has this folder on its path: notes every AWS call, breaks the one asked for.

`FAULT_FOLDER` holds `calls.jsonl`, a line a call, and where one is to be broken `fault.json`: which call site, and how.
Who gets there first leaves `fired`, so that it happens once, whichever worker that is."""

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from botocore.client import BaseClient
from botocore.exceptions import ConnectTimeoutError, ReadTimeoutError

FOLDER = Path(os.environ.get("FAULT_FOLDER", os.devnull))
FUNCTION = os.environ.get("POWERTOOLS_SERVICE_NAME", "")
STATUS = {"InternalServerError": 500, "AccessDeniedException": 403}
stock = BaseClient._make_api_call
lock = threading.Lock()


def site() -> str:
    """The adapter's module and function from which the call is made."""
    frame = sys._getframe(2)
    while frame and "/rerail/" not in frame.f_code.co_filename:
        frame = frame.f_back  # type: ignore[assignment]
    return f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_name}" if frame else "elsewhere"


def call(self: Any, operation: str, arguments: Any) -> Any:
    """One API call of this worker."""
    service = self.meta.service_model.service_name
    place = f"{FUNCTION} {service}:{operation} {site()}"
    with lock:
        fault = asked(place)
        with (FOLDER / "calls.jsonl").open("a") as calls:
            model = self.meta.service_model.operation_model(operation)
            errors = [shape.metadata.get("error", {}).get("code", shape.name) for shape in model.error_shapes]
            phase = (FOLDER / "phase").read_text() if (FOLDER / "phase").exists() else ""
            calls.write(json.dumps({"phase": phase, "site": place, "errors": errors}) + "\n")
    if fault is None:
        return stock(self, operation, arguments)
    return broken(fault["how"], self, operation, arguments)


def asked(place: str) -> dict[str, Any] | None:
    """The fault that is due at this call, which nobody else will meet any more."""
    try:
        fault = json.loads((FOLDER / "fault.json").read_text())
    except FileNotFoundError:
        return None
    if fault["site"] != place:
        return None
    try:
        (FOLDER / "fired").touch(exist_ok=False)
    except FileExistsError:
        return None
    return dict(fault)


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
    status = STATUS.get(how, 400)
    answer = {"Error": {"Code": how, "Message": "as asked"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    raise self.exceptions.from_code(how)(answer, operation)


if FOLDER.is_dir():
    BaseClient._make_api_call = call
