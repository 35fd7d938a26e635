"""Watching: read what is new of every run, let the detectors judge it, and remember what they learnt."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import NamedTuple, Protocol

from rerail.detection import checkpoint_stall, stall
from rerail.detection.clock_skew import doubted, excused
from rerail.detection.detectors import Watch, due, see
from rerail.detection.heartbeats import LastBeat, felt, heard_anew, is_believed, judged_by_the_agent, last_beat
from rerail.detection.onsets import OF_THE_LOSS, dated
from rerail.detection.recovery import Trouble, followed
from rerail.model.actions import Until
from rerail.model.finding import Finding, Kind, Level
from rerail.model.liveness import Phase, Pulse, entered, relaunched
from rerail.model.mailbox import Heartbeat
from rerail.model.metrics import (
    Cursor,
    MetricNames,
    Points,
    Query,
    Series,
    Watched,
    fetch,
    follow,
    handed_over,
    load,
    samples,
)
from rerail.model.policy import Policy
from rerail.model.run import Attempt, Order, Run
from rerail.model.sample import Sample
from rerail.model.signatures import must_be_sealed
from rerail.model.thresholds import Detection
from rerail.ports import Beat

STALLS = (Kind.STALL, Kind.STARTUP_STALL)
# The findings that silence makes, and which of them have to be over for it: who is blind sees no steps either.
SAID_BY = {
    Kind.BLIND: {Kind.BLIND, Kind.STALL},
    Kind.STALL: {Kind.BLIND, Kind.STALL},
    Kind.STARTUP_STALL: {Kind.STARTUP_STALL},
    Kind.CHECKPOINT_STALL: {Kind.CHECKPOINT_STALL},
    Kind.CAPACITY_WAIT: {Kind.CAPACITY_WAIT},
}
AGAIN = {
    Kind.BLIND: "metrics are heard",
    Kind.STALL: "steps are made",
    Kind.STARTUP_STALL: "steps are made",
    Kind.CHECKPOINT_STALL: "checkpoints are saved",
    Kind.CAPACITY_WAIT: "the job has its machines",
}
# Percent of one device: below this nothing is being computed. A full GPU proves nothing, a waiting collective spins.
IDLE_BELOW = 5.0


@dataclass(frozen=True, slots=True)
class Memory:
    """What is known of a run's series: how far it was read, and the state of the detectors; outlives its jobs.

    `rows` counts what was judged, `step` is the last row's; `onsets` are the rows in which trouble with the loss was
    found lately, each with the step at which it began, `troubles` those that are not over; `restart` is the job's
    restart in place that is watched, `beat` the newest heartbeat. `looked_at` is when it was judged last, by our own
    clock; `doubt` is since when silence counts while that clock, or our own diligence, is in doubt.
    """

    run: str
    cursor: Cursor
    watch: Watch = field(default_factory=Watch)
    rows: int = 0
    step: int | None = None
    onsets: tuple[tuple[int, int], ...] = ()
    troubles: tuple[Trouble, ...] = ()
    restart: int = 0
    beat: LastBeat | None = None
    looked_at: datetime | None = None
    doubt: datetime | None = None


class Memories(Protocol):
    """Where memories are kept."""

    def recall(self, run_ids: Sequence[str]) -> Mapping[str, Memory]:
        """The memories of those runs that have one."""

    def keep(self, memories: Sequence[Memory]) -> None:
        """Remember them; the last one kept of a run wins."""


class Watchable(NamedTuple):
    """A run whose job is in progress, what its metrics are called (None: it has none), whether the user's code is
    running, when its checkpoints were saved, where somebody looked, and the heartbeat that its agent gives, if any."""

    run: Run
    policy: Policy
    names: MetricNames | None
    trains: bool
    saves: tuple[datetime, ...] = ()
    beat: Beat | None = None

    @property
    def is_watched(self) -> bool:
        """There is something to judge it by."""
        return self.beat is not None or self.names is not None


class Judged(NamedTuple):
    """What the detectors made of one run's news."""

    memory: Memory
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class Watching:
    """Over its ports: the series, and the memories."""

    series: Series
    memories: Memories

    def judge(self, watchable: Sequence[Watchable], *, at: datetime) -> list[Judged]:
        """Read all runs' news together and judge each. Nothing is kept yet: what was found has to be told first."""
        known = self.memories.recall([each.run.id for each in watchable])
        remembered = [
            (remember(memory, each, at=at), with_beat(each, _anew(each, memory), at=at))
            for each in watchable
            for memory in [known.get(each.run.id)]
        ]
        watched = [
            Watched(memory.cursor, each.names, stall_suspected=_suspicious(memory, each.policy, at))
            for memory, each in remembered
            # Before it trains a series says nothing, and would be paid for in vain.
            if each.trains and each.names and each.beat is None
        ]
        answers = fetch(self.series, watched, now=at)
        return [
            beaten(memory, each, each.beat, at=at) if each.beat else judged(memory, each, answers, at=at)
            for memory, each in remembered
        ]

    def keep(self, judgements: Sequence[Judged]) -> None:
        """Remember what was judged, now that it was told."""
        self.memories.keep([judgement.memory for judgement in judgements])


