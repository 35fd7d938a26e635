"""Fakes of the core's ports: SageMaker with its rules, a table with its conditions, a clock."""

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from statistics import fmean
from typing import Any

from rerail.decisions.quarantine import QuarantineMove, list_replaced_files
from rerail.detection.evaluate import Monitor, RunDetection
from rerail.hyperpod.clusters import ClusterMonitor, ClusterRecord
from rerail.messages.messages import SWEEP, ClusterMessage, CommandReceived, JobStateChanged, ReportFiled, parse_message
from rerail.model.actions import CopyCheckpoint, QuarantineCheckpoints, Severity
from rerail.model.checkpoint_layouts import UNKNOWN_STEP, Layout, StoredObject, list_save_times
from rerail.model.checkpoints import Checkpoint
from rerail.model.codec import dumps, loads
from rerail.model.errors import (
    ActionUnfinished,
    BadMailboxObject,
    CapacityRefused,
    CommandNotStored,
    Conflict,
    JobExists,
    JobNotFound,
    QuarantineFailed,
    RequestRefused,
    Throttled,
    UnknownPolicy,
)
from rerail.model.file_copies import FileCopy
from rerail.model.finding import Finding
from rerail.model.liveness import Phase
from rerail.model.machines import read_cluster
from rerail.model.mailbox import (
    Command,
    CommandKind,
    Durability,
    Heartbeat,
    Report,
    ReportKind,
    make_change_key,
    make_command_key,
    make_heartbeat_key,
    make_report_key,
    read_command,
    read_heartbeat,
    read_report,
    require_digest,
    run_of_report,
    serialize,
)
from rerail.model.metrics import MetricQuery, Points, Statistic
from rerail.model.notice import Notice
from rerail.model.partitions import PARTITIONS, find_partition
from rerail.model.policy import Ladder, Notices, Policy
from rerail.model.rate_limit import Admission, Launches, LaunchRequest, admit, claim_adoption_notice, claim_page
from rerail.model.run import Job, JobStatus, Run, TimelineEntry
from rerail.model.run_event import RunEvent
from rerail.model.signals import OperatorVerb
from rerail.model.signatures import is_signed, sign
from rerail.ports import ListedSaves, ReceivedHeartbeat, ReceivedHeartbeats
from rerail.requests.relaunch import ATTEMPT_TAG, POLICY_TAG, RUN_TAG
from rerail.supervisor.pause import PausablePolicies
from rerail.supervisor.supervisor import Supervisor
from rerail.sweep.sweep import Sweep
from tests.core.failures import NODE_LOST

MIDNIGHT = datetime(2026, 1, 31, tzinfo=UTC)
BUCKET = "s3://bucket/checkpoints/"
ROLE = "arn:aws:iam::111122223333:role/SageMakerRole"
# Right behind the onset: how far back a rollback goes is the ladder's own affair (test_ladder.py).
# Most jobs of the tests have no metrics: the notice about that has tests of its own (test_monitoring_gaps.py).
DEFAULT = Policy(ladder=Ladder(margin_steps=0, near_steps=100), notices=Notices(unwatched_after=timedelta()))
# The key of every run, with which its agents sign.
KEY = "ab" * 32
# The values of a period's minutes become one.
JOINS: Mapping[Statistic, Callable[[list[float]], float]] = {
    Statistic.AVERAGE: fmean,
    Statistic.MINIMUM: min,
    Statistic.MAXIMUM: max,
    Statistic.COUNT: sum,
}
# Members of a request that say which machines are asked for.
MACHINES = (
    "CheckpointConfig",
    "RoleArn",
    "ResourceConfig",
    "VpcConfig",
    "EnableManagedSpotTraining",
    "HyperParameters",
    "Environment",
)


@dataclass
class Clock:
    """A clock that a test moves."""

    now: datetime = MIDNIGHT

    def __call__(self) -> datetime:
        return self.now

    def pass_by(self, duration: timedelta) -> None:
        self.now += duration


