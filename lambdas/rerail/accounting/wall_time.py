"""How the wall time of a run was spent, by its record alone: a pointer moves along it, and books what it passes.

A record tells when jobs were created, began and ended, when what was decided, and to which step a run went back.
Between these a job is taken to train: the start of its processes, its own saves and slow machines lie within goodput,
since no record holds them.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from rerail.model.causes import Cause
from rerail.model.run import Attempt, Incident, InPlaceRestart, JobStatus, ProposedAction, Run, RunState

# An incident's kind where a job has ended; the others are findings about one that runs.
JOB_FAILED = "job_failed"
OVER = (RunState.COMPLETED, RunState.STOPPED)


class Badput(StrEnum):
    """What time that brought a run no farther was spent on, in the words of `rerail simulate`.

    LOST is estimated: of the time that was trained, the share of its steps that were rolled back. All else is measured,
    to the minute in which somebody looked.
    """

    LOST = "steps trained again"
    UNNOTICED = "dead, not noticed"  # from the end of a job, or the onset of a hang, to the decision
    BACKOFF = "backoff"  # from the decision to the next job: backoff, refused capacity, whatever keeps a launch back
    HUMAN = "waiting for people"  # the run is held, or a proposal waits for a word
    STOPPING = "stopping"  # from the decision to the end of the job, its emergency save included
    MACHINES = "machines"  # from CreateTrainingJob to TrainingStartTime
    REPAIR = "repair"  # SageMaker restarts the job itself, by the job's own history
    RESTART = "restart in place"  # from the order to the first step after it


@dataclass(frozen=True, slots=True)
class WallTime:
    """Seconds of goodput, and of badput by kind, which add up to the wall time; `wasted` is the share of each attempt's
    time on its machines that was badput, by its number."""

    goodput_s: float
    badput_s: Mapping[Badput, float]
    wasted: Mapping[int, float]


def split_wall_time(run: Run, at: datetime) -> WallTime:
    """Until then, from the creation of the run's first job; to the end of its last one where the run is over."""
    books = _Books(min(run.attempts[0].created_at or run.created_at, at), at)
    before: Attempt | None = None
    for attempt in run.attempts:
        _wait(books, run, before, attempt)
        _work(books, run, attempt)
        before = attempt
    _rest(books, run)
    lost_s = sum(each.trained_s * (1 - each.kept) for each in books.stretches)
    return WallTime(
        goodput_s=sum(each.trained_s * each.kept for each in books.stretches),
        badput_s={**books.badput_s, Badput.LOST: lost_s},
        wasted={attempt.number: books.waste(attempt.number) for attempt in run.attempts},
    )


@dataclass(slots=True)
class _Stretch:
    """One start of an attempt's training processes: at which step it began and ended, how long it trained, and the
    share of that which was not trained again."""

    attempt: int
    first: int
    last: int | None
    trained_s: float = 0.0
    kept: float = 1.0

    def rewind(self, step: int) -> None:
        """Another start has resumed from this step. Where nobody knows how far this one came, all of it is lost if
        nothing of it was resumed from, and none of it is counted as lost otherwise."""
        if self.last is None:
            kept = 0.0 if step <= self.first else 1.0
        else:
            kept = (step - self.first) / (self.last - self.first) if self.last > self.first else 1.0
        self.kept = min(self.kept, max(0.0, kept))


@dataclass(slots=True)
class _Books:
    """A pointer that moves along the wall time, never back: what it passes is booked once, whatever records claim."""

    pointer: datetime
    until: datetime
    badput_s: dict[Badput, float] = field(default_factory=lambda: dict.fromkeys(Badput, 0.0))
    stretches: list[_Stretch] = field(default_factory=list)
    job_s: dict[int, float] = field(default_factory=dict)

    def book(self, kind: Badput | None, to: datetime | None) -> float:
        """The seconds until then, None being the end, for that kind; no kind is training."""
        to = self.until if to is None else min(to, self.until)
        if to <= self.pointer:
            return 0.0
        seconds, self.pointer = (to - self.pointer).total_seconds(), to
        if kind is None:
            self.stretches[-1].trained_s += seconds
        else:
            self.badput_s[kind] += seconds
        return seconds

    def begin(self, attempt: int, first: int, last: int | None) -> None:
        """The training processes start, and resume from that step."""
        for each in self.stretches:
            each.rewind(first)
        self.stretches.append(_Stretch(attempt, first, last))

    def repaired(self, attempt: Attempt) -> None:
        """Of the time that the attempt seemed to train, SageMaker restarted it for so long; that is not billed."""
        left = attempt.repair_seconds
        for each in (each for each in self.stretches if each.attempt == attempt.number):
            taken = min(each.trained_s, max(0.0, left))
            each.trained_s -= taken
            left -= taken
            self.badput_s[Badput.REPAIR] += taken
            self.job_s[attempt.number] -= taken

    def waste(self, attempt: int) -> float:
        """The share of an attempt's time on its machines that was badput."""
        of_all = self.job_s.get(attempt, 0.0)
        good = sum(each.trained_s * each.kept for each in self.stretches if each.attempt == attempt)
        return max(0.0, 1 - good / of_all) if of_all > 0 else 0.0


