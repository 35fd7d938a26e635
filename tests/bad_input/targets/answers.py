"""What AWS answers, as the adapters read it: bytes on the wire, through the real SDK, from no network at all.

An answer may be whatever a newer or a broken service says. It may cost us the one thing that was asked about; it must
not keep the sweep from any other run, and must not stop a job."""

import base64
import json
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from io import BytesIO
from typing import Any
from zlib import crc32

from botocore.awsrequest import AWSResponse
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from rerail.aws import clients
from rerail.aws.cloudwatch import CloudWatchSeries
from rerail.aws.detector_states import DynamoDetections
from rerail.aws.dynamodb import DynamoRuns
from rerail.aws.eventbridge import EventBus
from rerail.aws.hyperpod import DynamoClusters
from rerail.aws.logs import CloudWatchLogs
from rerail.aws.mailbox import S3Mailbox
from rerail.aws.rate_limit import DynamoRateLimit
from rerail.aws.s3 import S3Checkpoints
from rerail.aws.sagemaker import SageMakerJobs
from rerail.aws.sns import SnsTopics
from rerail.aws.sqs import SqsQueue
from rerail.aws.ssm import SsmPause, SsmPolicies
from rerail.detection.evaluate import Monitor
from rerail.messages.messages import JobStateChanged, RunDue
from rerail.model.actions import QuarantineCheckpoints, Severity
from rerail.model.errors import RerailError
from rerail.model.metrics import MetricNames, make_queries
from rerail.model.notice import Notice
from rerail.model.rate_limit import LaunchRequest
from rerail.model.run import JobStatus
from rerail.notices.notifiers.links import Links
from rerail.supervisor.supervisor import Supervisor
from rerail.sweep.sweep import Sweep
from tests.bad_input.targets.parsers import check
from tests.fakes import FakeMemories, FakeSeries, World

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
SERVICES: tuple[str, ...] = (
    *("sagemaker", "cloudwatch", "dynamodb", "ssm", "s3", "logs", "events", "sqs", "sns", "sts", "iam", "lambda"),
    *("service-quotas", "cloudformation", "scheduler", "kms"),
)
LAST_MODIFIED = "Sat, 31 Jan 2026 12:00:00 GMT"
# One answer in so many is a refusal with these words.
REFUSED_IN = 8
Handler = Callable[[str, Any], bytes]


@dataclass
class Wire:
    """What comes back, by the name of the operation; `status` is HTTP's for those that `says` names."""

    responses: dict[str, bytes] = field(default_factory=dict)
    status: int = 200
    otherwise: tuple[int, bytes] = 200, b"{}"

    def answer(self, request: Any, event_name: str, **_: Any) -> AWSResponse:
        """In place of the network."""
        operation = event_name.rpartition(".")[2]
        status, body = (self.status, self.responses[operation]) if operation in self.responses else self.otherwise
        headers = {"content-length": str(len(body)), "last-modified": LAST_MODIFIED, "etag": '"e"'}
        return AWSResponse(request.url, status, headers, _Raw(body))


class _Raw(BytesIO):
    """As urllib3 hands a body over."""

    def stream(self, *_: Any, **__: Any) -> Iterator[bytes]:
        """The whole of it."""
        yield self.read()


WIRE = Wire()


