"""Decide, when the training processes have ended, whether they are started again in this job.

Init asks; the decision itself is the supervisor's, whose command is awaited here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from rerail_agent import init_channel
from rerail_agent.failure import FailureCause
from rerail_agent.init_channel import InitChannel

if TYPE_CHECKING:
    from rerail.model.mailbox import Command

# How long a container waits for a command after its ranks have failed.
HOLD_S = 30.0
# For ranks to leave by themselves before a restart; a longer save is not worth the wait.
GRACE_S = 10.0
# For the mailbox to answer when the command has ended.
LAST_POLL_S = 3.0
LAST_REPORTS_S = 2.0
# The same machine would fail again.
LASTING_CAUSES = (FailureCause.OOM, FailureCause.HARDWARE)
# Of the file that a container leaves for its successor.
MOST_BYTES = 10_000
# The variables that a command may set for the next processes.
RESTART_VARIABLES = (
    "RERAIL_RESTART",
    "RERAIL_RESUME_STEP",
    "RERAIL_ROLLED_BACK",
    "RERAIL_SKIP_SAMPLES",
    "RERAIL_LR_SCALE",
)
# A peer on another machine may have caused them, and reports the better reason.
PEER_FAILURE_CAUSES = (FailureCause.INFRASTRUCTURE, FailureCause.HANG)


class CommandRun(Protocol):
    """One run of the command, as far as the decision about a restart needs it."""

    @property
    def restart_command(self) -> Command | None:
        """The supervisor's command for which init has ended this run, if any."""

    @property
    def is_stopped(self) -> bool:
        """Return whether the job is to stop, which takes precedence over any command."""

    @property
    def is_unkillable(self) -> bool:
        """Return whether processes are left that SIGKILL does not end."""

    @property
    def code(self) -> int: ...

    def failure_text(self) -> str:
        """Return why the run failed, as the failure file says it or would say it."""

    def wait(self, until: Callable[[], bool], seconds: float) -> None:
        """Wait until the predicate is true, the time is over or a stop is requested; signals stay handled."""


class Restarts:
    """The restarts in place on one machine of a job; `environment` is that of the command's next run."""

    def __init__(self, environment: Mapping[str, str], base: Path, log: Callable[[str], None]) -> None:
        self._base, self._log = base, log
        self._is_single_host = init_channel.count_hosts(base) == 1
        self._hold_s = init_channel.read_seconds(environment, "RERAIL_HOLD_SECONDS", HOLD_S)
        self.grace_s = init_channel.read_seconds(environment, "RERAIL_RESTART_GRACE_SECONDS", GRACE_S)
        self._channel: InitChannel | None = init_channel.connect(environment, base, log)
        self._job = environment.get("TRAINING_JOB_NAME", "")
        self._command_id = ""  # the order's id
        self.environment = dict(environment)
        self._key = _read_key(environment) if self._channel else ""
        before = read_restart_file(base, self._job, self._key, log) if self._channel else {}
        self.number = int(
            before.get("RERAIL_RESTART", "0")
        )  # of the restart that started the processes, 0 for the job's own start
        if self._channel:
            self.environment |= {"RERAIL_INIT": "1", **before}

    def start(self) -> None:
        """Start the thread of the channel; not before the first fork."""
        if self._channel is not None:
            self._channel.start()

    @property
    def restart_command(self) -> Command | None:
        """Return the newest restart command that was not carried out yet."""
        return self._channel.restart_command if self._channel is not None else None

    def on_started(self) -> None:
        """Report that the command runs with the environment of a restart."""
        if self._channel is not None and self.number:
            self._channel.on_restarted(self.number)
            self._channel.report("restarted", restart=self.number, command=self._command_id)

    def should_restart(self, command_run: CommandRun) -> bool:
        """Return whether to run the command again, with the environment that a command has asked for."""
        channel = self._channel
        if channel is None or command_run.is_stopped:
            return False
        restart_command = command_run.restart_command
        if restart_command is not None and command_run.is_unkillable:
            channel.report(
                "refused", restart=self.number, command=restart_command.id, reason="some processes do not end"
            )
            return False
        if restart_command is None:
            # Ranks on another machine may have been ended a moment ago, which has ended these too.
            channel.poll_now(LAST_POLL_S)
            restart_command = channel.restart_command or (
                self._await_command(channel, command_run) if command_run.code else None
            )
        if restart_command is None or command_run.is_stopped or command_run.is_unkillable:
            return False
        self._accept(restart_command)
        return True

    def _await_command(self, channel: InitChannel, command_run: CommandRun) -> Command | None:
        """Report the failure, and wait for the supervisor's decision."""
        text = command_run.failure_text()
        cause = _read_cause(text)
        is_lasting = cause in LASTING_CAUSES or (self._is_single_host and cause in PEER_FAILURE_CAUSES)
        if channel.is_closed or not self._hold_s or is_lasting:
            return None
        channel.await_command()
        channel.report("crashed", restart=self.number, evidence=text)
        self._log(f"the command failed ({cause or 'unknown'}): waiting {self._hold_s:g} s for a command to restart it")
        command_run.wait(
            lambda: channel.restart_command is not None or channel.is_declined or channel.is_closed, self._hold_s
        )
        return channel.restart_command

    def _accept(self, restart_command: Command) -> None:
        self.number, self._command_id = restart_command.restart, restart_command.id
        self.environment |= make_environment(restart_command)
        self._write_restart_file()
        self._move_failure_file()
        step = restart_command.resume_step
        start = "the newest checkpoint" if step is None else f"step {step} at most"
        self._log(
            f"restart {restart_command.restart} in place, by the supervisor's command ({restart_command.reason}):"
            f" from {start}"
        )

    def _write_restart_file(self) -> None:
        """Record the restart for a container that SageMaker may start in place of this one.

        That container has the environment of the job's first start. Others may write to the file's folder, so it is
        signed; without a key there is none, and that container starts as the job's first did.
        """
        from rerail.model.signatures import sign

        if not self._key:
            return
        variables = {name: self.environment[name] for name in RESTART_VARIABLES if name in self.environment}
        file = make_restart_file_path(self._base)
        with suppress(OSError):
            new = file.with_name(f"{file.name}.{self.number}.tmp")
            text = json.dumps({"job": self._job, "told": variables}).encode()
            new.write_bytes(sign(text, name=f"{file.name}/{self._job}", key=self._key))
            new.replace(file)

    def _move_failure_file(self) -> None:
        """Move the failure file of the processes before, because SageMaker takes the first one."""
        file = self._base / "output" / "failure"
        kept = self._base / "output" / "data" / f"rerail-failure-before-restart-{self.number}"
        with suppress(OSError):
            kept.parent.mkdir(parents=True, exist_ok=True)
            file.replace(kept)

    def close(self) -> None:
        """End the channel; no further run will be started."""
        if self._channel is not None:
            self._channel.stop(LAST_REPORTS_S)


