"""A bucket service that starts in a millisecond: objects with ETags, conditional reads, and failures on order."""

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from rerail.model.mailbox import (
    Command,
    Heartbeat,
    Report,
    make_command_key,
    read_heartbeat,
    read_report,
    run_of_report,
    serialize,
)
from rerail.model.signatures import sign

OWNER = "000000000000"
BUCKET = f"sagemaker-rerail-{OWNER}-us-east-1"
HANG_S = 300.0  # ends a wait for what never comes


class Request(NamedTuple):
    method: str
    key: str
    status: int
    at: float


class Bucket:
    """What lies in it, what was asked of it, and how to have it fail: `broken` is a status and an error code."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.requests: list[Request] = []
        self.broken: dict[str, tuple[int, str]] = {}  # by method
        self.changed = threading.Condition()
        self.url = ""
        self.owner = OWNER

    def put(self, key: str, text: bytes) -> None:
        with self.changed:
            self.objects[key] = text
            self.changed.notify_all()

    def command(self, command: Command, signing_key: str = "") -> None:
        key = make_command_key(command.run)
        self.put(key, sign(serialize(command), name=key, key=signing_key))

    def reports(self, run: str = "night") -> dict[str, Report]:
        """By id without its nonce, the newest of each; each is read as the supervisor reads it."""
        found = [(key, text) for key, text in list(self.objects.items()) if key.startswith(f"runs/{run}/reports/")]
        named = [(run_of_report(key)[1], text) for key, text in found]
        read = [(id.rpartition(".")[0], read_report(text, run=run, id=id)) for id, text in named]
        return {name: replace(report, id=name) for name, report in read}

    def heartbeat(self, run: str = "night") -> Heartbeat | None:
        text = self.objects.get(f"runs/{run}/heartbeat.json")
        return read_heartbeat(text, run=run) if text else None

    def wait_for(self, what: Callable[[], Any], within_s: float = HANG_S) -> Any:
        """What it gives, as soon as it is true."""
        deadline = time.monotonic() + within_s
        with self.changed:
            while not (found := what()):
                left = deadline - time.monotonic()
                if left <= 0:
                    raise AssertionError(f"waited {within_s} s in vain; there are {sorted(self.objects)}")
                self.changed.wait(min(left, 0.05))
        return found

    def wait_for_report(self, kind: str, within_s: float = HANG_S) -> Report:
        return self.wait_for(lambda: next((r for r in self.reports().values() if r.kind == kind), None), within_s)


@contextmanager
def serving(bucket: Bucket) -> Iterator[Bucket]:
    """The service on a free port of this machine."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_HEAD(self) -> None:
            if not self.refuses():
                self.answer(200)

        def do_GET(self) -> None:
            with bucket.changed:
                text = bucket.objects.get(self.key())
            assert self.headers.get("If-None-Match") != "", "a condition without a tag"
            if self.refuses():
                return
            if text is None:
                self.answer(404, code="NoSuchKey")
            elif self.headers.get("If-None-Match") == tag(text):
                self.answer(304)
            else:
                self.answer(200, text, etag=tag(text))

        def do_PUT(self) -> None:
            text, once = self.body(), self.headers.get("If-None-Match") == "*"
            assert once is ("/reports/" in self.key()), f"{self.path}: reports, and they alone, are written once"
            if self.refuses():
                return
            if once and self.key() in bucket.objects:
                self.answer(412, code="PreconditionFailed")
                return
            bucket.put(self.key(), text)
            self.answer(200, etag=tag(text))

        def key(self) -> str:
            place, _, key = unquote(urlsplit(self.path).path).lstrip("/").partition("/")
            assert place == BUCKET, f"{self.path}: another bucket, or not path style"
            return key

        def body(self) -> bytes:
            assert "aws-chunked" not in self.headers.get("Content-Encoding", "")
            return self.rfile.read(int(self.headers["Content-Length"]))

        def refuses(self) -> bool:
            expected = self.headers.get("x-amz-expected-bucket-owner")
            assert expected, f"{self.command} {self.path}: for whichever account owns the bucket"
            failure = (403, "AccessDenied") if expected != bucket.owner else bucket.broken.get(self.command)
            if failure:
                self.answer(failure[0], code=failure[1])
            return failure is not None

        def answer(self, status: int, text: bytes = b"", *, etag: str = "", code: str = "") -> None:
            bucket.requests.append(Request(self.command, self.key(), status, time.monotonic()))
            if code:
                text = f"<Error><Code>{code}</Code><Message>on order</Message></Error>".encode()
            self.send_response(status)
            if etag:
                self.send_header("ETag", etag)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(text)

        def log_message(self, format: str, *arguments: Any) -> None:
            """Nothing: the requests are kept in the bucket."""

    def tag(text: bytes) -> str:
        return json.dumps(hashlib.md5(text).hexdigest())

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    bucket.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.01), daemon=True)
    thread.start()
    try:
        yield bucket
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
