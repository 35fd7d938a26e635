"""Split the wall time of a run into goodput and kinds of badput, from its record alone.

A record contains when jobs were created, started and ended, when decisions were made, and to which step a run went
back. In between, a job is assumed to train: goodput includes the startup of its processes, its checkpoints and slow
machines, which no record contains.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from rerail.model.causes import Cause
from rerail.model.run import Attempt, Incident, InPlaceRestart, JobStatus, ProposedAction, Run, RunState

# The kind of an incident in which a job ended; other kinds are findings about a running job.
JOB_FAILED = "job_failed"
OVER = (RunState.COMPLETED, RunState.STOPPED)


class Badput(StrEnum):
    """The kinds of time without progress, named as in `rerail simulate`.

    LOST is estimated from the share of steps that were rolled back, or not saved when the run was stopped or held. The
    others are measured, to the minute of the observation.
    """

    LOST = "steps trained again"
    UNNOTICED = "dead, not noticed"  # from the end of a job, or the onset of a hang, to the decision
    BACKOFF = "backoff"  # from the decision to the next job: backoff, missing capacity, or a failed launch check
    HUMAN = "waiting for people"  # the run is held, a proposal waits for an answer, or a stalled job is left alone
    STOPPING = "stopping"  # from the decision to the end of the job, including its emergency checkpoint
    MACHINES = "machines"  # from CreateTrainingJob to TrainingStartTime
    REPAIR = "repair"  # SageMaker itself restarts the job, by the job's status history
    RESTART = "restart in place"  # from the request to the first step after it

    @property
    def label(self) -> str:
        """Return the words for people: a run that ends trains no lost step again."""
        return "steps lost" if self is Badput.LOST else self.value


@dataclass(frozen=True, slots=True)
class WallTime:
    """The wall time of a run in seconds."""

    goodput_s: float
    # By kind; goodput and badput add up to the wall time.
    badput_s: Mapping[Badput, float]
    # The share of badput in each attempt's time on its machines, by the attempt's number.
    wasted: Mapping[int, float]


def split_wall_time(run: Run, at: datetime) -> WallTime:
    """Return the wall time from the creation of the run's first job until `at`, or until the end of a finished run."""
    accounting = _Accounting(min(run.attempts[0].created_at or run.created_at, at), at)
    before: Attempt | None = None
    for attempt in run.attempts:
        _count_wait(accounting, run, before, attempt)
        _count_job(accounting, run, attempt)
        before = attempt
    _count_rest(accounting, run)
    lost_s = sum(stretch.trained_s * (1 - stretch.kept) for stretch in accounting.stretches)
    return WallTime(
        goodput_s=sum(stretch.trained_s * stretch.kept for stretch in accounting.stretches),
        badput_s={**accounting.badput_s, Badput.LOST: lost_s},
        wasted={attempt.number: accounting.waste(attempt.number) for attempt in run.attempts},
    )


@dataclass(slots=True)
class _Stretch:
    """The time from one start of an attempt's training processes to the next."""

    attempt: int
    # The step at which it began, and its last step; None: unknown.
    first: int | None
    last: int | None
    # The seconds of training.
    trained_s: float = 0.0
    # The share of its steps that were not trained again.
    kept: float = 1.0

    def rewind(self, step: int) -> None:
        """Reduce the kept share after a later start resumed from `step`.

        If its first or last step is unknown, all of it is lost if `step` is not after its first step, else nothing.
        """
        if self.last is None or self.first is None:
            kept = 0.0 if step <= (self.first or 0) else 1.0
        else:
            kept = (step - self.first) / (self.last - self.first) if self.last > self.first else 1.0
        self.kept = min(self.kept, max(0.0, kept))


