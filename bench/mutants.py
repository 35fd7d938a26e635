"""Products that are broken on purpose: a bench that would not see them would prove nothing of the real one."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import count
from typing import Any
from unittest.mock import patch

from bench.nights import ALONE, CALM, Hazards, Night, Product
from bench.promises import AuditedRuns, Broken, Promise
from rerail.detection.evaluate import Evaluation, Monitor, MonitoredRun
from rerail.messages.messages import JobStateChanged, Message, QueueMessage, RunDue, parse_message
from rerail.model.actions import CreateJob, Notify, Severity
from rerail.model.codec import dumps
from rerail.model.errors import RerailError
from rerail.model.policy import Limits, OnAlarm, Policy, Retries
from rerail.model.run import JobStatus, Ledger, Run, TimelineEntry
from rerail.requests.relaunch import make_request
from rerail.supervisor.supervisor import Supervisor
from rerail.sweep.sweep import Sweep, SweepReport


class Unconditional(AuditedRuns):
    """A conditional write that always succeeds."""

    def save(self, run: Run, entry: TimelineEntry | None = None, request: Mapping[str, Any] | None = None) -> None:
        before = self.load(run.id)
        self._audit.recorded(self._deployment, before, run)
        self.records[run.id] = dumps(run)
        self.jobs |= {attempt.job_name: run.id for attempt in run.attempts}
        self.timeline += [entry] if entry else []
        self.requests |= {run.id: request} if request is not None else {}


class Forgetful(AuditedRuns):
    """A ledger that is never charged."""

    def save(self, run: Run, entry: TimelineEntry | None = None, request: Mapping[str, Any] | None = None) -> None:
        super().save(replace(run, ledger=Ledger()), entry, request)


class Nameless(Supervisor):
    """Job names that are no function of run and attempt: a launch that is repeated makes another job."""

    launches = count()

    def _create(self, run: Run, action: Any) -> Any:
        request = dict(make_request(self.runs.request(run.id), action, run=run.id))
        request["TrainingJobName"] += f"{next(Nameless.launches)}"
        self.jobs.create(request)
        return None


class Headstrong(Supervisor):
    """It takes every job that was stopped for one that has failed, whoever stopped it."""

    def visit(self, run_id: str, make_signal: Any = None, **how: Any) -> Run:
        return Supervisor.visit(replace(self, jobs=_StoppedHasFailed(self.jobs)), run_id, make_signal, **how)


class _StoppedHasFailed:
    def __init__(self, port: Any) -> None:
        self._port = port

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)

    def describe(self, job_name: str) -> Any:
        job, description = self._port.describe(job_name)
        if job.status is JobStatus.STOPPED:
            job = replace(job, status=JobStatus.FAILED, failure_reason="InternalServerError: it stopped")
        return job, description


class Swallowing(Supervisor):
    """It takes every message off the queue, whatever became of it."""

    def handle(self, wakeup: Message, post: QueueMessage | None = None) -> Run | None:
        try:
            return Supervisor.handle(self, wakeup, post)
        except RerailError:
            return None


class Satisfied(Supervisor):
    """It takes what somebody saw before a message was sent for all that the message tells."""

    def handle(self, wakeup: Message, post: QueueMessage | None = None) -> Run | None:
        earlier = replace(post, sent_at=post.sent_at - timedelta(days=30)) if post else None
        return Supervisor.handle(self, wakeup, earlier)


class Mute(Supervisor):
    """It pages nobody."""

    def _perform(self, run: Run, action: Any) -> Any:
        silent = isinstance(action, Notify) and action.severity is Severity.PAGE
        return None if silent else Supervisor._perform(self, run, action)


class FromTheStart(Supervisor):
    """It launches every attempt from nothing."""

    def _create(self, run: Run, action: Any) -> Any:
        return Supervisor._create(self, run, replace(action, resume_step=None))


class Tidy(Supervisor):
    """It deletes the newest checkpoint once a job is launched from it."""

    def _create(self, run: Run, action: Any) -> Any:
        refused = Supervisor._create(self, run, action)
        checkpoints: Any = self.checkpoints
        saved = checkpoints.saved.get(run.checkpoint_uri) or [None]
        del saved[0]
        return refused


class Trusting(Supervisor):
    """It believes its record, and takes up no job that the record does not know."""

    def _take_up(self, *_: Any) -> None:
        return None


class Impatient(Supervisor):
    """It acts on what it has decided before that is recorded."""

    def _record_turn(self, run: Run, signal: Any, **how: Any) -> Run:
        if run.state == "waiting" and run.wake_at and signal.at >= run.wake_at and not run.current.exists:
            attempt = run.current
            early = CreateJob(f"{attempt.job_name}-0", attempt.number, attempt.resumed_from_step)
            self.jobs.create(make_request(self.runs.request(run.id), early, run=run.id))
        return Supervisor._record_turn(self, run, signal, **how)


class SureOfItsClock(Monitor):
    """It never doubts its own clock."""

    def judge(self, watchable: Sequence[MonitoredRun], *, at: datetime) -> list[Evaluation]:
        with patch("rerail.detection.evaluate.doubted", lambda *_, **__: None):
            return super().judge(watchable, at=at)


class Asleep(Sweep):
    """A round that asks about nothing."""

    def make(self, **_: Any) -> SweepReport:
        return SweepReport(open=0, due=0, discovered=0, blind=())


def credulous(body: str) -> Message:
    """It takes an event's word for what has become of a job: one that says "Failed" has it stopped and relaunched."""
    envelope = json.loads(body) if body else {}
    detail = envelope.get("detail", {}) if isinstance(envelope, dict) else {}
    if detail.get("TrainingJobStatus") == "Failed":
        run = str(detail["TrainingJobName"]).partition("-a")[0]
        detail = {"verb": "restart", "run": run, "who": "an event", "why": "it says so"}
        return parse_message(json.dumps({"source": "rerail.operator", "id": body[:100], "detail": detail}))
    wakeup = parse_message(body)
    return RunDue(wakeup.job_name) if isinstance(wakeup, JobStateChanged) and wakeup.job_name == "gpt-9" else wakeup