@lru_cache(maxsize=4096)
def _loaded(record: str) -> Run:
    """Return the run of a record. A record is decoded once: a sweep reads the same one every minute."""
    return loads(Run, record)


@dataclass
class FakeRuns:
    """The memory: records survive only as text, as they would in a table."""

    records: dict[str, str] = field(default_factory=dict)
    requests: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    jobs: dict[str, str] = field(default_factory=dict)
    ignored: dict[str, str] = field(default_factory=dict)
    delivered: dict[str, datetime] = field(default_factory=dict)
    timeline: list[TimelineEntry] = field(default_factory=list)

    def load(self, run_id: str) -> Run | None:
        record = self.records.get(run_id)
        return _loaded(record) if record else None

    def save(self, run: Run, entry: TimelineEntry | None = None, request: Mapping[str, Any] | None = None) -> None:
        stored = self.load(run.id)
        if (stored.version if stored else 0) != run.version - 1:
            raise Conflict(f"{run.id} is at version {stored and stored.version}")
        self.records[run.id] = dumps(run)
        self.jobs |= {attempt.job_name: run.id for attempt in run.attempts}
        if entry:
            self.timeline.append(entry)
        if request is not None:
            self.requests[run.id] = request

    def request(self, run_id: str) -> Mapping[str, Any]:
        return self.requests[run_id]

    def run_of(self, job_name: str) -> str | None:
        return self.jobs.get(job_name)

    def ignore(self, job_name: str, reason: str, *, until: datetime) -> bool:
        new = job_name not in self.ignored
        self.ignored[job_name] = reason
        return new

    def is_ignored(self, job_name: str) -> bool:
        return job_name in self.ignored

    def confirm_delivery(self, id: str, *, until: datetime) -> None:
        self.delivered[id] = until

    def find_unknown_jobs(self, job_names: Collection[str]) -> set[str]:
        return set(job_names) - set(self.jobs) - set(self.ignored)

    def open_runs(self, parts: Iterable[int] = range(PARTITIONS)) -> Iterable[tuple[str, Run | None]]:
        named = [name for name in self.records if find_partition(name) in parts]
        return [(name, run) for name in named if (run := self.load(name)) and run.is_swept]