@dataclass(slots=True)
class _Accounting:
    """The accounting of the wall time; the pointer only moves forward, so that every second is counted once."""

    # Up to this time everything is counted.
    pointer: datetime
    # The end of the wall time.
    until: datetime
    badput_s: dict[Badput, float] = field(default_factory=lambda: dict.fromkeys(Badput, 0.0))
    stretches: list[_Stretch] = field(default_factory=list)
    # Seconds on machines by attempt.
    job_s: dict[int, float] = field(default_factory=dict)

    def book(self, kind: Badput | None, to: datetime | None) -> float:
        """Count the time until `to` (None: the end) as this kind of badput, or as training, and return its seconds."""
        to = self.until if to is None else min(to, self.until)
        if to <= self.pointer:
            return 0.0
        seconds, self.pointer = (to - self.pointer).total_seconds(), to
        if kind is None:
            self.stretches[-1].trained_s += seconds
        else:
            self.badput_s[kind] += seconds
        return seconds

    def begin(self, attempt: int, first: int | None, last: int | None) -> None:
        """Start a new stretch after the training processes resumed from `first`."""
        self.rewind(first)
        self.stretches.append(_Stretch(attempt, first, last))

    def rewind(self, step: int | None) -> None:
        """Count what was trained after this step as lost; of an unknown step nothing is lost."""
        if step is not None:
            for stretch in self.stretches:
                stretch.rewind(step)

    def move(self, attempt: int, seconds: float, kind: Badput) -> None:
        """Move so many seconds of an attempt from training to this kind of badput; SageMaker bills no REPAIR."""
        for stretch in (stretch for stretch in self.stretches if stretch.attempt == attempt):
            taken = min(stretch.trained_s, max(0.0, seconds))
            stretch.trained_s -= taken
            seconds -= taken
            self.badput_s[kind] += taken
            self.job_s[attempt] -= taken if kind is Badput.REPAIR else 0.0

    def waste(self, attempt: int) -> float:
        """Return the share of badput in an attempt's time on its machines."""
        of_all = self.job_s.get(attempt, 0.0)
        good = sum(stretch.trained_s * stretch.kept for stretch in self.stretches if stretch.attempt == attempt)
        return max(0.0, 1 - good / of_all) if of_all > 0 else 0.0


def _count_wait(accounting: _Accounting, run: Run, before: Attempt | None, attempt: Attempt) -> None:
    """Count the time between two jobs: until the end was noticed, until people answered, and the backoff."""
    # Of a run that was stopped instead, the order ends the wait.
    is_stopped = attempt.created_at is None and run.state in OVER
    launched = run.commanded_at if is_stopped else attempt.created_at
    if before is None or (is_stopped and launched is None):
        return
    _count_until_noticed(accounting, run, before)
    proposal = (
        run.proposal if launched is None and run.proposal and run.proposal.plan is ProposedAction.LAUNCH else None
    )
    hold = _find_hold(run, accounting.pointer, launched or accounting.until)
    if proposal or hold:
        accounting.book(Badput.BACKOFF, proposal.asked_at if proposal else hold)
    answered = hold if is_stopped else attempt.approved_by and (hold or before.status is JobStatus.FAILED)
    asked = answered if launched else proposal or run.state is RunState.HELD
    accounting.book(Badput.HUMAN if asked else Badput.BACKOFF, launched)


def _count_job(accounting: _Accounting, run: Run, attempt: Attempt) -> None:
    """Count the time of one job: until it has its machines, and what these did."""
    begun, ended = attempt.training_started_at, attempt.ended_at
    accounting.rewind(run.find_start(attempt))
    if attempt.created_at is None:
        return
    accounting.book(Badput.MACHINES, begun or ended)
    if begun is None:
        return
    incidents = [incident for incident in run.incidents if incident.attempt == attempt.number]
    accounting.begin(attempt.number, run.find_start(attempt), _find_last_step(attempt, incidents))
    doing: Badput | None = None
    spent_s = 0.0
    for mark in sorted(_list_marks(run, attempt, incidents), key=lambda mark: mark.at):
        spent_s += accounting.book(doing, min(mark.at, ended or mark.at))
        doing = mark.doing
        if mark.order:
            accounting.stretches[-1].last = mark.order.last_step
            accounting.begin(
                attempt.number, _find_resume_step(mark.order, incidents), _find_last_step(attempt, incidents)
            )
    accounting.job_s[attempt.number] = spent_s + accounting.book(doing, ended)
    accounting.move(attempt.number, attempt.repair_seconds, Badput.REPAIR)
    accounting.move(attempt.number, attempt.stalled_seconds, Badput.HUMAN)