def judged(memory: Memory, watchable: Watchable, answers: Mapping[Query, Points], *, at: datetime) -> Judged:
    """One run's news, sample by sample, and then what is overdue."""
    policy = watchable.policy
    cursor, news = samples(answers, memory.cursor, watchable.names or policy.metrics, now=at)
    findings: list[Finding] = []
    for sample in news:
        memory, said = _seen(memory, sample, policy.detection)
        findings += said
    pulse = replace(_heard(memory.watch.pulse, cursor), idle=_idle(answers, cursor.job))
    watch = replace(memory.watch, pulse=pulse)
    memory = _looked(replace(memory, watch=watch), cursor, at=at)
    excuse = excused(pulse, memory.doubt)
    overdue = due(replace(watch, pulse=excuse), at, policy.detection)
    findings += (_witnessed(_undoubted(finding, memory), excuse, watchable.run) for finding in overdue)
    findings += _unsaved(watchable, excuse, at)
    findings += no_longer_due(watchable, findings, at)
    return Judged(memory, tuple(findings))


def _looked(memory: Memory, cursor: Cursor, *, at: datetime) -> Memory:
    heard = cursor.read_to != memory.cursor.read_to
    doubt = doubted(memory.doubt, memory.looked_at, heard=heard, newest=cursor.read_to, at=at)
    return replace(memory, cursor=cursor, looked_at=at, doubt=doubt)


def with_beat(watchable: Watchable, beat: Beat | None, *, at: datetime) -> Watchable:
    """The run with its agent's heartbeat, if that can be believed: it takes the place of the metrics."""
    every = watchable.policy.metrics.heartbeat
    believed = beat is not None and is_believed(beat, watchable.run.current, every=every, at=at)
    if beat and not beat.sealed and must_be_sealed(watchable.run, watchable.policy):
        believed = False  # it may be anybody's
    return watchable._replace(beat=beat if believed else None)


def _anew(watchable: Watchable, memory: Memory | None) -> Beat | None:
    return heard_anew(watchable.beat, memory.beat if memory else None) if watchable.beat else None


def beaten(memory: Memory, watchable: Watchable, beat: Beat, *, at: datetime) -> Judged:
    """What is overdue by the heartbeat. The rows are the agent's business: it judges each step, and reports.

    It sees the main thread stand still, too: from here a stall is only told."""
    detection = watchable.policy.detection
    memory = _taught(memory, beat.heartbeat, detection)
    watch = replace(memory.watch, pulse=felt(memory.watch.pulse, beat, at=at))
    cursor = judged_by_the_agent(memory.cursor, beat, period=watchable.policy.metrics.period, at=at)
    memory = replace(memory, cursor=cursor, watch=watch, onsets=(), troubles=(), beat=last_beat(beat))
    memory = replace(memory, looked_at=at, doubt=None)  # a heartbeat is believed by the mailbox's clock
    overdue = (replace(f, level=Level.WARN) if f.kind in STALLS else f for f in due(watch, at, detection))
    findings = (*overdue, *_unsaved(watchable, watch.pulse, at))
    return Judged(memory, (*findings, *no_longer_due(watchable, findings, at)))


