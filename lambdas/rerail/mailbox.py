"""The mailbox between the supervisor and the agent in a running job: which objects there are, and what they say.

One bucket, one folder a run: `runs/<run>/command.json` (written by the supervisor alone: the newest wish, and which
attempt owns the run), `runs/<run>/heartbeat.json` (overwritten by the agent once a minute) and
`runs/<run>/reports/<id>.json` (one object for each thing that the agent has to say; never overwritten).
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from rerail.codec import BadRecord, plain, read_plain
from rerail.detectors.finding import Finding
from rerail.detectors.pulse import Phase
from rerail.errors import BadMail

SCHEMA = 1
SIZE_LIMIT = 64 * 1024
REPORT_KEY = re.compile(
    r"runs/(?P<run>[a-zA-Z0-9](?:-*[a-zA-Z0-9]){0,62})/reports/(?P<id>[a-zA-Z0-9][a-zA-Z0-9._-]{0,126})\.json"
)
LIMITS = {"reason": 500, "evidence": 48_000, "path": 1024}


class Wish(StrEnum):
    """What the supervisor asks of the attempt that it names."""

    TRAIN = "train"  # nothing but this: the attempt named here owns the run, older ones must not save any more
    CHECKPOINT = "checkpoint"  # save now, at a step that all ranks agree on, and report it


@dataclass(frozen=True, slots=True)
class Command:
    """The supervisor's newest wish; `id` comes back in the reports that answer it."""

    id: str
    run: str
    attempt: int
    wish: Wish
    asked_at: datetime
    deadline: datetime | None = None
    reason: str = ""


class Told(StrEnum):
    """What a report is about."""

    HELLO = "hello"  # an agent works in this attempt: it can be asked for checkpoints
    HEARD = "heard"  # the command has arrived; the ranks will agree on a step
    CHECKPOINT = "checkpoint"  # a checkpoint is committed
    REFUSED = "refused"  # the command cannot be granted; `reason` says why
    FINDINGS = "findings"  # the detectors, which the agent runs step by step, have something to say


class Durability(StrEnum):
    """Where a committed checkpoint lies."""

    LOCAL = "local"  # on the machine's disk, from where SageMaker copies it to S3 in its own time
    REMOTE = "remote"  # in S3 or on a shared file system: it survives the machine


@dataclass(frozen=True, slots=True)
class Report:
    """One thing that the agent has to say; `command` is the id of the command that it answers, if it answers one.

    `step` is the step that was saved, `path` the folder of the checkpoint, `evidence` text for people (stacks).
    """

    id: str
    run: str
    attempt: int
    job: str
    told: Told
    at: datetime
    command: str = ""
    step: int | None = None
    durability: Durability | None = None
    path: str = ""
    reason: str = ""
    findings: tuple[Finding, ...] = ()
    evidence: str = ""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Where the job is now: `step` is the last completed one, `step_seconds` the mean since the last heartbeat."""

    run: str
    attempt: int
    job: str
    at: datetime
    phase: Phase
    step: int | None = None
    moved_at: datetime | None = None
    loss: float | None = None
    step_seconds: float | None = None
    tokens_per_s: float | None = None


def bucket_name(account: str, region: str) -> str:
    """The mailbox bucket of an account and region. Its name contains `sagemaker`, because the managed policy
    AmazonSageMakerFullAccess lets training roles use such buckets: no permission has to be added for most of them."""
    return f"sagemaker-rerail-{account}-{region}"


def command_key(run: str) -> str:
    return f"runs/{run}/command.json"


def heartbeat_key(run: str) -> str:
    return f"runs/{run}/heartbeat.json"


def report_key(run: str, id: str) -> str:
    return f"runs/{run}/reports/{id}.json"


def run_of_report(key: str) -> tuple[str, str]:
    """The run and the report's id in an object key; raises BadMail for any other object."""
    match = REPORT_KEY.fullmatch(key)
    if not match:
        raise BadMail(f"object {key[:200]!r}: not a report; those are runs/<run>/reports/<id>.json")
    return match["run"], match["id"]