def _wait(books: _Books, run: Run, before: Attempt | None, attempt: Attempt) -> None:
    """Between two jobs: until somebody noticed, until people had answered where they were asked, and the rest."""
    launched = attempt.created_at
    if before is None or (launched is None and run.state in OVER):
        return
    _notice(books, run, before)
    proposal = (
        run.proposal if launched is None and run.proposal and run.proposal.plan is ProposedAction.LAUNCH else None
    )
    hold = _hold(run, books.pointer, launched or books.until)
    if proposal or hold:
        books.book(Badput.BACKOFF, proposal.asked_at if proposal else hold)
    answered = attempt.approved_by and (hold or before.status is JobStatus.FAILED)
    asked = answered if launched else proposal or run.state is RunState.HELD
    books.book(Badput.HUMAN if asked else Badput.BACKOFF, launched)


def _work(books: _Books, run: Run, attempt: Attempt) -> None:
    """One job: until it has its machines, and what these did."""
    begun, ended = attempt.training_started_at, attempt.ended_at
    if attempt.created_at is None:
        return
    books.book(Badput.MACHINES, begun or ended)
    if begun is None:
        return
    incidents = [incident for incident in run.incidents if incident.attempt == attempt.number]
    books.begin(attempt.number, attempt.resumed_from_step or 0, _reached(attempt, incidents))
    doing: Badput | None = None
    spent_s = 0.0
    for mark in sorted(_marks(run, attempt, incidents), key=lambda mark: mark.at):
        spent_s += books.book(doing, min(mark.at, ended or mark.at))
        doing = mark.doing
        if mark.order:
            books.stretches[-1].last = mark.order.last_step
            books.begin(attempt.number, _taken_up(mark.order, incidents), _reached(attempt, incidents))
    books.job_s[attempt.number] = spent_s + books.book(doing, ended)
    books.repaired(attempt)


def _rest(books: _Books, run: Run) -> None:
    """After the last job, unless the run is over: until somebody notices, or as long as people are waited for."""
    last = run.current
    if run.state in OVER or last.created_at is None or last.ended_at is None:
        return
    if run.state is RunState.HELD:
        _notice(books, run, last)
    books.book(Badput.HUMAN if run.state is RunState.HELD else Badput.UNNOTICED, None)


def _notice(books: _Books, run: Run, ended: Attempt) -> None:
    """The decision on the end of this job, where the record holds it: of several in one incident only the first."""
    decided = [i.decided_at for i in run.incidents if i.attempt == ended.number and i.decided_at >= books.pointer]
    books.book(Badput.UNNOTICED, min(decided, default=books.pointer))


def _hold(run: Run, since: datetime, until: datetime) -> datetime | None:
    """When the run was held between these, if it was: a hold closes the incident, and nothing has mended it."""
    closed = [i.closed_at for i in run.incidents if i.closed_at and not i.mended]
    return next((at for at in closed if since <= at < until), None)


class _Mark(NamedTuple):
    """From here on a job does that; after a restart in place it trains again."""

    at: datetime
    doing: Badput | None
    order: InPlaceRestart | None = None


def _marks(run: Run, attempt: Attempt, incidents: Iterable[Incident]) -> Iterator[_Mark]:
    for order in attempt.orders:
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
    if attempt is run.current and run.state is RunState.HELD:  # it was left running, and nobody trusts it
        yield from (_Mark(i.closed_at, Badput.HUMAN) for i in incidents if i.closed_at and not i.mended)


def _reached(attempt: Attempt, incidents: Iterable[Incident]) -> int | None:
    """The last step that the attempt is known to have done."""
    steps = [attempt.last_step, *(incident.step for incident in incidents)]
    return max((step for step in steps if step is not None), default=None)


def _taken_up(order: InPlaceRestart, incidents: Iterable[Incident]) -> int:
    """The step from which a restart in place went on: its own, else the newest checkpoint known when it was ordered."""
    if order.resume_step is not None:
        return order.resume_step
    known = [i.resume_step or 0 for i in incidents if i.decided_at <= order.asked_at]
    return known[-1] if known else 0
