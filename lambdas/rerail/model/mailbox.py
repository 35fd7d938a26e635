"""The mailbox protocol between the supervisor and the agent in a running job: its objects and their format.

The mailbox is one bucket with one folder per run:
`runs/<run>/command.json` holds the newest command and the attempt that owns the run; only the supervisor writes it.
`runs/<run>/heartbeat.json` is overwritten by the agent once a minute.
`runs/<run>/reports/<id>.<nonce>.json` holds one report of the agent and is never overwritten: the bucket refuses it.
The nonce keeps others from taking a report's name first. Agents of earlier versions write `<id>.json`.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from enum import StrEnum
from hashlib import sha256
from typing import Any

from rerail.model.codec import BadRecord, dumps, from_plain, loads, to_plain
from rerail.model.errors import BadMailboxObject
from rerail.model.finding import Finding
from rerail.model.former_names import with_former_names
from rerail.model.liveness import Phase
from rerail.model.signatures import UNSEALED, is_signed

SCHEMA = 1
SIZE_LIMIT = 64 * 1024
REPORT_KEY = re.compile(
    r"runs/(?P<run>(?![^/]{64})[a-zA-Z0-9](?:-*[a-zA-Z0-9]){0,62})/reports/(?P<id>[a-zA-Z0-9][a-zA-Z0-9._-]{0,126})\.json"
)
NONCE_LENGTH = 16
# Characters per field.
LIMITS = {"reason": 500, "evidence": 48_000, "path": 1024, "skip_samples": 20_000, "settings": 8_000}
FINDINGS_LIMIT = 20
ABILITIES_LIMIT = 10
RATE_LIMIT = 1_000
QUOTED = 1_000  # characters of a finding's evidence, which is quoted in notices
# The range of times that is accepted.
EARLIEST, LATEST = datetime(2000, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)
# Control characters, which terminals and mail programs would interpret, are replaced by spaces.
CONTROLS = {code: " " for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


class CommandKind(StrEnum):
    """The request of a command to the attempt that it names."""

    TRAIN = "train"  # train on: this attempt owns the run, and older attempts must not save checkpoints any more
    CHECKPOINT = "checkpoint"  # save a checkpoint now, at a step that all ranks agree on, and report it
    RESTART = "restart"  # end the training processes and start them again, on all machines, within this job


@dataclass(frozen=True, slots=True)
class Command:
    """The supervisor's newest command to an agent."""

    # Reports that answer the command quote this id.
    id: str
    run: str
    attempt: int
    kind: CommandKind
    asked_at: datetime
    deadline: datetime | None = None
    reason: str = ""
    # The remaining fields are for an in-place restart. Its number within the attempt, starting at 1.
    restart: int = 0
    # The newest step to resume from; None: the newest checkpoint, 0: start from the beginning.
    resume_step: int | None = None
    # The samples to skip, as `first-last,first-last`.
    skip_samples: str = ""
    # The factor on the learning rate.
    rate: float = 1.0
    # What the policy sets for the agent: a JSON object of the variables that a relaunch would have.
    settings: str = ""


class ReportKind(StrEnum):
    """The subject of a report."""

    HELLO = "hello"  # an agent runs in this attempt and can be asked for checkpoints
    ACKNOWLEDGED = "acknowledged"  # the command was received; the ranks will agree on a step
    CHECKPOINT = "checkpoint"  # a checkpoint is committed
    REFUSED = "refused"  # the command cannot be carried out; `reason` says why
    FINDINGS = "findings"  # new findings of the detectors, which the agent runs at each step
    RESTARTED = "restarted"  # the training processes run again; with `step`: they have completed that step
    DAMAGED = "damaged"  # the files of a checkpoint do not match its manifest: it must not be resumed from
    UNLOADED = "unloaded"  # a checkpoint could not be loaded this time, for any reason
    CRASHED = "crashed"  # the training processes died, and the container waits for a command; `evidence` is the error


class Ability(StrEnum):
    """An ability of a script or its init besides saving a checkpoint on request."""

    SKIP = "skip"  # skips the samples in RERAIL_SKIP_SAMPLES
    RATE = "rate"  # multiplies its learning rate by RERAIL_LR_SCALE
    RESTART = "restart"  # its training processes can be restarted in place
    MICROBATCH = "microbatch"  # computes each batch in RERAIL_MICROBATCHES parts


class Durability(StrEnum):
    """The kind of storage of a committed checkpoint."""

    LOCAL = "local"  # on the machine's disk, from where SageMaker uploads it to S3 in the background
    REMOTE = "remote"  # in S3 or on a shared file system, where it outlives the machine


