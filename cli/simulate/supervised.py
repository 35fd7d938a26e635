"""A run that Rerail looks after: the real decisions, on what the simulated world tells, carried out in its time."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cli.simulate.accounts import Spent
from cli.simulate.faults import SimulatedFault
from cli.simulate.world import FOLDER, SWEEP_S, SimulatedFinding, SimulatedJob, SimulatedRun
from rerail.accounting.save_interval import estimate_mtbf
from rerail.decisions.adoption import Adopted, adopt
from rerail.decisions.decide import decide
from rerail.decisions.decision import Decision
from rerail.decisions.warm_pools import AVAILABLE, IN_USE, TERMINATED
from rerail.model.actions import Action, CreateJob, Notify, PostCommand, ReleaseWarmPool, Severity, StopJob
from rerail.model.checkpoints import Checkpoint
from rerail.model.errors import JobNotFound
from rerail.model.finding import Finding, Level
from rerail.model.machines import WarmPool
from rerail.model.mailbox import Ability, Command, CommandKind, Durability, Report, ReportKind
from rerail.model.policy import Policy
from rerail.model.run import Job, JobStatus, Run, RunState
from rerail.model.signals import (
    ActionsDone,
    AgentReported,
    CreateRefused,
    JobObserved,
    OperatorCommand,
    OperatorVerb,
    Refusal,
    Signal,
    Tick,
)
from rerail.model.signals import FindingsObserved as FoundSignal
from rerail.requests.relaunch import POLICY_TAG
from rerail.supervisor.observe import observe

NAME = "run"
NO_ROOM = "Unable to provision requested ML compute capacity due to InsufficientInstanceCapacity error."
MORE_ATTEMPTS = 50
Think = Callable[[Run, Signal, Policy], Decision]


class Supervised:
    """One run, its record, and the ports through which the core looks at the world."""

    def __init__(self, world: SimulatedRun, policy: Policy, think: Think = decide) -> None:
        self.world, self.policy, self.think = world, policy, think
        if world.way.attempts is not None:
            self.policy = replace(policy, limits=replace(policy.limits, attempts=world.way.attempts))
        self.run: Run
        self.signals = 0
        self.commands = 0
        self.false_onsets: set[int] = set()

    # The ports that `observe` looks through.

    def describe(self, name: str) -> tuple[Job, Mapping[str, Any]]:
        job = self.world.job
        if job is None or job.name != name:
            raise JobNotFound(name)
        moment = self.world.get_moment
        return (
            Job(
                name=job.name,
                arn=f"arn:aws:sagemaker:us-east-1:000000000000:training-job/{job.name}",
                status=job.status,
                secondary=job.secondary,
                created_at=moment(job.created_ms),
                training_started_at=None if job.started_ms is None else moment(job.started_ms),
                ended_at=None if job.ended_ms is None else moment(job.ended_ms),
                failure_reason=job.reason,
                checkpoint_uri=FOLDER,
                instance_count=math.ceil(self.world.gpus / self.world.assumed.gpus_a_machine),
                keep_alive_seconds=self.world.way.keep_alive_s,
                pool=self._pool(job),
                metrics={"step": float(job.step)} if job.status.is_terminal else {},
            ),
            {},
        )

    def _pool(self, job: SimulatedJob) -> WarmPool | None:
        if not self.world.way.keep_alive_s:
            return None
        kept = AVAILABLE if self.world.pool_until > self.world.now else TERMINATED
        return WarmPool(kept if job.status.is_terminal else IN_USE)

    def list_checkpoints(
        self, uri: str, *, upto: int | None = None, signing_key: str = "", signed_only: bool = True
    ) -> Sequence[Checkpoint]:
        return tuple(self.world.saved)

    def get(self, name: str) -> Policy:
        return self.policy

    # What the world tells.

    def begin(self) -> None:
        self.world.launch(NAME, 1, resume_step=None)
        job, _ = self.describe(NAME)
        enrolled = adopt(job, {}, {POLICY_TAG: self.policy.name}, self, taken=False, at=self.world.get_moment())
        assert isinstance(enrolled, Adopted)
        self.run = enrolled.run
        self.world.schedule(SWEEP_S, self._sweep)

    def on_job_changed(self) -> None:
        self._visit()
        job = self.world.job
        if self.world.way.agent and job and job.secondary == "Training" and not self.run.current.agent:
            restart = (Ability.RESTART,) if self.world.way.in_place else ()
            self._report(ReportKind.HELLO, abilities=(Ability.SKIP, Ability.RATE, *restart))

    def on_fault(self, fault: SimulatedFault) -> None:
        """Do nothing: only detectors notify Rerail."""

    def on_finding(self, found: SimulatedFinding) -> None:
        at = self.world.get_moment()
        text = f"{found.kind} since step {found.onset}"
        finding = Finding(found.kind, found.level, self.world.step, found.onset, text, at, found.at_onset)
        before = self.run.state
        if self.world.way.agent:
            self._report(ReportKind.FINDINGS, findings=(finding,))
        else:
            self._visit(FoundSignal(at, self.run.current.job_name, (finding,), self.list_checkpoints("")))
        if found.false and before is RunState.WATCHING and self.run.state is not RunState.WATCHING:
            self.world.counts["wrong_interventions"] += 1

    def on_crash(self, text: str) -> None:
        self._report(ReportKind.CRASHED, evidence=text)

    def on_restart(self) -> None:
        """Report the restart, as the processes do with their first step."""
        self._report(ReportKind.RESTARTED, step=self.world.step)

    def _sweep(self) -> None:
        self._visit()
        self.world.schedule(SWEEP_S, self._sweep)

    def _report(self, kind: ReportKind, **more: Any) -> None:
        world, attempt = self.world, self.run.current
        id = f"{kind}-{world.now}"
        more = {"restart": world.job.restarts if world.job else 0, "is_signed": True, **more}
        report = Report(id, self.run.mailbox, attempt.number, attempt.job_name, kind, world.get_moment(), **more)
        grave = kind is ReportKind.CRASHED or any(f.level is Level.INTERVENE for f in report.findings)
        self._visit(AgentReported(world.get_moment(), report, self.list_checkpoints("") if grave else None))

    # One turn of the loop.

    def _visit(self, received: Signal | None = None) -> None:
        seen = None
        for signal in observe(self.run, self, self, at=self.world.get_moment()):  # type: ignore[arg-type]
            if isinstance(signal, JobObserved):
                seen = signal.checkpoints
            if isinstance(signal, Tick) and received:
                if isinstance(received, AgentReported) and received.checkpoints is None:
                    received = replace(received, checkpoints=seen)
                self._turn(received)
            self._turn(signal)

    def _turn(self, signal: Signal) -> None:
        before = self.run.state
        decision = self.think(self.run, signal, self.policy)
        self.signals += 1
        self.run = decision.run
        if decision.reason:
            self.run = replace(self.run, version=self.run.version + 1)
            self.world.counts["decisions"] += 1
        if self.run.pending:
            self._act()
        if self.run.state is RunState.HELD and before is not RunState.HELD:
            self._page()
        elif self.run.state is RunState.WAITING:
            self.world.waiting = Spent.BACKOFF

    def _act(self) -> None:
        actions = sorted(self.run.pending, key=lambda action: action.RANK)
        refused = [action for action in actions if not self._perform(action)]
        for action in refused:
            assert isinstance(action, CreateJob)
            self._turn(CreateRefused(self.world.get_moment(), action, Refusal.CAPACITY, NO_ROOM))
        if done := tuple(action for action in actions if action not in refused):
            self._turn(ActionsDone(self.world.get_moment(), done))

    def _perform(self, action: Action | Notify) -> bool:
        """Carry it out; False where SageMaker refuses."""
        match action:
            case CreateJob():
                return self.world.launch(
                    action.job_name,
                    action.attempt,
                    resume_step=action.resume_step,
                    skip=action.skip_samples,
                    rate=action.rate,
                    mtbf_s=estimate_mtbf(self.run, self.policy, at=self.world.get_moment())[0],
                )
            case StopJob():
                self.world.stop()
            case ReleaseWarmPool():
                self.world.release_pool()
            case PostCommand():
                self._post(action.command)
            case Notify():
                self.world.counts["notices"] += 1
                self.world.counts["pages"] += action.severity is Severity.PAGE
            case _:
                """Nothing in the simulated world depends on it: checkpoints here are told apart by their manifests."""
        return True

    def _post(self, command: Command) -> None:
        """The agent looks every few seconds."""
        if self.world.way.agent:
            self.world.schedule(
                self.world.get_dice("poll").uniform(0.0, self.world.assumed.poll_s), self._heed, command
            )

    def _heed(self, command: Command) -> None:
        job = self.world.job
        if job is None or job.number != command.attempt or job.status is not JobStatus.IN_PROGRESS:
            return
        match command.kind:
            case CommandKind.CHECKPOINT:
                self._save(command)
            case CommandKind.RESTART if job.secondary == "Training":
                self.world.restart(resume_step=command.resume_step, order=command)
            case CommandKind.TRAIN:
                self.world.let_end()

    def _save(self, command: Command) -> None:
        late = self.world.assumed.event_s + self.world.way.later_s

        def durable(step: int) -> None:
            self.world.schedule(late, self._answer, command, ReportKind.CHECKPOINT, step)

        self.world.save_now(durable)
        self.world.schedule(late, self._answer, command, ReportKind.ACKNOWLEDGED, None)

    def _answer(self, command: Command, kind: ReportKind, step: int | None) -> None:
        if command.attempt == self.run.current.number:
            durability = Durability.REMOTE if kind is ReportKind.CHECKPOINT else None
            self._report(kind, command=command.id, step=step, durability=durability)

    # People, when the run is held.

    def _page(self) -> None:
        self.world.counts["holds"] += 1
        self.world.waiting = Spent.HUMAN
        self.world.schedule(self.world.draw_delay(self.world.assumed.human_crash, "people"), self._resolve_hold)

    def _resolve_hold(self) -> None:
        """They do what the notice asks for, and release the run."""
        if self.run.state is not RunState.HELD:
            return
        self.world.remove_causes()
        limits = self.policy.limits
        if len(self.run.attempts) >= limits.attempts:
            self.policy = replace(self.policy, limits=replace(limits, attempts=limits.attempts + MORE_ATTEMPTS))
        self._say(OperatorVerb.RELEASE)
        if self.world.onset is not None and self.world.is_live:
            self._say(OperatorVerb.RESTART)

    def _say(self, verb: OperatorVerb) -> None:
        self.commands += 1
        said = OperatorCommand(
            self.world.get_moment(), f"c{self.commands}", verb, "on-call", "fixed", self.list_checkpoints("")
        )
        self._visit(said)
