"""The process that submits and observes runs for this one, by one line of JSON for each request and answer.

It is a process of its own so that neither the modules of the command line nor the address and the credentials of the
local AWS get into the caller's.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import subprocess
import sys
import threading
from typing import Any

from .. import PROJECT
from .errors import CallRefused

SERVE = "import sys; sys.path[:0] = sys.argv[1:]; from cli.remote.service import serve; serve()"
# Not the last of a command in backquotes, which is typed as it is.
OPTION = re.compile(r"(?<![\w-])--([a-z][a-z-]+)(?![\w`-])")
# Options of `rerail submit` that the decorator has under the same name, or under another.
SAME = (
    *("agent", "bucket", "exclude", "image", "instance-type", "local", "max-runtime", "name", "policy", "role"),
    *("spot", "volume"),
)
KEYWORDS = {name: name.replace("-", "_") for name in SAME}
KEYWORDS.update(env="environment", dependency="dependencies")
# One for each process, because a forked one must not read the answers to its parent.
_services: dict[tuple[int, bool], ServiceClient] = {}
_lock = threading.Lock()


class ServiceClient:
    """One serving process; requests of several threads go one after the other."""

    def __init__(self, local: bool) -> None:
        self._local, self._lock, self._owner = local, threading.Lock(), os.getpid()
        self._process: subprocess.Popen[str] | None = None
        self._printed: set[str] = set()

    def ask(self, operation: str, **fields: Any) -> dict[str, Any]:
        """Return the answer to a request; raise CallRefused with the service's problem and its remedy."""
        with self._lock:
            answer = self._exchange(json.dumps({"operation": operation, "local": self._local, **fields}))
        for line in answer.pop("messages", []):
            if line not in self._printed:  # a warning comes with every look
                self._printed.add(line)
                print(line, file=sys.stderr)
        if "problem" in answer:
            raise CallRefused(OPTION.sub(_as_keyword, f"{answer['problem']}. To do: {answer['remedy']}"))
        return answer

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process and self._owner == os.getpid():
            process.terminate()
            process.communicate()

    def _exchange(self, request: str) -> dict[str, Any]:
        if self._process is None or self._process.poll() is not None:
            # A session of its own: Ctrl-C interrupts the wait and not the service.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", SERVE, str(PROJECT), str(PROJECT / "lambdas")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        process = self._process
        assert process.stdin and process.stdout, "started with pipes"
        try:
            process.stdin.write(f"{request}\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BaseException:
            self.close()  # its next answer would be that to this request
            raise
        if not line:
            raise RuntimeError(
                f"the process that submits remote functions ended with status {process.wait()}: see above"
            )
        answer: dict[str, Any] = json.loads(line)
        return answer


def find_service(local: bool) -> ServiceClient:
    """Return this process's service for the local AWS, or for the account."""
    owner = (os.getpid(), local)
    with _lock:
        if owner not in _services:
            service = _services[owner] = ServiceClient(local)
            atexit.register(service.close)
        return _services[owner]


def _as_keyword(option: re.Match[str]) -> str:
    """Return an option of the command line as the decorator's: `--max-runtime` is `max_runtime=`; others stay."""
    name = KEYWORDS.get(option[1])
    return f"{name}=" if name else option[0]
