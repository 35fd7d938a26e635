"""Init's line to the supervisor: hears orders to restart the training processes in place, and says what came of them.

The standard library until the line opens, in a thread: where boto3, the core or their Python is missing there is no
line, and no restart in place.
"""

from __future__ import annotations

import json
import os
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

SPOKEN_SINCE = (3, 11)  # the core's Python
POLL_S, ANXIOUS_POLL_S = 5.0, 0.5
PATIENCE_S = 1.0, 60.0  # after a request that failed, doubled each time
KEPT_REPORTS = 20
OFF = ("off", "0", "false", "no")


def connect(environment: Mapping[str, str], base: Path, tell: Callable[[str], None]) -> InitChannel | None:
    """None where the job has no mailbox, or nothing to read it with; RERAIL_RESTARTS=off does without."""
    switched_off = _is_off(environment, "RERAIL_RESTARTS") or _is_off(environment, "RERAIL_MAILBOX")
    if switched_off or sys.version_info < SPOKEN_SINCE or not environment.get("TRAINING_JOB_NAME"):
        return None
    if not (environment.get("RERAIL_MAILBOX") or environment.get("TRAINING_JOB_ARN")):
        return None
    if find_spec("boto3") is None or find_spec("rerail") is None:
        return None
    return InitChannel(environment, host_of(base), tell)


def _is_off(environment: Mapping[str, str], name: str) -> bool:
    return environment.get(name, "").lower() in OFF


def host_of(base: Path) -> str:
    """This machine's name within the job; each has an init of its own."""
    return str(cluster(base).get("current_host") or "algo-1")


def hosts_of(base: Path) -> int:
    """How many machines the job has."""
    hosts = cluster(base).get("hosts")
    return len(hosts) if isinstance(hosts, list) and hosts else 1


