"""Connect init to the supervisor's mailbox: receive commands to restart in place, and report the results.

Only the standard library is needed until the thread opens the mailbox. Where boto3, the core or their Python version is
missing there is no channel, and no restart in place.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rerail.model.mailbox import Command

# The core's version of Python.
REQUIRED_PYTHON = (3, 11)
POLL_S, FAST_POLL_S = 5.0, 0.5
RETRY_S = 1.0, 60.0  # after a request that failed, doubled each time
KEPT_REPORTS = 20
OFF = ("off", "0", "false", "no")


def connect(environment: Mapping[str, str], base: Path, log: Callable[[str], None]) -> InitChannel | None:
    """Return the channel, or None if the job has no mailbox, lacks the modules, or sets RERAIL_RESTARTS=off."""
    switched_off = _is_off(environment, "RERAIL_RESTARTS") or _is_off(environment, "RERAIL_MAILBOX")
    if switched_off or sys.version_info < REQUIRED_PYTHON or not environment.get("TRAINING_JOB_NAME"):
        return None
    if not (environment.get("RERAIL_MAILBOX") or environment.get("TRAINING_JOB_ARN")):
        return None
    if find_spec("boto3") is None or find_spec("rerail") is None:
        return None
    return InitChannel(environment, read_host(base), log)


def _is_off(environment: Mapping[str, str], name: str) -> bool:
    return environment.get(name, "").lower() in OFF


def read_host(base: Path) -> str:
    """Return this machine's name within the job; each machine has an init of its own."""
    return str(read_resource_config(base).get("current_host") or "algo-1")


def count_hosts(base: Path) -> int:
    """Return how many machines the job has."""
    hosts = read_resource_config(base).get("hosts")
    return len(hosts) if isinstance(hosts, list) and hosts else 1


