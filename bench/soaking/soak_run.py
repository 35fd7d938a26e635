"""One run of the soak: inject its faults in turn, answer as an operator would, and record the outcome."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from bench.soaking.account import BUCKET, SoakAccount
from bench.soaking.faults import FAULTS, SoakFault
from bench.soaking.notes import Notes
from bench.soaking.plan import PlannedFault, RunPlan
from cli.demo.scenarios import BATCH_SIZE, FaultRequest
from cli.operators import ask
from local.sagemaker.control import InjectionRefused, inject
from rerail.model.finding import Kind
from rerail.model.run import Attempt, Run, RunState, TimelineEntry
from rerail.model.signals import OperatorVerb
from rerail.requests.relaunch import POLICY_TAG

# A hold or a proposal is looked at for a moment before it is answered.
THINKS = timedelta(seconds=1)
# What has had no effect for so long will have none.
PATIENCE = timedelta(seconds=150)
OVERDUE_STEPS = 120
# How many steps before a fault its training process learns of it.
AHEAD_STEPS = 20
QUIET_STEPS = 60
WHY = "the soak: inspected and resolved"


@dataclass(slots=True)
class Injection:
    """A fault that was caused: when, at which step, in which attempt, and what the record held by then."""

    planned: PlannedFault
    at: datetime
    step: int
    attempt: int
    version: int
    incidents: int
    repairs: int = 0
    # The number of attempts in which it was injected.
    repeats: int = 1
    # This and the following fields are set when it is over.
    over_at: datetime | None = None
    causes: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()
    rungs: tuple[str, ...] = ()
    attempts: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def fault(self) -> SoakFault:
        return FAULTS[self.planned.name]

    @property
    def is_resolved(self) -> bool:
        return self.over_at is not None and not self.problems


class SoakRun:
    """One run, advanced by `look`; `log` gets a line for each event."""

    def __init__(self, account: SoakAccount, plan: RunPlan, log: Callable[[str], None]) -> None:
        self.account, self.plan, self.name, self.log = account, plan, plan.name, log
        self.setup = plan.setup
        self.notes = Notes(account.folder)
        self.run: Run | None = None
        self.timeline: Sequence[TimelineEntry] = ()
        self.injections: list[Injection] = []
        self.index = 0
        self.problems: list[str] = []
        self.seen_saves: dict[tuple[int, int], str] = {}
        self.damaged: set[tuple[int, int]] = set()
        self.moved_at = datetime.now(UTC)
        self._mark: tuple[object, ...] = ()
        self._ordered: set[str] = set()
        self._asked: set[str] = set()
        self._hit = 0
        self._armed: tuple[PlannedFault, int] | None = None
        self._order(self.name)
        policy = account.policy_for(plan.setup)
        account.submit(self.name, plan.setup, steps=plan.steps, tags={POLICY_TAG: policy}, watched=True)

    # ------------------------------------------------------------------ what the world may do to it

    def _cause(self, requests: Sequence[FaultRequest]) -> None:
        """Ask the fake of SageMaker for these faults of the current job."""
        for request in requests:
            fields = {
                name: value.format(job=self.job, run=self.name) if isinstance(value, str) else value
                for name, value in request.items()
            }
            inject(self.account.aws.endpoint_url, fields.pop("Fault"), **fields)

    def _break_run(self, fault: SoakFault) -> None:
        time.sleep(fault.wait_s)
        self._cause(fault.requests)
        if fault.damages_save:
            self._damage_newest_save()

    def _damage_newest_save(self) -> None:
        """Flip bits in the middle of a file of the newest checkpoint that is whole in S3."""
        key = max(key for key in self._keys() if key.endswith("/manifest.json") and "/quarantine/" not in key)
        manifest = json.loads(self.account.s3.get_object(Bucket=BUCKET, Key=key)["Body"].read())
        file = max(manifest["files"], key=lambda entry: entry["bytes"])["name"]
        place = f"{key.rpartition('/')[0]}/{file}"
        content = bytearray(self.account.s3.get_object(Bucket=BUCKET, Key=place)["Body"].read())
        content[len(content) // 2] ^= 0xFF
        self.account.s3.put_object(Bucket=BUCKET, Key=place, Body=bytes(content))
        self.damaged.add((manifest["step"], manifest["attempt"]))

    # ------------------------------------------------------------------ how far it has come

    @property
    def job(self) -> str:
        return self.run.current.job_name if self.run else self.name

    @property
    def is_over(self) -> bool:
        """Return whether every fault is over and the run has ended with nothing pending, or it was given up."""
        ended = self.run is not None and self.run.state.is_end and not self.run.is_open
        return bool(self.problems) or (ended and self.index == len(self.plan.faults))

    @property
    def state(self) -> str:
        """Return one line for the log."""
        state = self.run.state.value if self.run else "submitted"
        left = self.plan.faults[self.index].name if self.index < len(self.plan.faults) else "its end"
        attempt = self.run.current.number if self.run else 1
        return (
            f"{self.name}: step {self.notes.last_step} of {self.plan.steps}, attempt {attempt}, {state}, before {left}"
        )

    def look(self) -> None:
        """Read what is new, and go on."""
        self.run = self.account.runs.load(self.name)
        if self.run is None:
            self._tire()
            return
        for attempt in self.run.attempts:
            if attempt.job_name not in self._ordered:
                self._order(attempt.job_name)
        jobs = [attempt.job_name for attempt in self.run.attempts]
        self.notes.read(jobs)
        self._read_injections()
        self._answer(self.run)
        self._inject_planned(self.run)
        self._settle(self.run)
        self._tire()

    def _tire(self) -> None:
        """Give up on a run without any progress."""
        now = datetime.now(UTC)
        mark = (self.run.version if self.run else 0, self.index, self.notes.last_step // 20, len(self.injections))
        if mark != self._mark:
            self._mark, self.moved_at = mark, now
        elif now - self.moved_at > PATIENCE:
            self._give_up(f"nothing has happened for {PATIENCE.total_seconds():.0f} s: {self.state}")
        injection, ended = (
            self._open_injection(),
            self.run is not None and self.run.state.is_end and not self.run.is_open,
        )
        if ended and injection is None and self.index < len(self.plan.faults):
            planned = self.plan.faults[self.index]
            self._give_up(f"the run ended before {planned.name}: recoveries took more steps than planned")
            return
        if injection and now - injection.at > 2 * PATIENCE:
            self._give_up(
                f"{injection.planned.name} is not over after {2 * PATIENCE.total_seconds():.0f} s: {self.state}"
            )

    def _give_up(self, why: str) -> None:
        if self.problems:
            return
        self.problems.append(why)
        self.log(f"given up: {why}")
        self.keep_timeline()
        for injection in self.injections:
            self._cause(injection.fault.after)
        if self.run and self.run.current.may_be_live:
            self.account.sagemaker.stop_training_job(TrainingJobName=self.job)

    # ------------------------------------------------------------------ causing faults

    def _order(self, job: str) -> None:
        """Give this attempt the planned fault, unless it was injected as often as it should be."""
        self._ordered.add(job)
        drill = own = ""
        if self._armed:
            planned, step = self._armed
            if not self._is_spent(planned):
                marks = {"step": step, "sample": BATCH_SIZE * step - 1}
                drill, own = (text.format(**marks) for text in (FAULTS[planned.name].drill, FAULTS[planned.name].own))
        self.account.order(job, drill=drill, own=own)

    def _injection_of(self, planned: PlannedFault) -> Injection | None:
        return next((injection for injection in self.injections if injection.planned == planned), None)

    def _open_injection(self) -> Injection | None:
        """Return the fault that is not over yet."""
        if self.index == len(self.plan.faults):
            return None
        return self._injection_of(self.plan.faults[self.index])

    def _read_injections(self) -> None:
        """Take in the notes of faults that the training process injected itself."""
        for kind, step, at in self.notes.injected[self._hit :]:
            self._hit += 1
            planned = self._armed[0] if self._armed else None
            if planned is None or _kind(FAULTS[planned.name]) != kind or self._is_spent(planned):
                self._give_up(f"{kind} was injected at step {step}, and was not planned")
                return
            if injection := self._injection_of(planned):
                injection.repeats += 1
            else:
                injection = self._begin(planned, datetime.fromtimestamp(at, UTC), step=step or self.notes.last_step + 1)
                self._break_run(injection.fault)
            self._order(self.job)

    def _is_spent(self, planned: PlannedFault) -> bool:
        injection = self._injection_of(planned)
        return injection is not None and injection.repeats >= FAULTS[planned.name].repeats

    def _begin(self, planned: PlannedFault, at: datetime, *, step: int) -> Injection:
        """Begin a fault, with the record as it was at that moment, however late it is noticed."""
        run = self.run
        assert run is not None, "it trains, so it was adopted"
        repairs = sum(attempt.self_repairs for attempt in run.attempts)
        attempt = max(
            (attempt.number for attempt in run.attempts if attempt.created_at and attempt.created_at < at), default=1
        )
        version = max((entry.version for entry in self.account.runs.timeline(self.name) if entry.at < at), default=0)
        incidents = sum(incident.decided_at < at for incident in run.incidents)
        injection = Injection(planned, at, step, attempt, version, incidents, repairs)
        self.injections.append(injection)
        self.log(f"{planned.name} is injected into {self.name} at step {step}: {injection.fault.description}")
        return injection

    def _inject_planned(self, run: Run) -> None:
        """Inject faults from outside, when the training is past their step and no other fault is open."""
        if self.index == len(self.plan.faults) or self._open_injection():
            return
        planned = self.plan.faults[self.index]
        fault = FAULTS[planned.name]
        calm = run.state is RunState.WATCHING and run.open_incident is None and run.current.secondary == "Training"
        if fault.is_within:
            self._arm(planned, calm=calm)
            return
        if calm and self.notes.last_step >= planned.step and self._has_saved():
            began = datetime.now(UTC)
            try:
                self._break_run(fault)
            except InjectionRefused:
                return  # it is between two states: the next look tries again
            self._begin(planned, began, step=self.notes.last_step + 1)

    def _arm(self, planned: PlannedFault, *, calm: bool) -> None:
        """Have the training process break at its step, or at the next one for which the order arrives in time."""
        if self._armed is None or self._armed[0] != planned:
            if calm and self._has_saved():
                self._armed = (planned, max(planned.step, self.notes.last_step + AHEAD_STEPS))
                self._order(self.job)
        elif calm and self.notes.last_step > self._armed[1] + OVERDUE_STEPS:
            self._give_up(
                f"{planned.name}, planned for step {self._armed[1]}, was not injected by step {self.notes.last_step}"
            )

    def _has_saved(self) -> bool:
        """There is something to resume from, of this attempt too: a run's budgets are refunded by progress alone."""
        return max(self.notes.saved, default=0) > 0

    # ------------------------------------------------------------------ the operator

    def _answer(self, run: Run) -> None:
        """Answer proposals and holds after a moment, as an operator would."""
        now = datetime.now(UTC)
        if run.proposal and now - run.proposal.asked_at >= THINKS and run.proposal.id not in self._asked:
            self._asked.add(run.proposal.id)
            ask(self.account.here, self.name, OperatorVerb.APPROVE, WHY, quietly=True, proposal=run.proposal.id)
        if run.state is RunState.HELD and not run.pending and f"hold-{run.version}" not in self._asked:
            injection = self._open_injection()
            if injection is None or not injection.fault.held:
                self._give_up(f"the run was held without need: {run.hold_reason}")
                return
            self._asked.add(f"hold-{run.version}")
            self.log(f"{self.name} is held: {run.hold_reason}; released")
            ask(self.account.here, self.name, OperatorVerb.RELEASE, WHY, quietly=True)

    # ------------------------------------------------------------------ what came of it

    def _settle(self, run: Run) -> None:
        injection = self._open_injection()
        if injection is None or not self._is_settled(run, injection):
            return
        injection.over_at = datetime.now(UTC)
        self.timeline = self.account.runs.timeline(self.name)
        self._sum_up(run, injection)
        self.look_at_saves()
        self._cause(injection.fault.after)
        self.log(f"{injection.planned.name} in {self.name} is over: {', '.join(injection.causes) or 'no attempt lost'}")
        self.index += 1
        self.keep_timeline()

    def keep_timeline(self) -> None:
        """Write the timeline beside the notes, so that it remains after the local AWS, whatever the result."""
        self.timeline = self.account.runs.timeline(self.name)
        lines = (f"{e.at:%H:%M:%S.%f} {e.before} -> {e.after} [{e.finding}] {e.reason}" for e in self.timeline)
        (self.account.folder.parent / f"{self.name}.txt").write_text("\n".join(lines) + "\n")

    def _is_settled(self, run: Run, injection: Injection) -> bool:
        fault = injection.fault
        beyond = self.notes.last_step > injection.step
        at_rest = run.open_incident is None and (run.state is RunState.WATCHING or run.state is RunState.COMPLETED)
        if fault.last:
            return run.state is RunState.STOPPED and not run.is_open
        if fault.self_repairs:
            return sum(attempt.self_repairs for attempt in run.attempts) > injection.repairs and beyond and at_rest
        if fault.in_place:
            return len(run.incidents) > injection.incidents and at_rest and beyond
        if fault.ends:
            is_followed = run.current.number > injection.attempt and len(run.incidents) > injection.incidents
            return is_followed and at_rest and beyond
        if fault.findings:
            self.timeline = self.account.runs.timeline(self.name)
            said = {entry.finding for entry in self.timeline if entry.version > injection.version}
            return said >= set(fault.findings) and self.notes.last_step >= injection.step + 2 * QUIET_STEPS
        return self.notes.last_step >= injection.step + QUIET_STEPS

    def _sum_up(self, run: Run, injection: Injection) -> None:
        """Return the recorded and the noted facts of the run."""
        since = [entry for entry in self.timeline if entry.version > injection.version]
        mine = [attempt for attempt in run.attempts if injection.attempt <= attempt.number < run.current.number]
        injection.attempts = run.current.number - injection.attempt
        injection.causes = tuple(attempt.cause.value for attempt in mine if attempt.cause)
        injection.findings = tuple(sorted({entry.finding for entry in since if entry.finding in set(Kind)}))
        climbed = [attempt.rung for attempt in run.attempts if attempt.number > injection.attempt and attempt.rung]
        injection.rungs = tuple(climbed)
        injection.problems += _find_problems(injection)

    # ------------------------------------------------------------------ checkpoints

    def _keys(self) -> list[str]:
        pages = self.account.s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=f"{self.name}/")
        return [item["Key"] for page in pages for item in page.get("Contents", [])]

    def look_at_saves(self) -> None:
        """Note the checkpoints that have come to S3, by step and attempt."""
        known = set(self.seen_saves.values())
        for key in self._keys():
            if key.endswith("/manifest.json") and key not in known and "/quarantine/" not in key:
                manifest = json.loads(self.account.s3.get_object(Bucket=BUCKET, Key=key)["Body"].read())
                self.seen_saves[manifest["step"], manifest["attempt"]] = key

    def described(self) -> Iterator[tuple[Attempt, dict[str, Any]]]:
        """Return every job of the run as SageMaker describes it."""
        for attempt in self.run.attempts if self.run else ():
            if attempt.exists:
                yield attempt, self.account.describe(attempt.job_name)


def _find_problems(injection: Injection) -> Iterator[str]:
    """Yield what the run did other than the fault demands."""
    fault = injection.fault
    if injection.causes not in (fault.causes, fault.or_causes or fault.causes):
        yield f"the causes are {injection.causes or 'none'}, expected {fault.causes or 'none'}"
    if missing := set(fault.findings) - set(injection.findings):
        yield f"the detectors did not say {', '.join(sorted(missing))}"
    if fault.rungs and injection.rungs != fault.rungs:
        yield f"the rungs are {injection.rungs}, they must be {fault.rungs}"
    if not (fault.ends or fault.in_place or fault.last) and injection.attempts:
        yield f"{injection.attempts} attempts were launched, none was needed"


def _kind(fault: SoakFault) -> str:
    """Return the name that the rank gives the fault in its notes."""
    return (fault.drill or fault.own).partition(":")[0]
