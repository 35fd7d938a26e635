"""What a message on the queue asks for: a look at a job, a visit to a run, or an operator's command.

Messages are EventBridge envelopes, whoever sends them. They are hints: nothing in them is believed but names."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rerail.hyperpod.events import ClusterEventReceived, is_hyperpod, read_hyperpod
from rerail.model.codec import BadRecord, read_plain
from rerail.model.errors import BadMailboxObject, BadMessage
from rerail.model.finding import Finding
from rerail.model.mailbox import find_problem, run_of_report
from rerail.model.run import STEP_LIMIT
from rerail.model.signals import OperatorVerb

SAGEMAKER = "aws.sagemaker"
ALARMS = "aws.cloudwatch"
MAILBOX = "aws.s3"
OPERATOR = "rerail.operator"
SWEEP = "rerail.sweep"
RERAIL = "rerail"
COMMAND = "Rerail Command"
SOURCES = (SAGEMAKER, ALARMS, MAILBOX, SWEEP, OPERATOR)
FILED = "Object Created"
NOTICE = "Rerail Notice"
FOR_PAGER = "Rerail PagerDuty"
FOR_WEBHOOK = "Rerail Webhook"
WAKE = "Rerail Wake"
JOB_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")
WORDS_LIMIT = 500


@dataclass(frozen=True, slots=True)
class QueueMessage:
    """When a message was sent and when it was first received, both by the queue's clock."""

    sent_at: datetime
    received_at: datetime


@dataclass(frozen=True, slots=True)
class JobStateChanged:
    """Something happened to this job."""

    job_name: str


@dataclass(frozen=True, slots=True)
class RunDue:
    """Something is due for this run."""

    run: str


@dataclass(frozen=True, slots=True)
class CommandReceived:
    """An operator asks something of a run; `id` tells a repetition from a second wish, `proposal` is the one that a
    word of approval is about, `step` the one that a rollback or a drill goes back to, `asked_at` when the bus took it
    (None: nobody knows)."""

    id: str
    run: str
    verb: OperatorVerb
    who: str
    why: str
    proposal: str = ""
    step: int | None = None
    asked_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class FindingsReceived:
    """The sweep's detectors have something to say of a run's job."""

    run: str
    job_name: str
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class AlarmStateChanged:
    """A CloudWatch alarm on a metric of this job changed its state to `state`."""

    job_name: str
    alarm: str
    state: str
    reason: str


@dataclass(frozen=True, slots=True)
class ReportFiled:
    """An agent has left a report in the mailbox, in the folder `run`."""

    run: str
    id: str
    key: str


@dataclass(frozen=True, slots=True)
class ClusterDue:
    """HyperPod has been mending a part of this cluster for long."""

    cluster: str


@dataclass(frozen=True, slots=True)
class UnrelatedObject:
    """Somebody left an object in the mailbox that is none of the agents' reports: it is let lie."""

    why: str


ClusterMessage = ClusterEventReceived | ClusterDue
Message = (
    JobStateChanged
    | RunDue
    | CommandReceived
    | FindingsReceived
    | AlarmStateChanged
    | ReportFiled
    | ClusterMessage
    | UnrelatedObject
)


def parse_message(body: str) -> Message:
    """The wake-up in a message's body; raises BadMessage that names the field."""
    try:
        envelope = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"the message is not JSON: {error}") from error
    detail = _table(_table(envelope, "the message").get("detail"), "field 'detail'")
    match envelope.get("source"):
        case "aws.sagemaker" if is_hyperpod(envelope.get("detail-type")):
            return read_hyperpod(envelope, detail)
        case "aws.sagemaker":
            return JobStateChanged(_name(detail, "TrainingJobName"))
        case "aws.cloudwatch":
            return _alarm(detail)
        case "aws.s3":
            return _report(envelope, detail)
        case "rerail.sweep" if "findings" in detail:
            return _trouble(detail)
        case "rerail.sweep" if "run" in detail:
            return RunDue(_name(detail, "run"))
        case "rerail.sweep" if "cluster" in detail:
            return ClusterDue(_name(detail, "cluster"))
        case "rerail.sweep":
            return JobStateChanged(_name(detail, "job"))
        case "rerail.operator":
            return _command(envelope, detail)
        case source:
            raise BadMessage(f"field 'source' is {source!r:.100}; it must be one of {', '.join(SOURCES)}")


