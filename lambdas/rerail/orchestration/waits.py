"""The waits for runs: who waits, with which token, and how a wait is requested."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol

from rerail.messages.messages import JOB_NAME
from rerail.model.codec import BadRecord
from rerail.model.errors import BadMessage, RerailError
from rerail.model.record import Record

# The longest tokens are those of Step Functions: 2,048 characters.
TOKEN_LIMIT, ARN_LIMIT = 2_048, 2_048
# SageMaker's tokens have 10 characters, and names of pipelines 256. All waits are read with each message.
STEP_TOKEN_LIMIT, STEP_ARN_LIMIT = 64, 512
OUTPUTS_LIMIT, DIGEST_LENGTH = 200, 64
CHANNELS_LIMIT, CHANNEL_LIMIT = 20, 64  # of a training job, and of a channel's name


class Caller(StrEnum):
    """The system that waits."""

    STEP_FUNCTIONS = "step_functions"  # a task with .waitForTaskToken
    PIPELINE = "pipeline"  # a callback step of SageMaker Pipelines


class CallerState(StrEnum):
    """The state of the execution that waits."""

    WAITS = "waits"
    # Somebody has stopped it.
    CANCELLED = "cancelled"
    # It has ended otherwise: nobody waits for an answer.
    OVER = "over"


@dataclass(frozen=True, slots=True)
class RunWait(Record):
    """One wait for a run; it is kept until it was answered."""

    token: str
    caller: Caller
    # The training job that the run begins with.
    job: str
    since: datetime
    # The ARN of the execution that waits.
    execution: str = ""
    # A held run is waited for until it is released or stopped; otherwise a hold is answered as a failure.
    goes_on_while_held: bool = False
    # The outputs that a callback step declares; empty: those of docs/pipelines.md.
    outputs: tuple[str, ...] = ()
    # What the run's first job must have asked for: a digest of its request, and the addresses of its channels.
    expects: str = ""
    places: Mapping[str, str] = field(default_factory=dict)
    # A message says that its pipeline is being stopped, and its run has not been stopped for that yet.
    is_stopping: bool = False


class WaitIsOver(RerailError):
    """Nobody waits with this token any more."""


class KeyWithdrawn(RerailError):
    """The key with which the owner of the execution has encrypted it cannot be used."""


class RunWaits(Protocol):
    """The store of the waits."""

    def keep(self, wait: RunWait) -> None:
        """Store the wait; one that is stored already is replaced."""

    def forget(self, wait: RunWait) -> None:
        """Delete the wait; one that was deleted already counts as deleted."""

    def list_waits(self) -> Iterable[RunWait | BadRecord]:
        """Return all waits, and an error for each that this version cannot read."""


class Callers(Protocol):
    """The systems that wait; methods raise WaitIsOver if nobody waits with that token, or KeyWithdrawn."""

    def find_state(self, wait: RunWait) -> CallerState:
        """Return what the execution is doing, if its system has an API for that."""

    def is_listed(self, wait: RunWait) -> bool:
        """Return whether SageMaker lists a step of the wait's pipeline execution that waits with its token."""

    def is_stopped(self, wait: RunWait) -> bool:
        """Return whether SageMaker says that the wait's pipeline execution is being stopped, or was."""

    def succeed(self, wait: RunWait, output: Mapping[str, Any]) -> None:
        """Let the execution go on with this output."""

    def fail(self, wait: RunWait, error: str, cause: str) -> None:
        """Let the step fail."""

    def send_heartbeat(self, wait: RunWait) -> None:
        """Reset the heartbeat timeout of the task, if it has one."""


def read_task(event: Mapping[str, Any], *, at: datetime) -> RunWait:
    """Return the wait that a state machine requests, with the job still unchecked. Raises BadMessage."""
    return RunWait(
        token=_read_text(event, "token", TOKEN_LIMIT),
        caller=Caller.STEP_FUNCTIONS,
        job=_read_job(event),
        since=at,
        execution=_read_text(event, "execution", ARN_LIMIT),
        goes_on_while_held=event.get("onHold") == "wait",
        expects=str(event.get("expects") or "")[:DIGEST_LENGTH],
        places=_read_places(event.get("places")),
    )


@dataclass(frozen=True, slots=True)
class CallbackReceived:
    """A message of a callback step; `is_stopping`: somebody has stopped the pipeline."""

    wait: RunWait
    is_stopping: bool


def read_message(body: str, *, at: datetime) -> CallbackReceived:
    """Return what a callback step has sent, with the job still unchecked. Raises BadMessage."""
    message = _read_object(body)
    inputs = message.get("arguments")
    inputs = inputs if isinstance(inputs, dict) else {}
    wait = RunWait(
        token=_read_text(message, "token", STEP_TOKEN_LIMIT),
        caller=Caller.PIPELINE,
        job=_read_job(inputs),
        since=at,
        execution=str(message.get("pipelineExecutionArn") or "")[:STEP_ARN_LIMIT],
        goes_on_while_held=inputs.get("on_hold") == "wait",
        outputs=tuple(name.strip() for name in str(inputs.get("outputs") or "")[:OUTPUTS_LIMIT].split(",") if name),
    )
    return CallbackReceived(wait, message.get("status") == "Stopping")


def find_problem(wait: RunWait) -> str:
    """Return why the wait cannot be kept, with the remedy; "" if it names a job."""
    return "" if JOB_NAME.fullmatch(wait.job) else f"job {wait.job!r:.100}: name the training job that was started"


def _read_object(body: str) -> Mapping[str, Any]:
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"the message is not JSON: {error!s:.200}") from error
    if not isinstance(message, dict):
        raise BadMessage("the message is not a JSON object")
    return message


def _read_job(table: Mapping[str, Any]) -> str:
    value = table.get("job")
    return value if isinstance(value, str) else ""


def _read_places(value: Any) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or len(value) > CHANNELS_LIMIT:
        raise BadMessage(f"places: must be an object with the addresses of at most {CHANNELS_LIMIT} channels")
    if long := [name for name in value if len(name) > CHANNEL_LIMIT]:
        raise BadMessage(f"places: {long[0]!r:.100} has more than {CHANNEL_LIMIT} characters: name a channel")
    return {name: _read_text(value, name, ARN_LIMIT) for name in value}


def _read_text(table: Mapping[str, Any], name: str, limit: int) -> str:
    value = table.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= limit:
        raise BadMessage(f"{name}: must be a text of 1 to {limit} characters")
    return value
