"""Watching: read what is new of every run, let the detectors judge it, and remember what they learnt."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import NamedTuple, Protocol

from rerail.detection import checkpoint_stall, stall
from rerail.detection.clock_skew import find_silence_start, with_silence_excused
from rerail.detection.detectors import DetectorState, evaluate_sample, find_overdue
from rerail.detection.heartbeats import (
    LastHeartbeat,
    is_credible,
    make_last_heartbeat,
    select_new,
    update_liveness,
    with_agent_cursor,
)
from rerail.detection.onsets import OF_THE_LOSS, with_onsets
from rerail.detection.recovery import OpenFinding, follow_findings
from rerail.model.actions import ClearedBy
from rerail.model.finding import Finding, Kind, Level
from rerail.model.liveness import Liveness, Phase, with_phase, with_relaunch
from rerail.model.mailbox import Heartbeat
from rerail.model.metrics import (
    Cursor,
    MetricNames,
    MetricQuery,
    MetricsReading,
    Points,
    Series,
    fetch,
    load,
    samples,
    with_agent_progress,
    with_next_attempt,
)
from rerail.model.policy import Policy
from rerail.model.run import Attempt, InPlaceRestart, Run
from rerail.model.sample import Sample
from rerail.model.signatures import must_be_signed
from rerail.model.thresholds import Thresholds
from rerail.ports import ReceivedHeartbeat

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
class RunDetection:
    """What is known of a run's series: how far it was read, and the state of the detectors; outlives its jobs.

    `rows` counts what was judged, `step` is the last row's; `onsets` are the rows in which trouble with the loss was
    found lately, each with the step at which it began, `troubles` those that are not over; `restart` is the job's
    restart in place that is watched, `beat` the newest heartbeat. `looked_at` is when it was judged last, by our own
    clock; `doubt` is since when silence counts while that clock, or our own diligence, is in doubt.
    """

    run: str
    cursor: Cursor
    watch: DetectorState = field(default_factory=DetectorState)
    rows: int = 0
    step: int | None = None
    onsets: tuple[tuple[int, int], ...] = ()
    troubles: tuple[OpenFinding, ...] = ()
    restart: int = 0
    beat: LastHeartbeat | None = None
    looked_at: datetime | None = None
    doubt: datetime | None = None


class RunDetections(Protocol):
    """Where memories are kept."""

    def recall(self, run_ids: Sequence[str]) -> Mapping[str, RunDetection]:
        """The memories of those runs that have one."""

    def keep(self, memories: Sequence[RunDetection]) -> None:
        """Remember them; the last one kept of a run wins."""


class MonitoredRun(NamedTuple):
    """A run whose job is in progress, what its metrics are called (None: it has none), whether the user's code is
    running, when its checkpoints were saved, where somebody looked, and the heartbeat that its agent gives, if any."""

    run: Run
    policy: Policy
    names: MetricNames | None
    trains: bool
    saves: tuple[datetime, ...] = ()
    beat: ReceivedHeartbeat | None = None

    @property
    def is_watched(self) -> bool:
        """There is something to judge it by."""
        return self.beat is not None or self.names is not None


class Evaluation(NamedTuple):
    """What the detectors made of one run's news."""

    memory: RunDetection
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class Monitor:
    """Over its ports: the series, and the memories."""

    series: Series
    memories: RunDetections

    def judge(self, watchable: Sequence[MonitoredRun], *, at: datetime) -> list[Evaluation]:
        """Read all runs' news together and judge each. Nothing is kept yet: what was found has to be told first."""
        known = self.memories.recall([each.run.id for each in watchable])
        remembered = [
            (resume_detection(memory, each, at=at), with_heartbeat(each, _anew(each, memory), at=at))
            for each in watchable
            for memory in [known.get(each.run.id)]
        ]
        watched = [
            MetricsReading(memory.cursor, each.names, stall_suspected=_suspicious(memory, each.policy, at))
            for memory, each in remembered
            # Before it trains a series says nothing, and would be paid for in vain.
            if each.trains and each.names and each.beat is None
        ]
        answers = fetch(self.series, watched, now=at)
        return [
            evaluate_heartbeat(memory, each, each.beat, at=at)
            if each.beat
            else evaluate_run(memory, each, answers, at=at)
            for memory, each in remembered
        ]

    def keep(self, judgements: Sequence[Evaluation]) -> None:
        """Remember what was judged, now that it was told."""
        self.memories.keep([judgement.memory for judgement in judgements])


