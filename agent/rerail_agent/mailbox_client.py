"""The background thread that carries mail: polls for commands, files reports, and sends a heartbeat once a minute.

It works while the training thread waits or hangs, but not while an extension holds the interpreter's lock: then nothing
in this process runs, and the missing heartbeat is what tells.
"""

import threading
import time
from collections import deque
from collections.abc import Callable

from rerail.model.mailbox import Report, ReportKind, make_command_key, make_heartbeat_key, make_report_key, serialize
from rerail_agent.fault_isolation import FaultIsolation, print_line
from rerail_agent.mailbox_objects import MailboxBucket, MailboxObject, Unreachable

QUEUED_REPORTS = 64
PATIENCE_S = 1.0, 60.0  # after a passing failure, doubled each time
RARELY_S = 600.0  # after one that a human has to mend
FAILURES_UNTOLD = 2


class RequestStatus:
    """Whether one kind of request works: when to try next, and what was told about it."""

    def __init__(self, what: str, consequence: str) -> None:
        self._what, self._consequence = what, consequence
        self._failures, self._told = 0, False
        self.not_before = 0.0

    def worked(self) -> None:
        if self._told:
            print_line(f"{self._what} works again")
        self._failures, self._told, self.not_before = 0, False, 0.0

    def failed(self, error: Unreachable, *, rarely_s: float = RARELY_S) -> None:
        self._failures += 1
        pause = min(PATIENCE_S[1], PATIENCE_S[0] * 2.0 ** min(self._failures - 1, 10))
        pause = rarely_s if error.lasting else pause
        self.not_before = time.monotonic() + pause
        if not self._told and (error.lasting or self._failures > FAILURES_UNTOLD):
            self._told = True
            print_line(
                f"{self._what} fails: {error}. {self._consequence}; training goes on, trying again every {pause:.3g} s"
            )


class MailboxClient:
    """One thread over one mailbox. `hear` gets each new command's text, `beat` gives the heartbeat to send."""

    def __init__(
        self,
        post: MailboxBucket,
        run: str,
        *,
        hear: Callable[[bytes], None],
        beat: Callable[[], bytes],
        poll_s: float,
        heartbeat_s: float,
        harmless: FaultIsolation,
    ) -> None:
        self._post, self._run = post, run
        self._hear, self._beat, self._harmless = hear, beat, harmless
        self._poll_s, self._heartbeat_s = poll_s, heartbeat_s
        self._reports: deque[tuple[Report, bytes]] = deque()
        self._lock = threading.Lock()
        self._tag = ""
        where = f"s3://{post.bucket}/runs/{run}/"
        self._writing = RequestStatus(f"writing to the mailbox {where}", "The supervisor hears nothing of this job")
        self._reading = RequestStatus(f"reading {where}command.json", "Nobody can ask this job for a checkpoint")
        self._next_poll = self._next_beat = 0.0
        self._wake, self._stopping = threading.Event(), False
        self._idle = threading.Event()
        self._thread = threading.Thread(target=self._work, name="rerail-courier", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def file(self, report: Report) -> None:
        """Queues a report; returns at once. With the queue full the oldest findings make room."""
        text = serialize(report)
        with self._lock:
            if len(self._reports) >= QUEUED_REPORTS:
                findings = (old for old in self._reports if old[0].kind is ReportKind.FINDINGS)
                self._reports.remove(next(findings, self._reports[0]))
            self._reports.append((report, text))
            self._idle.clear()
        self._wake.set()

    def stop(self, within_s: float) -> None:
        """Sends what is queued, if that takes no longer than this, and ends the thread."""
        if self._thread.is_alive():
            if self._reports and self._writing.not_before <= time.monotonic():
                self._idle.wait(within_s)
            self._stopping = True
            self._wake.set()
            self._thread.join(min(within_s, 1.0))

    def _work(self) -> None:
        while not self._stopping:
            if "mailbox" in self._harmless.broken:
                return
            self._harmless.run("mailbox", self._round, None)
            self._wake.wait(max(0.0, self._next_due() - time.monotonic()))
            self._wake.clear()

    def _next_due(self) -> float:
        writes = [self._next_beat] + ([0.0] if self._reports else [])
        return min(max(min(writes), self._writing.not_before), max(self._next_poll, self._reading.not_before))

    def _round(self) -> None:
        """What is due now: reports first, for somebody waits for them."""
        if time.monotonic() >= self._writing.not_before:
            self._send()
        if time.monotonic() >= max(self._next_poll, self._reading.not_before):
            self._next_poll = time.monotonic() + self._poll_s
            self._ask()

    def _send(self) -> None:
        try:
            while oldest := self._oldest():
                report, text = oldest
                self._post.write(make_report_key(self._run, report.id), text)
                self._writing.worked()
                self._done_with(report)
            if time.monotonic() >= self._next_beat:
                self._next_beat = time.monotonic() + self._heartbeat_s
                if beat := self._harmless.run("heartbeat", self._beat, b""):
                    self._post.write(make_heartbeat_key(self._run), beat)
                    self._writing.worked()
        except Unreachable as error:
            self._writing.failed(error)

    def _oldest(self) -> tuple[Report, bytes] | None:
        with self._lock:
            return self._reports[0] if self._reports else None

    def _done_with(self, report: Report) -> None:
        with self._lock:
            if self._reports and self._reports[0][0] is report:
                self._reports.popleft()
            if not self._reports:
                self._idle.set()

    def _ask(self) -> None:
        try:
            letter: MailboxObject | None = self._post.read(make_command_key(self._run), unless=self._tag)
        except Unreachable as error:
            # Without s3:ListBucket S3 denies what is merely not there; with it granted a command may come any time.
            self._reading.failed(error, rarely_s=RARELY_S if self._writing.not_before else self._poll_s)
            return
        self._reading.worked()
        if letter is not None:
            self._tag = letter.tag
            self._harmless.run("commands", lambda: self._hear(letter.text), None)
