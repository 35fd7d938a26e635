"""The mailbox between the supervisor and the agent in a running job: which objects there are, and what they say.

One bucket, one folder a run: `runs/<run>/command.json` (written by the supervisor alone: the newest wish, and which
attempt owns the run), `runs/<run>/heartbeat.json` (overwritten by the agent once a minute) and
`runs/<run>/reports/<id>.json` (one object for each thing that the agent has to say; never overwritten).
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from rerail.model.codec import BadRecord, plain, read_plain
from rerail.model.errors import BadMailboxObject
from rerail.model.finding import Finding
from rerail.model.liveness import Phase
from rerail.model.signatures import is_signed

SCHEMA = 1
SIZE_LIMIT = 64 * 1024
REPORT_KEY = re.compile(
    r"runs/(?P<run>[a-zA-Z0-9](?:-*[a-zA-Z0-9]){0,62})/reports/(?P<id>[a-zA-Z0-9][a-zA-Z0-9._-]{0,126})\.json"
)
LIMITS = {"reason": 500, "evidence": 48_000, "path": 1024, "skip_samples": 20_000}
FINDINGS_LIMIT = 20
ABILITIES_LIMIT = 10
RATE_LIMIT = 1_000
QUOTED = 1_000  # characters of a finding's evidence: it goes into notices
# Times that anybody can reckon with.
EARLIEST, LATEST = datetime(2000, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)
# Terminals and mail programs make something of these.
CONTROLS = {code: " " for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


class CommandKind(StrEnum):
    """What the supervisor asks of the attempt that it names."""

    TRAIN = "train"  # nothing but this: the attempt named here owns the run, older ones must not save any more
    CHECKPOINT = "checkpoint"  # save now, at a step that all ranks agree on, and report it
    RESTART = "restart"  # end the training processes and start them again, on all machines, in this very job


@dataclass(frozen=True, slots=True)
class Command:
    """The supervisor's newest wish; `id` comes back in the reports that answer it.

    The last four are those of a restart in place: its number within the attempt, from 1 on; the newest step to resume
    from (None: the newest that there is, 0: from the start); the samples to pass over, as `first-last,first-last`; and
    the factor on the learning rate.
    """

    id: str
    run: str
    attempt: int
    wish: CommandKind
    asked_at: datetime
    deadline: datetime | None = None
    reason: str = ""
    restart: int = 0
    resume_step: int | None = None
    skip_samples: str = ""
    rate: float = 1.0


class ReportKind(StrEnum):
    """What a report is about."""

    HELLO = "hello"  # an agent works in this attempt: it can be asked for checkpoints
    HEARD = "heard"  # the command has arrived; the ranks will agree on a step
    CHECKPOINT = "checkpoint"  # a checkpoint is committed
    REFUSED = "refused"  # the command cannot be granted; `reason` says why
    FINDINGS = "findings"  # the detectors, which the agent runs step by step, have something to say
    RESTARTED = "restarted"  # the training processes run again; with a step, when they have come to that one
    DAMAGED = "damaged"  # the files of a checkpoint do not match its manifest: it is not to be resumed from
    UNLOADED = "unloaded"  # a checkpoint could not be loaded this time, for whatever reason
    CRASHED = "crashed"  # they have died, the container waits a while for an order; `evidence` is the failure's text


class Ability(StrEnum):
    """What a script or its init can do beyond saving when it is asked to."""

    SKIP = "skip"  # passes over RERAIL_SKIP_SAMPLES
    RATE = "rate"  # multiplies its learning rate by RERAIL_LR_SCALE
    RESTART = "restart"  # its training processes can be restarted in place


class Durability(StrEnum):
    """Where a committed checkpoint lies."""

    LOCAL = "local"  # on the machine's disk, from where SageMaker copies it to S3 in its own time
    REMOTE = "remote"  # in S3 or on a shared file system: it survives the machine


@dataclass(frozen=True, slots=True)
class Report:
    """One thing that the agent has to say; `command` is the id of the command that it answers, if it answers one.

    `step` is the step that was saved, `path` the folder of the checkpoint, `evidence` text for people (stacks);
    a hello names the script's `abilities` (see Ability). `restart` is the number of the restart in place that the
    processes which say so owe their lives to, 0 for the job's own start; `saved_by` is the attempt that saved the
    checkpoint of which a report says that it is damaged. `sealed` is for the reader to say, whatever is written there:
    it carries the seal of the run's key.
    """

    id: str
    run: str
    attempt: int
    job: str
    told: ReportKind
    at: datetime
    command: str = ""
    step: int | None = None
    durability: Durability | None = None
    path: str = ""
    reason: str = ""
    findings: tuple[Finding, ...] = ()
    evidence: str = ""
    abilities: tuple[str, ...] = ()
    restart: int = 0
    saved_by: int | None = None
    sealed: bool = False


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
    restart: int = 0


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
    """The run and the report's id in an object key; raises BadMailboxObject for any other object."""
    match = REPORT_KEY.fullmatch(key)
    if not match:
        raise BadMailboxObject(f"object {key[:200]!r}: not a report; those are runs/<run>/reports/<id>.json")
    return match["run"], match["id"]


def write(mail: Command | Report | Heartbeat) -> bytes:
    """The object's content."""
    return json.dumps({"schema": SCHEMA, **plain(mail)}, separators=(",", ":"), allow_nan=False).encode()


