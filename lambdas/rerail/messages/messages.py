"""Parse the messages on the supervisor's queue: job and alarm events, due runs, reports, and operator commands.

All messages are EventBridge envelopes. They are hints: only the names in them are trusted.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rerail.messages.cluster_events import ClusterEventReceived, is_hyperpod, read_hyperpod, require_object
from rerail.model.codec import BadRecord, from_plain
from rerail.model.errors import BadMailboxObject, BadMessage, ForgedMessage
from rerail.model.finding import Finding
from rerail.model.mailbox import find_problem, run_of_report
from rerail.model.run import JobStatus
from rerail.model.sample import STEP_LIMIT
from rerail.model.signals import OperatorVerb
from rerail.requests.relaunch import POLICY_TAG

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
RUN_STATE_CHANGE = "Rerail Run State Change"
WAKE = "Rerail Wake"
JOB_NAME = re.compile(r"(?!.{64})[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")
WORDS_LIMIT = 500
# The verb of the command about a job without a run: it was tagged after its start.
ADOPT = "adopt"
# The verb of an event that asks for nothing but a record of its arrival.
CHECK = "check"

DIGEST = re.compile(r"[0-9a-f]{64}")
CHECK_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class QueueMessage:
    """The times when a message was sent and first received, by the queue's clock."""

    sent_at: datetime
    received_at: datetime


@dataclass(frozen=True, slots=True)
class JobStateChanged:
    """The state of a job may have changed."""

    job_name: str
    # The job goes on, and the event names no policy: if it was found not to be supervised, it need not be asked again.
    is_routine: bool = False


@dataclass(frozen=True, slots=True)
class RunDue:
    """A run has to be evaluated."""

    run: str
    # The sweep could not list its checkpoints: the supervisor tries it too.
    lists: bool = False


@dataclass(frozen=True, slots=True)
class CommandReceived:
    """A command from an operator for a run."""

    # Distinguishes a repeated delivery from a second command.
    id: str
    run: str
    verb: OperatorVerb
    who: str
    why: str
    # For an approval or a denial: the id of the proposal.
    proposal: str = ""
    # For a rollback or a drill: the step to go back to.
    step: int | None = None
    # When the event bus accepted it; None: unknown.
    asked_at: datetime | None = None
    # For a continuation: the digest of the change in the mailbox, and the run's new policy, if any.
    change: str = ""
    policy: str = ""
    # For a stop or a restart: do not wait for a checkpoint.
    at_once: bool = False


@dataclass(frozen=True, slots=True)
class DeliveryCheck:
    """A test event: the supervisor records its arrival and does nothing else."""

    id: str


@dataclass(frozen=True, slots=True)
class FindingsReceived:
    """Findings of the sweep's detectors about a run's job."""

    run: str
    job_name: str
    findings: tuple[Finding, ...]
    # The first step that the job reported, if its script resumed by itself.
    first_step: int | None = None


@dataclass(frozen=True, slots=True)
class AlarmStateChanged:
    """A CloudWatch alarm on a metric of a job changed its state to `state`."""

    job_name: str
    alarm: str
    state: str
    reason: str
    # The namespace of the job's metric.
    namespace: str = ""
    # When it changed; None: unknown.
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ReportFiled:
    """An agent has stored a report in the mailbox, in the folder `run`."""

    run: str
    id: str
    key: str


@dataclass(frozen=True, slots=True)
class ClusterDue:
    """HyperPod has been repairing a part of a cluster for a long time."""

    cluster: str


@dataclass(frozen=True, slots=True)
class UnrelatedObject:
    """An object in the mailbox is not an agent's report, or an alarm names no training job; it is ignored."""

    why: str


ClusterMessage = ClusterEventReceived | ClusterDue
Message = (
    JobStateChanged
    | RunDue
    | CommandReceived
    | DeliveryCheck
    | FindingsReceived
    | AlarmStateChanged
    | ReportFiled
    | ClusterMessage
    | UnrelatedObject
)