def write(mail: Command | Report | Heartbeat) -> bytes:
    """The object's content."""
    return json.dumps({"schema": SCHEMA, **plain(mail)}, separators=(",", ":"), allow_nan=False).encode()


def read_command(text: bytes, *, run: str) -> Command:
    """The command in the mailbox of a run; raises BadMail."""
    command: Command = _read(Command, text, run=run)
    return command


def read_report(text: bytes, *, run: str, id: str) -> Report:
    """The report of this id in the mailbox of a run; raises BadMail."""
    report: Report = _read(Report, text, run=run)
    if report.id != id:
        raise BadMail(f"mail for run {run}: field 'id' is {report.id[:100]!r}, but the object is called {id!r}")
    return report


def read_heartbeat(text: bytes, *, run: str) -> Heartbeat:
    """The heartbeat of a run; raises BadMail."""
    heartbeat: Heartbeat = _read(Heartbeat, text, run=run)
    return heartbeat


def _read(cls: type[Any], text: bytes, *, run: str) -> Any:
    where = f"mail for run {run}"
    if len(text) > SIZE_LIMIT:
        raise BadMail(f"{where}: {len(text)} bytes; at most {SIZE_LIMIT} are read")
    try:
        table = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadMail(f"{where}: not JSON ({error})") from error
    if not isinstance(table, dict) or table.pop("schema", None) != SCHEMA:
        raise BadMail(f"{where}: must be a JSON object with field 'schema' {SCHEMA}")
    if table.get("type") != cls.__name__:
        raise BadMail(f"{where}: field 'type' is {table.get('type')!r:.60}; it must be {cls.__name__}")
    try:
        mail = read_plain(cls, table)
    except (BadRecord, TypeError, ValueError, KeyError, AttributeError, RecursionError) as error:
        raise BadMail(f"{where}: {error}"[:500]) from error
    _check(mail, where=where, run=run)
    return mail


def _check(mail: Any, *, where: str, run: str) -> None:
    """The types and ranges that a reader relies on: what stands in the bucket was not necessarily written by us."""
    rows: Mapping[str, Any] = {name: getattr(mail, name) for name in type(mail).__slots__}
    for name, value in rows.items():
        kinds = _KINDS.get(name)
        if value is not None and kinds and (not isinstance(value, kinds) or isinstance(value, bool)):
            raise BadMail(f"{where}: field '{name}' is {value!r:.60}; it must be {_SPOKEN[kinds]}")
        if isinstance(value, str) and len(value) > LIMITS.get(name, 128):
            raise BadMail(f"{where}: field '{name}' has {len(value)} characters; at most {LIMITS.get(name, 128)}")
        if isinstance(value, datetime) and value.tzinfo is None:
            raise BadMail(f"{where}: field '{name}' has no time zone; write it as 2026-01-31T03:00:00+00:00")
        if name in ("attempt", "step") and value is not None and not 0 <= value < 10**18:
            raise BadMail(f"{where}: field '{name}' is {value!r:.60}; it must be a whole number, 0 or more")
    if mail.run != run:
        raise BadMail(f"{where}: field 'run' is {mail.run!r:.100}; it must be the run whose folder the object lies in")


_KINDS: Mapping[str, Any] = {
    **dict.fromkeys(("id", "run", "job", "command", "path", "reason", "evidence"), str),
    **dict.fromkeys(("attempt", "step"), int),
    **dict.fromkeys(("asked_at", "deadline", "at", "moved_at"), datetime),
    **dict.fromkeys(("loss", "step_seconds", "tokens_per_s"), (int, float)),
}
_SPOKEN: Mapping[Any, str] = {str: "text", int: "a whole number", datetime: "a time", (int, float): "a number"}