def evaluate_run(
    memory: RunDetection, watchable: MonitoredRun, answers: Mapping[MetricQuery, Points], *, at: datetime
) -> Evaluation:
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
    excuse = with_silence_excused(pulse, memory.doubt)
    overdue = find_overdue(replace(watch, pulse=excuse), at, policy.detection)
    findings += (_witnessed(_undoubted(finding, memory), excuse, watchable.run) for finding in overdue)
    findings += _unsaved(watchable, excuse, at)
    findings += find_resolved(watchable, findings, at)
    return Evaluation(memory, tuple(findings))


def _looked(memory: RunDetection, cursor: Cursor, *, at: datetime) -> RunDetection:
    heard = cursor.read_to != memory.cursor.read_to
    doubt = find_silence_start(memory.doubt, memory.looked_at, heard=heard, newest=cursor.read_to, at=at)
    return replace(memory, cursor=cursor, looked_at=at, doubt=doubt)


def with_heartbeat(watchable: MonitoredRun, beat: ReceivedHeartbeat | None, *, at: datetime) -> MonitoredRun:
    """The run with its agent's heartbeat, if that can be believed: it takes the place of the metrics."""
    every = watchable.policy.metrics.heartbeat
    believed = beat is not None and is_credible(beat, watchable.run.current, every=every, at=at)
    if beat and not beat.sealed and must_be_signed(watchable.run, watchable.policy):
        believed = False  # it may be anybody's
    return watchable._replace(beat=beat if believed else None)


def _anew(watchable: MonitoredRun, memory: RunDetection | None) -> ReceivedHeartbeat | None:
    return select_new(watchable.beat, memory.beat if memory else None) if watchable.beat else None


def evaluate_heartbeat(
    memory: RunDetection, watchable: MonitoredRun, beat: ReceivedHeartbeat, *, at: datetime
) -> Evaluation:
    """What is overdue by the heartbeat. The rows are the agent's business: it judges each step, and reports.

    It sees the main thread stand still, too: from here a stall is only told."""
    detection = watchable.policy.detection
    memory = _taught(memory, beat.heartbeat, detection)
    watch = replace(memory.watch, pulse=update_liveness(memory.watch.pulse, beat, at=at))
    cursor = with_agent_cursor(memory.cursor, beat, period=watchable.policy.metrics.period, at=at)
    memory = replace(memory, cursor=cursor, watch=watch, onsets=(), troubles=(), beat=make_last_heartbeat(beat))
    memory = replace(memory, looked_at=at, doubt=None)  # a heartbeat is believed by the mailbox's clock
    overdue = (replace(f, level=Level.WARN) if f.kind in STALLS else f for f in find_overdue(watch, at, detection))
    findings = (*overdue, *_unsaved(watchable, watch.pulse, at))
    return Evaluation(memory, (*findings, *find_resolved(watchable, findings, at)))


def _taught(memory: RunDetection, heartbeat: Heartbeat, detection: Thresholds) -> RunDetection:
    """The detectors learn one row a heartbeat, so that they know the run should they have to judge it again; what they
    say to it the agent has said, and sooner."""
    step = heartbeat.step
    if step is None or (memory.step is not None and step <= memory.step):
        return memory
    row = Sample(step=step, loss=heartbeat.loss, step_time_s=heartbeat.step_seconds)
    return replace(memory, watch=evaluate_sample(memory.watch, row, detection)[0], step=step)