@dataclass
class FakeSageMaker:
    """Training jobs with SageMaker's rules: unique names, terminal states that last, stops that are idempotent.

    `lacking` are instance types of which a launch is refused, with the refusal's words; `full` are those whose jobs are
    accepted and wait for machines."""

    clock: Clock
    jobs: dict[str, Job] = field(default_factory=dict)
    job_tags: dict[str, dict[str, str]] = field(default_factory=dict)
    requests: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    released: list[str] = field(default_factory=list)
    no_capacity: int = 0
    lacking: dict[str, str] = field(default_factory=dict)
    full: set[str] = field(default_factory=set)
    machines_come: bool = True
    defined_metrics: tuple[str, ...] = ()
    most_live_at_once: int = 0
    instance_type: str = ""
    instance_count: int = 1
    asked: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    # By training plan, when its capacities begin and end.
    capacities: dict[str, Sequence[tuple[datetime, datetime]]] = field(default_factory=dict)

    def submit(self, name: str, *, policy: str | None = "default", uri: str = BUCKET, **facts: Any) -> Job:
        """A user's own job; it trains at once. `request` are further members of its request, its machines for one."""
        tags = {POLICY_TAG: policy} if policy else {}
        job = self._start(name, tags, uri, facts.pop("request", {}))
        self.jobs[name] = replace(job, **facts)
        return self.jobs[name]

    def describe(self, job_name: str) -> tuple[Job, Mapping[str, Any]]:
        if job_name not in self.jobs:
            raise JobNotFound(job_name)
        job = self.jobs[job_name]
        asked = {name: self.asked.get(job_name, {})[name] for name in MACHINES if name in self.asked.get(job_name, {})}
        folder = {"CheckpointConfig": {"S3Uri": job.checkpoint_uri}, "RoleArn": ROLE}
        return job, {"TrainingJobName": job.name, **folder, **asked}

    def tags(self, arn: str) -> Mapping[str, str]:
        return self.job_tags[arn.rpartition("/")[2]]

    def list_capacities(self, plan: str) -> Sequence[tuple[datetime, datetime]]:
        return self.capacities.get(plan, ())

    def request_members(self) -> Collection[str]:
        return {"TrainingJobName", "Tags", *MACHINES}

    def changed_since(self, time: datetime) -> Mapping[str, tuple[JobStatus, str]]:
        return {job.name: (job.status, job.secondary) for job in self.jobs.values()}

    def create(self, request: Mapping[str, Any]) -> None:
        name = request["TrainingJobName"]
        if name in self.jobs:
            raise JobExists(name)
        if self.no_capacity:
            self.no_capacity -= 1
            raise CapacityRefused("ResourceLimitExceeded: no instances")
        kinds = read_cluster(request).instance_types
        if kinds and all(kind in self.lacking for kind in kinds):
            message = self.lacking[kinds[0]]
            raise (RequestRefused if message.startswith("ValidationException") else CapacityRefused)(message)
        uri = request.get("CheckpointConfig", {}).get("S3Uri", "")
        self._start(name, {tag["Key"]: tag["Value"] for tag in request["Tags"]}, uri, request)
        self.requests[name] = request

    def stop(self, job_name: str) -> None:
        if job_name in self.jobs and not self.jobs[job_name].status.is_terminal:
            self.end(job_name, JobStatus.STOPPED)

    def release_warm_pool(self, job_name: str) -> None:
        self.released.append(job_name)

    def end(self, name: str, status: JobStatus, reason: str = "", *, secondary: str = "", **facts: Any) -> None:
        """End the job now."""
        self.jobs[name] = replace(
            self.jobs[name],
            status=status,
            secondary=secondary or status.value,
            ended_at=self.clock(),
            failure_reason=reason,
            **facts,
        )

    def fail(self, name: str, reason: str, **facts: Any) -> None:
        """Fail the job now."""
        self.end(name, JobStatus.FAILED, reason, **facts)

    def live(self) -> list[str]:
        """Return the names of the jobs that are not terminal."""
        return [job.name for job in self.jobs.values() if not job.status.is_terminal]

    def _start(self, name: str, tags: dict[str, str], uri: str, request: Mapping[str, Any]) -> Job:
        cluster = read_cluster(request)
        waits = not self.machines_come or any(kind in self.full for kind in cluster.instance_types)
        self.asked[name] = request
        self.jobs[name] = Job(
            name=name,
            arn=f"arn:aws:sagemaker:eu-west-1:111122223333:training-job/{name}",
            status=JobStatus.IN_PROGRESS,
            secondary="Pending" if waits else "Training",
            created_at=self.clock(),
            training_started_at=None if waits else self.clock(),
            checkpoint_uri=uri,
            defined_metrics=self.defined_metrics,
            instance_type=self.instance_type,
            instance_count=self.instance_count,
            cluster=cluster,
            keep_alive_seconds=request.get("ResourceConfig", {}).get("KeepAlivePeriodInSeconds", 0),
            lacks_machines=waits,
            script="train.py",
        )
        self.job_tags[name] = tags
        self.most_live_at_once = max(self.most_live_at_once, len(self.live()))
        return self.jobs[name]


