"""Answers, when the training processes have ended: shall they be started again in this very job, or may that come?

Init asks; nothing of this decides by itself that a job is worth another try.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from rerail_agent import init_channel
from rerail_agent.failure import FailureCause
from rerail_agent.init_channel import InitChannel

if TYPE_CHECKING:
    from rerail.model.mailbox import Command

HOLD_S = 30.0  # a container waits for an order after its ranks have died
GRACE_S = 10.0  # for ranks to leave by themselves before a restart: a save that takes longer is not worth waiting for
LAST_LOOK_S = 3.0  # for the mailbox to answer, when the command has ended
LAST_WORDS_S = 2.0
# The same machine would fail again.
LASTING_CAUSES = (FailureCause.OOM, FailureCause.HARDWARE)
# All that an order may say to the next processes.
ORDERED = ("RERAIL_RESTART", "RERAIL_RESUME_STEP", "RERAIL_ROLLED_BACK", "RERAIL_SKIP_SAMPLES", "RERAIL_LR_SCALE")
# A peer on another machine may have caused them, and reports the better reason.
PEER_FAILURE_CAUSES = (FailureCause.INFRASTRUCTURE, FailureCause.HANG)


class CommandRun(Protocol):
    """One start of the command, as far as it matters to what follows."""

    @property
    def order(self) -> Command | None:
        """The order for which init has ended it, if it has."""

    @property
    def is_stopped(self) -> bool:
        """Somebody wants the job to stop: that comes first, whatever was ordered."""

    @property
    def is_given_up(self) -> bool:
        """Processes are left that nothing can end."""

    @property
    def code(self) -> int: ...

    def failure_text(self) -> str:
        """Why it failed, as the failure file says it, or would."""

    def wait(self, until: Callable[[], bool], seconds: float) -> None:
        """Waits with open ears, until it is so or the job is to stop."""


class Restarts:
    """The restarts in place of one machine's part of a job; `environment` is what the command is to be started with."""

    def __init__(self, environment: Mapping[str, str], base: Path, tell: Callable[[str], None]) -> None:
        self._base, self._tell = base, tell
        self._alone = init_channel.hosts_of(base) == 1
        self._hold_s = _seconds(environment, "RERAIL_HOLD_SECONDS", HOLD_S)
        self.grace_s = _seconds(environment, "RERAIL_RESTART_GRACE_SECONDS", GRACE_S)
        self._line: InitChannel | None = init_channel.connect(environment, base, tell)
        self._job = environment.get("TRAINING_JOB_NAME", "")
        self._answering = ""  # the order's id
        self.environment = dict(environment)
        before = read_restart_file(base, self._job) if self._line else {}
        self.number = int(before.get("RERAIL_RESTART", "0"))  # of the restart that the processes owe their lives to
        if self._line:
            self.environment |= {"RERAIL_INIT": "1", **before}

    def start(self) -> None:
        """Not before the first fork: it starts a thread."""
        if self._line is not None:
            self._line.start()

    @property
    def order(self) -> Command | None:
        """The newest order that was not obeyed yet."""
        return self._line.order if self._line is not None else None

    def began(self) -> None:
        """The command runs, as the environment has it."""
        if self._line is not None and self.number:
            self._line.obeyed(self.number)
            self._line.say("restarted", restart=self.number, command=self._answering)

    def after(self, life: CommandRun) -> bool:
        """Whether the command is to be started again, with what was ordered."""
        line = self._line
        if line is None or life.is_stopped:
            return False
        order = life.order
        if order is not None and life.is_given_up:
            line.say("refused", restart=self.number, command=order.id, reason="some processes do not end")
            return False
        if order is None:
            # Ranks on another machine may have been ended a moment ago, and these have followed them.
            line.ask(LAST_LOOK_S)
            order = line.order or (self._awaited(line, life) if life.code else None)
        if order is None or life.is_stopped or life.is_given_up:
            return False
        self._obey(order)
        return True

    def _awaited(self, line: InitChannel, life: CommandRun) -> Command | None:
        """Reports the crash, and waits for what the supervisor makes of it."""
        text = life.failure_text()
        cause = _read_cause(text)
        is_lasting = cause in LASTING_CAUSES or (self._alone and cause in PEER_FAILURE_CAUSES)
        if line.is_dead or not self._hold_s or is_lasting:
            return None
        line.await_word()
        line.say("crashed", restart=self.number, evidence=text)
        self._tell(f"the command failed ({cause or 'unknown'}): waiting {self._hold_s:g} s for an order to restart it")
        life.wait(lambda: line.order is not None or line.dismissed or line.is_dead, self._hold_s)
        return line.order

    def _obey(self, order: Command) -> None:
        self.number, self._answering = order.restart, order.id
        self.environment |= make_environment(order)
        self._remember()
        self._set_failure_aside()
        start = "the newest checkpoint" if order.resume_step is None else f"step {order.resume_step} at most"
        self._tell(f"restart {order.restart} in place, by the supervisor's order ({order.reason}): from {start}")

    def _remember(self) -> None:
        """For the container that SageMaker itself may start in place of this one, with the environment of the first."""
        told = {name: self.environment[name] for name in ORDERED if name in self.environment}
        file = restart_file(self._base)
        with suppress(OSError):
            new = file.with_name(f"{file.name}.{self.number}.tmp")
            new.write_text(json.dumps({"job": self._job, "told": told}))
            new.replace(file)

    def _set_failure_aside(self) -> None:
        """SageMaker is given the first failure's file: that of the processes before is no news of the next ones."""
        file = self._base / "output" / "failure"
        kept = self._base / "output" / "data" / f"rerail-failure-before-restart-{self.number}"
        with suppress(OSError):
            kept.parent.mkdir(parents=True, exist_ok=True)
            file.replace(kept)

    def end(self) -> None:
        """Nothing more will be started; what is still to be told is."""
        if self._line is not None:
            self._line.stop(LAST_WORDS_S)