def _count_rest(accounting: _Accounting, run: Run) -> None:
    """Count the time after the last job: until its end is noticed, or as waiting for people, at most until a stop."""
    last, is_over = run.current, run.state in OVER
    if last.ended_at and run.state in (RunState.HELD, RunState.STOPPED):
        accounting.rewind(last.kept_step)
    end = run.commanded_at if is_over else accounting.until
    if last.created_at is None or last.ended_at is None or end is None:
        return
    is_held = _find_hold(run, accounting.pointer, end) if is_over else run.state is RunState.HELD
    if is_held:
        _count_until_noticed(accounting, run, last)
    if is_held or not is_over:
        accounting.book(Badput.HUMAN if is_held else Badput.UNNOTICED, end)


def _count_until_noticed(accounting: _Accounting, run: Run, ended: Attempt) -> None:
    """Count the time until the decision about the end of this job, if the record contains it.

    Of several decisions in one incident, the record contains only the first.
    """
    decided = [i.decided_at for i in run.incidents if i.attempt == ended.number and i.decided_at >= accounting.pointer]
    accounting.book(Badput.UNNOTICED, min(decided, default=accounting.pointer))


def _find_hold(run: Run, since: datetime, until: datetime) -> datetime | None:
    """Return when the run was held between two times, or None; a hold closes an incident without recovery."""
    closed = [i.closed_at for i in run.incidents if i.closed_at and not i.recovered]
    return next((at for at in closed if since <= at < until), None)


class _Mark(NamedTuple):
    """A change of what a job is doing."""

    at: datetime
    # The kind of badput from here on; None: training.
    doing: Badput | None
    # The in-place restart after which it trains again.
    order: InPlaceRestart | None = None


def _list_marks(run: Run, attempt: Attempt, incidents: Iterable[Incident]) -> Iterator[_Mark]:
    if attempt.stalled_at:
        yield _Mark(attempt.stalled_at, Badput.HUMAN)
    for order in attempt.in_place_restarts:
        yield _Mark(order.asked_at, Badput.RESTART)
        if again := order.stepped_at or order.restarted_at:
            yield _Mark(again, None, order)
    for incident in incidents:
        if incident.cause is Cause.HANG and incident.kind != JOB_FAILED:
            yield _Mark(incident.happened_at, Badput.UNNOTICED)
        if incident.actions[:1] == ("stop",):
            yield _Mark(incident.decided_at, Badput.STOPPING)
    if attempt is run.current and run.stop:
        yield _Mark(run.stop.asked_at, Badput.STOPPING)
    # The job was left running, but its progress does not count while the run is held.
    if attempt is run.current and run.state is RunState.HELD:
        yield from (_Mark(i.closed_at, Badput.HUMAN) for i in incidents if i.closed_at and not i.recovered)


def _find_last_step(attempt: Attempt, incidents: Iterable[Incident]) -> int | None:
    """Return the last known step of the attempt, or None."""
    steps = [attempt.last_step, *(incident.step for incident in incidents)]
    return max((step for step in steps if step is not None), default=None)


def _find_resume_step(order: InPlaceRestart, incidents: Iterable[Incident]) -> int:
    """Return the step that an in-place restart resumed from: its own, or the newest checkpoint known at that time."""
    if order.began_step is not None:
        return order.began_step
    known = [i.resume_step or 0 for i in incidents if i.decided_at <= order.asked_at]
    return known[-1] if known else 0