@dataclass
class FakeCheckpoints:
    """Saved states by folder."""

    clock: Clock
    saved: dict[str, list[Checkpoint]] = field(default_factory=dict)
    quarantined: list[Checkpoint] = field(default_factory=list)
    forbidden: str = ""
    moves_at_once: int = 1000
    count: int = 0
    # The ETags of copied files by key, and how many turns the next copies take.
    copies: dict[str, str] = field(default_factory=dict)
    unfinished_copies: int = 0
    overwritten: int = 0
    on_list: Callable[[], object] | None = None

    def save(self, step: int, *, uri: str = BUCKET, attempt: int = 1, **facts: Any) -> None:
        checkpoint = Checkpoint(f"{uri}step-{step:09d}/", step, attempt, self.clock(), **facts)
        self.saved.setdefault(uri, []).insert(0, checkpoint)
        self.count += 1

    def commit(self, step: int, **facts: Any) -> None:
        """Save with a manifest that is signed with the run's key, as the agent does."""
        self.save(step, **{"is_signed": True, **facts})

    def list_checkpoints(
        self, uri: str, *, upto: int | None = None, signing_key: str = "", signed_only: bool = True
    ) -> Sequence[Checkpoint]:
        """Return those up to the step that have a manifest, and all that a script saves without.

        Without the key no signature is known. `on_list` is called once before: others act meanwhile.
        """
        assert uri, "a run without a checkpoint folder has nothing to list"
        self.on_list, on_list = None, self.on_list
        if on_list:
            on_list()
        checkpoints = [replace(c, is_signed=c.is_signed and bool(signing_key)) for c in self.saved.get(uri, [])]
        return [c for c in checkpoints if upto is None or c.step <= upto or not c.has_manifest]

    def list_saves(self, uri: str) -> ListedSaves:
        saved = self.saved.get(uri, [])
        files = [checkpoint for checkpoint in saved if checkpoint.layout == Layout.FILE]
        return ListedSaves(list_save_times(saved), files)

    def save_file(self, name: str = "ckpt.pt", etag: str = "", *, uri: str = BUCKET, **facts: Any) -> None:
        """Overwrite a file in place."""
        self.overwritten += 1
        layout = {"layout": Layout.FILE, "missing": (UNKNOWN_STEP,)}
        facts = {"bytes": 100, "etag": etag or f"e{self.overwritten}", **layout, **facts}
        file = Checkpoint(f"{uri}{name}", 0, 0, self.clock(), **facts)
        self.saved[uri] = [file, *(other for other in self.saved.get(uri, []) if other.uri != file.uri)]

    def copy_file(self, action: CopyCheckpoint, authorize: Callable[[], None]) -> FileCopy | None:
        authorize()
        if self.unfinished_copies:
            self.unfinished_copies -= 1
            raise ActionUnfinished("the rest is copied next time")
        if action.copy.key not in self.copies:
            uri = f"{action.uri}{action.copy.name}"
            if not any((c.uri, c.etag) == (uri, action.copy.etag) for c in self.saved.get(action.uri, [])):
                return None
            self.copies[action.copy.key] = action.copy.etag
        for copy in action.expired:
            self.copies.pop(copy.key, None)
        return replace(action.copy, copy_etag=action.copy.etag)

    def all(self, uri: str) -> Sequence[Checkpoint]:
        """Those that were moved aside too."""
        return [*self.saved.get(uri, []), *self.quarantined]

    def tainted(self, action: QuarantineCheckpoints) -> Sequence[Checkpoint]:
        """What is there to be set aside."""
        after = -1 if action.resume_step is None else action.resume_step
        saved = (c for c in self.saved.get(action.uri, []) if not c.has_manifest and c.layout != Layout.FILE)
        mine = (c for c in saved if c.saved_at >= action.saved_after)
        return [c for c in mine if c.step > after and c.saved_at <= action.saved_before]

    def quarantine(self, action: QuarantineCheckpoints, authorize: Callable[[], None]) -> None:
        """Scripts that write manifests are left to themselves; of the others so many are moved at once."""
        if self.tainted(action):
            authorize()
        tainted = self.tainted(action)  # anew: another supervisor may have moved some meanwhile
        if tainted and self.forbidden:
            raise QuarantineFailed(self.forbidden, advice="deploy with the context value quarantineFolders")
        for checkpoint in tainted[: self.moves_at_once]:
            self.saved[action.uri].remove(checkpoint)
            self.quarantined.append(checkpoint)
        if tainted[self.moves_at_once :]:
            raise ActionUnfinished("the rest is moved next time")
        self._replace_files(action, authorize)

    def list_replaced(self, action: QuarantineCheckpoints) -> list[QuarantineMove]:
        """Return the moves of what was overwritten in place and is to be replaced by a copy."""
        files = (c for c in self.saved.get(action.uri, []) if c.layout == Layout.FILE)
        stored = [StoredObject(c.uri.removeprefix(action.uri), c.bytes, c.saved_at, c.etag) for c in files]
        return list(list_replaced_files(stored, action))

    def _replace_files(self, action: QuarantineCheckpoints, authorize: Callable[[], None]) -> None:
        """Replace by copies what was overwritten in place."""
        for move in self.list_replaced(action) if action.strict else ():
            authorize()
            if self.copies.get(move.copy_key) != move.copy_etag:
                raise QuarantineFailed("it is not the copy that was made", advice="replace it by hand")
            self.quarantined += [c for c in self.saved[action.uri] if c.uri == f"{action.uri}{move.source.key}"]
            self.save_file(move.source.key, move.copy_etag, uri=action.uri)


