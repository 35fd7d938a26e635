"""Nights in a hostile world: the real loop and the real round on stand-ins for AWS, minute by minute.

A night is a function of its seed and of its hazards; while it is played an `Audit` (bench/promises.py) watches what is
done to the jobs and what is recorded, and raises Broken at the first promise that is not kept."""

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from random import Random
from typing import Any

from bench.promises import Audit, AuditedRuns, Broken, Promise
from rerail.detection.evaluate import Monitor
from rerail.messages.messages import CommandReceived, QueueMessage, parse_message
from rerail.model.errors import RerailError, StateUnknown, Throttled
from rerail.model.policy import Policy
from rerail.model.run import JobStatus, Run
from rerail.model.signals import OperatorVerb
from rerail.supervisor.pause import PausablePolicies
from rerail.supervisor.supervisor import Supervisor
from rerail.sweep.sweep import Sweep
from tests.fakes import BUCKET, FakeBrake, FakeBus, FakeMemories, FakeQueue, FakeSageMaker, FakeSeries, World

REASONS = (
    "InternalServerError: We encountered an internal error.  Please try again.",
    "CapacityError: Unable to provision requested ML compute capacity.",
    "AlgorithmError: RuntimeError: CUDA error: uncorrectable ECC error encountered, exit code: 1",
    "AlgorithmError: , exit code: 137",
    "AlgorithmError: NCCL watchdog timeout, exit code: 1",
)
BUG = "AlgorithmError: ValueError: bad shape, exit code: 1"
MINUTE = timedelta(minutes=1)
DAY_MINUTES = 24 * 60
SAVE_EVERY, STEPS_A_SAVE, STEPS = 10, 100, 8_000
STEPS_A_MINUTE = STEPS_A_SAVE // SAVE_EVERY
METRICS = ("step", "loss", "nonfinite")
QUIET_HOURS = 4
# Chances a minute of what is no hazard but the trade itself: a job dies, a human stops it, an operator says something,
# a run falls sick (every attempt dies soon, for hours), and a held run is released.
FAILS, STOPPED, SPOKEN, SICK, RELEASED = 1 / 90, 1 / 3000, 1 / 500, 1 / 1500, 1 / 90
WISHES = (OperatorVerb.HOLD,) * 4 + (OperatorVerb.RESTART,) * 5 + (OperatorVerb.STOP,)
SICK_MINUTES = (60, 300)
# The queue: a message comes back after so long, and is put aside after so many times; so many are tried in a minute.
COMES_BACK, TRIES = timedelta(minutes=6), 5
STRANGER = "999988887777"
SKEW_SERVED = 15


@dataclass(frozen=True, slots=True)
class Hazards:
    """What the world does beside letting jobs die; chances are for each minute, event or call. All of them are off.

    `lost_every`: of the events about jobs each k-th is lost (1: all). `repeated`, `late`, `shuffled`: chances that an
    event comes 2 to 5 times, hours late, out of order within half an hour. `strangers`, `forged`: chances a minute of
    an event of another account, and of one that somebody made up. `jumps`: the functions' clocks go wrong by up to
    `jump_minutes`. `blind`: SageMaker does not answer for an hour. `muted`: metrics do not arrive for an hour.
    `twins`: a second deployment in the account. `restored`: the table becomes what it was `backup_minutes` ago, a day.
    `crowded`: a second message is worked on in the midst of a call. `killed`: the function dies before or after a
    call. `throttled`: a call is throttled.
    """

    lost_every: int = 0
    repeated: float = 0.0
    late: float = 0.0
    shuffled: float = 0.0
    strangers: float = 0.0
    forged: float = 0.0
    jumps: float = 0.0
    jump_minutes: int = 180
    blind: float = 0.0
    muted: float = 0.0
    twins: bool = False
    restored: bool = False
    backup_minutes: int = 24 * 60
    crowded: float = 0.0
    killed: float = 0.0
    throttled: float = 0.0

    def __or__(self, other: "Hazards") -> "Hazards":
        """Both at once: the worse of each."""
        return Hazards(**{f.name: max(getattr(self, f.name), getattr(other, f.name)) for f in fields(self)})