def _taught(memory: Memory, heartbeat: Heartbeat, detection: Detection) -> Memory:
    """The detectors learn one row a heartbeat, so that they know the run should they have to judge it again; what they
    say to it the agent has said, and sooner."""
    step = heartbeat.step
    if step is None or (memory.step is not None and step <= memory.step):
        return memory
    row = Sample(step=step, loss=heartbeat.loss, step_time_s=heartbeat.step_seconds)
    return replace(memory, watch=see(memory.watch, row, detection)[0], step=step)


def no_longer_due(watchable: Watchable, findings: Sequence[Finding], at: datetime) -> tuple[Finding, ...]:
    """What people were paged for and silence said, and it says so no more: asked of each page that stands, so that one
    which was missed is found the next minute."""
    if not watchable.trains:
        return ()
    due_now = {finding.kind for finding in findings}
    paged = [page.tell.about for page in watchable.run.pages if page.tell.until is Until.MENDED]
    over = [kind for kind, said_by in SAID_BY.items() if kind in paged and not due_now & said_by]
    return tuple(Finding(kind, Level.MENDED, None, None, f"{AGAIN[kind]} again", at, at) for kind in over)


def _unsaved(watchable: Watchable, pulse: Pulse, at: datetime) -> tuple[Finding, ...]:
    if not watchable.trains:
        return ()
    late = checkpoint_stall.overdue(watchable.saves, at, watchable.policy.detection, started_at=pulse.started_at)
    return (late,) if late else ()


def _seen(memory: Memory, sample: Sample, detection: Detection) -> tuple[Memory, tuple[Finding, ...]]:
    """One row judged, and each finding dated to the earliest step at which the trouble can have begun.

    A row stands for all the steps since the one before it. And what does not mend was a spike first: the spike's onset
    is the one that a rollback has to reach behind.
    """
    watch, said = see(memory.watch, sample, detection)
    span = 0 if sample.step is None or memory.step is None else max(0, sample.step - memory.step - 1)
    found = [
        replace(f, onset_step=max(0, f.onset_step - _span(f, sample, span)))
        if f.kind in OF_THE_LOSS and f.onset_step is not None
        else f
        for f in said
    ]
    rows = memory.rows + 1
    onsets, told = dated(memory.onsets, found, row=rows, detection=detection)
    troubles, over = followed(memory.troubles, told, watch.judges, sample)
    step = sample.step if sample.step is not None else memory.step
    memory = replace(memory, watch=watch, rows=rows, step=step, onsets=onsets, troubles=troubles)
    return memory, (*told, *over)


def _span(finding: Finding, sample: Sample, span: int) -> int:
    """How many steps before its row a trouble can have begun; a silence says that itself."""
    return 0 if finding.kind is Kind.NON_FINITE and sample.sound_to is not None else span


def _heard(pulse: Pulse, cursor: Cursor) -> Pulse:
    """Replayed steps make no samples, but they are signs of life."""
    if cursor.read_to is None or _is_older(cursor.read_to, pulse):
        return pulse
    pulse = entered(pulse, Phase.STEP, cursor.read_to) if pulse.phase is Phase.STARTUP else pulse
    moved = max(filter(None, (pulse.moved_at, cursor.seen_at)), default=None)
    return replace(pulse, heard_at=cursor.read_to, moved_at=moved)


def _is_older(read_to: datetime, pulse: Pulse) -> bool:
    """What was read last was said before the start that is under way."""
    starts = pulse.phase in (Phase.CAPACITY, Phase.STARTUP)
    return starts and pulse.since is not None and read_to <= pulse.since


def _suspicious(memory: Memory, policy: Policy, at: datetime) -> bool:
    """A stall wants a second witness: only then is the load of the machines asked for, which costs more series."""
    return stall.due(memory.watch.pulse, at, policy.detection) is not None


def _idle(answers: Mapping[Query, Points], job: str) -> bool | None:
    busy = [percent for percent in load(answers, job) if percent is not None]
    return max(busy) < IDLE_BELOW if busy else None


