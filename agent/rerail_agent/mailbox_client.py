"""Exchange messages with the mailbox in a background thread: poll commands, send reports and heartbeats.

The thread works while the training thread waits or hangs, but not while an extension holds the interpreter's lock. Then
nothing in this process runs, and the supervisor notices that heartbeats are missing.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from secrets import token_hex

from rerail.model.mailbox import (
    NONCE_LENGTH,
    Report,
    ReportKind,
    make_command_key,
    make_heartbeat_key,
    make_report_id,
    make_report_key,
    serialize,
)
from rerail_agent.fault_isolation import FaultIsolation, print_line
from rerail_agent.mailbox_objects import MailboxBucket, MailboxObject, Unreachable

QUEUED_REPORTS = 64
# After a passing failure, doubled each time up to the second value.
RETRY_S = 1.0, 60.0
# After a failure that a person has to fix.
LASTING_RETRY_S = 600.0
UNREPORTED_FAILURES = 2


class RequestStatus:
    """The state of one kind of request: when to try next, and whether its failure was reported."""

    def __init__(self, request: str, consequence: str) -> None:
        self._request, self._consequence = request, consequence
        self._failures, self._is_reported = 0, False
        self.not_before = 0.0

    def on_success(self) -> None:
        if self._is_reported:
            print_line(f"{self._request} works again")
        self._failures, self._is_reported, self.not_before = 0, False, 0.0

    def on_failure(self, error: Unreachable, *, lasting_retry_s: float = LASTING_RETRY_S) -> None:
        self._failures += 1
        pause = min(RETRY_S[1], RETRY_S[0] * 2.0 ** min(self._failures - 1, 10))
        pause = lasting_retry_s if error.lasting else pause
        self.not_before = time.monotonic() + pause
        if not self._is_reported and (error.lasting or self._failures > UNREPORTED_FAILURES):
            self._is_reported = True
            print_line(
                f"{self._request} fails: {error}. {self._consequence}; training goes on,"
                f" trying again every {pause:.3g} s"
            )


class MailboxClient:
    """One thread for one mailbox.

    `on_command` receives each new command, `make_heartbeat` returns the heartbeat to send.
    """

    def __init__(
        self,
        bucket: MailboxBucket,
        run: str,
        *,
        on_command: Callable[[MailboxObject], None],
        make_heartbeat: Callable[[], bytes],
        poll_s: float,
        heartbeat_s: float,
        isolation: FaultIsolation,
    ) -> None:
        self._bucket, self._run = bucket, run
        self._on_command, self._make_heartbeat, self._isolation = on_command, make_heartbeat, isolation
        self._poll_s, self._heartbeat_s = poll_s, heartbeat_s
        self._reports: deque[tuple[Report, bytes]] = deque()
        self._lock = threading.Lock()
        self._tag = ""
        where = f"s3://{bucket.bucket}/runs/{run}/"
        self._writing = RequestStatus(
            f"writing to the mailbox {where}", "The supervisor receives no reports of this job"
        )
        self._reading = RequestStatus(f"reading {where}command.json", "No checkpoint of this job can be requested")
        self._next_poll = self._next_heartbeat = 0.0
        self._wake, self._stopping = threading.Event(), False
        self._idle = threading.Event()
        self._thread = threading.Thread(target=self._work, name="rerail-mailbox", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def enqueue(self, report: Report) -> None:
        """Queue a report and return at once; with a full queue drop the oldest finding."""
        report = replace(report, id=make_report_id(report.id, token_hex(NONCE_LENGTH // 2)))
        text = serialize(report)
        with self._lock:
            if len(self._reports) >= QUEUED_REPORTS:
                findings = (old for old in self._reports if old[0].kind is ReportKind.FINDINGS)
                self._reports.remove(next(findings, self._reports[0]))
            self._reports.append((report, text))
            self._idle.clear()
        self._wake.set()

    def stop(self, within_s: float) -> None:
        """Send the queued reports, if that takes no longer than this, and end the thread."""
        if self._thread.is_alive():
            if self._reports and self._writing.not_before <= time.monotonic():
                self._idle.wait(within_s)
            self._stopping = True
            self._wake.set()
            self._thread.join(min(within_s, 1.0))

    def _work(self) -> None:
        while not self._stopping:
            if "mailbox" in self._isolation.broken:
                return
            self._isolation.run("mailbox", self._run_due, None)
            self._wake.wait(max(0.0, self._next_due() - time.monotonic()))
            self._wake.clear()

    def _next_due(self) -> float:
        writes = [self._next_heartbeat] + ([0.0] if self._reports else [])
        return min(max(min(writes), self._writing.not_before), max(self._next_poll, self._reading.not_before))

    def _run_due(self) -> None:
        """Do what is due now: reports first, because the supervisor waits for them."""
        if time.monotonic() >= self._writing.not_before:
            self._send()
        if time.monotonic() >= max(self._next_poll, self._reading.not_before):
            self._next_poll = time.monotonic() + self._poll_s
            self._poll()

    def _send(self) -> None:
        try:
            while oldest := self._oldest():
                report, text = oldest
                self._bucket.write(make_report_key(self._run, report.id), text, once=True)
                self._writing.on_success()
                self._remove(report)
            if time.monotonic() >= self._next_heartbeat:
                self._next_heartbeat = time.monotonic() + self._heartbeat_s
                if make_heartbeat := self._isolation.run("heartbeat", self._make_heartbeat, b""):
                    self._bucket.write(make_heartbeat_key(self._run), make_heartbeat)
                    self._writing.on_success()
        except Unreachable as error:
            self._writing.on_failure(error)

    def _oldest(self) -> tuple[Report, bytes] | None:
        with self._lock:
            return self._reports[0] if self._reports else None

    def _remove(self, report: Report) -> None:
        with self._lock:
            if self._reports and self._reports[0][0] is report:
                self._reports.popleft()
            if not self._reports:
                self._idle.set()

    def _poll(self) -> None:
        try:
            mailbox_object: MailboxObject | None = self._bucket.read(make_command_key(self._run), unless=self._tag)
        except Unreachable as error:
            # Without s3:ListBucket S3 denies reads of missing objects; with it granted a command may come any time.
            self._reading.on_failure(
                error, lasting_retry_s=LASTING_RETRY_S if self._writing.not_before else self._poll_s
            )
            return
        self._reading.on_success()
        if mailbox_object is not None:
            self._tag = mailbox_object.tag
            self._isolation.run("commands", lambda: self._on_command(mailbox_object), None)