CALM = Hazards()
ALONE: Mapping[str, Hazards] = {
    "every third event lost": Hazards(lost_every=3),
    "every event lost": Hazards(lost_every=1),
    "events repeated": Hazards(repeated=0.5),
    "events hours late": Hazards(late=0.5),
    "events out of order": Hazards(shuffled=1.0),
    "events of other accounts": Hazards(strangers=0.2),
    "forged events": Hazards(forged=0.2),
    "clocks that jump by hours": Hazards(jumps=1 / 300),
    "describe fails for an hour": Hazards(blind=1 / 400),
    "metrics missing for an hour": Hazards(muted=1 / 300),
    "two deployments at once": Hazards(twins=True),
    "table restored from a day-old backup": Hazards(restored=True),
    "two messages at once, call by call": Hazards(crowded=0.2),
    "functions die at any call": Hazards(killed=0.02),
    "calls throttled": Hazards(throttled=0.05),
}


def together() -> Hazards:
    """All of them at once; one event in three is lost, for if all were, none could lie, and clocks are wrong by no more
    than AWS puts up with: it refuses what is signed at another time."""
    hazards = CALM
    for name, each in ALONE.items():
        if name != "every event lost":
            hazards |= each
    return replace(hazards, lost_every=3, jump_minutes=SKEW_SERVED)


class Killed(BaseException):
    """The function dies here, whatever it would have caught."""


@dataclass
class Mail:
    """A message on a queue: when it can be had, and how often it was; when it was sent, and had the first time."""

    at: datetime
    body: str
    sent_at: datetime
    tries: int = 0
    received_at: datetime | None = None

    @property
    def post(self) -> QueueMessage:
        """By the queue's clock, which is right."""
        return QueueMessage(self.sent_at, self.received_at or self.at)


@dataclass
class Product:
    """What is put to the test: its parts can be replaced by broken ones."""

    loop: type[Supervisor] = Supervisor
    round: type[Sweep] = Sweep
    watching: type[Monitor] = Monitor
    runs: type[AuditedRuns] = AuditedRuns
    policy: Policy = field(default_factory=Policy)
    reads: Callable[[str], Any] = parse_message