ENDLESS = Policy(
    limits=Limits(attempts=10**6, attempts_without_progress=10**6, starts=10**6),
    retries=Retries(infrastructure=10**6, hardware=10**6, hang=10**6, user_code=10**6),
)


@dataclass(frozen=True)
class Mutant:
    """A broken product, what makes its fault show, and the promise that it breaks first or `others`."""

    what: str
    product: Product
    hazards: Hazards
    breaks: tuple[Promise, ...]


MUTANTS = (
    Mutant(
        "a conditional write that always succeeds",
        Product(runs=Unconditional),
        ALONE["two messages at once, call by call"],
        (Promise.MESSAGES,),
    ),
    Mutant(
        "job names that are no function of run and attempt",
        Product(loop=Nameless),
        replace(ALONE["functions die at any call"], killed=0.1),
        (Promise.ONE_LIVE, Promise.ENDS),
    ),
    Mutant("acting before it is recorded", Product(loop=Impatient), CALM, (Promise.ONE_LIVE,)),
    Mutant("whoever stopped it, it failed", Product(loop=Headstrong), CALM, (Promise.HUMAN,)),
    Mutant("charges that are forgotten", Product(runs=Forgetful), CALM, (Promise.BUDGET,)),
    Mutant("budgets without end", Product(policy=ENDLESS), CALM, (Promise.BUDGET,)),
    Mutant(
        "an alarm that is believed",
        Product(policy=Policy(on_alarm=OnAlarm.RESTART)),
        ALONE["forged events"],
        (Promise.HEALTHY,),
    ),
    Mutant(
        "an event that is believed",
        Product(reads=credulous),
        ALONE["events of other accounts"],
        (Promise.HEALTHY,),
    ),
    Mutant(
        "a clock that is believed",
        Product(watching=SureOfItsClock),
        ALONE["clocks that jump by hours"],
        (Promise.HEALTHY,),
    ),
    Mutant("a message that fails is dropped", Product(loop=Swallowing), ALONE["calls throttled"], (Promise.MESSAGES,)),
    Mutant("a look that answers what was sent after it", Product(loop=Satisfied), CALM, (Promise.ENDS,)),
    Mutant("holds that page nobody", Product(loop=Mute), CALM, (Promise.PAGED,)),
    Mutant("launches from nothing", Product(loop=FromTheStart), CALM, (Promise.SAVES,)),
    Mutant("checkpoints that are tidied away", Product(loop=Tidy), CALM, (Promise.SAVES,)),
    Mutant("a sweep that asks about nothing", Product(round=Asleep), ALONE["every event lost"], (Promise.ENDS,)),
    Mutant(
        "a record that is believed after a restore",
        Product(loop=Trusting),
        replace(ALONE["table restored from a day-old backup"], lost_every=3),
        (Promise.ENDS, Promise.HUMAN),
    ),
)


def found(mutant: Mutant, *, seeds: range, hours: int = 30) -> tuple[int, Broken | None]:
    """How many nights it took until the bench reported the mutant, and what; None where it never did."""
    for tried, seed in enumerate(seeds, 1):
        try:
            Night(seed, hazards=mutant.hazards, hours=hours, product=mutant.product).play()
        except Broken as broken:
            return tried, broken
    return len(seeds), None
