"""What is read of texts: messages, mail, records, policies, manifests, failures, metric lines, notices."""

import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from rerail.decisions.adoption import Adopted, AdoptionRefused, adopt
from rerail.decisions.reconcile import read_claim
from rerail.detection.evaluate import RunDetection
from rerail.diagnosis.classify import diagnose
from rerail.hyperpod.clusters import ClusterMonitor, ClusterRecord
from rerail.messages.cluster_events import ClusterEventReceived
from rerail.messages.messages import parse_message
from rerail.model.actions import CreateJob
from rerail.model.checkpoints import read_manifest
from rerail.model.codec import loads
from rerail.model.errors import RerailError, UnknownPolicy
from rerail.model.machines import read_fallback
from rerail.model.mailbox import read_command, read_heartbeat, read_report
from rerail.model.metrics import make_definitions
from rerail.model.notice import Notice
from rerail.model.policy import parse_policy, to_toml
from rerail.model.run import Job, JobStatus, Run, TimelineEntry
from rerail.model.skipped_samples import parse_ranges
from rerail.notices.notice import format_detail, read_detail
from rerail.notices.notifiers.chat import format_chat
from rerail.notices.notifiers.email import format_subject, format_text
from rerail.notices.notifiers.links import NoticeOrigin, make_links
from rerail.notices.notifiers.pagerduty import format_pagerduty
from rerail.notices.notifiers.webhook import format_webhook
from rerail.orchestration.waits import ARN_LIMIT, TOKEN_LIMIT, find_problem
from rerail.orchestration.waits import read_message as read_callback
from rerail.requests.relaunch import make_request, rebuild
from rerail.supervisor.pause import parse_pause

LONGEST_MESSAGE, AGAIN = 2_000, 500
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
SIZES = {"model.pt": 100, "optimizer.pt": 200}
NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
FIELD = re.compile(r"([a-z_]+)=(\S*)")
PATTERNS = {definition["Name"]: re.compile(definition["Regex"]) for definition in make_definitions()}


def clearly(read: Callable[[bytes], object], *errors: type[Exception]) -> Callable[[bytes], None]:
    """A parser that may answer, or raise one of our errors (or of these) with one clear line; all else is a defect."""
    known: tuple[type[Exception], ...] = (RerailError, *errors)

    def reads(data: bytes) -> None:
        try:
            read(data)
        except known as error:
            check(str(error))

    return reads


def value(read: Callable[[bytes], object]) -> Callable[[bytes], None]:
    """A parser that says what is wrong with a ValueError, which its one caller turns into an error of ours."""
    return clearly(read, ValueError)


def check(message: str) -> None:
    """An error that can be shown: words, of a length that one reads, on one line, in characters that can be written."""
    assert message.strip(), "an error without a word"
    assert len(message) <= LONGEST_MESSAGE, f"an error of {len(message)} characters: {message[:100]!r}"
    assert "\n" not in message, f"an error of several lines: {message[:100]!r}"
    message.encode()


def text_of(data: bytes) -> str:
    """As a text arrives: what is no UTF-8 was replaced on the way."""
    return data.decode(errors="replace")


def message(data: bytes) -> None:
    """A message of the supervisor's queue, of whichever source."""
    parse_message(text_of(data))


def callback(data: bytes) -> None:
    """A message of a pipeline's callback step: what is kept of it is bounded, and names a job or says why not."""
    received = read_callback(text_of(data), at=NOON)
    if received:
        check(find_problem(received.wait) or received.wait.job)
        assert len(received.wait.token) <= TOKEN_LIMIT
        assert len(received.wait.execution) <= ARN_LIMIT


def report(data: bytes) -> None:
    """An agent's report, as the supervisor reads it."""
    read_report(data, run="gpt", id="r1")


def heartbeat(data: bytes) -> None:
    """An agent's heartbeat, as the sweep reads it."""
    read_heartbeat(data, run="gpt")


def command(data: bytes) -> None:
    """The supervisor's command, as an agent reads it."""
    read_command(data, run="gpt")


def manifest(data: bytes) -> None:
    """A checkpoint's manifest, as the supervisor reads it."""
    read_manifest(data, uri="s3://b/p/", sizes=SIZES)


def policy(data: bytes) -> None:
    """A policy's text; what can be read can be deployed, and is read back unchanged."""
    found = parse_policy(text_of(data), name="fuzzed")
    assert parse_policy(to_toml(found), name="fuzzed") == found, "a policy that is not the same when it is deployed"


def pause(data: bytes) -> None:
    """The pause's parameter."""
    parse_pause(text_of(data))


def stored_run(data: bytes) -> None:
    """A run's record, as any version may have left it."""
    loads(Run, text_of(data))