@dataclass
class Deployment:
    """One Rerail with its own table, bus, queue and clock, in the night's account."""

    night: "Night"
    product: Product
    bus: FakeBus = field(default_factory=FakeBus)
    queue: FakeQueue = field(default_factory=FakeQueue)
    memories: FakeMemories = field(default_factory=FakeMemories)
    brake: FakeBrake = field(default_factory=FakeBrake)
    skew: timedelta = timedelta()
    mail: list[Mail] = field(default_factory=list)
    dead_letters: list[str] = field(default_factory=list)
    depth: int = 0
    at_work: Mail | None = None

    def __post_init__(self) -> None:
        self.runs = self.product.runs()
        self.runs.watched_by(self.night.audit, self)

    def clock(self) -> datetime:
        """The functions' own."""
        return self.night.world.clock() + self.skew

    @property
    def policies(self) -> PausablePolicies:
        return PausablePolicies(self.night.world.policies, self.night.world.pause)

    def supervisor(self) -> Supervisor:
        world = self.night.world

        def wrap(port: Any) -> Any:
            return _Hostile(self, port)

        return self.product.loop(
            runs=wrap(self.runs),
            jobs=wrap(world.sagemaker),
            checkpoints=wrap(world.checkpoints),
            policies=self.policies,
            bus=wrap(self.bus),
            mailbox=wrap(world.mailbox),
            brake=wrap(self.brake),
            clock=self.clock,
        )

    def work(self) -> None:
        """What can be had of the queue now, each message once."""
        while mail := self.next_mail():
            self.hear(mail)

    def next_mail(self) -> Mail | None:
        """A message that can be had, hidden from others until it comes back."""
        now = self.night.world.clock()
        ready = [mail for mail in self.mail if mail.at <= now]
        if not ready:
            return None
        mail = self.night.random.choice(ready) if self.night.hazards.shuffled else ready[0]
        mail.at, mail.tries, mail.received_at = now + COMES_BACK, mail.tries + 1, mail.received_at or now
        return mail

    def again(self) -> Mail:
        """What is being worked on, delivered a second time, as SQS may do."""
        assert self.at_work
        return replace(self.at_work, tries=0)

    def hear(self, mail: Mail) -> None:
        """One message as the queue and the function have it: done, back again, or put aside with an alarm."""
        self.night.counts["messages"] += 1
        self.depth, self.at_work = self.depth + 1, mail
        try:
            wakeup = self.product.reads(mail.body)
            self.supervisor().handle(wakeup, mail.post)
        except (RerailError, Killed) as error:
            self.night.counts[f"came back: {type(error).__name__}"] += 1
            if mail.tries < TRIES:
                return
            self.dead_letters.append(mail.body)
            self.night.counts["put aside with an alarm"] += 1
        else:
            if isinstance(wakeup, CommandReceived):
                self.night.audit.granted(self, wakeup)
        finally:
            self.depth -= 1
        self.mail = [each for each in self.mail if each is not mail]

    def sweep(self) -> None:
        """The minute's round; what fails is tried again in the next."""
        world, night = self.night.world, self.night
        each = self.product.round(
            self.runs,
            _Blinded(night, world.sagemaker),
            world.checkpoints,
            self.policies,
            self.product.watching(night.series, self.memories),
            world.mailbox,
            _Mortal(night, self.queue),
            self.clock,
        )
        with suppress(RerailError, Killed):
            each.make()
        waiting, self.queue.waiting = self.queue.waiting, []
        for wakeup in waiting:
            now, event = world.clock(), {"source": "rerail.sweep", "detail": wakeup}
            self.mail.append(Mail(now, json.dumps(event), now))

    def restored(self, backup: "Backup") -> None:
        """The table is what it was; what the functions hold in other places is not."""
        self.runs.records, self.runs.requests, self.runs.jobs, self.runs.ignored = deepcopy(backup.tables)
        self.memories, self.brake = deepcopy(backup.memories), deepcopy(backup.brake)


@dataclass(frozen=True)
class Backup:
    """What a table holds at one moment."""

    at: datetime
    tables: tuple[Any, ...]
    memories: FakeMemories
    brake: FakeBrake

    @classmethod
    def of(cls, deployment: Deployment) -> "Backup":
        runs = deployment.runs
        tables = deepcopy((runs.records, runs.requests, runs.jobs, runs.ignored))
        return cls(deployment.night.world.clock(), tables, deepcopy(deployment.memories), deepcopy(deployment.brake))


class WatchedSageMaker(FakeSageMaker):
    """The account's jobs; every launch and every stop is shown to the audit first."""

    audit: Audit

    def create(self, request: Mapping[str, Any]) -> None:
        before = set(self.jobs)
        super().create(request)
        if new := set(self.jobs) - before:
            self.audit.created(new.pop(), request)

    def stop(self, job_name: str) -> None:
        if job_name in self.live():
            self.audit.stopped(job_name)
        super().stop(job_name)


class _Blinded:
    """SageMaker, which may not answer for an hour."""

    def __init__(self, night: "Night", port: Any) -> None:
        self._night, self._port = night, port

    def __getattr__(self, name: str) -> Any:
        if name in ("describe", "changed_since") and self._night.is_blind:
            raise StateUnknown("SageMaker does not answer")
        return getattr(self._port, name)


class _Mortal:
    """The sweep's way to the supervisor, before and after which it may die."""

    def __init__(self, night: "Night", queue: FakeQueue) -> None:
        self._night, self._queue = night, queue

    def wake(self, wakeups: Any, *, at: datetime) -> None:
        self._night.may_die()
        self._queue.wake(wakeups, at=at)
        self._night.may_die()


