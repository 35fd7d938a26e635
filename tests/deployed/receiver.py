"""An HTTP server on this machine that stands for PagerDuty and for somebody's webhook, and keeps what it was sent."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class Call(NamedTuple):
    """One request, and how it was answered."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    status: int


class Receiver:
    """A receiver that accepts what it is sent, except for `answers` and `refusals`."""

    def __init__(self, server: ThreadingHTTPServer) -> None:
        self.url = f"http://127.0.0.1:{server.server_port}"
        self.calls: list[Call] = []
        # The statuses of the next requests, by path.
        self.answers: dict[str, list[int]] = {}
        # The status of every request about one notice, by path and key.
        self.refusals: dict[tuple[str, str], int] = {}

    def at(self, path: str, key: str = "") -> list[Call]:
        """What was sent there, about that notice where a key is given."""
        keys = ("dedup_key", "key", "clears")
        return [c for c in list(self.calls) if c.path == path and (not key or key in map(c.body.get, keys))]

    def take(self, path: str, headers: dict[str, str], body: dict[str, Any]) -> int:
        waiting = self.answers.get(path, [])
        refused = self.refusals.get((path, body.get("dedup_key") or body.get("key", "")))
        status = refused or (waiting.pop(0) if waiting else 202)
        self.calls.append(Call(path, headers, body, status))
        return status


@contextmanager
def listening() -> Iterator[Receiver]:
    """The server, for as long as it is needed."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(receiver.take(self.path, dict(self.headers), body))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            """Nothing: pytest shows what was kept."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver = Receiver(server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