def _command(envelope: Mapping[str, Any], detail: Mapping[str, Any]) -> CommandReceived:
    verb = detail.get("verb")
    if verb not in list(OperatorVerb):
        raise BadMessage(f"field 'detail.verb' is {verb!r:.100}; it must be one of {', '.join(OperatorVerb)}")
    return CommandReceived(
        id=_words(envelope, "id"),
        run=_name(detail, "run"),
        verb=OperatorVerb(verb),
        who=_words(detail, "who"),
        why=_words(detail, "why", default=""),
        proposal=_words(detail, "proposal", default=""),
        step=_step(detail, needed=verb == OperatorVerb.ROLLBACK),
        asked_at=_taken_at(envelope),
    )


def _taken_at(envelope: Mapping[str, Any]) -> datetime | None:
    """When the bus took the event, by AWS's clock; an event without a readable time is worth its words all the same."""
    try:
        at = datetime.fromisoformat(str(envelope.get("time")))
    except ValueError:
        return None
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def _step(detail: Mapping[str, Any], *, needed: bool) -> int | None:
    """A step in training; None where none is named, and none is needed."""
    step = detail.get("step")
    if step is None and not needed:
        return None
    if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step < STEP_LIMIT:
        raise BadMessage(f"field 'detail.step' is {step!r:.60}; it must be a whole number, 0 or more")
    return step


def _trouble(detail: Mapping[str, Any]) -> FindingsReceived:
    findings = detail["findings"]
    try:
        read = tuple(read_plain(Finding, finding) for finding in findings)
    except (BadRecord, TypeError) as error:
        raise BadMessage(f"field 'detail.findings' cannot be read: {error}") from error
    if problem := next(filter(None, map(find_problem, read)), ""):
        raise BadMessage(f"field 'detail.findings' cannot be read: field {problem}")
    return FindingsReceived(_name(detail, "run"), _name(detail, "job"), read)


def _report(envelope: Mapping[str, Any], detail: Mapping[str, Any]) -> ReportFiled | UnrelatedObject:
    """Only the object's key: which bucket is the mailbox, we know ourselves."""
    if envelope.get("detail-type") != FILED:
        raise BadMessage(f"field 'detail-type' is {envelope.get('detail-type')!r:.100}; it must be {FILED!r}")
    key = _table(detail.get("object"), "field 'detail.object'").get("key")
    if not isinstance(key, str):
        raise BadMessage("field 'detail.object.key' must be text")
    try:
        run, id = run_of_report(key)
    except BadMailboxObject as error:
        return UnrelatedObject(str(error))
    return ReportFiled(run, id, key)


def _alarm(detail: Mapping[str, Any]) -> AlarmStateChanged:
    state = _table(detail.get("state"), "field 'detail.state'")
    return AlarmStateChanged(
        job_name=_alarmed_job(detail),
        alarm=str(detail.get("alarmName", ""))[:WORDS_LIMIT],
        state=str(state.get("value", "")),
        reason=str(state.get("reason", ""))[:WORDS_LIMIT],
    )


def _alarmed_job(detail: Mapping[str, Any]) -> str:
    """The job in the dimensions of the alarm's metrics: TrainingJobName, or Host, which is `<job>/algo-<n>`."""
    configuration = _table(detail.get("configuration"), "field 'detail.configuration'")
    metrics = configuration.get("metrics")
    for metric in metrics if isinstance(metrics, list) else ():
        dimensions = metric
        for part in ("metricStat", "metric", "dimensions"):
            dimensions = dimensions.get(part) if isinstance(dimensions, dict) else None
        dimensions = dimensions if isinstance(dimensions, dict) else {}
        name = dimensions.get("TrainingJobName") or str(dimensions.get("Host", "")).partition("/")[0]
        if isinstance(name, str) and JOB_NAME.fullmatch(name):
            return name
    raise BadMessage("field 'detail.configuration.metrics' names no training job (dimension TrainingJobName or Host)")


def _table(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise BadMessage(f"{name} must be a JSON object")
    return value


def _name(table: Mapping[str, Any], field: str) -> str:
    value = table.get(field)
    if not isinstance(value, str) or not JOB_NAME.fullmatch(value):
        raise BadMessage(f"field 'detail.{field}' is {value!r:.100}; it must be the name of a training job or run")
    return value


def _words(table: Mapping[str, Any], field: str, *, default: str | None = None) -> str:
    value = table.get(field, default)
    if not isinstance(value, str) or len(value) > WORDS_LIMIT:
        raise BadMessage(f"field '{field}' must be text of at most {WORDS_LIMIT} characters")
    return value