def find_resolved(watchable: MonitoredRun, findings: Sequence[Finding], at: datetime) -> tuple[Finding, ...]:
    """What people were paged for and silence said, and it says so no more: asked of each page that stands, so that one
    which was missed is found the next minute."""
    if not watchable.trains:
        return ()
    due_now = {finding.kind for finding in findings}
    paged = [page.tell.about for page in watchable.run.pages if page.tell.until is ClearedBy.MENDED]
    over = [kind for kind, said_by in SAID_BY.items() if kind in paged and not due_now & said_by]
    return tuple(Finding(kind, Level.MENDED, None, None, f"{AGAIN[kind]} again", at, at) for kind in over)


def _unsaved(watchable: MonitoredRun, pulse: Liveness, at: datetime) -> tuple[Finding, ...]:
    if not watchable.trains:
        return ()
    late = checkpoint_stall.find_missing_checkpoint(
        watchable.saves, at, watchable.policy.detection, started_at=pulse.started_at
    )
    return (late,) if late else ()


def _seen(memory: RunDetection, sample: Sample, detection: Thresholds) -> tuple[RunDetection, tuple[Finding, ...]]:
    """One row judged, and each finding dated to the earliest step at which the trouble can have begun.

    A row stands for all the steps since the one before it. And what does not mend was a spike first: the spike's onset
    is the one that a rollback has to reach behind.
    """
    watch, said = evaluate_sample(memory.watch, sample, detection)
    span = 0 if sample.step is None or memory.step is None else max(0, sample.step - memory.step - 1)
    found = [
        replace(f, onset_step=max(0, f.onset_step - _span(f, sample, span)))
        if f.kind in OF_THE_LOSS and f.onset_step is not None
        else f
        for f in said
    ]
    rows = memory.rows + 1
    onsets, told = with_onsets(memory.onsets, found, row=rows, detection=detection)
    troubles, over = follow_findings(memory.troubles, told, watch.judges, sample)
    step = sample.step if sample.step is not None else memory.step
    memory = replace(memory, watch=watch, rows=rows, step=step, onsets=onsets, troubles=troubles)
    return memory, (*told, *over)


def _span(finding: Finding, sample: Sample, span: int) -> int:
    """How many steps before its row a trouble can have begun; a silence says that itself."""
    return 0 if finding.kind is Kind.NON_FINITE and sample.sound_to is not None else span


def _heard(pulse: Liveness, cursor: Cursor) -> Liveness:
    """Replayed steps make no samples, but they are signs of life."""
    if cursor.read_to is None or _is_older(cursor.read_to, pulse):
        return pulse
    pulse = with_phase(pulse, Phase.STEP, cursor.read_to) if pulse.phase is Phase.STARTUP else pulse
    moved = max(filter(None, (pulse.moved_at, cursor.seen_at)), default=None)
    return replace(pulse, heard_at=cursor.read_to, moved_at=moved)


def _is_older(read_to: datetime, pulse: Liveness) -> bool:
    """What was read last was said before the start that is under way."""
    starts = pulse.phase in (Phase.CAPACITY, Phase.STARTUP)
    return starts and pulse.since is not None and read_to <= pulse.since


def _suspicious(memory: RunDetection, policy: Policy, at: datetime) -> bool:
    """A stall wants a second witness: only then is the load of the machines asked for, which costs more series."""
    return stall.find_overdue(memory.watch.pulse, at, policy.detection) is not None


def _idle(answers: Mapping[MetricQuery, Points], job: str) -> bool | None:
    busy = [percent for percent in load(answers, job) if percent is not None]
    return max(busy) < IDLE_BELOW if busy else None


def _undoubted(finding: Finding, memory: RunDetection) -> Finding:
    """A stall in doubt: when the run moved last is told by the clock of its metrics, not by ours, since its saves are
    held against that; what should have come meanwhile counts from the doubt on."""
    moved_at = memory.watch.pulse.moved_at
    if finding.kind is not Kind.STALL or memory.doubt is None or moved_at is None:
        return finding
    return replace(finding, onset_at=moved_at, doubt=memory.doubt)