def cluster(base: Path) -> Mapping[str, Any]:
    try:
        table = json.loads((base / "input" / "config" / "resourceconfig.json").read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return table if isinstance(table, dict) else {}


class InitChannel:
    """Polls the mailbox and sends reports in a thread of its own; everything else may be called by init's main one.

    `order` is the newest order that was not obeyed yet, `dismissed` that the supervisor has said since `await_word()`
    that none will come, `is_dead` that there is no use in waiting. A word wakes the main thread by SIGCHLD.
    """

    def __init__(self, environment: Mapping[str, str], host: str, tell: Callable[[str], None]) -> None:
        self._environment, self._host, self._tell = dict(environment), host, tell
        self._began = _now()
        self._poll_s = read_seconds(environment, "RERAIL_POLL_SECONDS", POLL_S, least=0.05, below=86400)
        self._restart = 0
        self._tag = ""
        self._reports: deque[dict[str, Any]] = deque(maxlen=KEPT_REPORTS)
        self._known: set[str] = set()
        self._turn, self._wanted, self._had = threading.Condition(), 0, 0
        self._closing = self._anxious = False
        self._failures = 0
        self.order: Command | None = None
        self.dismissed = self.is_dead = False
        self._thread = threading.Thread(target=self._work, name="telegraph", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def ask(self, within_s: float) -> None:
        """Returns when the mailbox was asked once more, or could not be."""
        with self._turn:
            self._wanted += 1
            ticket = self._wanted
            self._turn.notify_all()
            self._turn.wait_for(lambda: self._had >= ticket or self.is_dead, within_s)

    def await_word(self) -> None:
        """From now on the mailbox is asked twice a second, until obeyed()."""
        with self._turn:
            self._anxious, self.dismissed = True, False
            self._wanted += 1
            self._turn.notify_all()

    def obeyed(self, restart: int) -> None:
        """The processes run again as this restart; older orders are none any more."""
        with self._turn:
            self._restart, self._anxious = max(restart, self._restart), False
            if self.order is not None and self.order.restart <= self._restart:
                self.order = None

    def say(self, told: str, *, restart: int, command: str = "", **facts: Any) -> None:
        """Queues a report; `told` is one of the core's Told."""
        with self._turn:
            self._reports.append({"told": told, "restart": restart, "command": command, **facts})
            self._wanted += 1
            self._turn.notify_all()

    def stop(self, within_s: float) -> None:
        """Sends what is queued, if that takes no longer than this."""
        deadline = time.monotonic() + within_s
        with self._turn:
            self._turn.wait_for(lambda: not self._reports or self.is_dead, max(0.0, deadline - time.monotonic()))
            self._closing = True
            self._turn.notify_all()

    # ------------------------------------------------------------------ on the thread

    def _work(self) -> None:
        try:
            self._open()
            while not self._closing:
                self._round()
        except Exception as error:  # whatever it is: the job trains on, and is relaunched where it cannot be restarted
            self._tell(f"no restarts in place: {type(error).__name__}: {error}")
        finally:
            with self._turn:
                self.is_dead = True
                self._turn.notify_all()

    def _open(self) -> None:
        from rerail_agent.identity import Identity
        from rerail_agent.mailbox_objects import MailboxBucket

        self._identity = Identity.from_environment(self._environment, lambda message: None)
        if not self._identity.bucket:
            raise ValueError("the job has no mailbox")
        self._post = MailboxBucket(self._identity.bucket, self._identity.region, self._identity.signing_key)

    def _round(self) -> None:
        from rerail_agent.mailbox_objects import Unreachable

        with self._turn:
            ticket = self._wanted
        failed = False
        try:
            self._send()
        except Unreachable as error:
            failed = True
            if error.lasting and self._anxious:
                raise  # nobody hears us: no order will come
        try:
            self._ask()
        except Unreachable as error:
            # Without s3:ListBucket S3 denies what is merely not there; a command may come any time.
            failed = failed or not error.lasting
        self._failures = self._failures + 1 if failed else 0
        with self._turn:
            self._had = ticket
            self._turn.notify_all()
            self._turn.wait_for(lambda: self._closing or (self._wanted > ticket and not self._failures), self._pause_s)

    @property
    def _pause_s(self) -> float:
        poll_s = min(self._poll_s, ANXIOUS_POLL_S) if self._anxious else self._poll_s
        if not self._failures:
            return poll_s
        return max(poll_s, min(PATIENCE_S[1], PATIENCE_S[0] * 2.0 ** min(self._failures - 1, 10)))

    def _send(self) -> None:
        from rerail.model.mailbox import LIMITS, Report, ReportKind, make_report_key, serialize

        identity = self._identity
        while self._reports:
            said = dict(self._reports[0])
            told, restart = ReportKind(said.pop("told")), said["restart"]
            said |= {name: str(said[name])[: LIMITS[name]] for name in ("reason", "evidence") if name in said}
            name = f"a{identity.attempt:03d}-r{restart}-{told.value}-{self._host}"
            report = Report(
                id=name, run=identity.run, attempt=identity.attempt, job=identity.job[:128], kind=told,
                at=_now(), **said,
            )  # fmt: skip
            self._post.write(make_report_key(identity.run, name), serialize(report))
            with self._turn:
                self._reports.popleft()
                self._turn.notify_all()

    def _ask(self) -> None:
        from rerail.model.errors import BadMailboxObject
        from rerail.model.mailbox import make_command_key, read_command

        letter = self._post.read(make_command_key(self._identity.run), unless=self._tag)
        if letter is None:
            return
        self._tag = letter.tag
        try:
            self._hear(read_command(letter.text, run=self._identity.run))
        except BadMailboxObject as error:
            self._tell(f"a command that cannot be read is passed over: {error}")

    def _hear(self, command: Command) -> None:
        """The newest word counts: another wish takes an order's place."""
        own, now = command.attempt == self._identity.attempt, _now()
        is_order = own and command.kind.value == "restart" and command.restart > self._restart
        # An order from before this container began still stands: SageMaker itself has restarted the machine since.
        late = command.deadline is not None and command.deadline <= now and command.asked_at > self._began
        with self._turn:
            self.order = command if is_order and not late else None
            self.dismissed = not is_order and command.attempt >= self._identity.attempt
        if is_order and late and command.id not in self._known:
            self._known.add(command.id)
            self.say("refused", restart=self._restart, command=command.id, reason="the order came after its deadline")
        os.kill(os.getpid(), signal.SIGCHLD)


def _now() -> datetime:
    return datetime.now(timezone.utc)  # noqa: UP017  (init.py comes here in images whose Python is older)


def read_seconds(environment: Mapping[str, str], name: str, default: float, *, least: float, below: float) -> float:
    """What cannot be read is the agent's to tell of."""
    try:
        seconds = float(environment.get(name) or default)
    except ValueError:
        return default
    return seconds if least <= seconds < below else default