@dataclass(frozen=True, slots=True)
class Report:
    """A report of an agent."""

    id: str
    run: str
    attempt: int
    job: str
    kind: ReportKind
    at: datetime
    # The id of the command that the report answers, if any.
    command: str = ""
    # The step of the checkpoint.
    step: int | None = None
    durability: Durability | None = None
    # The folder of the checkpoint.
    path: str = ""
    reason: str = ""
    findings: tuple[Finding, ...] = ()
    # Text for people, such as stack traces.
    evidence: str = ""
    # For a hello: what the script can do; see Ability.
    abilities: tuple[str, ...] = ()
    # The in-place restart that started the reporting processes; 0 is the job's own start.
    restart: int = 0
    # For a damaged checkpoint: the attempt that saved it.
    saved_by: int | None = None
    # Set by the reader, whatever the object contains: the report is signed with the run's key.
    is_signed: bool = False


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The current progress of a job, as reported by its agent."""

    run: str
    attempt: int
    job: str
    at: datetime
    phase: Phase
    # The last completed step, and when it was completed.
    step: int | None = None
    moved_at: datetime | None = None
    loss: float | None = None
    # The mean duration of a step since the last heartbeat, in seconds.
    step_seconds: float | None = None
    tokens_per_s: float | None = None
    # The in-place restart that started the processes; 0 is the job's own start.
    restart: int = 0


def make_bucket_name(account: str, region: str) -> str:
    """Return the name of the mailbox bucket of an account and region.

    The name contains `sagemaker`, because the managed policy AmazonSageMakerFullAccess grants access to such buckets.
    Most training roles therefore need no further permission.
    """
    return f"sagemaker-rerail-{account}-{region}"


def make_change_key(run: str, digest: str) -> str:
    """Return the key of a change of the run's request; outside the runs' folders, which jobs may write to."""
    return f"changes/{run}/{digest}.json"


def require_digest(text: bytes | None, key: str, digest: str) -> bytes:
    """Return the text of a change; raise BadMailboxObject if it is missing or not what the operator named."""
    if text is None:
        raise BadMailboxObject(f"object {key!r} does not exist", defect="missing")
    if sha256(text).hexdigest() != digest:
        raise BadMailboxObject(f"object {key!r} is not what the command names", defect="digest")
    return text


def make_command_key(run: str) -> str:
    """Return the object key of a run's command."""
    return f"runs/{run}/command.json"


def make_heartbeat_key(run: str) -> str:
    """Return the object key of a run's heartbeat."""
    return f"runs/{run}/heartbeat.json"


def make_report_key(run: str, id: str) -> str:
    """Return the object key of a report."""
    return f"runs/{run}/reports/{id}.json"


def make_report_id(name: str, nonce: str) -> str:
    """Return the id of a report that is written once; `nonce` is NONCE_LENGTH random hexadecimal digits."""
    return f"{name}.{nonce}"


def run_of_report(key: str) -> tuple[str, str]:
    """Return the run and the report id of an object key; raise BadMailboxObject for any other object."""
    match = REPORT_KEY.fullmatch(key)
    if not match:
        raise BadMailboxObject(f"object {key[:200]!r}: not a report; those are runs/<run>/reports/<id>.json")
    return match["run"], match["id"]


def serialize(mail: Command | Report | Heartbeat) -> bytes:
    """Return the content of the object as JSON, also readable by agents of earlier versions."""
    return json.dumps(
        {"schema": SCHEMA, **with_former_names(to_plain(mail))}, separators=(",", ":"), allow_nan=False
    ).encode()


def read_command(text: bytes, *, run: str, signing_key: str = "") -> Command:
    """Return the command in the mailbox of a run.

    Raise BadMailboxObject if it is malformed or, for an agent with a key, not signed with it.
    """
    if signing_key and not is_signed(text, name=make_command_key(run), key=signing_key):
        what = "it has no seal; only a version of Rerail that does not sign commands writes such ones"
        raise BadMailboxObject(f"the command to run {run}: {what}", defect=UNSEALED)
    command: Command = _read(Command, text, run=run)
    return command


def read_report(text: bytes, *, run: str, id: str, signing_key: str = "") -> Report:
    """Return the report with this id in the mailbox of a run, with `is_signed` set if it is signed with `signing_key`.

    Raise BadMailboxObject if it is malformed, or signed with another key.
    """
    has_signature = is_signed(text, name=make_report_key(run, id), key=signing_key)
    try:
        report: Report = replace(_read(Report, text, run=run), is_signed=has_signature)
    except BadMailboxObject as error:
        error.is_unsigned = not has_signature
        raise
    if report.id != id:
        what = f"field 'id' is {report.id[:100]!r}, but the object is called {id!r}"
        raise BadMailboxObject(f"mail for run {run}: {what}", defect="id")
    return report


def read_heartbeat(text: bytes, *, run: str) -> Heartbeat:
    """Return the heartbeat of a run; raise BadMailboxObject if it is malformed."""
    heartbeat: Heartbeat = _read(Heartbeat, text, run=run)
    return heartbeat