def stored_memory(data: bytes) -> None:
    """What the detectors and the HyperPod watch remember, and the timeline."""
    text = text_of(data)
    for kind in (RunDetection, ClusterRecord, TimelineEntry):
        clearly(lambda _, kind=kind: loads(kind, text))(data)  # type: ignore[misc]


def failure(data: bytes) -> None:
    """A FailureReason or a failure file: it is always diagnosed."""
    text = text_of(data)
    found = diagnose(text)
    if len(text) < AGAIN:
        assert diagnose(text).fingerprint == found.fingerprint, "two reports of one error differ"
    check(found.evidence or "none")


def fallback(data: bytes) -> None:
    """A policy's other machines."""
    read_fallback(text_of(data))


def ranges(data: bytes) -> None:
    """Samples to pass over."""
    parse_ranges(text_of(data))


def metric_line(data: bytes) -> None:
    """A line of a job's log under our MetricDefinitions: what they find is a number that stands there, and no part of
    one, and what stands there is found."""
    for line in text_of(data).splitlines():
        there = set(_fields(line))
        for name, pattern in PATTERNS.items():
            found = set(pattern.findall(line))
            said = {value for key, value in there if key == name and _is_value(name, value)}
            assert found <= said, f"{name} is read as {sorted(found - said)[0]:.40}, which is not there"
            assert bool(found) == bool(said), f"{name} is there and not read"


def _fields(line: str) -> Iterator[tuple[str, str]]:
    """The fields of our line in a line, read without the expressions that are put to the test."""
    for begin in re.finditer(r"\brerail ", line):
        position = begin.end()
        while match := FIELD.match(line, position):
            yield match[1], match[2]
            position = match.end() + 1
            if line[match.end() : position] != " ":
                break


def _is_value(name: str, value: str) -> bool:
    match name:
        case "step":
            return re.fullmatch("[0-9]+", value) is not None
        case "nonfinite":
            return value in ("0", "1")
        case _:
            return NUMBER.fullmatch(value) is not None


def notice(data: bytes) -> None:
    """An event on the bus `rerail`, as `notify` reads it, rendered for each of its readers."""
    if (detail := table_of(data)) is not None:
        check_renderings(read_detail(detail))


def table_of(data: bytes) -> dict[str, Any] | None:
    """The JSON object, where whoever hands it over has parsed it already; None for what would not be handed over."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def check_renderings(notice: Notice) -> None:
    """Every rendering of a notice can be sent."""
    links = make_links(notice, NoticeOrigin("111122223333", "eu-west-1", "https://docs.example.com"))
    format_subject(notice).encode("ascii")
    format_text(notice, links).encode()
    for render in (format_chat, format_pagerduty, format_webhook):
        json.dumps(render(notice, links))


class _Policies:
    """Two policies, and none else."""

    def get(self, name: str) -> Any:
        if name not in ("default", "night"):
            raise UnknownPolicy(f"no policy {name!r} is deployed")
        return parse_policy("", name=name)


def tags(data: bytes) -> None:
    """A job's tags and description, as enrolment reads them, and the request of its successor."""
    found = table_of(data)
    if found is None or not isinstance(found.get("Tags"), dict):
        return
    named = {key: value for key, value in found["Tags"].items() if isinstance(value, str)}
    read_claim("gpt-a002", named)
    job = Job("gpt", "arn", JobStatus.IN_PROGRESS, "Training", NOON, training_started_at=NOON)
    match adopt(job, {}, named, _Policies(), taken=False, at=NOON + timedelta(minutes=1)):
        case AdoptionRefused() as refused:
            check(refused.reason)
        case Adopted() as enrolled:
            check(enrolled.reason)
            _launched_again(enrolled.run, named)


def _launched_again(run: Run, named: dict[str, str]) -> None:
    request = rebuild({"TrainingJobName": "gpt"}, named, members=("TrainingJobName", "Tags"))
    json.dumps(make_request(request, CreateJob("gpt-a002", 2, 100), run=run.id))


@cache
def _clusters() -> Any:
    from tests.fakes import World

    return World


def cluster_event(data: bytes) -> None:
    """An event of HyperPod, as far as the notice that people get of it."""
    message = parse_message(text_of(data))
    if not isinstance(message, ClusterEventReceived):
        return
    world = _clusters()()
    watch: ClusterMonitor = world.hyperpod_watch()
    watch.handle(message)
    world.clock.pass_by(timedelta(hours=3))
    watch.handle(message)
    list(world.hyperpods.waiting())
    for notice in world.bus.notices:
        check_renderings(read_detail(json.loads(json.dumps(format_detail(notice)))))