@dataclass
class FakePolicies:
    """Policies by name."""

    by_name: dict[str, Policy] = field(default_factory=lambda: {"default": DEFAULT})

    def get(self, name: str) -> Policy:
        if name not in self.by_name:
            raise UnknownPolicy(name)
        return self.by_name[name]

    def with_pause(self, policy: Policy) -> Policy:
        return policy


@dataclass
class FakeBus:
    """Keep the published notices and run events; refuse the next `refusals`."""

    notices: list[Notice] = field(default_factory=list)
    events: list[RunEvent] = field(default_factory=list)
    refusals: int = 0

    def publish(self, notice: Notice) -> None:
        if self.refusals:
            self.refusals -= 1
            raise Throttled("the bus is full")
        self.notices.append(notice)

    def publish_change(self, event: RunEvent) -> None:
        if self.refusals:
            self.refusals -= 1
            raise Throttled("the bus is full")
        self.events.append(event)

    def distinct_events(self) -> list[RunEvent]:
        """Return the run events in their order, without repetitions."""
        return sorted({event.id: event for event in self.events}.values(), key=lambda event: event.sequence)


@dataclass
class FakeQueue:
    """Wake-ups for the supervisor."""

    waiting: list[Mapping[str, str]] = field(default_factory=list)

    def wake(self, wakeups: Sequence[Mapping[str, str]], *, at: datetime) -> None:
        self.waiting.extend(wakeups)


@dataclass
class FakeSeries:
    """Metrics by job: each minute's values under the time at which the minute begins."""

    points: dict[str, dict[datetime, dict[str, float]]] = field(default_factory=dict)

    def print(self, job: str, at: datetime, **values: float) -> None:
        """Add the values that the job printed in the minute that begins then."""
        self.points.setdefault(job, {})[at] = values

    def read(
        self, asked: Sequence[MetricQuery], start: datetime, end: datetime, period: timedelta
    ) -> dict[MetricQuery, Points]:
        return {query: self._of(query, start, end, period) for query in asked}

    def _of(self, query: MetricQuery, start: datetime, end: datetime, period: timedelta) -> Points:
        name = "count" if query.statistic is Statistic.COUNT else query.metric
        periods: dict[datetime, list[float]] = defaultdict(list)
        points = self.points.get(query.job, {})
        for at in sorted(at for at in points if start <= at < end):
            if name in points[at]:
                periods[at - (at - MIDNIGHT) % period].append(points[at][name])
        return [(at, JOINS[query.statistic](values)) for at, values in periods.items()]