def check_queue(message: Message, queue: str, *, commands: str) -> None:
    """Raise ForgedMessage for what is believed as it is, if it is from another queue than `commands` (both are ARNs).

    Only EventBridge may write to that queue. Other queues carry hints, signed reports and the sweep's findings.
    """
    believed = CommandReceived | AlarmStateChanged | DeliveryCheck | ClusterEventReceived
    if isinstance(message, believed) and queue != commands:
        raise ForgedMessage(
            f"a {type(message).__name__} is accepted from the queue of commands only, and came from {queue!r}"
        )


def parse_message(body: str) -> Message:
    """Return the message in a queue message's body. Raise BadMessage that names the field if it is malformed."""
    try:
        envelope = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"the message is not JSON: {error}") from error
    detail = require_object(require_object(envelope, "the message").get("detail"), "field 'detail'")
    match envelope.get("source"):
        case "aws.sagemaker" if is_hyperpod(envelope.get("detail-type")):
            return read_hyperpod(envelope, detail)
        case "aws.sagemaker":
            return JobStateChanged(_require_name(detail, "TrainingJobName"), _is_routine(detail))
        case "aws.cloudwatch":
            return _parse_alarm(envelope, detail)
        case "aws.s3":
            return _parse_report(envelope, detail)
        case "rerail.sweep" if "findings" in detail:
            return _parse_findings(detail)
        case "rerail.sweep" if "run" in detail:
            return RunDue(_require_name(detail, "run"), detail.get("lists") is True)
        case "rerail.sweep" if "cluster" in detail:
            return ClusterDue(_require_name(detail, "cluster"))
        case "rerail.sweep":
            return JobStateChanged(_require_name(detail, "job"))
        case "rerail.operator":
            return _parse_command(envelope, detail)
        case source:
            raise BadMessage(f"field 'source' is {source!r:.100}; it must be one of {', '.join(SOURCES)}")


def _is_routine(detail: Mapping[str, Any]) -> bool:
    tags = detail.get("Tags")
    names_policy = isinstance(tags, dict) and POLICY_TAG in tags
    return detail.get("TrainingJobStatus") == JobStatus.IN_PROGRESS and not names_policy


def _parse_command(
    envelope: Mapping[str, Any], detail: Mapping[str, Any]
) -> CommandReceived | JobStateChanged | DeliveryCheck:
    """Return an operator's command; one to adopt a job is a reason to look at that job, and no more."""
    verb = detail.get("verb")
    if verb == ADOPT:
        return JobStateChanged(_require_name(detail, "job"))
    if verb == CHECK:
        return DeliveryCheck(_require_match(detail, "check", CHECK_ID, "32 hexadecimal digits"))
    if verb not in list(OperatorVerb):
        verbs = ", ".join((*OperatorVerb, ADOPT, CHECK))
        raise BadMessage(f"field 'detail.verb' is {verb!r:.100}; it must be one of {verbs}")
    has_change = verb == OperatorVerb.CONTINUE and detail.get("change") != ""
    return CommandReceived(
        id=_require_text(envelope, "id"),
        run=_require_name(detail, "run"),
        verb=OperatorVerb(verb),
        who=_require_text(detail, "who"),
        why=_require_text(detail, "why", default=""),
        proposal=_require_text(detail, "proposal", default=""),
        step=_parse_step(detail, needed=verb == OperatorVerb.ROLLBACK),
        asked_at=_parse_event_time(envelope),
        change=_require_match(detail, "change", DIGEST, "a SHA-256 in hexadecimal") if has_change else "",
        policy=_require_text(detail, "policy", default=""),
        at_once=detail.get("at_once") is True,
    )


def _parse_event_time(envelope: Mapping[str, Any]) -> datetime | None:
    """Return when the event bus accepted the event, by AWS's clock, or None if the time is missing or malformed."""
    try:
        at = datetime.fromisoformat(str(envelope.get("time")))
    except ValueError:
        return None
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def _parse_step(detail: Mapping[str, Any], *, needed: bool) -> int | None:
    """Return the training step, or None if there is none and none is needed; raise BadMessage otherwise."""
    step = detail.get("step")
    if step is None and not needed:
        return None
    if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step < STEP_LIMIT:
        raise BadMessage(f"field 'detail.step' is {step!r:.60}; it must be a whole number, 0 or more")
    return step