def _undoubted(finding: Finding, memory: Memory) -> Finding:
    """A stall in doubt: when the run moved last is told by the clock of its metrics, not by ours, since its saves are
    held against that; what should have come meanwhile counts from the doubt on."""
    moved_at = memory.watch.pulse.moved_at
    if finding.kind is not Kind.STALL or memory.doubt is None or moved_at is None:
        return finding
    return replace(finding, onset_at=moved_at, doubt=memory.doubt)


def _witnessed(finding: Finding, pulse: Pulse, run: Run) -> Finding:
    """Silence alone stops no job: machines that do nothing must bear it out, or the checkpoint folder, which is looked
    into before anything is done. A start may take its time on busy machines."""
    if pulse.idle:
        return replace(finding, idle=True)
    borne_out = finding.kind is Kind.STALL and run.checkpoint_uri
    if finding.kind in STALLS and not borne_out:
        return replace(finding, level=Level.WARN)
    return finding


def remember(memory: Memory | None, watchable: Watchable, *, at: datetime) -> Memory:
    """The memory to judge the run's current job with: the series of its attempts are one series, stitched by step."""
    run, attempt = watchable.run, watchable.run.current
    if memory is None:
        memory = Memory(run.id, Cursor(attempt.job_name), Watch(pulse=Pulse(Phase.CAPACITY, at)))
    elif memory.cursor.job != attempt.job_name:
        memory = _followed(memory, run, attempt, at)
    elif memory.restart < attempt.restart:
        memory = _restarted_in_place(memory, watchable, attempt.orders[-1], at)
    elif not watchable.trains and memory.cursor.read_to is not None:
        memory = _restarted(memory, watchable, at)
    pulse = memory.watch.pulse
    if watchable.trains and pulse.phase is Phase.CAPACITY:
        pulse = entered(pulse, Phase.STARTUP, at)
    return replace(memory, watch=replace(memory.watch, pulse=pulse))


def _restarted(memory: Memory, watchable: Watchable, at: datetime) -> Memory:
    """SageMaker itself restarts the job, or waits for machines to do so: it starts up anew, however long that takes,
    and what it said before is no sign of life."""
    period = watchable.policy.metrics.period
    cursor = handed_over(memory.cursor, step=None, moved_at=at, at=at, period=period)
    pulse = memory.watch.pulse
    pulse = pulse if pulse.phase is Phase.CAPACITY else relaunched(pulse, at)
    return replace(memory, cursor=cursor, watch=replace(memory.watch, pulse=pulse), troubles=())


def _restarted_in_place(memory: Memory, watchable: Watchable, order: Order, at: datetime) -> Memory:
    """The same job's processes start up anew; the minute in which they did so holds the old ones' values too."""
    cursor, pulse = memory.cursor, relaunched(memory.watch.pulse, at)
    judged_to = None if order.before_step is None else order.resume_step or 0
    read_to = (order.restarted_at or at) + watchable.policy.metrics.period
    cursor = replace(follow(cursor, cursor.job, judged_to=judged_to), read_to=read_to)
    if judged_to is not None:
        return Memory(memory.run, cursor, Watch(pulse=pulse), restart=order.number)
    watch = replace(memory.watch, pulse=pulse)
    return replace(memory, cursor=cursor, watch=watch, restart=order.number)


def _followed(memory: Memory, run: Run, attempt: Attempt, at: datetime) -> Memory:
    pulse = relaunched(memory.watch.pulse, at)
    if _rolled_back(run, attempt):
        # What the detectors learnt after the onset is not to be trusted: they begin afresh where the run does.
        cursor = follow(memory.cursor, attempt.job_name, judged_to=attempt.resumed_from_step or 0)
        return Memory(run.id, cursor, Watch(pulse=pulse))
    watch = replace(memory.watch, pulse=pulse)
    return replace(memory, cursor=follow(memory.cursor, attempt.job_name), watch=watch, restart=0)


def _rolled_back(run: Run, attempt: Attempt) -> bool:
    """The attempt resumed from before what was judged, on purpose: old step numbers come again with new values."""
    if attempt.rung:
        return True
    if len(run.attempts) > 1 and run.attempts[-2].onset_step is not None:
        return True
    last = run.incidents[-1] if run.incidents else None
    return last is not None and last.onset_step is not None and attempt.number == last.attempt + 1