def restart_file(base: Path) -> Path:
    """In the folder that SageMaker copies to S3, and back when it restarts the job."""
    return base / "checkpoints" / ".rerail-restart.json"


def read_restart_file(base: Path, job: str) -> dict[str, str]:
    """What the last order to this very job has put into the environment; nothing where there was none."""
    try:
        table = json.loads(restart_file(base).read_text())
        told = table["told"] if table["job"] == job else {}
        return {name: told[name] for name in ORDERED if isinstance(told.get(name), str)} if _is_sound(told) else {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}


def _is_sound(told: Mapping[str, str]) -> bool:
    numbers = (told.get(name, "0") for name in ("RERAIL_RESTART", "RERAIL_ROLLED_BACK", "RERAIL_RESUME_STEP"))
    return all(number.isdecimal() and len(number) < 10 for number in numbers)


def make_environment(order: Command) -> dict[str, str]:
    """What an order puts into the environment; what it does not speak of stays as it was.

    A job of several ranks meets at another port, so that no old rank can join.
    """
    told = {"RERAIL_RESTART": str(order.restart)}
    if order.resume_step is not None:
        told |= {"RERAIL_RESUME_STEP": str(order.resume_step), "RERAIL_ROLLED_BACK": str(order.restart)}
    if order.skip_samples:
        told["RERAIL_SKIP_SAMPLES"] = order.skip_samples
    if order.rate != 1.0:
        told["RERAIL_LR_SCALE"] = f"{order.rate:.6g}"
    return told


def with_another_port(environment: Mapping[str, str]) -> dict[str, str]:
    """The same with MASTER_PORT moved on by the number of the restart, the same on every machine; unset it stays so."""
    port, restart = environment.get("MASTER_PORT", ""), environment.get("RERAIL_RESTART", "0")
    if not all(number.isdecimal() and len(number) < 10 for number in (port, restart)):
        return dict(environment)
    return {**environment, "MASTER_PORT": str(next_port(int(port), int(restart)))}


def next_port(port: int, restart: int) -> int:
    """Downwards where there is no more room above."""
    return port + restart if port + restart < 65536 else port - restart


def _read_cause(text: str) -> str:
    """Return the cause in a failure report's text, empty if it has none."""
    try:
        table = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    return str(table.get("cause") or "") if isinstance(table, dict) else ""


def _seconds(environment: Mapping[str, str], name: str, default: float) -> float:
    return init_channel.read_seconds(environment, name, default, least=0.0, below=math.inf)
