"""Runs in each function worker that has this folder on its path, and breaks the AWS calls that a test names.

A test writes a fault as a JSON file into `FAULT_FOLDER`: the function, the service and the operation of the call, the
run that it must name, and how it fails. The first such call renames the file to `.fired`, so each fault happens once.
"""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from botocore.client import BaseClient
from botocore.exceptions import ConnectTimeoutError, ReadTimeoutError

FOLDER = Path(os.environ.get("FAULT_FOLDER", os.devnull))
FUNCTION = os.environ.get("POWERTOOLS_SERVICE_NAME", "")
TIMEOUT_S = float(os.environ.get("FAULT_TIMEOUT", "1"))
stock = BaseClient._make_api_call


def call(self: Any, operation: str, arguments: Any) -> Any:
    """Make one API call of this worker, or break it."""
    name = f"{FUNCTION} {self.meta.service_model.service_name}:{operation}"
    how = take_fault(name, json.dumps(arguments, default=str))
    return break_call(how, self, operation, arguments) if how else stock(self, operation, arguments)


def take_fault(name: str, arguments: str) -> str:
    """Return how this call fails, "" if it does not."""
    for path in sorted(FOLDER.glob("*.json")):
        try:
            fault = json.loads(path.read_text())
            if fault["call"] == name and fault["run"] in arguments:
                path.rename(path.with_suffix(".fired"))
                return str(fault["how"])
        except FileNotFoundError:
            continue  # another worker was first
    return ""


def break_call(how: str, self: Any, operation: str, arguments: Any) -> Any:
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
        case "hangs":
            time.sleep(TIMEOUT_S)
            os.kill(os.getpid(), signal.SIGKILL)  # Lambda ends a function whose time is up
    answer = {"Error": {"Code": how, "Message": "as asked"}, "ResponseMetadata": {"HTTPStatusCode": 400}}
    raise self.exceptions.from_code(how)(answer, operation)


if FOLDER.is_dir():
    BaseClient._make_api_call = call