@cache
def ready() -> None:
    """Clients of nobody's account, which ask once and reach nothing."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        os.environ[name] = "fuzzing"
    os.environ["AWS_DEFAULT_REGION"] = "eu-west-1"
    for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_SESSION_TOKEN"):
        os.environ.pop(name, None)
    clients.CONFIG = Config(retries={"total_max_attempts": 1}, parameter_validation=False)
    clients.client.cache_clear()
    for service in SERVICES:
        clients.client(service).meta.events.register("before-send", WIRE.answer)


def answered(data: bytes, *operations: str) -> None:
    """From now on these operations answer so; now and then they refuse with it."""
    ready()
    chance = crc32(data)
    refused = chance % REFUSED_IN == 0
    WIRE.status = (400, 403, 404, 500, 503)[chance // REFUSED_IN % 5] if refused else 200
    WIRE.responses = dict.fromkeys(operations, data)


def clearly(ask: Callable[[], object]) -> bool:
    """Whether it was answered; our own errors, AWS's and the SDK's are answers too, if they are clear."""
    try:
        ask()
    except (RerailError, ClientError, BotoCoreError, RuntimeError) as error:
        check(" ".join(str(error).split()))
        return False
    return True


# ---------------------------------------------------------------------- a sweep of several runs


@cache
def _world() -> World:
    """A run that trains, and another whose job has failed a moment ago, so that something is due for it."""
    from copy import deepcopy

    world = World().with_saves().adopt("bert", uri="s3://bucket/bert/")
    world.minutes(2)
    world.sagemaker.fail("bert", "InternalServerError: We encountered an internal error.")
    return deepcopy(world)


class _Asked:
    """SageMaker, which answers over the wire where it is asked of these jobs."""

    def __init__(self, world: World, *jobs: str) -> None:
        self._fake, self._wire, self._jobs = world.sagemaker, SageMakerJobs(), jobs

    def describe(self, job_name: str) -> Any:
        return (self._wire if job_name in self._jobs else self._fake).describe(job_name)

    def tags(self, arn: str) -> Mapping[str, str]:
        return self._wire.tags(arn) if "Tags" in WIRE.responses.get("ListTags", b"").decode(errors="replace") else {}

    def changed_since(self, time: datetime) -> Any:
        return (
            self._wire.changed_since(time) if "ListTrainingJobs" in WIRE.responses else self._fake.changed_since(time)
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fake, name)


def _supervisor(world: World, jobs: Any, runs: Any = None) -> Supervisor:
    return Supervisor(
        runs=runs or world.runs,
        jobs=jobs,
        checkpoints=world.checkpoints,
        policies=world.policies,
        bus=world.bus,
        mailbox=world.mailbox,
        rate_limit=world.rate_limit,
        clock=world.clock,
    )


def _swept(world: World, *, jobs: Any = None, runs: Any = None, memories: Any = None, strict: bool = True) -> None:
    """A round is made, and sees the run that needs it, whatever was said of the other."""
    each = Sweep(
        runs or world.runs,
        jobs or world.sagemaker,
        world.checkpoints,
        world.policies,
        Monitor(FakeSeries(), memories or FakeMemories()),
        world.mailbox,
        world.queue,
        world.clock,
    )
    made = clearly(each.run)
    due = [message.get("run") for message in world.queue.waiting]
    assert "bert" in due, "a run that needs the supervisor was passed over for what was said of another"
    assert made or not strict, "the round was not finished for what was said of one run"
    assert world.sagemaker.jobs["gpt"].status is JobStatus.IN_PROGRESS, "a healthy job was stopped"


def _copy() -> World:
    from copy import deepcopy

    return deepcopy(_world())


def described(data: bytes) -> None:
    """DescribeTrainingJob, for a run in training and for a job that is heard of first."""
    answered(data, "DescribeTrainingJob")
    world = _copy()
    jobs = _Asked(world, "gpt", "new")
    _swept(world, jobs=jobs)
    clearly(lambda: _supervisor(world, jobs).handle(RunDue("gpt")))
    WIRE.responses["ListTags"] = b'{"Tags": [{"Key": "rerail:policy", "Value": "default"}]}'
    clearly(lambda: _supervisor(world, jobs).handle(JobStateChanged("new")))
    assert world.sagemaker.jobs["gpt"].status is JobStatus.IN_PROGRESS, "a healthy job was stopped"


def tagged(data: bytes) -> None:
    """ListTags, for a job that is heard of first."""
    answered(data, "ListTags")
    clearly(lambda: SageMakerJobs().tags("arn"))
    world = _copy()
    world.sagemaker.submit("new")
    clearly(lambda: _supervisor(world, _Asked(world)).handle(JobStateChanged("new")))


def listed(data: bytes) -> None:
    """ListTrainingJobs, within a round."""
    answered(data, "ListTrainingJobs")
    world = _copy()
    _swept(world, jobs=_Asked(world), strict=False)


def refused(data: bytes) -> None:
    """The refusal of a launch, a stop and a release."""
    answered(data, "CreateTrainingJob", "StopTrainingJob", "UpdateTrainingJob", "DescribeTrainingJob")
    WIRE.status = (400, 500)[crc32(data) % 2]
    clearly(lambda: SageMakerJobs().create({"TrainingJobName": "gpt-a002"}))
    clearly(lambda: SageMakerJobs().stop("gpt"))
    clearly(lambda: SageMakerJobs().release_warm_pool("gpt"))


# ---------------------------------------------------------------------- metrics, logs, policies


def metrics(data: bytes) -> None:
    """GetMetricData, of three series of one job."""
    answered(data, "GetMetricData")
    asked = make_queries("gpt", MetricNames())

    def read() -> None:
        found = CloudWatchSeries().read(asked, NOON - timedelta(minutes=5), NOON, timedelta(minutes=1))
        for points in found.values():
            assert all(isinstance(at, datetime) and isinstance(value, float) for at, value in points), points
            assert list(points) == sorted(points)

    clearly(read)


def logs(data: bytes) -> None:
    """DescribeLogStreams and GetLogEvents."""
    streams, _, events = data.partition(b"\n\n")
    answered(streams, "DescribeLogStreams")
    WIRE.responses["GetLogEvents"] = events
    clearly(lambda: CloudWatchLogs().tail("gpt", until=NOON, lines=20))
    clearly(lambda: CloudWatchLogs().whole("gpt", pages=5))


def parameters(data: bytes) -> None:
    """GetParameter, for a policy and for the pause."""
    answered(data, "GetParameter")
    clearly(lambda: SsmPolicies("/rerail/policies", lambda: NOON).get("default"))
    SsmPause("/rerail/switch", lambda: NOON).is_paused()


# ---------------------------------------------------------------------- the table


def stored(data: bytes) -> None:
    """Query and GetItem: runs as the table holds them, read by a round and by the supervisor."""
    world = _copy()
    items = [{"pk": {"S": f"run#{name}"}, "doc": {"S": world.runs.records[name]}} for name in ("bert",)]
    answered(_with_text(data, more=items), "Query", "GetItem")
    runs = _Stored(world)
    named: list[Any] = []
    if clearly(lambda: named.extend(runs.open_runs((0,)))) and "bert" in dict(named):
        _swept(world, runs=runs)
    clearly(lambda: _supervisor(world, world.sagemaker, runs).handle(RunDue("gpt")))
    clearly(lambda: runs.timeline("gpt"))
    assert world.sagemaker.jobs["gpt"].status is JobStatus.IN_PROGRESS, "a healthy job was stopped"


class _Stored(DynamoRuns):
    """The table over the wire, of which only reading is put to the test."""

    def __init__(self, world: World) -> None:
        super().__init__("Runs")
        self._world = world

    def save(self, *_: Any) -> None:
        """Nothing is kept."""

    def find_unknown_jobs(self, job_names: Any) -> set[str]:
        return set()

    def open_runs(self, parts: Any = (0,)) -> Iterator[Any]:
        """One part is as good as all of them."""
        if 0 in parts:
            yield from super().open_runs((0,))


def remembered(data: bytes) -> None:
    """BatchGetItem, Query and GetItem: what detectors, clusters and the brake remember."""
    answered(_with_text(data, packed=True), "BatchGetItem", "Query", "GetItem")
    clearly(lambda: DynamoDetections("Runs").recall(["gpt", "bert"]))
    clearly(lambda: list(DynamoClusters("Runs").waiting()))
    clearly(lambda: DynamoClusters("Runs").recall("cluster"))
    clearly(lambda: DynamoRateLimit("Runs").admit(LaunchRequest("gpt"), at=NOON, limit=3, window=timedelta(hours=1)))
    _swept(_copy(), memories=DynamoDetections("Runs"), strict=WIRE.status == 200)


def _with_text(data: bytes, *, more: list[Any] | None = None, packed: bool = False) -> bytes:
    """The answer with its records as the texts that they are in the table, and with items that nobody has changed."""
    try:
        table = json.loads(data)
    except (ValueError, RecursionError):
        return data
    if not isinstance(table, dict):
        return data
    rows = [row for name in ("Items", "Item") for row in _rows(table.get(name))]
    responses = _rows(table.get("Responses"))
    rows += [row for response in responses for items in response.values() for row in _rows(items)]
    for row in rows:
        doc = row.get("doc")
        for kind in ("S", "B"):
            if isinstance(doc, dict) and isinstance(doc.get(kind), dict):
                text = json.dumps(doc[kind])
                doc[kind] = base64.b64encode(zlib.compress(text.encode())).decode() if kind == "B" else text
    if more and isinstance(table.get("Items"), list):
        table["Items"] += more
    return json.dumps(table).encode()


def _rows(found: Any) -> list[dict[str, Any]]:
    return [row for row in (found if isinstance(found, list) else [found]) if isinstance(row, dict)]


# ---------------------------------------------------------------------- S3


def folder(data: bytes) -> None:
    """ListObjectsV2 and GetObject: a checkpoint folder, its manifests and pointers."""
    listing, _, manifest = data.partition(b"\n\n")
    answered(listing, "ListObjectsV2", "ListObjects")
    WIRE.responses["GetObject"] = manifest
    found = S3Checkpoints(lambda bucket: _Still())  # type: ignore[arg-type, return-value]

    def look() -> None:
        for checkpoint in found.list_checkpoints("s3://bucket/gpt/"):
            assert checkpoint.step >= 0 and checkpoint.saved_at.tzinfo

    clearly(look)
    action = QuarantineCheckpoints("gpt", 2, "s3://bucket/gpt/", 100, NOON, saved_after=NOON.replace(year=1970))
    clearly(lambda: found.quarantine(action, lambda: None))


class _Still:
    """Moves nothing."""

    def move(self, moves: Any) -> None:
        """What would be moved stays within the bucket."""
        assert all(move.target.startswith("rerail-quarantine/") for move in moves)


def mail(data: bytes) -> None:
    """GetObject: a heartbeat and a report of a job, read by a round."""
    answered(data, "GetObject")
    mailbox = S3Mailbox("mailbox")
    found = mailbox.heartbeats(["gpt", "bert"])
    assert len(found.received) + len(found.unread) in (0, 2)
    clearly(lambda: mailbox.report("runs/gpt/reports/r1.json"))


# ---------------------------------------------------------------------- what is sent


def taken(data: bytes) -> None:
    """PutEvents, SendMessageBatch and Publish: whether what we have sent was taken."""
    answered(data, "PutEvents", "SendMessageBatch", "Publish", "PutObject", "TransactWriteItems")
    notice = Notice("gpt", Severity.PAGE, "title", "body", "key", at=NOON)
    clearly(lambda: EventBus("rerail").publish(notice))
    clearly(lambda: SqsQueue("https://sqs/1/signals").wake([{"run": "gpt"}], at=NOON))
    clearly(lambda: SnsTopics({Severity.PAGE: "arn:aws:sns:eu-west-1:1:page"}).publish(notice, Links()))
    clearly(lambda: DynamoRuns("Runs").save(_world().run("gpt")))