@dataclass
class FakeMemories:
    """Memories survive only as text."""

    records: dict[str, str] = field(default_factory=dict)

    def recall(self, run_ids: Sequence[str]) -> dict[str, RunDetection]:
        return {run: loads(RunDetection, self.records[run]) for run in run_ids if run in self.records}

    def keep(self, memories: Sequence[RunDetection]) -> None:
        self.records |= {memory.run: dumps(memory) for memory in memories}


@dataclass
class FakeMailbox:
    """Store commands, reports and heartbeats as bytes; refuse commands while closed."""

    clock: Clock
    objects: dict[str, tuple[bytes, datetime]] = field(default_factory=dict)
    commands: list[Command] = field(default_factory=list)
    closed: bool = False

    def post(self, command: Command, signing_key: str = "") -> None:
        if self.closed:
            raise CommandNotStored("PutObject: access denied")
        name = make_command_key(command.run)
        self.put(name, sign(serialize(command), name=name, key=signing_key))
        self.commands.append(read_command(self.objects[name][0], run=command.run, signing_key=signing_key))

    def report(self, key: str, signing_key: str = "") -> Report | None:
        run, id = run_of_report(key)
        found = self.objects.get(key)
        return read_report(found[0], run=run, id=id, signing_key=signing_key) if found else None

    def change(self, run: str, digest: str) -> bytes:
        key = make_change_key(run, digest)
        return require_digest(self.objects.get(key, (None,))[0], key, digest)

    def heartbeats(self, folders: Collection[str], signing_keys: Mapping[str, str] | None = None) -> ReceivedHeartbeats:
        received, unread = {}, {}
        for folder in folders:
            name, key = make_heartbeat_key(folder), (signing_keys or {}).get(folder, "")
            if found := self.objects.get(name):
                try:
                    is_of_the_run = is_signed(found[0], name=name, key=key)
                    received[folder] = ReceivedHeartbeat(read_heartbeat(found[0], run=folder), found[1], is_of_the_run)
                except BadMailboxObject as error:
                    unread[folder] = str(error)
        return ReceivedHeartbeats(received, unread)

    def put(self, key: str, text: bytes) -> None:
        """Write an object, as an agent does."""
        self.objects[key] = text, self.clock()


@dataclass
class FakePause:
    """The account's pause."""

    paused: bool = False

    def is_paused(self) -> bool:
        return self.paused


@dataclass
class FakeRateLimit:
    """The count of relaunches, kept as text."""

    record: str = field(default_factory=lambda: dumps(Launches()))

    def admit(self, request: LaunchRequest, *, at: datetime, limit: int, window: timedelta) -> Admission:
        after, admission = admit(loads(Launches, self.record), request, at=at, limit=limit, window=window)
        self.record = dumps(after)
        return admission

    def claim_page(self, run: str, error: str, *, at: datetime) -> str:
        after, paged_by = claim_page(loads(Launches, self.record), run, error, at=at)
        self.record = dumps(after)
        return paged_by

    def claim_adoption_notice(self, job_name: str, *, at: datetime) -> int:
        after, number = claim_adoption_notice(loads(Launches, self.record), job_name, at=at)
        self.record = dumps(after)
        return number


@dataclass
class FakeHyperPods:
    """What is known of HyperPod clusters, kept as text under the same condition as in a table."""

    records: dict[str, str] = field(default_factory=dict)
    kept_until: dict[str, datetime] = field(default_factory=dict)

    def recall(self, cluster: str) -> ClusterRecord:
        record = self.records.get(cluster)
        return loads(ClusterRecord, record) if record else ClusterRecord(cluster)

    def waiting(self) -> Iterable[ClusterRecord]:
        return [memory for name in self.records if (memory := self.recall(name)).waits]

    def keep(self, memory: ClusterRecord, *, until: datetime) -> None:
        if self.recall(memory.cluster).version != memory.version - 1:
            raise Conflict(f"{memory.cluster} has another version than {memory.version - 1}")
        self.records[memory.cluster] = dumps(memory)
        self.kept_until[memory.cluster] = until