def read_resource_config(base: Path) -> Mapping[str, Any]:
    try:
        table = json.loads((base / "input" / "config" / "resourceconfig.json").read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return table if isinstance(table, dict) else {}


class InitChannel:
    """Poll the mailbox and send reports in a thread; the other methods are for init's main thread.

    A command wakes the main thread by SIGCHLD.
    """

    def __init__(self, environment: Mapping[str, str], host: str, log: Callable[[str], None]) -> None:
        self._environment, self._host, self._log = dict(environment), host, log
        self._began = _now()
        self._poll_s = read_seconds(environment, "RERAIL_POLL_SECONDS", POLL_S, least=0.05, below=86400)
        self._restart = 0
        self._tag = ""
        self._reports: deque[dict[str, Any]] = deque(maxlen=KEPT_REPORTS)
        self._refused: set[str] = set()
        self._condition, self._requested, self._served = threading.Condition(), 0, 0
        self._closing = self._is_waiting = False
        self._failures = 0
        # The newest restart command that was not carried out yet.
        self.restart_command: Command | None = None
        # is_declined: the supervisor has answered since await_command() that no restart will come.
        # is_closed: waiting is of no use, because the thread has ended.
        self.is_declined = self.is_closed = False
        self._thread = threading.Thread(target=self._work, name="rerail-init-channel", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def poll_now(self, within_s: float) -> None:
        """Return when the mailbox was polled once more, or could not be."""
        with self._condition:
            self._requested += 1
            ticket = self._requested
            self._condition.notify_all()
            self._condition.wait_for(lambda: self._served >= ticket or self.is_closed, within_s)

    def await_command(self) -> None:
        """Poll the mailbox twice a second from now on, until on_restarted()."""
        with self._condition:
            self._is_waiting, self.is_declined = True, False
            self._requested += 1
            self._condition.notify_all()

    def on_restarted(self, restart: int) -> None:
        """Record that the processes run as this restart, and drop older commands."""
        with self._condition:
            self._restart, self._is_waiting = max(restart, self._restart), False
            if self.restart_command is not None and self.restart_command.restart <= self._restart:
                self.restart_command = None

    def report(self, kind: str, *, restart: int, command: str = "", **facts: Any) -> None:
        """Queue a report; `kind` is a value of the core's ReportKind."""
        with self._condition:
            self._reports.append(
                {"kind": kind, "restart": restart, "command": command, "nonce": secrets.token_hex(8), **facts}
            )
            self._requested += 1
            self._condition.notify_all()

    def stop(self, within_s: float) -> None:
        """Send the queued reports, if that takes no longer than this."""
        deadline = time.monotonic() + within_s
        with self._condition:
            self._condition.wait_for(lambda: not self._reports or self.is_closed, max(0.0, deadline - time.monotonic()))
            self._closing = True
            self._condition.notify_all()

    # ------------------------------------------------------------------ on the thread

    def _work(self) -> None:
        try:
            self._open_bucket()
            while not self._closing:
                self._poll_once()
        except Exception as error:  # of any kind: the job trains on, and is relaunched where it cannot be restarted
            self._log(f"no restarts in place: {type(error).__name__}: {error}")
        finally:
            with self._condition:
                self.is_closed = True
                self._condition.notify_all()

    def _open_bucket(self) -> None:
        from rerail_agent.identity import Identity
        from rerail_agent.mailbox_objects import MailboxBucket

        self._identity = Identity.from_environment(self._environment, lambda message: None)
        if not self._identity.bucket:
            raise ValueError("the job has no mailbox")
        self._bucket = MailboxBucket.of(self._identity)

    def _poll_once(self) -> None:
        from rerail_agent.mailbox_objects import Unreachable

        with self._condition:
            ticket = self._requested
        failed = False
        try:
            self._send()
        except Unreachable as error:
            failed = True
            if error.lasting and self._is_waiting:
                raise  # the reports do not arrive, so no command will come
        try:
            self._poll()
        except Unreachable as error:
            # Without s3:ListBucket S3 denies reads of missing objects; a command may come any time.
            failed = failed or not error.lasting
        self._failures = self._failures + 1 if failed else 0
        with self._condition:
            self._served = ticket
            self._condition.notify_all()
            self._condition.wait_for(
                lambda: self._closing or (self._requested > ticket and not self._failures), self._poll_interval_s
            )

    @property
    def _poll_interval_s(self) -> float:
        poll_s = min(self._poll_s, FAST_POLL_S) if self._is_waiting else self._poll_s
        if not self._failures:
            return poll_s
        return max(poll_s, min(RETRY_S[1], RETRY_S[0] * 2.0 ** min(self._failures - 1, 10)))

    def _send(self) -> None:
        from rerail.model.mailbox import LIMITS, Report, ReportKind, make_report_id, make_report_key, serialize

        identity = self._identity
        while self._reports:
            fields = dict(self._reports[0])
            kind, restart = ReportKind(fields.pop("kind")), fields["restart"]
            fields |= {name: str(fields[name])[: LIMITS[name]] for name in ("reason", "evidence") if name in fields}
            name = make_report_id(f"a{identity.attempt:03d}-r{restart}-{kind.value}-{self._host}", fields.pop("nonce"))
            report = Report(
                id=name, run=identity.run, attempt=identity.attempt, job=identity.job[:128], kind=kind,
                at=_now(), **fields,
            )  # fmt: skip
            self._bucket.write(make_report_key(identity.run, name), serialize(report), once=True)
            with self._condition:
                self._reports.popleft()
                self._condition.notify_all()

    def _poll(self) -> None:
        from rerail.model.errors import BadMailboxObject
        from rerail.model.mailbox import make_command_key, read_command

        mailbox_object = self._bucket.read(make_command_key(self._identity.run), unless=self._tag)
        if mailbox_object is None:
            return
        self._tag = mailbox_object.tag
        try:
            command = read_command(mailbox_object.text, run=self._identity.run, signing_key=self._identity.signing_key)
            self._receive(command, mailbox_object.at)
        except BadMailboxObject as error:
            self._log(f"a command that cannot be read is passed over: {error}")

    def _receive(self, command: Command, now: datetime) -> None:
        """Take the newest command; a command of another kind replaces a restart command."""
        is_own = command.attempt == self._identity.attempt
        is_restart = is_own and command.kind.value == "restart" and command.restart > self._restart
        # A command from before this container's start still counts: SageMaker itself has restarted the machine since.
        late = command.deadline is not None and command.deadline <= now and command.asked_at > self._began
        with self._condition:
            self.restart_command = command if is_restart and not late else None
            self.is_declined = not is_restart and command.attempt >= self._identity.attempt
        if is_restart and late and command.id not in self._refused:
            self._refused.add(command.id)
            self.report(
                "refused", restart=self._restart, command=command.id, reason="the command came after its deadline"
            )
        os.kill(os.getpid(), signal.SIGCHLD)


def _now() -> datetime:
    return datetime.now(timezone.utc)  # noqa: UP017  (init.py comes here in images whose Python is older)


def read_seconds(
    environment: Mapping[str, str], name: str, default: float, *, least: float = 0.0, below: float = float("inf")
) -> float:
    """Return a number of seconds, or the default; the agent reports values that cannot be read."""
    try:
        seconds = float(environment.get(name) or default)
    except ValueError:
        return default
    return seconds if least <= seconds < below else default