def read_command(text: bytes, *, run: str) -> Command:
    """The command in the mailbox of a run; raises BadMailboxObject."""
    command: Command = _read(Command, text, run=run)
    return command


def read_report(text: bytes, *, run: str, id: str, seal_key: str = "") -> Report:
    """The report of this id in the mailbox of a run, and whether this key has sealed it; raises BadMailboxObject."""
    is_of_the_run = is_signed(text, name=report_key(run, id), key=seal_key)
    report: Report = replace(_read(Report, text, run=run), sealed=is_of_the_run)
    if report.id != id:
        what = f"field 'id' is {report.id[:100]!r}, but the object is called {id!r}"
        raise BadMailboxObject(f"mail for run {run}: {what}", defect="id")
    return report


def read_heartbeat(text: bytes, *, run: str) -> Heartbeat:
    """The heartbeat of a run; raises BadMailboxObject."""
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
        mail = read_plain(cls, table)
    except (BadRecord, TypeError, ValueError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise BadMailboxObject(f"{where}: {error!s:.400}", defect="field") from error
    if problem := next(_problems(mail, LIMITS), None):
        raise BadMailboxObject(f"{where}: field {problem}", defect="field")
    if mail.run != run:
        what = f"field 'run' is {mail.run!r:.100}; it must be the run whose folder the object lies in"
        raise BadMailboxObject(f"{where}: {what}", defect="run")
    return _legible(mail)


def find_problem(finding: Finding) -> str:
    """What is wrong with a finding that came from elsewhere, with its field's name in front; nothing for a sound one.

    The codec reads fields into their places and does not look at what they hold."""
    return next(_problems(finding, LIMITS), "")


def _problems(mail: Any, limits: Mapping[str, int]) -> Iterator[str]:
    """The types and ranges that a reader relies on: what stands in the bucket was not necessarily written by us."""
    for name in (f.name for f in fields(mail)):
        value = getattr(mail, name)
        if name == "abilities":
            if len(value) > ABILITIES_LIMIT or not all(isinstance(each, str) and len(each) <= 40 for each in value):
                yield f"'abilities' is {value!r:.60}; it must be at most {ABILITIES_LIMIT} words"
        elif name == "findings":
            if len(value) > FINDINGS_LIMIT:
                yield f"'findings' has {len(value)} entries; at most {FINDINGS_LIMIT} are read"
            yield from (f"'findings': {problem}" for finding in value for problem in _problems(finding, limits))
        elif value is None and name not in _REQUIRED:
            continue
        elif (kinds := _KINDS.get(name)) and (not isinstance(value, kinds) or isinstance(value, bool)):
            yield f"'{name}' is {value!r:.60}; it must be {_SPOKEN[kinds]}"
        else:
            yield from _out_of_range(name, value, limits.get(name, 128))


def _out_of_range(name: str, value: Any, limit: int) -> Iterator[str]:
    if isinstance(value, str) and len(value) > limit:
        yield f"'{name}' has {len(value)} characters; at most {limit}"
    elif isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
        yield f"'{name}' is no text: it holds half a character"
    elif isinstance(value, datetime) and value.tzinfo is None:
        yield f"'{name}' has no time zone; write it as 2026-01-31T03:00:00+00:00"
    elif isinstance(value, datetime) and not EARLIEST <= value < LATEST:
        yield f"'{name}' is {value:%Y-%m-%d}; it must be a time between {EARLIEST:%Y} and {LATEST:%Y}"
    elif name in _NUMBERS and isinstance(value, int) and abs(value) >= 10**18:
        yield f"'{name}' is {value!r:.60}; that is too great a number"
    elif name in _COUNTS and not 0 <= value < 10**18:
        yield f"'{name}' is {value!r:.60}; it must be a whole number, 0 or more"
    elif name == "rate" and not 0 < value <= RATE_LIMIT:
        yield f"'{name}' is {value!r:.60}; it must be a number above 0, at most {RATE_LIMIT}"


def _legible(mail: Any) -> Any:
    """The mail with its texts as people may be shown them."""
    words = {name: getattr(mail, name).translate(CONTROLS) for name in ("reason", "evidence") if hasattr(mail, name)}
    if isinstance(mail, Report):
        words["findings"] = tuple(replace(f, evidence=f.evidence.translate(CONTROLS)[:QUOTED]) for f in mail.findings)
    return replace(mail, **words)


_COUNTS = ("attempt", "step", "onset_step", "restart", "resume_step", "saved_by")
_NUMBERS = ("loss", "step_seconds", "tokens_per_s", "rate")
_KINDS: Mapping[str, Any] = {
    **dict.fromkeys(("id", "run", "job", "command", "path", "reason", "evidence", "skip_samples"), str),
    **dict.fromkeys(_COUNTS, int),
    **dict.fromkeys(("asked_at", "deadline", "at", "onset_at", "moved_at"), datetime),
    **dict.fromkeys(_NUMBERS, (int, float)),
}
# Whatever their default, these may not be null.
_REQUIRED = (
    *("id", "run", "job", "attempt", "command", "path", "reason", "evidence", "asked_at"),
    *("restart", "skip_samples", "rate"),
)
_SPOKEN: Mapping[Any, str] = {str: "text", int: "a whole number", datetime: "a time", (int, float): "a number"}
