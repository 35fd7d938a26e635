"""Plays one run of the soak: causes its faults in turn, answers as an operator would, and sees what comes of it."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from bench.soaking.account import BUCKET, SAVE_EVERY, Account
from bench.soaking.faults import FAULTS, Fault
from bench.soaking.notes import Notes
from bench.soaking.plan import Course, Due
from cli.demo.scenarios import BATCH_SIZE
from cli.demo.scripts import OURS
from cli.demo.stage import Curve
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
# How many steps before a fault its training process is told of it.
AHEAD_STEPS = 20
QUIET_STEPS = 60
WHY = "the soak: looked at, mended"


@dataclass(slots=True)
class Strike:
    """A fault that was caused: when, at which step, in which attempt, and what the record held by then.

    `lives` counts the attempts that it has struck; the rest is known once it is over: what Rerail made of it.
    """

    due: Due
    at: datetime
    step: int
    attempt: int
    version: int
    incidents: int
    repairs: int = 0
    lives: int = 1
    over_at: datetime | None = None
    causes: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()
    rungs: tuple[str, ...] = ()
    attempts: int = 0
    detected_s: float | None = None
    mended_s: float | None = None
    lost_steps: int = 0
    told: Mapping[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def fault(self) -> Fault:
        return FAULTS[self.due.name]


class Play:
    """One run, brought forward by `look`; `tell` is given a line for each thing that happens."""

    def __init__(self, account: Account, course: Course, name: str, tell: Callable[[str], None]) -> None:
        self.account, self.course, self.name, self.tell = account, course, name, tell
        self.home = course.home
        self.notes = Notes(account.folder)
        self.curves: dict[str, Curve] = {}
        self.run: Run | None = None
        self.timeline: Sequence[TimelineEntry] = ()
        self.strikes: list[Strike] = []
        self.index = 0
        self.siblings: list[Play] = []
        self.is_led = False
        self.problems: list[str] = []
        self.seen_saves: dict[tuple[int, int], str] = {}
        self.damaged: set[tuple[int, int]] = set()
        self.moved_at = datetime.now(UTC)
        self._mark: tuple[object, ...] = ()
        self._ordered: set[str] = set()
        self._asked: set[str] = set()
        self._hit = 0
        self._armed: tuple[Due, int] | None = None
        self._order(name)
        policy = account.policy_for(course.home)
        account.submit(name, course.home, steps=course.steps, tags={POLICY_TAG: policy}, watched=True)

    # ------------------------------------------------------------------ what the world may do to it

    @property
    def others(self) -> list[str]:
        """The newest jobs of those that are hit together."""
        return [play.job for play in (self, *self.siblings)]

    def inject(self, fault: str, **fields: Any) -> None:
        inject(self.account.aws.endpoint_url, fault, **fields)

    def stop(self, job: str) -> None:
        self.account.sagemaker.stop_training_job(TrainingJobName=job)

    def damage_newest_save(self, job: str) -> None:
        """Flip bits in the middle of a file of the newest checkpoint that is whole in S3."""
        key = max(key for key in self._keys() if key.endswith("/manifest.json") and "/quarantine/" not in key)
        manifest = json.loads(self.account.s3.get_object(Bucket=BUCKET, Key=key)["Body"].read())
        file = max(manifest["files"], key=lambda each: each["bytes"])["name"]
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
        """The step that was trained last; it falls back with a resume."""
        if self.home.script is OURS:
            return self.notes.last_step
        newest = self.curves.get(self.job)
        return newest.last_step if newest else 0

    @property
    def is_over(self) -> bool:
        """Every fault is over, and the run has ended with nothing owed; or it was given up."""
        ended = self.run is not None and self.run.state.is_end and not self.run.is_open
        return bool(self.problems) or (ended and self.index == len(self.course.faults))

    @property
    def state(self) -> str:
        """One line for whoever looks on."""
        state = self.run.state.value if self.run else "submitted"
        left = self.course.faults[self.index].name if self.index < len(self.course.faults) else "its end"
        attempt = self.run.current.number if self.run else 1
        return f"{self.name}: step {self.last_step} of {self.course.steps}, attempt {attempt}, {state}, before {left}"

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
        if self.home.script is not OURS:
            for attempt in self.run.attempts:
                if attempt.exists:
                    curve = self.curves.setdefault(attempt.job_name, Curve(attempt.job_name, self.home.script))
                    curve.read(self.account.logs)
        self._hear_of_strikes()
        self._answer(self.run)
        self._strike(self.run)
        self._settle(self.run)
        self._tire()

    def _tire(self) -> None:
        """Give up on a run in which nothing happens any more."""
        now = datetime.now(UTC)
        mark = (self.run.version if self.run else 0, self.index, self.notes.last_step // 20, len(self.strikes))
        if mark != self._mark:
            self._mark, self.moved_at = mark, now
        elif now - self.moved_at > PATIENCE:
            self._give_up(f"nothing has happened for {PATIENCE.total_seconds():.0f} s: {self.state}")
        strike, ended = self._open_strike(), self.run is not None and self.run.state.is_end and not self.run.is_open
        if ended and strike is None and self.index < len(self.course.faults):
            due = self.course.faults[self.index]
            self._give_up(f"the run ended before {due.name} could be caused: recoveries took more steps than planned")
            return
        if strike and now - strike.at > 2 * PATIENCE:
            self._give_up(f"{strike.due.name} is not over after {2 * PATIENCE.total_seconds():.0f} s: {self.state}")

    def _give_up(self, why: str) -> None:
        if self.problems:
            return
        self.problems.append(why)
        self.tell(f"given up: {why}")
        self.keep_timeline()
        for strike in self.strikes:
            if strike.fault.after:
                strike.fault.after(self, self.job)
        if self.run and self.run.current.may_be_live:
            self.account.sagemaker.stop_training_job(TrainingJobName=self.job)

    # ------------------------------------------------------------------ causing faults

    def _order(self, job: str) -> None:
        """What this attempt is to break: the fault that is due, unless it has struck as often as it does."""
        self._ordered.add(job)
        drill = own = ""
        if self._armed and self.home.script is OURS:
            due, step = self._armed
            if not self._is_spent(due):
                marks = {"step": step, "sample": BATCH_SIZE * step - 1}
                drill, own = (text.format(**marks) for text in (FAULTS[due.name].drill, FAULTS[due.name].own))
        self.account.order(job, drill=drill, own=own)

    def _strike_of(self, due: Due) -> Strike | None:
        return next((strike for strike in self.strikes if strike.due == due), None)

    def _open_strike(self) -> Strike | None:
        """The fault that is not over yet."""
        if self.index == len(self.course.faults):
            return None
        return self._strike_of(self.course.faults[self.index])

    def _hear_of_strikes(self) -> None:
        """Faults of the training process itself say when they strike."""
        for kind, step, at in self.notes.struck[self._hit :]:
            self._hit += 1
            due = self._armed[0] if self._armed else None
            if due is None or _kind(FAULTS[due.name]) != kind or self._is_spent(due):
                self._give_up(f"{kind} struck at step {step}, and was not due")
                return
            if strike := self._strike_of(due):
                strike.lives += 1
            else:
                strike = self._begin(due, datetime.fromtimestamp(at, UTC), step=step or self.notes.last_step + 1)
                if strike.fault.strike:
                    strike.fault.strike(self, self.job)
            self._order(self.job)

    def _is_spent(self, due: Due) -> bool:
        strike = self._strike_of(due)
        return strike is not None and strike.lives >= FAULTS[due.name].lives

    def _begin(self, due: Due, at: datetime, *, step: int) -> Strike:
        """A fault, with the record as it was at that moment, however late it is noticed."""
        run = self.run
        assert run is not None, "it trains, so it was adopted"
        repairs = sum(attempt.self_repairs for attempt in run.attempts)
        attempt = max((each.number for each in run.attempts if each.created_at and each.created_at < at), default=1)
        version = max((entry.version for entry in self.account.runs.timeline(self.name) if entry.at < at), default=0)
        incidents = sum(each.decided_at < at for each in run.incidents)
        strike = Strike(due, at, step, attempt, version, incidents, repairs)
        self.strikes.append(strike)
        self.tell(f"{due.name} strikes {self.name} at step {step}: {strike.fault.story}")
        return strike

    def _strike(self, run: Run) -> None:
        """Faults from outside, when the training is past their step and nothing else is the matter."""
        if self.is_led or self.index == len(self.course.faults) or self._open_strike():
            return
        due = self.course.faults[self.index]
        fault = FAULTS[due.name]
        calm = run.state is RunState.WATCHING and run.open_incident is None and run.current.secondary == "Training"
        if fault.home.script is not OURS:
            rows = [row for curve in self.curves.values() for row in curve.times.items()]
            if printed := [at for step, at in rows if step > due.step - NOT_PRINTED_STEPS]:
                self._begin(due, min(printed), step=due.step + 1)
            return
        if fault.is_within:
            self._arm(due, calm=calm)
            return
        ready = all(play.last_step >= due.step - SAVE_EVERY for play in self.siblings)
        if fault.strike and calm and ready and self.last_step >= due.step and self._has_saved():
            began = datetime.now(UTC)
            try:
                fault.strike(self, self.job)
            except InjectionRefused:
                return  # it is between two states: the next look tries again
            for play in (self, *self.siblings):
                play._begin(due, began, step=play.last_step + 1)

    def _arm(self, due: Due, *, calm: bool) -> None:
        """Have the training process break at its step, or at the next that it can hear of in time."""
        if self._armed is None or self._armed[0] != due:
            if calm and self._has_saved():
                self._armed = (due, max(due.step, self.last_step + AHEAD_STEPS))
                self._order(self.job)
        elif calm and self.last_step > self._armed[1] + OVERDUE_STEPS:
            self._give_up(f"{due.name} was due at step {self._armed[1]} and has not struck by step {self.last_step}")

    def _has_saved(self) -> bool:
        """There is something to resume from, of this attempt too: a run's budgets are refunded by progress alone."""
        return max(self.notes.saved, default=0) > 0

    # ------------------------------------------------------------------ the operator

    def _answer(self, run: Run) -> None:
        """Somebody looks at the page for a moment, and says what a human would."""
        now = datetime.now(UTC)
        if run.proposal and now - run.proposal.asked_at >= THINKS and run.proposal.id not in self._asked:
            self._asked.add(run.proposal.id)
            ask(self.account.here, self.name, OperatorVerb.APPROVE, WHY, quietly=True, proposal=run.proposal.id)
        if run.state is RunState.HELD and not run.pending and f"hold-{run.version}" not in self._asked:
            strike = self._open_strike()
            if strike is None or not strike.fault.held:
                self._give_up(f"the run was held without need: {run.hold_reason}")
                return
            self._asked.add(f"hold-{run.version}")
            self.tell(f"{self.name} is held: {run.hold_reason}; released")
            ask(self.account.here, self.name, OperatorVerb.RELEASE, WHY, quietly=True)

    # ------------------------------------------------------------------ what came of it

    def _settle(self, run: Run) -> None:
        strike = self._open_strike()
        if strike is None or not self._is_settled(run, strike):
            return
        strike.over_at = datetime.now(UTC)
        self.timeline = self.account.runs.timeline(self.name)
        self._sum_up(run, strike)
        self.look_at_saves()
        if strike.fault.after and not self.is_led:
            strike.fault.after(self, self.job)
        took = f"{strike.mended_s:.1f} s" if strike.mended_s is not None else "no time"
        self.tell(f"{strike.due.name} is over in {self.name}: {', '.join(strike.causes) or 'no attempt lost'}, {took}")
        self.index += 1
        self.keep_timeline()

    def keep_timeline(self) -> None:
        """Write it beside the notes, so that it outlives the local AWS, whatever becomes of the soak."""
        self.timeline = self.account.runs.timeline(self.name)
        lines = (f"{e.at:%H:%M:%S.%f} {e.before} -> {e.after} [{e.finding}] {e.reason}" for e in self.timeline)
        (self.account.folder.parent / f"{self.name}.txt").write_text("\n".join(lines) + "\n")

    def _is_settled(self, run: Run, strike: Strike) -> bool:
        fault = strike.fault
        beyond = self.last_step > strike.step
        at_rest = run.open_incident is None and (run.state is RunState.WATCHING or run.state is RunState.COMPLETED)
        if fault.last:
            return run.state is RunState.STOPPED and not run.is_open
        if fault.self_repairs:
            return sum(attempt.self_repairs for attempt in run.attempts) > strike.repairs and beyond and at_rest
        if fault.in_place:
            return len(run.incidents) > strike.incidents and at_rest and beyond
        if fault.ends:
            return run.current.number > strike.attempt and at_rest and beyond and len(run.incidents) > strike.incidents
        if fault.findings:
            self.timeline = self.account.runs.timeline(self.name)
            said = {entry.finding for entry in self.timeline if entry.version > strike.version}
            return said >= set(fault.findings) and self.last_step >= strike.step + 2 * QUIET_STEPS
        return self.last_step >= strike.step + QUIET_STEPS

    def _sum_up(self, run: Run, strike: Strike) -> None:
        """What the record says of it, and what the notes do."""
        fault, since = strike.fault, [entry for entry in self.timeline if entry.version > strike.version]
        mine = [each for each in run.attempts if strike.attempt <= each.number < run.current.number]
        strike.attempts = run.current.number - strike.attempt
        strike.causes = tuple(each.cause.value for each in mine if each.cause)
        strike.findings = tuple(sorted({entry.finding for entry in since if entry.finding in set(Kind)}))
        climbed = [each.rung for each in run.attempts if each.number > strike.attempt and each.rung]
        strike.rungs = tuple(climbed)
        strike.detected_s = self._detected(run, strike, since)
        strike.mended_s = self._mended(strike)
        strike.lost_steps = self._lost(strike)
        tells = [action for entry in since for action in entry.actions if "severity" in action]
        strike.told = {level: sum(action["severity"] == level for action in tells) for level in Severity}
        if strike.causes not in (fault.causes, fault.or_causes or fault.causes):
            strike.problems.append(f"the causes are {strike.causes or 'none'}, they must be {fault.causes or 'none'}")
        if missing := set(fault.findings) - set(strike.findings):
            strike.problems.append(f"the detectors did not say {', '.join(sorted(missing))}")
        if fault.rungs and strike.rungs != fault.rungs:
            strike.problems.append(f"the rungs are {strike.rungs}, they must be {fault.rungs}")
        if not (fault.ends or fault.in_place or fault.last) and strike.attempts:
            strike.problems.append(f"{strike.attempts} attempts were launched, none was needed")

    def _detected(self, run: Run, strike: Strike, since: Sequence[TimelineEntry]) -> float | None:
        """Seconds from the fault to the first decision about it, or the first word of it."""
        times = [each.decided_at for each in run.incidents[strike.incidents :]]
        times += [entry.at for entry in since if entry.finding in set(Kind)]
        times += [entry.at for entry in since if strike.fault.self_repairs or strike.fault.last][:1]
        return (min(times) - strike.at).total_seconds() if times else None

    def _mended(self, strike: Strike) -> float | None:
        """Seconds from the fault until its step was trained by processes that were started since."""
        if self.home.script is not OURS:
            return None
        at = strike.at.timestamp()
        later = [life for life in self.notes.lives if life.at > at]
        times = [step.at for life in later[-1:] for step in life.steps.values() if step.number >= strike.step]
        return min(times) - at if times else None

    def _lost(self, strike: Strike) -> int:
        """Steps that processes started since the fault had to train again."""
        lives, at = self.notes.lives, strike.at.timestamp()
        pairs = zip(lives, lives[1:], strict=False)
        return sum(max(0, before.last - after.after) for before, after in pairs if after.at > at)

    # ------------------------------------------------------------------ checkpoints

    def _keys(self) -> list[str]:
        pages = self.account.s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=f"{self.name}/")
        return [item["Key"] for page in pages for item in page.get("Contents", [])]

    def look_at_saves(self) -> None:
        """Note the checkpoints that have come to S3, by step and attempt."""
        if self.home.script is not OURS:
            return
        known = set(self.seen_saves.values())
        for key in self._keys():
            if key.endswith("/manifest.json") and key not in known and "/quarantine/" not in key:
                manifest = json.loads(self.account.s3.get_object(Bucket=BUCKET, Key=key)["Body"].read())
                self.seen_saves[manifest["step"], manifest["attempt"]] = key

    def described(self) -> Iterator[tuple[Attempt, dict[str, Any]]]:
        """Every job of the run, as SageMaker tells of it."""
        for attempt in self.run.attempts if self.run else ():
            if attempt.exists:
                yield attempt, self.account.describe(attempt.job_name)


def _kind(fault: Fault) -> str:
    """What the rank calls it when it strikes."""
    return (fault.drill or fault.own).partition(":")[0]


def led_by(first: Play, others: Sequence[Play]) -> None:
    """The first one's fault from outside hits the others too."""
    first.siblings = list(others)
    for play in others:
        play.is_led = True


def shifted(course: Course, number: int) -> Course:
    """The same course for a further run beside it."""
    return course if number == 1 else replace(course, name=f"{course.name}-{number}")