def _parse_findings(detail: Mapping[str, Any]) -> FindingsReceived:
    findings = detail["findings"]
    try:
        read = tuple(from_plain(Finding, finding) for finding in findings)
    except (BadRecord, TypeError) as error:
        raise BadMessage(f"field 'detail.findings' cannot be read: {error}") from error
    if problem := next(filter(None, map(find_problem, read)), ""):
        raise BadMessage(f"field 'detail.findings' cannot be read: field {problem}")
    step = _parse_step({"step": detail.get("first_step")}, needed=False)
    return FindingsReceived(_require_name(detail, "run"), _require_name(detail, "job"), read, step)


def _parse_report(envelope: Mapping[str, Any], detail: Mapping[str, Any]) -> ReportFiled | UnrelatedObject:
    """Return the report named by the object's key; the bucket in the event is ignored, since the mailbox is known."""
    if envelope.get("detail-type") != FILED:
        raise BadMessage(f"field 'detail-type' is {envelope.get('detail-type')!r:.100}; it must be {FILED!r}")
    key = require_object(detail.get("object"), "field 'detail.object'").get("key")
    if not isinstance(key, str):
        raise BadMessage("field 'detail.object.key' must be text")
    try:
        run, id = run_of_report(key)
    except BadMailboxObject as error:
        return UnrelatedObject(str(error))
    return ReportFiled(run, id, key)


def _parse_alarm(envelope: Mapping[str, Any], detail: Mapping[str, Any]) -> AlarmStateChanged | UnrelatedObject:
    state = require_object(detail.get("state"), "field 'detail.state'")
    job_name, namespace = _find_alarmed_job(detail)
    if not job_name:  # the rule matches every alarm on a metric of hosts, of which most are other people's
        return UnrelatedObject("the alarm's metrics name no training job (dimension TrainingJobName or Host)")
    return AlarmStateChanged(
        job_name=job_name,
        alarm=_make_words(detail.get("alarmName", "")),
        state=str(state.get("value", "")),
        reason=_make_words(state.get("reason", "")),
        namespace=namespace,
        at=_parse_event_time(envelope),
    )


def _find_alarmed_job(detail: Mapping[str, Any]) -> tuple[str, str]:
    """Return the job in the alarm's metric dimensions, and the metric's namespace; "" where there is no job.

    The dimension is TrainingJobName, or Host in the form `<job>/algo-<n>`.
    """
    configuration = require_object(detail.get("configuration"), "field 'detail.configuration'")
    metrics = configuration.get("metrics")
    for metric in metrics if isinstance(metrics, list) else ():
        for part in ("metricStat", "metric"):
            metric = metric.get(part) if isinstance(metric, dict) else None
        dimensions = metric.get("dimensions") if isinstance(metric, dict) else None
        dimensions = dimensions if isinstance(dimensions, dict) else {}
        name = dimensions.get("TrainingJobName") or str(dimensions.get("Host", "")).partition("/")[0]
        if isinstance(name, str) and JOB_NAME.fullmatch(name):
            return name, str(metric.get("namespace", ""))[:WORDS_LIMIT]
    return "", ""


def _require_name(table: Mapping[str, Any], field: str) -> str:
    return _require_match(table, field, JOB_NAME, "the name of a training job or run")


def _require_match(detail: Mapping[str, Any], field: str, pattern: re.Pattern[str], what: str) -> str:
    value = detail.get(field)
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise BadMessage(f"field 'detail.{field}' is {value!r:.100}; it must be {what}")
    return value


def _require_text(table: Mapping[str, Any], field: str, *, default: str | None = None) -> str:
    value = table.get(field, default)
    if not isinstance(value, str) or len(value) > WORDS_LIMIT:
        raise BadMessage(f"field '{field}' must be text of at most {WORDS_LIMIT} characters")
    return _make_words(value)


def _make_words(value: Any) -> str:
    """Return the text to quote: its beginning, without lone surrogates, which AWS may refuse in each later notice."""
    return str(value)[:WORDS_LIMIT].encode(errors="replace").decode()