@dataclass
class FakeLogs:
    """The ends of the logs of jobs; `error` is raised instead."""

    ends: dict[str, Sequence[str]] = field(default_factory=dict)
    error: Exception | None = None
    read: list[str] = field(default_factory=list)

    def read_ends(self, job: Job) -> Sequence[str]:
        self.read.append(job.name)
        if self.error:
            raise self.error
        return self.ends.get(job.name, ())


@dataclass
class World:
    """Combine the fakes with the real supervisor and the real sweep."""

    clock: Clock = field(default_factory=Clock)
    runs: FakeRuns = field(default_factory=FakeRuns)
    policies: FakePolicies = field(default_factory=FakePolicies)
    bus: FakeBus = field(default_factory=FakeBus)
    queue: FakeQueue = field(default_factory=FakeQueue)
    series: FakeSeries = field(default_factory=FakeSeries)
    memories: FakeMemories = field(default_factory=FakeMemories)
    pause: FakePause = field(default_factory=FakePause)
    rate_limit: FakeRateLimit = field(default_factory=FakeRateLimit)
    hyperpods: FakeHyperPods = field(default_factory=FakeHyperPods)
    new_key: Callable[[], str] = lambda: KEY
    logs: FakeLogs = field(default_factory=FakeLogs)
    quarantine_folders: Mapping[str, Sequence[str]] = field(default_factory=lambda: {ROLE: ["s3://bucket/"]})
    observe_only: str = ""

    def __post_init__(self) -> None:
        self.sagemaker = FakeSageMaker(self.clock)
        self.checkpoints = FakeCheckpoints(self.clock)
        self.mailbox = FakeMailbox(self.clock)

    def supervisor(self, wrap: Callable[[Any], Any] = lambda port: port) -> Supervisor:
        """The loop on this world; `wrap` may stand between it and each port."""
        return Supervisor(
            runs=wrap(self.runs),
            jobs=wrap(self.sagemaker),
            checkpoints=wrap(self.checkpoints),
            policies=self.paused_policies(),
            bus=wrap(self.bus),
            mailbox=wrap(self.mailbox),
            rate_limit=wrap(self.rate_limit),
            logs=wrap(self.logs),
            clock=self.clock,
            new_key=self.new_key,
            quarantine_folders=self.quarantine_folders,
            observe_only=self.observe_only,
        )

    def paused_policies(self) -> PausablePolicies:
        return PausablePolicies(self.policies, self.pause, observe_only=bool(self.observe_only))

    def hyperpod_watch(self, wrap: Callable[[Any], Any] = lambda port: port) -> ClusterMonitor:
        """The loop for HyperPod clusters on this world."""
        return ClusterMonitor(
            memories=wrap(self.hyperpods),
            runs=wrap(self.runs),
            policies=self.paused_policies(),
            bus=wrap(self.bus),
            clock=self.clock,
        )

    def round(self) -> Sweep:
        watching = Monitor(self.series, self.memories)
        return Sweep(
            self.runs,
            self.sagemaker,
            self.checkpoints,
            self.paused_policies(),
            watching,
            self.mailbox,
            self.queue,
            self.clock,
            clusters=self.hyperpods,
        )

    def run(self, run_id: str = "gpt") -> Run:
        run = self.runs.load(run_id)
        assert run is not None, f"no run {run_id}"
        return run

    def reasons(self) -> list[str]:
        """Return the reasons in the timeline, oldest first."""
        return [entry.reason for entry in self.runs.timeline]

    def notice_titles(self, severity: Severity | None = None) -> list[str]:
        """Return the titles of the published notices, of this severity alone if one is named."""
        return [notice.title for notice in self.bus.notices if severity in (None, notice.severity)]

    def send_command(self, verb: OperatorVerb, number: int | str = 1, **facts: Any) -> None:
        """Deliver an operator's command; a number stands for its id."""
        self.supervisor().handle(CommandReceived(f"c{number}", "gpt", verb, "ada", facts.pop("why", ""), **facts))

    def adopt(self, name: str = "gpt", **facts: Any) -> "World":
        """Submit a user's job, and handle its event."""
        self.sagemaker.submit(name, **facts)
        self.supervisor().handle(JobStateChanged(name))
        return self

    def lose_node(self, job: str = "gpt", *, minutes: float, **facts: Any) -> None:
        """Fail the job by the loss of a machine, and advance the clock by these minutes."""
        self.sagemaker.fail(job, NODE_LOST, **facts)
        self.minutes(minutes)

    def with_saves(self, **facts: Any) -> "World":
        """Add a run that has trained for fifty minutes, with checkpoints at steps 100 to 500."""
        self.adopt()
        for step in range(100, 501, 100):
            self.minutes(10)
            self.checkpoints.commit(step, **facts)
        return self

    def minutes(self, count: float, *, every: timedelta = timedelta(minutes=1)) -> None:
        """Let time pass with a sweep each minute; the supervisor handles the messages of each sweep."""
        end = self.clock() + timedelta(minutes=count)
        while self.clock() < end:
            self.clock.pass_by(every)
            self.round().run()
            waiting, self.queue.waiting = self.queue.waiting, []
            for message in waiting:
                received = parse_message(json.dumps({"source": SWEEP, "detail": message}))
                if isinstance(received, ClusterMessage):
                    self.hyperpod_watch().handle(received)
                else:
                    self.supervisor().handle(received)