def _read(cls: type[Any], text: bytes, *, run: str) -> Any:
    where = f"mail for run {run}"
    if len(text) > SIZE_LIMIT:
        raise BadMailboxObject(f"{where}: {len(text)} bytes; at most {SIZE_LIMIT} are read", defect="size")
    try:
        table = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadMailboxObject(f"{where}: not JSON ({error})"[:500], defect="json") from error
    if not isinstance(table, dict) or table.pop("schema", None) != SCHEMA:
        raise BadMailboxObject(f"{where}: must be a JSON object with field 'schema' {SCHEMA}", defect="schema")
    if table.get("type") != cls.__name__:
        what = f"field 'type' is {table.get('type')!r:.60}; it must be {cls.__name__}"
        raise BadMailboxObject(f"{where}: {what}", defect="type")
    try:
        mail = from_plain(cls, table)
    except (BadRecord, TypeError, ValueError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise BadMailboxObject(f"{where}: {error!s:.400}", defect="field") from error
    if problem := find_problem(mail):
        raise BadMailboxObject(f"{where}: field {problem}", defect="field")
    if mail.run != run:
        what = f"field 'run' is {mail.run!r:.100}; it must be the run whose folder contains the object"
        raise BadMailboxObject(f"{where}: {what}", defect="run")
    return _without_control_characters(mail)


def find_problem(mail: Any) -> str:
    """Return the first problem of what an external source has sent, starting with the field's name; "" if it is valid.

    `from_plain` leaves types to its caller. The run's record keeps parts of it, and must stay readable.
    """
    if problem := next(_find_problems(mail, LIMITS), ""):
        return problem
    try:
        loads(type(mail), dumps(mail))
    except BadRecord as error:
        return str(error)
    return ""


def _find_problems(mail: Any, limits: Mapping[str, int]) -> Iterator[str]:
    """Yield every violation of types and ranges: the objects may have been written by others."""
    for name in (f.name for f in fields(mail)):
        value = getattr(mail, name)
        if name == "abilities":
            if len(value) > ABILITIES_LIMIT or not all(
                isinstance(ability, str) and len(ability) <= 40 for ability in value
            ):
                yield f"'abilities' is {value!r:.60}; it must be at most {ABILITIES_LIMIT} words"
        elif name == "findings":
            if len(value) > FINDINGS_LIMIT:
                yield f"'findings' has {len(value)} entries; at most {FINDINGS_LIMIT} are read"
            yield from (f"'findings': {problem}" for finding in value for problem in _find_problems(finding, limits))
        elif value is None and name not in _REQUIRED:
            continue
        elif (kinds := _KINDS.get(name)) and (not isinstance(value, kinds) or isinstance(value, bool)):
            yield f"'{name}' is {value!r:.60}; it must be {_TYPE_NAMES[kinds]}"
        else:
            yield from _find_range_problems(name, value, limits.get(name, 128))


def _find_range_problems(name: str, value: Any, limit: int) -> Iterator[str]:
    if isinstance(value, str) and len(value) > limit:
        yield f"'{name}' has {len(value)} characters; at most {limit}"
    elif isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
        yield f"'{name}' is not valid text: it contains half of a surrogate pair"
    elif isinstance(value, datetime) and value.tzinfo is None:
        yield f"'{name}' has no time zone; write it as 2026-01-31T03:00:00+00:00"
    elif isinstance(value, datetime) and not EARLIEST <= value < LATEST:
        yield f"'{name}' is {value:%Y-%m-%d}; it must be a time between {EARLIEST:%Y} and {LATEST:%Y}"
    elif name in _NUMBERS and isinstance(value, int) and abs(value) >= 10**18:
        yield f"'{name}' is {value!r:.60}; the number is too large"
    elif name in _COUNTS and not 0 <= value < 10**18:
        yield f"'{name}' is {value!r:.60}; it must be a whole number, 0 or more"
    elif name == "rate" and not 0 < value <= RATE_LIMIT:
        yield f"'{name}' is {value!r:.60}; it must be a number above 0, at most {RATE_LIMIT}"


def _without_control_characters(mail: Any) -> Any:
    """Return the object with its texts made safe to show to people."""
    texts = {name: getattr(mail, name).translate(CONTROLS) for name in ("reason", "evidence") if hasattr(mail, name)}
    if isinstance(mail, Report):
        texts["findings"] = tuple(replace(f, evidence=f.evidence.translate(CONTROLS)[:QUOTED]) for f in mail.findings)
    return replace(mail, **texts)


_COUNTS = ("attempt", "step", "onset_step", "restart", "resume_step", "saved_by")
_NUMBERS = ("loss", "step_seconds", "tokens_per_s", "rate")
_KINDS: Mapping[str, Any] = {
    **dict.fromkeys(("id", "run", "job", "command", "path", "reason", "evidence", "skip_samples", "settings"), str),
    **dict.fromkeys(_COUNTS, int),
    **dict.fromkeys(("asked_at", "deadline", "at", "onset_at", "moved_at"), datetime),
    **dict.fromkeys(_NUMBERS, (int, float)),
}
# These must not be null, whatever their default.
_REQUIRED = (
    *("id", "run", "job", "attempt", "command", "path", "reason", "evidence", "asked_at"),
    *("restart", "skip_samples", "rate"),
)
_TYPE_NAMES: Mapping[Any, str] = {str: "text", int: "a whole number", datetime: "a time", (int, float): "a number"}
