"""One run of the soak: inject its faults in turn, answer as an operator would, and record the outcome."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from bench.soaking.account import BUCKET, SAVE_EVERY, SoakAccount
from bench.soaking.faults import FAULTS, SoakFault
from bench.soaking.notes import Notes
from bench.soaking.plan import PlannedFault, RunPlan
from cli.demo.scenarios import BATCH_SIZE
from cli.demo.scripts import OURS
from cli.demo.stage import JobOutput
from cli.operators import ask
from local.sagemaker.control import InjectionRefused, inject
from rerail.model.actions import Severity
from rerail.model.finding import Kind
from rerail.model.run import Attempt, Run, RunState, TimelineEntry
from rerail.model.signals import OperatorVerb
from rerail.requests.relaunch import POLICY_TAG

# A hold or a proposal is looked at for a moment before it is answered.
THINKS = timedelta(seconds=1)
# What has had no effect for so long will have none.
PATIENCE = timedelta(seconds=150)
OVERDUE_STEPS = 120
# A script that is not ours prints no loss from a little before the step that breaks it.
NOT_PRINTED_STEPS = 10
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
    detected_s: float | None = None
    recovered_s: float | None = None
    lost_steps: int = 0
    notices: Mapping[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def fault(self) -> SoakFault:
        return FAULTS[self.planned.name]


class SoakRun:
    """One run, advanced by `look`; `log` gets a line for each event."""

    def __init__(self, account: SoakAccount, plan: RunPlan, name: str, log: Callable[[str], None]) -> None:
        self.account, self.plan, self.name, self.log = account, plan, name, log
        self.setup = plan.setup
        self.notes = Notes(account.folder)
        self.curves: dict[str, JobOutput] = {}
        self.run: Run | None = None
        self.timeline: Sequence[TimelineEntry] = ()
        self.injections: list[Injection] = []
        self.index = 0
        self.siblings: list[SoakRun] = []
        self.is_led = False
        self.problems: list[str] = []
        self.seen_saves: dict[tuple[int, int], str] = {}
        self.damaged: set[tuple[int, int]] = set()
        self.moved_at = datetime.now(UTC)
        self._mark: tuple[object, ...] = ()
        self._ordered: set[str] = set()
        self._asked: set[str] = set()
        self._hit = 0
        self._armed: tuple[PlannedFault, int] | None = None
        self._order(name)
        policy = account.policy_for(plan.setup)
        account.submit(name, plan.setup, steps=plan.steps, tags={POLICY_TAG: policy}, watched=True)

    # ------------------------------------------------------------------ what the world may do to it

    @property
    def others(self) -> list[str]:
        """Return the newest jobs of those that are hit together."""
        return [soak_run.job for soak_run in (self, *self.siblings)]

    def inject(self, fault: str, **fields: Any) -> None:
        inject(self.account.aws.endpoint_url, fault, **fields)

    def stop(self, job: str) -> None:
        self.account.sagemaker.stop_training_job(TrainingJobName=job)

    def damage_newest_save(self, job: str) -> None:
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
    def last_step(self) -> int:
        """Return the step that was trained last; it falls back with a resume."""
        if self.setup.script is OURS:
            return self.notes.last_step
        newest = self.curves.get(self.job)
        return newest.last_step if newest else 0

    @property
    def is_over(self) -> bool:
        """Return whether every fault is over and the run has ended with nothing pending, or it was given up."""
        ended = self.run is not None and self.run.state.is_end and not self.run.is_open
        return bool(self.problems) or (ended and self.index == len(self.plan.faults))

    @property
    def state(self) -> str:
        """Return one line for the progress display."""
        state = self.run.state.value if self.run else "submitted"
        left = self.plan.faults[self.index].name if self.index < len(self.plan.faults) else "its end"
        attempt = self.run.current.number if self.run else 1
        return f"{self.name}: step {self.last_step} of {self.plan.steps}, attempt {attempt}, {state}, before {left}"

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
        if self.setup.script is not OURS:
            for attempt in self.run.attempts:
                if attempt.exists:
                    curve = self.curves.setdefault(attempt.job_name, JobOutput(attempt.job_name, self.setup.script))
                    curve.read(self.account.logs)
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
            if injection.fault.after:
                injection.fault.after(self, self.job)
        if self.run and self.run.current.may_be_live:
            self.account.sagemaker.stop_training_job(TrainingJobName=self.job)

    # ------------------------------------------------------------------ causing faults

    def _order(self, job: str) -> None:
        """Give this attempt the planned fault, unless it was injected as often as it should be."""
        self._ordered.add(job)
        drill = own = ""
        if self._armed and self.setup.script is OURS:
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
                if injection.fault.injection:
                    injection.fault.injection(self, self.job)
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
        if self.is_led or self.index == len(self.plan.faults) or self._open_injection():
            return
        planned = self.plan.faults[self.index]
        fault = FAULTS[planned.name]
        calm = run.state is RunState.WATCHING and run.open_incident is None and run.current.secondary == "Training"
        if fault.setup.script is not OURS:
            least, curves = planned.step - NOT_PRINTED_STEPS, self.curves.values()
            if printed := [at for curve in curves for step, at in curve.times.items() if step > least]:
                self._begin(planned, min(printed), step=planned.step + 1)
            return
        if fault.is_within:
            self._arm(planned, calm=calm)
            return
        ready = all(soak_run.last_step >= planned.step - SAVE_EVERY for soak_run in self.siblings)
        if fault.injection and calm and ready and self.last_step >= planned.step and self._has_saved():
            began = datetime.now(UTC)
            try:
                fault.injection(self, self.job)
            except InjectionRefused:
                return  # it is between two states: the next look tries again
            for soak_run in (self, *self.siblings):
                soak_run._begin(planned, began, step=soak_run.last_step + 1)

    def _arm(self, planned: PlannedFault, *, calm: bool) -> None:
        """Have the training process break at its step, or at the next one for which the order arrives in time."""
        if self._armed is None or self._armed[0] != planned:
            if calm and self._has_saved():
                self._armed = (planned, max(planned.step, self.last_step + AHEAD_STEPS))
                self._order(self.job)
        elif calm and self.last_step > self._armed[1] + OVERDUE_STEPS:
            self._give_up(
                f"{planned.name}, planned for step {self._armed[1]}, was not injected by step {self.last_step}"
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
        if injection.fault.after and not self.is_led:
            injection.fault.after(self, self.job)
        took = f"{injection.recovered_s:.1f} s" if injection.recovered_s is not None else "no time"
        self.log(f"{injection.planned.name} in {self.name}: {', '.join(injection.causes) or 'no attempt lost'}, {took}")
        self.index += 1
        self.keep_timeline()

    def keep_timeline(self) -> None:
        """Write the timeline beside the notes, so that it remains after the local AWS, whatever the result."""
        self.timeline = self.account.runs.timeline(self.name)
        lines = (f"{e.at:%H:%M:%S.%f} {e.before} -> {e.after} [{e.finding}] {e.reason}" for e in self.timeline)
        (self.account.folder.parent / f"{self.name}.txt").write_text("\n".join(lines) + "\n")

    def _is_settled(self, run: Run, injection: Injection) -> bool:
        fault = injection.fault
        beyond = self.last_step > injection.step
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
            return said >= set(fault.findings) and self.last_step >= injection.step + 2 * QUIET_STEPS
        return self.last_step >= injection.step + QUIET_STEPS

    def _sum_up(self, run: Run, injection: Injection) -> None:
        """Return the recorded and the noted facts of the run."""
        since = [entry for entry in self.timeline if entry.version > injection.version]
        mine = [attempt for attempt in run.attempts if injection.attempt <= attempt.number < run.current.number]
        injection.attempts = run.current.number - injection.attempt
        injection.causes = tuple(attempt.cause.value for attempt in mine if attempt.cause)
        injection.findings = tuple(sorted({entry.finding for entry in since if entry.finding in set(Kind)}))
        climbed = [attempt.rung for attempt in run.attempts if attempt.number > injection.attempt and attempt.rung]
        injection.rungs = tuple(climbed)
        injection.detected_s = self._detected(run, injection, since)
        injection.recovered_s = self._recovered(injection)
        injection.lost_steps = self._lost(injection)
        tells = [action for entry in since for action in entry.actions if "severity" in action]
        injection.notices = {level: sum(action["severity"] == level for action in tells) for level in Severity}
        injection.problems += _find_problems(injection)

    def _detected(self, run: Run, injection: Injection, since: Sequence[TimelineEntry]) -> float | None:
        """Return the seconds from the fault to the first decision or report about it."""
        times = [incident.decided_at for incident in run.incidents[injection.incidents :]]
        times += [entry.at for entry in since if entry.finding in set(Kind)]
        times += [entry.at for entry in since if injection.fault.self_repairs or injection.fault.last][:1]
        return (min(times) - injection.at).total_seconds() if times else None

    def _recovered(self, injection: Injection) -> float | None:
        """Return the seconds from the fault until its step was trained by processes that were started since."""
        if self.setup.script is not OURS:
            return None
        at = injection.at.timestamp()
        later = [start for start in self.notes.starts if start.at > at]
        times = [step.at for start in later[-1:] for step in start.steps.values() if step.number >= injection.step]
        return min(times) - at if times else None

    def _lost(self, injection: Injection) -> int:
        """Return the steps that processes started since the fault had to train again."""
        starts, at = self.notes.starts, injection.at.timestamp()
        pairs = zip(starts, starts[1:], strict=False)
        return sum(max(0, before.last - after.after) for before, after in pairs if after.at > at)

    # ------------------------------------------------------------------ checkpoints

    def _keys(self) -> list[str]:
        pages = self.account.s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=f"{self.name}/")
        return [item["Key"] for page in pages for item in page.get("Contents", [])]

    def look_at_saves(self) -> None:
        """Note the checkpoints that have come to S3, by step and attempt."""
        if self.setup.script is not OURS:
            return
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


def led_by(first: SoakRun, others: Sequence[SoakRun]) -> None:
    """Have the first run's fault from outside hit the others too."""
    first.siblings = list(others)
    for soak_run in others:
        soak_run.is_led = True


def shifted(plan: RunPlan, number: int) -> RunPlan:
    """Return the same plan for a further run beside it."""
    return plan if number == 1 else replace(plan, name=f"{plan.name}-{number}")