def make_restart_file_path(base: Path) -> Path:
    """Return a path in the folder that SageMaker copies to S3, and back when it restarts the job."""
    return base / "checkpoints" / ".rerail-restart.json"


def read_restart_file(base: Path, job: str, key: str, log: Callable[[str], None]) -> dict[str, str]:
    """Return the variables that the last command to this job has set; empty if there was none.

    Other roles may write to the checkpoint folder, so a file that is not signed for this job is ignored and logged. The
    file of an earlier job stays in the folder and is ignored without a log line.
    """
    from rerail.model.errors import BadMailboxObject
    from rerail.model.signatures import is_signed

    file = make_restart_file_path(base)
    try:
        if not file.is_file():  # to read a pipe or a device can block for ever
            return {}
        with file.open("rb") as content:
            text = content.read(MOST_BYTES)
        table = json.loads(text)
        if table["job"] != job:
            return {}
        if not is_signed(text, name=f"{file.name}/{job}", key=key):
            raise BadMailboxObject("it is not signed with the run's key")
        variables = table["told"]
        names = RESTART_VARIABLES if _has_valid_numbers(variables) else ()
        return {name: variables[name] for name in names if isinstance(variables.get(name), str)}
    except BadMailboxObject as error:
        log(f"{file.name} in the checkpoint folder is ignored: {error}")
        return {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}


def _read_key(environment: Mapping[str, str]) -> str:
    from rerail_agent.identity import Identity

    return Identity.from_environment(environment, lambda message: None).signing_key


def _has_valid_numbers(variables: Mapping[str, str]) -> bool:
    numbers = (variables.get(name, "0") for name in ("RERAIL_RESTART", "RERAIL_ROLLED_BACK", "RERAIL_RESUME_STEP"))
    return all(number.isdecimal() and len(number) < 10 for number in numbers)


def make_environment(restart_command: Command) -> dict[str, str]:
    """Return the variables that a command sets; the others stay as they were."""
    variables = {"RERAIL_RESTART": str(restart_command.restart)}
    if restart_command.resume_step is not None:
        variables |= {
            "RERAIL_RESUME_STEP": str(restart_command.resume_step),
            "RERAIL_ROLLED_BACK": str(restart_command.restart),
        }
    if restart_command.skip_samples:
        variables["RERAIL_SKIP_SAMPLES"] = restart_command.skip_samples
    if restart_command.rate != 1.0:
        variables["RERAIL_LR_SCALE"] = f"{restart_command.rate:.6g}"
    return variables


def with_another_port(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with MASTER_PORT moved by the number of the restart, so that no old rank can join.

    Every machine computes the same port. An unset MASTER_PORT stays unset.
    """
    port, restart = environment.get("MASTER_PORT", ""), environment.get("RERAIL_RESTART", "0")
    if not all(number.isdecimal() and len(number) < 10 for number in (port, restart)):
        return dict(environment)
    return {**environment, "MASTER_PORT": str(next_port(int(port), int(restart)))}


def next_port(port: int, restart: int) -> int:
    """Return the port of a restart; count downwards where there are no more ports above."""
    return port + restart if port + restart < 65536 else port - restart


def _read_cause(text: str) -> str:
    """Return the cause in a failure report's text, empty if it has none."""
    try:
        table = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    return str(table.get("cause") or "") if isinstance(table, dict) else ""