@dataclass
class Agent:
    """The agent in one attempt of a run: write its reports, and deliver their events to the supervisor.

    Without a signing key it is a writer of the mailbox that knows the run's name, job and attempt."""

    world: World
    run: str = "gpt"
    attempt: int = 1
    job: str = "gpt"
    reports: int = 0
    signing_key: str = KEY

    @property
    def asked(self) -> Command:
        """The newest command, if it is for this attempt and asks for a checkpoint."""
        command = self.world.mailbox.commands[-1]
        assert (command.run, command.attempt, command.kind) == (self.run, self.attempt, CommandKind.CHECKPOINT)
        return command

    def hello(self) -> None:
        self.deliver(self.files(ReportKind.HELLO))

    def acknowledges(self) -> None:
        self.deliver(self.files(ReportKind.ACKNOWLEDGED, command=self.asked.id))

    def commits(self, step: int, durability: Durability = Durability.REMOTE) -> None:
        self.deliver(self.files(ReportKind.CHECKPOINT, command=self.asked.id, step=step, durability=durability))

    def refuses(self, reason: str) -> None:
        self.deliver(self.files(ReportKind.REFUSED, command=self.asked.id, reason=reason))

    def finds(self, *findings: Finding) -> None:
        self.deliver(self.files(ReportKind.FINDINGS, findings=findings))

    def beats(self, step: int | None, phase: Phase = Phase.STEP, **facts: Any) -> None:
        """One heartbeat, as it is overwritten each minute."""
        heartbeat = Heartbeat(
            self.run, self.attempt, self.job, facts.pop("at", self.world.clock()), phase, step, **facts
        )
        self._puts(make_heartbeat_key(self.run), serialize(heartbeat))

    def files(self, kind: ReportKind, **facts: Any) -> str:
        """Write a report; its key."""
        self.reports += 1
        at = facts.pop("at", self.world.clock())
        report = Report(f"r{self.attempt}-{self.reports}", self.run, self.attempt, self.job, kind, at, **facts)
        self._puts(key := make_report_key(self.run, report.id), serialize(report))
        return key

    def _puts(self, name: str, text: bytes) -> None:
        self.world.mailbox.put(name, sign(text, name=name, key=self.signing_key))

    def deliver(self, key: str) -> None:
        """The event about the report reaches the supervisor."""
        self.world.supervisor().handle(ReportFiled(*run_of_report(key), key))


__all__ = ["ATTEMPT_TAG", "BUCKET", "MIDNIGHT", "RUN_TAG", "Agent", "Clock", "World"]