def _witnessed(finding: Finding, pulse: Liveness, run: Run) -> Finding:
    """Silence alone stops no job: machines that do nothing must bear it out, or the checkpoint folder, which is looked
    into before anything is done. A start may take its time on busy machines."""
    if pulse.idle:
        return replace(finding, idle=True)
    borne_out = finding.kind is Kind.STALL and run.checkpoint_uri
    if finding.kind in STALLS and not borne_out:
        return replace(finding, level=Level.WARN)
    return finding


def resume_detection(memory: RunDetection | None, watchable: MonitoredRun, *, at: datetime) -> RunDetection:
    """The memory to judge the run's current job with: the series of its attempts are one series, stitched by step."""
    run, attempt = watchable.run, watchable.run.current
    if memory is None:
        memory = RunDetection(run.id, Cursor(attempt.job_name), DetectorState(pulse=Liveness(Phase.CAPACITY, at)))
    elif memory.cursor.job != attempt.job_name:
        memory = _followed(memory, run, attempt, at)
    elif memory.restart < attempt.restart:
        memory = _restarted_in_place(memory, watchable, attempt.orders[-1], at)
    elif not watchable.trains and memory.cursor.read_to is not None:
        memory = _restarted(memory, watchable, at)
    pulse = memory.watch.pulse
    if watchable.trains and pulse.phase is Phase.CAPACITY:
        pulse = with_phase(pulse, Phase.STARTUP, at)
    return replace(memory, watch=replace(memory.watch, pulse=pulse))


def _restarted(memory: RunDetection, watchable: MonitoredRun, at: datetime) -> RunDetection:
    """SageMaker itself restarts the job, or waits for machines to do so: it starts up anew, however long that takes,
    and what it said before is no sign of life."""
    period = watchable.policy.metrics.period
    cursor = with_agent_progress(memory.cursor, step=None, moved_at=at, at=at, period=period)
    pulse = memory.watch.pulse
    pulse = pulse if pulse.phase is Phase.CAPACITY else with_relaunch(pulse, at)
    return replace(memory, cursor=cursor, watch=replace(memory.watch, pulse=pulse), troubles=())


def _restarted_in_place(
    memory: RunDetection, watchable: MonitoredRun, order: InPlaceRestart, at: datetime
) -> RunDetection:
    """The same job's processes start up anew; the minute in which they did so holds the old ones' values too."""
    cursor, pulse = memory.cursor, with_relaunch(memory.watch.pulse, at)
    judged_to = None if order.before_step is None else order.resume_step or 0
    read_to = (order.restarted_at or at) + watchable.policy.metrics.period
    cursor = replace(with_next_attempt(cursor, cursor.job, judged_to=judged_to), read_to=read_to)
    if judged_to is not None:
        return RunDetection(memory.run, cursor, DetectorState(pulse=pulse), restart=order.number)
    watch = replace(memory.watch, pulse=pulse)
    return replace(memory, cursor=cursor, watch=watch, restart=order.number)


def _followed(memory: RunDetection, run: Run, attempt: Attempt, at: datetime) -> RunDetection:
    pulse = with_relaunch(memory.watch.pulse, at)
    if _rolled_back(run, attempt):
        # What the detectors learnt after the onset is not to be trusted: they begin afresh where the run does.
        cursor = with_next_attempt(memory.cursor, attempt.job_name, judged_to=attempt.resumed_from_step or 0)
        return RunDetection(run.id, cursor, DetectorState(pulse=pulse))
    watch = replace(memory.watch, pulse=pulse)
    return replace(memory, cursor=with_next_attempt(memory.cursor, attempt.job_name), watch=watch, restart=0)


def _rolled_back(run: Run, attempt: Attempt) -> bool:
    """The attempt resumed from before what was judged, on purpose: old step numbers come again with new values."""
    if attempt.rung:
        return True
    if len(run.attempts) > 1 and run.attempts[-2].onset_step is not None:
        return True
    last = run.incidents[-1] if run.incidents else None
    return last is not None and last.onset_step is not None and attempt.number == last.attempt + 1
