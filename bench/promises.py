"""What Rerail promises, and the audit that watches a night for the first promise that is not kept.

The audit stands outside of the product: it sees which jobs are launched and stopped, which checkpoints there are, what
humans have said, what is told, and each record beside the one before it. It asks the product for nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from rerail.messages.messages import CommandReceived
from rerail.model.actions import Severity
from rerail.model.policy import Limits
from rerail.model.run import JobStatus, Run, RunState, TimelineEntry
from rerail.model.signals import OperatorVerb
from tests.fakes import FakeBus, FakeRuns, World

if TYPE_CHECKING:
    from bench.nights import Deployment

PAGED_WITHIN = timedelta(minutes=30)
FORGOTTEN_AFTER = timedelta(hours=20)  # the policy's window of 24 hours, less what a clock may be wrong by


class Promise(StrEnum):
    """One each, as people read it."""

    ONE_LIVE = "never two live jobs of a run"
    HUMAN = "no launch against a human's stop or hold"
    BUDGET = "budgets never grow without progress"
    HEALTHY = "no healthy job is stopped"
    SAVES = "no checkpoint is lost, each launch is from the newest"
    PAGED = "every hold pages"
    MESSAGES = "no command is lost: it is granted and stays so, or is put aside with an alarm"
    ENDS = "every run ends, is held, or trains and is watched"


class Broken(Exception):
    """A promise was broken; the message says which, and when."""

    def __init__(self, promise: Promise, what: str) -> None:
        super().__init__(f"{promise}: {what}")
        self.promise = promise


@dataclass
class Hold:
    """A run that was held by Rerail, of which on-call has to hear."""

    deployment: Deployment
    run: str
    key: str
    at: datetime
    told_before: int


@dataclass
class Audit:
    """Over one night; `checked` counts how often each promise was put to the test."""

    world: World
    limits: Limits = field(default_factory=Limits)
    deployments: Sequence[Deployment] = ()
    checked: Counter[Promise] = field(default_factory=Counter)
    breaches: list[Broken] = field(default_factory=list)
    holds: list[Hold] = field(default_factory=list)
    stopped_by_humans: set[str] = field(default_factory=set)
    ends_asked: Counter[str] = field(default_factory=Counter)
    jobs_stopped: dict[str, set[str]] = field(default_factory=dict)
    launches: Counter[str] = field(default_factory=Counter)
    restored_at: list[datetime] = field(default_factory=list)
    words: list[tuple[Deployment, CommandReceived]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    let_go: Counter[str] = field(default_factory=Counter)
    heard: set[tuple[int, str]] = field(default_factory=set)
    held_by_humans: set[tuple[int, str]] = field(default_factory=set)

    def breach(self, promise: Promise, what: str) -> None:
        """It is kept, and raised when the minute is over: the product must not be able to catch it."""
        self.breaches.append(Broken(promise, f"{what}, at {self.world.clock():%a %H:%M}"))

    def live(self, name: str) -> list[str]:
        """The run's jobs that are not terminal."""
        return [job for job in self.world.sagemaker.live() if run_of(job) == name]

    def is_held(self, name: str) -> bool:
        """Every deployment holds the run."""
        runs = [deployment.runs.load(name) for deployment in self.deployments]
        return all(run is not None and run.state is RunState.HELD for run in runs)

    def is_under_way(self, name: str) -> bool:
        """A job lives, or somebody may still launch one: it is not completed or stopped for all."""
        runs = [deployment.runs.load(name) for deployment in self.deployments]
        over = (RunState.COMPLETED, RunState.STOPPED)
        return bool(self.live(name)) or not all(run is not None and run.state in over for run in runs)

    # What the world sees.

    def created(self, job: str, request: Mapping[str, Any]) -> None:
        """A job was launched."""
        name = run_of(job)
        self.checked[Promise.ONE_LIVE] += 1
        if len(live := self.live(name)) > 1:
            self.breach(Promise.ONE_LIVE, f"{' and '.join(live)} live")
        self.checked[Promise.HUMAN] += 1
        if name in self.stopped_by_humans:
            self.breach(Promise.HUMAN, f"{job} was launched after a human had stopped the run")
        if all((number, name) in self.held_by_humans for number in range(len(self.deployments))):
            self.breach(Promise.HUMAN, f"{job} was launched although an operator holds the run")
        self._from_the_newest(name, job, request)
        self._within_budget(name, job)

    def stopped(self, job: str) -> None:
        """A live job is being stopped by Rerail: only an operator can have wanted that, for all jobs are healthy."""
        name = run_of(job)
        self.checked[Promise.HEALTHY] += 1
        stopped = self.jobs_stopped.setdefault(name, set())
        stopped.add(job)
        if len(stopped) > self.ends_asked[name]:
            self.breach(Promise.HEALTHY, f"{job} was stopped, and nobody had asked for that")

    def saved(self, name: str) -> None:
        """A healthy job has committed a checkpoint: progress."""
        self.launches[name] = 0

    def stopped_by_a_human(self, name: str) -> None:
        """In SageMaker's console. Where Rerail is stopping the job itself, nobody can tell the two apart."""
        runs = [deployment.runs.load(name) for deployment in self.deployments]
        if not any(run and run.stop for run in runs):
            self.stopped_by_humans.add(name)

    def _from_the_newest(self, name: str, job: str, request: Mapping[str, Any]) -> None:
        self.checked[Promise.SAVES] += 1
        saved = self.world.checkpoints.under(request.get("CheckpointConfig", {}).get("S3Uri", ""))
        newest = max((checkpoint.step for checkpoint in saved), default=0)
        asked = int(request.get("Environment", {}).get("RERAIL_RESUME_STEP", "-1"))
        if asked != newest:
            self.breach(Promise.SAVES, f"{job} resumes from step {asked}, the newest checkpoint is at {newest}")

    def _within_budget(self, name: str, job: str) -> None:
        """Counted in the world: so many launches at most since the last new checkpoint, but for want of capacity."""
        self.checked[Promise.BUDGET] += 1
        ended = [each for each in self.world.sagemaker.jobs.values() if run_of(each.name) == name and each.name != job]
        last = ended[-1] if ended else None
        if last is None or last.status is not JobStatus.FAILED or "CapacityError" in last.failure_reason:
            return
        self.launches[name] += 1
        # A second ledger counts by itself, and one out of a backup begins again where it was.
        allowed = (self.limits.attempts_without_progress + 1) * (len(self.deployments) + len(self.restored_at))
        if self.launches[name] > allowed:
            self.breach(Promise.BUDGET, f"{job} is launch {self.launches[name]} of {name} without a new checkpoint")

    # What humans say.

    def asked(self, command: Mapping[str, Any]) -> None:
        """An operator's command is on its way to every deployment."""
        self.said.append(command["id"])
        name, verb = command["detail"]["run"], command["detail"]["verb"]
        if verb in (OperatorVerb.STOP, OperatorVerb.RESTART):
            self.ends_asked[name] += len(self.deployments)  # each grants it once
        if verb in (OperatorVerb.RELEASE, OperatorVerb.RESTART):
            self.held_by_humans = {key for key in self.held_by_humans if key[1] != name}
            self.let_go[name] = len(self.said)

    def granted(self, deployment: Deployment, command: CommandReceived) -> None:
        """The function took the message off the queue: from now on the command must stand."""
        self.heard.add((self._number(deployment), command.id))
        if command.id in self.said:
            self.words.append((deployment, command))

    def _settle_words(self) -> None:
        """A minute later, when no message is in flight: a launch that was decided before a hold may have crossed it."""
        for deployment, command in self.words:
            self.checked[Promise.MESSAGES] += 1
            run = deployment.runs.load(command.run)
            if run is None or command.id not in run.commands:
                self.breach(
                    Promise.MESSAGES, f"{command.verb} ({command.id}) was taken, and {command.run} knows nothing"
                )
                continue
            is_last = self.said.index(command.id) >= self.let_go[command.run]  # what was spoken last counts
            if command.verb is OperatorVerb.HOLD and run.state is RunState.HELD and is_last:
                self.held_by_humans.add((self._number(deployment), command.run))
            elif command.verb in (OperatorVerb.RELEASE, OperatorVerb.RESTART):
                self.launches[command.run] = 0
        self.words.clear()

    def _number(self, deployment: Deployment) -> int:
        return next(number for number, each in enumerate(self.deployments) if each is deployment)

    # What is recorded and told.

    def recorded(self, deployment: Deployment, before: Run | None, after: Run) -> None:
        """A record takes the place of another."""
        self.checked[Promise.MESSAGES] += 1
        if after.version != (before.version if before else 0) + 1:
            what = f"version {after.version} of {after.id} was written over {before and before.version}"
            self.breach(Promise.MESSAGES, what)
        if before is None:
            return
        self.checked[Promise.BUDGET] += 1
        if given_back := [c for c, n in before.ledger.charges.items() if after.ledger.charges.get(c, 0) < n]:
            progress = (after.ledger.progress_step or 0) > (before.ledger.progress_step or 0)
            pardon = set(after.commands) - set(before.commands)
            old = {c for c in given_back if self._is_old(before.ledger.charged_at.get(c, ()), deployment)}
            if not progress and not pardon and set(given_back) - old:
                self.breach(Promise.BUDGET, f"{after.id} was given back {', '.join(given_back)} for nothing")
        if after.state is RunState.HELD and before.state is not RunState.HELD and "said hold" not in after.hold_reason:
            key, told = f"{after.id}/held-{after.current.number}", len(deployment.bus.told)
            self.holds.append(Hold(deployment, after.id, key, self.world.clock(), told))

    def _is_old(self, charged: Sequence[datetime], deployment: Deployment) -> bool:
        return bool(charged) and deployment.clock() - min(charged) >= FORGOTTEN_AFTER

    def restored(self, deployment: Deployment, backup_at: datetime) -> None:
        """A table forgets what happened since: what humans said to it then, and what it owed."""
        self.restored_at.append(self.world.clock())
        self.holds = [hold for hold in self.holds if hold.deployment is not deployment]
        number = self._number(deployment)
        self.held_by_humans = {key for key in self.held_by_humans if key[0] != number}
        self.words = [(each, command) for each, command in self.words if each is not deployment]

    # What is judged, each minute and at the end.

    def minute(self) -> None:
        """Once a minute; raises Broken."""
        names = {run_of(job) for job in self.world.sagemaker.jobs}
        for name in names:
            self.checked[Promise.ONE_LIVE] += 1
            if len(live := self.live(name)) > 1:
                self.breach(Promise.ONE_LIVE, f"{' and '.join(live)} live")
        self._settle_words()
        self._settle_holds()
        if self.breaches:
            raise self.breaches[0]

    def _settle_holds(self) -> None:
        for hold in list(self.holds):
            if any(_pages(notice, hold) for notice in hold.deployment.bus.told[hold.told_before :]):
                self.checked[Promise.PAGED] += 1
                self.holds.remove(hold)
            elif self.world.clock() - hold.at > PAGED_WITHIN:
                self.holds.remove(hold)
                self.breach(Promise.PAGED, f"{hold.run} was held ({hold.key}), and nobody was paged")

    def judge(self, names: Sequence[str]) -> None:
        """When the world has been quiet for hours; raises Broken."""
        for number, deployment in enumerate(self.deployments):
            for name in names:
                self._judge_run(deployment, name)
            self.checked[Promise.MESSAGES] += len(self.said)
            for id in sorted(set(self.said) - {heard for each, heard in self.heard if each == number}):
                if not any(f'"{id}"' in letter for letter in deployment.dead_letters):
                    self.breach(Promise.MESSAGES, f"the command {id} was neither granted nor put aside")
        checkpoints = self.world.checkpoints
        left = sum(map(len, checkpoints.saved.values())) + len(checkpoints.aside)
        self.checked[Promise.SAVES] += 1
        if left != checkpoints.count:
            self.breach(Promise.SAVES, f"{checkpoints.count} checkpoints were saved, {left} are left")
        if self.breaches:
            raise self.breaches[0]

    def _judge_run(self, deployment: Deployment, name: str) -> None:
        self.checked[Promise.ENDS] += 1
        live, run = self.live(name), deployment.runs.load(name)
        if run is None:
            jobs = [job for job in self.world.sagemaker.jobs.values() if run_of(job.name) == name]
            ended_at = jobs[-1].ended_at
            # What had ended, or was held, when a table was restored that knows nothing of it, is not asked about again.
            was_over = ended_at is not None and any(ended_at < restored_at for restored_at in self.restored_at)
            if live or (jobs[-1].status is JobStatus.FAILED and not was_over):
                self.breach(Promise.ENDS, f"{jobs[-1].name} is {jobs[-1].status}, and nobody has heard of it")
            return
        story = f"attempt {run.current.number}, {' / '.join(deployment.runs.reasons(name)[-3:])}"
        if live and live != [run.current.job_name]:
            what = f"{live[0]} lives, the record of {name} says {run.state} {run.current.job_name}"
            self.breach(Promise.ENDS, f"{what}: {story}")
        elif live and run.state.is_end and run.state is not RunState.HELD:
            self.breach(Promise.ENDS, f"{live[0]} lives, and nobody watches it ({run.state}): {story}")
        elif not live and not run.state.is_end:
            self.breach(Promise.ENDS, f"no job of {name} lives, and its record says {run.state}: {story}")
        if run.pending:
            self.breach(Promise.ENDS, f"{name} still owes {run.pending}")


class AuditedRuns(FakeRuns):
    """The memory; each record that is written is shown to the audit beside the one before."""

    def watched_by(self, audit: Audit, deployment: Deployment) -> None:
        """From now on."""
        self._audit, self._deployment = audit, deployment

    def save(self, run: Run, entry: TimelineEntry | None = None, request: Mapping[str, Any] | None = None) -> None:
        before = self.load(run.id)
        super().save(run, entry, request)
        self._audit.recorded(self._deployment, before, run)

    def reasons(self, name: str) -> list[str]:
        """Why the run is as it is, the last reason last."""
        return [entry.reason for entry in self.timeline if entry.run == name]


def run_of(job: str) -> str:
    """The run that a job's name belongs to."""
    name, found, _ = job.rpartition("-a")
    return name if found else job


def _pages(notice: Any, hold: Hold) -> bool:
    return bool(notice.severity is Severity.PAGE and (notice.run, notice.key) == (hold.run, hold.key))


__all__ = ["Audit", "AuditedRuns", "Broken", "FakeBus", "Promise", "run_of"]