class _Hostile:
    """Stands between the loop and a port: at every call the function may die, be throttled, or be overtaken."""

    def __init__(self, deployment: Deployment, port: Any) -> None:
        self._deployment, self._port = deployment, port

    def __getattr__(self, name: str) -> Any:
        deployment, night = self._deployment, self._deployment.night
        if name in ("describe", "changed_since") and night.is_blind:
            raise StateUnknown("SageMaker does not answer")
        method = getattr(self._port, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            night.may_die()
            if night.chance(night.hazards.throttled):
                night.counts["calls throttled"] += 1
                raise Throttled(f"{name}: slow down")
            if deployment.depth == 1 and night.chance(night.hazards.crowded):
                night.counts["overtaken in a call"] += 1
                deployment.hear(deployment.next_mail() or deployment.again())
            answer = method(*args, **kwargs)
            night.may_die()
            return answer

        return call if callable(method) else method


class Night:
    """So many jobs, so many hours of these hazards, one seed, and then a few hours of quiet."""

    def __init__(
        self, seed: int, *, hazards: Hazards = CALM, hours: int = 30, jobs: int = 3, product: Product | None = None
    ) -> None:
        self.random = Random(seed)
        self.hazards, self.hours, self.counts = hazards, hours, Counter[str]()
        self.product = product or Product()
        self.world = World()
        self.audit = Audit(self.world)
        self.world.sagemaker = sagemaker = WatchedSageMaker(self.world.clock)
        sagemaker.audit, sagemaker.defined_metrics = self.audit, METRICS
        self.world.policies.by_name["default"] = self.product.policy
        self.series = FakeSeries()
        self.deployments = [Deployment(self, self.product) for _ in range(2 if hazards.twins else 1)]
        self.audit.deployments = self.deployments
        self.counts["second deployments"] = len(self.deployments) - 1
        self.at_once = jobs
        self.names: list[str] = []
        self.steps, self.saved = Counter[str](), Counter[str]()
        self.started: dict[str, str] = {}
        self.sick_until: dict[str, datetime] = {}
        self.blind_until = self.jump_until = self.muted_until = self.world.clock()
        self.events = self.said = 0
        self.quiet = False

    def play(self) -> Counter[str]:
        """Counts of what has happened; raises Broken."""
        restored_at = self._restored_at()
        backup: Backup | None = None
        for minute in range((self.hours + QUIET_HOURS) * 60):
            self.quiet = minute >= self.hours * 60
            self.world.clock.pass_by(MINUTE)
            if minute == restored_at - self.hazards.backup_minutes:
                backup = Backup.of(self.deployments[0])
            if minute == restored_at and backup:
                self.deployments[0].restored(backup)
                self.audit.restored(self.deployments[0], backup.at)
                self.counts["tables restored"] += 1
            self._minute(minute)
        self.audit.judge(self.names)
        return self.counts

    def chance(self, of: float) -> bool:
        """Whether what has this chance happens now; never in the quiet hours."""
        return not self.quiet and of > 0 and self.random.random() < of

    def may_die(self) -> None:
        """The function is killed here, or not."""
        if self.chance(self.hazards.killed / 2):
            self.counts["functions killed"] += 1
            raise Killed

    @property
    def is_blind(self) -> bool:
        """SageMaker does not answer now."""
        return not self.quiet and self.world.clock() < self.blind_until

    def _restored_at(self) -> int:
        latest = self.hours * 60
        earliest = self.hazards.backup_minutes + 1
        return self.random.randrange(earliest, latest) if self.hazards.restored and earliest < latest else -1

    def _minute(self, minute: int) -> None:
        if self.quiet:
            for deployment in self.deployments:
                deployment.skew = timedelta()
        else:
            self._lie()
            self._speak()
        self._jobs_go_on(minute)
        for deployment in self.deployments:
            deployment.work()
            deployment.sweep()
            deployment.work()
        self.counts["relaunches"] = len(self.world.sagemaker.jobs) - len(self.names)
        self.counts["holds"] = self.audit.checked[Promise.PAGED]
        self.audit.minute()

    def _jobs_go_on(self, minute: int) -> None:
        sagemaker = self.world.sagemaker
        under_way = [name for name in self.names if self.audit.is_under_way(name)]
        for _ in range(0 if self.quiet else self.at_once - len(under_way)):
            self._submit(f"gpt-{len(self.names)}")
        for name in self.names:
            if self.chance(SICK):
                self.sick_until[name] = self.world.clock() + self.random.randrange(*SICK_MINUTES) * MINUTE
                self.counts["sick for hours"] += 1
            for job in self.audit.live(name):
                sick = self.world.clock() < self.sick_until[name]
                self._trains(name, job, minute, saves=not sick)
                if self.steps[name] >= STEPS:
                    self._ended(job, JobStatus.COMPLETED)
                elif sick and self.chance(1 / 8):
                    self._ended(job, JobStatus.FAILED, self.random.choice((*REASONS, BUG)))
                elif self.chance(FAILS):
                    self._ended(job, JobStatus.FAILED, self.random.choice(REASONS))
                elif self.chance(STOPPED):
                    self.counts["stopped by a human"] += 1
                    self.audit.stopped_by_a_human(name)
                    sagemaker.end(job, JobStatus.STOPPED)
                    self._tell(job)

    def _submit(self, name: str) -> None:
        self.names.append(name)
        self.sick_until[name] = self.world.clock()
        self.world.sagemaker.submit(name, uri=self._folder(name))
        self.counts["runs"] += 1
        self._tell(name)

    def _trains(self, name: str, job: str, minute: int, *, saves: bool) -> None:
        """A minute of a healthy job: ten steps, their metrics, and a checkpoint each ten minutes."""
        if self.started.get(name) != job:
            self.started[name], self.steps[name] = job, self.saved[name]
        self.steps[name] += STEPS_A_MINUTE
        step = self.steps[name]
        if self.quiet or self.world.clock() >= self.muted_until:
            loss = 2.0 + 3.0 * math.exp(-step / 5000) + 0.01 * math.sin(step)
            row = {"step": float(step), "loss": loss, "nonfinite": 0.0, "count": float(STEPS_A_MINUTE)}
            self.series.print(job, self.world.clock() - MINUTE, **row)
            forget(self.series, job, before=self.world.clock() - timedelta(hours=4))
        if saves and minute % SAVE_EVERY == 0:
            self.saved[name] = step
            attempt = int(job.rpartition("-a")[2]) if job != name else 1
            self.world.checkpoints.save(step, uri=self._folder(name), attempt=attempt)
            self.audit.saved(name)

    def _folder(self, name: str) -> str:
        return BUCKET.replace("checkpoints", name)

    def _ended(self, job: str, status: JobStatus, reason: str = "") -> None:
        self.world.sagemaker.end(job, status, reason)
        self.counts[f"jobs {status.value.lower()}"] += 1
        self._tell(job)

    def _tell(self, job: str) -> None:
        """SageMaker's event: lost, once or more often, at once or late."""
        self.events += 1
        hazards, at = self.hazards, self.world.clock()
        if not self.quiet and hazards.lost_every and self.events % hazards.lost_every == 0:
            self.counts["events lost"] += 1
            return
        times = self.random.randrange(2, 6) if self.chance(hazards.repeated) else 1
        self.counts["events repeated"] += times - 1
        for _ in range(times):
            late = timedelta()
            if self.chance(hazards.late):
                late = self.random.randrange(60, 600) * MINUTE
                self.counts["events hours late"] += 1
            elif self.chance(hazards.shuffled):
                late = self.random.randrange(30) * MINUTE
                self.counts["events out of order"] += bool(late)
            self._put({"source": "aws.sagemaker", "detail": {"TrainingJobName": job}}, at + late)

    def _put(self, event: Mapping[str, Any], at: datetime) -> None:
        for deployment in self.deployments:
            deployment.mail.append(Mail(at, json.dumps(event), at))

    def _speak(self) -> None:
        """Operators: hold, stop, restart; and a run that is held is released when somebody gets round to it."""
        for name in self.names:
            held = self.audit.is_held(name)
            if held and self.chance(RELEASED) and self.world.clock() >= self.sick_until[name]:
                self._command(name, OperatorVerb.RELEASE)
            elif not held and self.chance(SPOKEN):
                self._command(name, self.random.choice(WISHES))

    def _command(self, name: str, verb: OperatorVerb) -> None:
        self.said += 1
        self.counts[f"operators say {verb}"] += 1
        detail = {"run": name, "verb": verb, "who": "ann", "why": "her reason"}
        said = {"source": "rerail.operator", "id": f"said-{self.said}", "time": self.world.clock().isoformat()}
        command = {**said, "detail": detail}
        self.audit.asked(command)
        self._put(command, self.world.clock())

    def _lie(self) -> None:
        now, hazards = self.world.clock(), self.hazards
        if self.chance(hazards.blind):
            self.blind_until = now + timedelta(hours=1)
            self.counts["hours without an answer"] += 1
        if self.chance(hazards.muted):
            self.muted_until = now + timedelta(hours=1)
            self.counts["hours without metrics"] += 1
        if self.chance(hazards.jumps):
            self.jump_until = now + self.random.randrange(1, 90) * MINUTE
            self.counts["clock jumps"] += 1
            for deployment in self.deployments:
                deployment.skew = self.random.randrange(-hazards.jump_minutes, hazards.jump_minutes) * MINUTE
        if now >= self.jump_until:
            for deployment in self.deployments:
                deployment.skew = timedelta()
        if self.chance(hazards.strangers):
            self.counts["events of others"] += 1
            self._put(self._of_a_stranger(), now)
        if self.names and self.chance(hazards.forged):
            self.counts["events forged"] += 1
            self._put(self._forged(), now)

    def _of_a_stranger(self) -> dict[str, Any]:
        """Of another account: of a job that we do not have, or that has the name of one of ours."""
        job = self.random.choice(["not-ours", *self.world.sagemaker.jobs])
        detail = {"TrainingJobName": job, "TrainingJobStatus": "Failed", "FailureReason": REASONS[0]}
        return {"source": "aws.sagemaker", "account": STRANGER, "detail": detail}

    def _forged(self) -> dict[str, Any]:
        """What somebody makes up who can reach the queue with it: it says that healthy jobs are dead or ill. Commands
        and findings are not among them: who may give those is decided before the queue (tests/deployed)."""
        job = self.random.choice(list(self.world.sagemaker.jobs))
        name, run = self.random.choice(self.names), self.random.choice([*self.names, "gpt-9", "../x", 7, None])
        metric = {"metricStat": {"metric": {"dimensions": {"TrainingJobName": job}}}}
        state = {"value": "ALARM", "reason": "it burns"}
        alarm = {"alarmName": f"a-{self.random.random()}", "state": state, "configuration": {"metrics": [metric]}}
        key = f"runs/{name}/reports/{self.random.randrange(9)}.json"
        return self.random.choice(
            [
                {"source": "aws.sagemaker", "detail": {"TrainingJobName": job, "TrainingJobStatus": "Completed"}},
                {"source": "aws.sagemaker", "detail": {"TrainingJobName": 7}},
                {"source": "aws.cloudwatch", "detail": alarm},
                {"source": "aws.s3", "detail-type": "Object Created", "detail": {"object": {"key": key}}},
                {"source": "rerail.sweep", "detail": {"run": run}},
                {"source": "rerail.sweep", "detail": {"job": job}},
                {"source": "rerail.operator", "id": "x", "detail": {"verb": "explode", "run": name, "who": "x"}},
                {"source": "rerail.operator", "detail": {"verb": "stop", "run": "gpt-9", "who": "x"}},
                {"source": "rerail", "detail-type": "Rerail Notice", "detail": {"run": name}},
                {},
            ]
        )


def forget(series: FakeSeries, job: str, *, before: datetime) -> None:
    """Values that nobody reads any more, so that a long night is not a slow one."""
    minutes = series.points[job]
    while (first := next(iter(minutes))) < before:
        del minutes[first]


def story(deployment: Deployment, name: str) -> str:
    """A run's last decisions, for the reader of a broken promise."""
    run: Run | None = deployment.runs.load(name)
    reasons = [entry.reason for entry in deployment.runs.timeline if entry.run == name]
    return " / ".join(reasons[-3:]) + (f" / attempts {len(run.attempts)}" if run else "")


__all__ = ["ALONE", "CALM", "Broken", "Deployment", "Hazards", "Night", "Product", "together"]
