"""Evaluate every monitored run: read its new metrics, run the detectors, and keep their state."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import NamedTuple, Protocol

from rerail.detection import blind, checkpoint_stall, stall
from rerail.detection.clock_skew import find_silence_start, with_silence_excused
from rerail.detection.detectors import Detectors, DetectorState, evaluate_sample, find_overdue
from rerail.detection.divergence import Divergence
from rerail.detection.heartbeats import (
    LastHeartbeat,
    is_credible,
    make_last_heartbeat,
    select_new,
    update_liveness,
    with_agent_cursor,
)
from rerail.detection.idle import IDLE_BELOW, describe_hosts, find_idle, is_load_due
from rerail.detection.onsets import OF_THE_LOSS, with_onsets
from rerail.detection.recovery import OpenFinding, follow_findings
from rerail.detection.row import RowReader
from rerail.detection.throughput_drop import ThroughputDrop
from rerail.detection.throughput_rise import ThroughputRise
from rerail.model.actions import ClearedBy
from rerail.model.finding import Finding, Kind, Level
from rerail.model.liveness import Liveness, Phase, with_phase, with_relaunch
from rerail.model.mailbox import Heartbeat
from rerail.model.metrics import (
    NO_NAMES,
    Cursor,
    MetricNames,
    MetricQuery,
    MetricsReading,
    Points,
    Series,
    fetch,
    find_first_step,
    find_known_to,
    find_newest_load,
    find_resolution,
    list_loads,
    make_samples,
    with_agent_progress,
    with_next_attempt,
)
from rerail.model.policy import Policy
from rerail.model.run import Attempt, InPlaceRestart, Run
from rerail.model.sample import Sample
from rerail.model.thresholds import Thresholds
from rerail.ports import ReceivedHeartbeat

STALLS = (Kind.STALL, Kind.STARTUP_STALL)
# The findings about missing data, and the findings that must be absent before each counts as resolved: without metrics,
# steps cannot be seen either.
BLOCKING_KINDS = {
    Kind.BLIND: {Kind.BLIND, Kind.STALL},
    Kind.STALL: {Kind.BLIND, Kind.STALL},
    Kind.STARTUP_STALL: {Kind.STARTUP_STALL},
    Kind.CHECKPOINT_STALL: {Kind.CHECKPOINT_STALL},
    Kind.CAPACITY_WAIT: {Kind.CAPACITY_WAIT},
}
RESOLUTION_TEXTS = {
    Kind.BLIND: "metrics are received",
    Kind.STALL: "steps are made",
    Kind.STARTUP_STALL: "steps are made",
    Kind.CHECKPOINT_STALL: "checkpoints are saved",
    Kind.CAPACITY_WAIT: "the job has its machines",
}
IDLE = "the machine is idle"


# Rows that are remembered: a problem is seldom dated farther back.
RECENT_ROWS = 20


@dataclass(frozen=True, slots=True)
class RunDetection:
    """The detection state of a run, kept across its jobs."""

    run: str
    # How far the series was read.
    cursor: Cursor
    # The state of the detectors.
    detectors: DetectorState = field(default_factory=DetectorState)
    # The number of rows evaluated, and the step of the last one.
    rows: int = 0
    step: int | None = None
    # Recent problems with the loss: the row at which each was found, and the step at which it began.
    onsets: tuple[tuple[int, int], ...] = ()
    # The problems with the loss that are not over.
    open_findings: tuple[OpenFinding, ...] = ()
    # The job's in-place restart that is monitored.
    restart: int = 0
    # The newest heartbeat.
    heartbeat: LastHeartbeat | None = None
    # When the run was last evaluated, by the function's clock.
    looked_at: datetime | None = None
    # From when on silence counts, while that clock is in doubt or after an outage.
    doubt: datetime | None = None
    # Step and time, in seconds since 1970, of the newest rows, oldest first.
    recent_rows: tuple[tuple[int, int], ...] = ()


class RunDetections(Protocol):
    """The store of detection states."""

    def recall(self, run_ids: Sequence[str]) -> Mapping[str, RunDetection]:
        """Return the states of those runs that have one."""

    def keep(self, memories: Sequence[RunDetection]) -> None:
        """Store the states; the last one stored for a run wins."""


class MonitoredRun(NamedTuple):
    """A run whose job is in progress."""

    run: Run
    policy: Policy
    # The names of its metrics; None: it publishes none.
    names: MetricNames | None
    # The training script is running.
    is_training: bool
    # When its checkpoints were saved, if they were listed.
    saved_at: tuple[datetime, ...] = ()
    # The heartbeat of its agent, if any.
    heartbeat: ReceivedHeartbeat | None = None

    @property
    def has_signals(self) -> bool:
        """Return whether there are metrics or heartbeats to evaluate."""
        return self.heartbeat is not None or self.names is not None

    def is_due(self, at: datetime) -> bool:
        """Return whether the run is evaluated now: of one without metrics and heartbeats, only its load is read."""
        is_load_read = self.is_training and is_load_due(self.run.id, at, self.policy.metrics.period)
        return self.has_signals or is_load_read


class Evaluation(NamedTuple):
    """The new state and the findings of one run."""

    memory: RunDetection
    findings: tuple[Finding, ...]
    # The first step of a job whose script resumed by itself, once it is known.
    first_step: int | None = None


@dataclass(frozen=True, slots=True)
class Monitor:
    """Evaluates runs from their metrics and heartbeats."""

    series: Series
    memories: RunDetections

    def evaluate(self, runs: Sequence[MonitoredRun], *, at: datetime) -> tuple[list[Evaluation], list[str]]:
        """Read the new metrics of all runs together and evaluate each run; return also the errors of some.

        The states are not stored: the findings have to be sent first.
        """
        known = self.memories.recall([monitored.run.id for monitored in runs])
        remembered: list[tuple[RunDetection, MonitoredRun]] = []
        readings: list[MetricsReading] = []
        evaluations: list[Evaluation] = []
        problems: list[str] = []
        for monitored in runs:
            with _noting_error(monitored, problems):
                memory = known.get(monitored.run.id)
                monitored = with_heartbeat(monitored, _new_heartbeat(monitored, memory), at=at)
                resumed = resume_detection(memory, monitored, at=at)
                # Before the script runs there are no values, and CloudWatch bills each read.
                if monitored.is_training and monitored.heartbeat is None:
                    readings.append(_make_reading(resumed, monitored, at))
                remembered.append((resumed, monitored))
        answers = fetch(self.series, readings, now=at)
        for memory, monitored in remembered:
            with _noting_error(monitored, problems):
                evaluations.append(_evaluate(memory, monitored, answers, at=at))
        return evaluations, problems

    def keep(self, evaluations: Sequence[Evaluation]) -> None:
        """Store the states, after the findings were sent."""
        self.memories.keep([evaluation.memory for evaluation in evaluations])


@contextmanager
def _noting_error(monitored: MonitoredRun, problems: list[str]) -> Iterator[None]:
    """Add an error with one run to the problems, so that the others are evaluated without it."""
    try:
        yield
    except Exception as error:  # such as a stored state that makes no sense
        problems.append(describe_error(monitored, error))


def describe_error(monitored: MonitoredRun, error: Exception) -> str:
    """Return which run could not be evaluated, and why."""
    return f"{monitored.run.id} cannot be judged: {type(error).__name__}: {error!s:.300}"


def _evaluate(
    memory: RunDetection, monitored: MonitoredRun, answers: Mapping[MetricQuery, Points], *, at: datetime
) -> Evaluation:
    if monitored.heartbeat:
        return evaluate_heartbeat(memory, monitored, monitored.heartbeat, at=at)
    if monitored.names:
        return evaluate_run(memory, monitored, answers, at=at)
    return evaluate_load(memory, monitored, answers, at=at)


def _make_reading(memory: RunDetection, monitored: MonitoredRun, at: datetime) -> MetricsReading:
    """Return what is read of the run: its metrics, and the load of a host if that is needed; else the load of all."""
    run, policy = monitored.run, monitored.policy
    if monitored.names is None:
        return MetricsReading(
            memory.cursor, replace(NO_NAMES, period=policy.metrics.period), hosts=run.current.instance_count
        )
    start_unknown = bool(monitored.names.step) and not memory.cursor.counts_epochs and _is_start_unknown(run)
    hosts = int(_is_load_needed(memory, policy, at))
    return MetricsReading(memory.cursor, monitored.names, hosts=hosts, start_unknown=start_unknown)


def _is_start_unknown(run: Run) -> bool:
    """Return whether the first step of the current job is to be read: only an agent reports it by itself."""
    attempt = run.current
    if run.find_start(attempt) is None:
        return True
    is_ordered = attempt.number > 1 and attempt.resumed_from_step is not None
    return is_ordered and attempt.first_step is None and not any(known.agent for known in run.attempts)


def evaluate_run(
    memory: RunDetection, monitored: MonitoredRun, answers: Mapping[MetricQuery, Points], *, at: datetime
) -> Evaluation:
    """Evaluate the new metrics of one run: first each sample, then what is overdue."""
    policy = monitored.policy
    run, names = monitored.run, monitored.names or policy.metrics
    may_have_resumed = run.current.self_repairs > 0 or any(known.agent for known in run.attempts)
    cursor, news = make_samples(answers, memory.cursor, names, now=at, may_have_resumed=may_have_resumed)
    findings: list[Finding] = []
    idle = _is_idle(answers, cursor.job)
    for sample in (replace(sample, suspect=IDLE if idle else "") for sample in news):
        memory, sample_findings = _evaluate_row(memory, sample, policy.detection)
        findings += sample_findings
    liveness = replace(_with_activity(memory.detectors.liveness, cursor), idle=idle)
    watch = replace(memory.detectors, liveness=liveness)
    memory = _with_evaluation_time(replace(memory, detectors=watch), cursor, policy, at=at)
    excuse = with_silence_excused(liveness, memory.doubt)
    overdue = find_overdue(replace(watch, liveness=excuse), find_known_to(policy.metrics, now=at), policy.detection)
    findings += (_with_confirmation(_with_reliable_onset(finding, memory), excuse, run) for finding in overdue)
    if (silent := blind.find_missing_loss(cursor, names, policy.detection, at=at)) and not overdue:
        findings.append(silent)
    findings += _find_missing_checkpoint(monitored, excuse, at)
    findings += find_resolved(monitored, findings, at)
    return Evaluation(memory, tuple(findings), find_first_step(answers, cursor.job, names))


def evaluate_load(
    memory: RunDetection, monitored: MonitoredRun, answers: Mapping[MetricQuery, Points], *, at: datetime
) -> Evaluation:
    """Evaluate the load of the machines of a run that publishes nothing else."""
    period, run = find_resolution(monitored.policy.metrics.period), monitored.run
    loads = list_loads(answers, memory.cursor.job, hosts=run.current.instance_count, period=period)
    hosts = describe_hosts(loads, at=at, period=period)
    began = run.attempts[0].created_at
    saves = tuple(saved for saved in monitored.saved_at if began is None or saved >= began)
    detection, liveness = monitored.policy.detection, memory.detectors.liveness
    started = replace(liveness, started_at=run.current.training_started_at)
    findings = _find_missing_checkpoint(monitored._replace(saved_at=saves), started, at)
    silent = blind.find_overdue(liveness, at, detection, what="heartbeat")
    if run.current.agent and liveness.received_at and silent:
        findings += (silent,)
    if idle := find_idle(hosts, saves, at=at, detection=detection):
        findings += (idle,)
    # Without values nothing is known of the machines, so that an open page stays open.
    compute = bool(hosts) and not any(host.idle_since for host in hosts.values())
    again = {
        Kind.STALL: compute and any(host.has_resumed for host in hosts.values()),
        # A page about an agent that fell silent is not over because the machines are busy.
        Kind.BLIND: compute and not run.current.agent,
    }
    for over in find_resolved(monitored, findings, at):
        if over.kind is Kind.CHECKPOINT_STALL:
            findings += (over,)
        elif again.get(over.kind):
            findings += (replace(over, evidence="the machines compute again"),)
    return Evaluation(memory, findings)


def _with_evaluation_time(memory: RunDetection, cursor: Cursor, policy: Policy, *, at: datetime) -> RunDetection:
    newest = cursor.read_to if cursor.read_to != memory.cursor.read_to else None
    age = find_known_to(policy.metrics, now=at) - newest if newest else None
    doubt = find_silence_start(memory.doubt, memory.looked_at, age=age, at=at)
    return replace(memory, cursor=cursor, looked_at=at, doubt=doubt)


def with_heartbeat(monitored: MonitoredRun, received: ReceivedHeartbeat | None, *, at: datetime) -> MonitoredRun:
    """Return the run with its agent's heartbeat if that is signed and credible; it replaces the metrics."""
    every = monitored.policy.metrics.heartbeat
    believed = received and received.is_signed and is_credible(received, monitored.run.current, every=every, at=at)
    return monitored._replace(heartbeat=received if believed else None)


def _new_heartbeat(monitored: MonitoredRun, memory: RunDetection | None) -> ReceivedHeartbeat | None:
    return select_new(monitored.heartbeat, memory.heartbeat if memory else None) if monitored.heartbeat else None


def evaluate_heartbeat(
    memory: RunDetection, monitored: MonitoredRun, received: ReceivedHeartbeat, *, at: datetime
) -> Evaluation:
    """Evaluate a heartbeat for what is overdue; the agent itself evaluates each step and reports its findings.

    The agent detects a stalled main thread too, so a stall found here is only a warning.
    """
    detection = monitored.policy.detection
    memory = _learn_from_heartbeat(memory, received.heartbeat, detection)
    watch = replace(memory.detectors, liveness=update_liveness(memory.detectors.liveness, received, at=at))
    cursor = with_agent_cursor(memory.cursor, received, period=monitored.policy.metrics.period, at=at)
    memory = replace(memory, cursor=cursor, detectors=watch, onsets=(), open_findings=(), looked_at=at)
    # Heartbeats are timed by the mailbox's clock, which is not in doubt.
    memory = replace(memory, heartbeat=make_last_heartbeat(received), doubt=None)
    overdue = (replace(f, level=Level.WARN) if f.kind in STALLS else f for f in find_overdue(watch, at, detection))
    findings = (*overdue, *_find_missing_checkpoint(monitored, watch.liveness, at))
    return Evaluation(memory, (*findings, *find_resolved(monitored, findings, at)))


def _learn_from_heartbeat(memory: RunDetection, heartbeat: Heartbeat, detection: Thresholds) -> RunDetection:
    """Train the detectors with one row per heartbeat, in case they have to take over from the agent.

    Their findings are dropped, because the agent reports the same problems sooner.
    """
    step = heartbeat.step
    if step is None or (memory.step is not None and step <= memory.step):
        return memory
    row = Sample(step=step, loss=heartbeat.loss, step_time_s=heartbeat.step_seconds)
    memory = _with_row(memory, step, heartbeat.at)
    return replace(memory, detectors=evaluate_sample(memory.detectors, row, detection)[0], step=step)


def _with_row(memory: RunDetection, step: int, at: datetime) -> RunDetection:
    """Return the state with one more row remembered."""
    return replace(memory, recent_rows=(*memory.recent_rows, (step, int(at.timestamp())))[-RECENT_ROWS:])


def find_resolved(monitored: MonitoredRun, findings: Sequence[Finding], at: datetime) -> tuple[Finding, ...]:
    """Return a finding for each open page or warning about missing data whose problem is over.

    All of them are checked each time, so that a missed one is closed a minute later. That no new checkpoint appeared,
    which has no step, is over only where they were listed: that is not done each minute.
    """
    if not monitored.is_training:
        return ()
    due_now = {finding.kind for finding in findings}
    paged = [page.notice.about for page in monitored.run.pages if page.notice.until is ClearedBy.RECOVERED]
    warnings = monitored.run.open_warnings
    reported = {*warnings, *paged}
    if not monitored.saved_at and warnings.get(Kind.CHECKPOINT_STALL, 0) is None:
        reported.remove(Kind.CHECKPOINT_STALL)
    over = [kind for kind, blocking in BLOCKING_KINDS.items() if kind in reported and not due_now & blocking]
    return tuple(Finding(kind, Level.RECOVERED, None, None, f"{RESOLUTION_TEXTS[kind]} again", at, at) for kind in over)


def _find_missing_checkpoint(monitored: MonitoredRun, liveness: Liveness, at: datetime) -> tuple[Finding, ...]:
    if not monitored.is_training:
        return ()
    late = checkpoint_stall.find_missing_checkpoint(
        monitored.saved_at, at, monitored.policy.detection, started_at=liveness.started_at
    )
    return (late,) if late else ()


def _evaluate_row(
    memory: RunDetection, sample: Sample, detection: Thresholds
) -> tuple[RunDetection, tuple[Finding, ...]]:
    """Evaluate one row, and date each finding to the earliest step at which the problem can have begun.

    A row stands for all steps since the row before. A lasting problem often begins as a spike, and a rollback has to go
    back to before the onset of that spike.
    """
    watch, findings = evaluate_sample(memory.detectors, sample, detection)
    span = 0 if sample.step is None or memory.step is None else max(0, sample.step - memory.step - 1)
    dated = [
        _with_onset_dated(f, f.onset_step, sample, memory.recent_rows, span)
        if f.kind in OF_THE_LOSS and f.onset_step is not None
        else f
        for f in findings
    ]
    rows = memory.rows + 1
    onsets, reported = with_onsets(memory.onsets, dated, row=rows, detection=detection)
    troubles, over = follow_findings(memory.open_findings, reported, watch.detectors, sample)
    step = sample.step if sample.step is not None else memory.step
    if sample.step is not None and sample.at is not None:
        memory = _with_row(memory, sample.step, sample.at)
    memory = replace(memory, detectors=watch, rows=rows, step=step, onsets=onsets, open_findings=troubles)
    return memory, (*reported, *over)


def _with_onset_dated(
    finding: Finding, onset: int, sample: Sample, recent: Sequence[tuple[int, int]], span: int
) -> Finding:
    """Return a finding about the row `onset` with the earliest step and time at which the problem can have begun.

    That is the step after the row before it, or `span` steps earlier if that row is not known any more. The sample
    itself may give the step.
    """
    is_given = finding.kind is Kind.NON_FINITE and sample.complete_to is not None
    before = max(((step, at) for step, at in recent if step < onset), default=None)
    if before is None:
        return replace(finding, onset_step=onset if is_given else max(0, onset - span))
    step, seconds = before
    at = datetime.fromtimestamp(seconds, UTC)
    return replace(finding, onset_step=onset if is_given else step + 1, onset_at=min(at, finding.at or at))


def _with_activity(liveness: Liveness, cursor: Cursor) -> Liveness:
    """Return the liveness after reading; replayed steps make no samples, but are signs of life."""
    if cursor.read_to is None or _is_older(cursor.read_to, liveness):
        return liveness
    liveness = with_phase(liveness, Phase.STEP, cursor.read_to) if liveness.phase is Phase.STARTUP else liveness
    moved = max(filter(None, (liveness.moved_at, cursor.seen_at)), default=None)
    return replace(liveness, received_at=cursor.read_to, moved_at=moved)


def _is_older(read_to: datetime, liveness: Liveness) -> bool:
    """Return whether the last values read are from before the startup in progress."""
    starts = liveness.phase in (Phase.CAPACITY, Phase.STARTUP)
    return starts and liveness.since is not None and read_to <= liveness.since


def _is_load_needed(memory: RunDetection, policy: Policy, at: datetime) -> bool:
    """Return whether a stall is suspected, or slow steps may be a fault.

    Only then the machines' load is read, because its series cost money.
    """
    is_slow, known_to = memory.detectors.detectors.throughput_drop.slow > 0, find_known_to(policy.metrics, now=at)
    return is_slow or stall.find_overdue(memory.detectors.liveness, known_to, policy.detection) is not None


def _is_idle(answers: Mapping[MetricQuery, Points], job: str) -> bool | None:
    busy = [percent for percent in find_newest_load(answers, job) if percent is not None]
    return max(busy) < IDLE_BELOW if busy else None


def _with_reliable_onset(finding: Finding, memory: RunDetection) -> Finding:
    """Return the finding; for a stall while the clock is in doubt, with times that do not depend on that clock.

    Its onset is the run's last progress by the clock of its metrics, because the times of checkpoints are compared with
    it. Whatever is overdue counts from `doubt` on.
    """
    moved_at = memory.detectors.liveness.moved_at
    if finding.kind is not Kind.STALL or memory.doubt is None or moved_at is None:
        return finding
    return replace(finding, onset_at=moved_at, doubt=memory.doubt)


def _with_confirmation(finding: Finding, liveness: Liveness, run: Run) -> Finding:
    """Return the finding, lowered to a warning if nothing confirms the stall.

    Missing steps alone stop no job: the machines must be idle, or there must be a checkpoint folder, which is checked
    before any action. A startup may take long while the machines are busy.
    """
    if liveness.idle:
        return replace(finding, idle=True)
    borne_out = finding.kind is Kind.STALL and run.checkpoint_uri
    if finding.kind in STALLS and not borne_out:
        return replace(finding, level=Level.WARN)
    return finding


def resume_detection(memory: RunDetection | None, monitored: MonitoredRun, *, at: datetime) -> RunDetection:
    """Return the state for evaluating the run's current job; the series of its attempts are joined by step."""
    run, attempt = monitored.run, monitored.run.current
    if memory is None:
        memory = RunDetection(run.id, Cursor(attempt.job_name), DetectorState(liveness=Liveness(Phase.CAPACITY, at)))
    elif memory.cursor.job != attempt.job_name:
        memory = _with_next_job(memory, run, attempt, at)
    elif memory.restart < attempt.restart:
        memory = _with_in_place_restart(memory, monitored, attempt.in_place_restarts[-1], at)
    elif not monitored.is_training and memory.cursor.read_to is not None:
        memory = _with_restart(memory, monitored, at)
    liveness = memory.detectors.liveness
    if monitored.is_training and liveness.phase is Phase.CAPACITY:
        liveness = with_phase(liveness, Phase.STARTUP, at)
    return replace(memory, detectors=replace(memory.detectors, liveness=liveness))


def _with_restart(memory: RunDetection, monitored: MonitoredRun, at: datetime) -> RunDetection:
    """Return the state after SageMaker began to restart the job, or to wait for machines for that.

    The job starts up again, however long that takes, and earlier metrics are not signs of life.
    """
    period = monitored.policy.metrics.period
    cursor = with_agent_progress(memory.cursor, step=None, moved_at=at, at=at, period=period)
    liveness = memory.detectors.liveness
    liveness = liveness if liveness.phase is Phase.CAPACITY else with_relaunch(liveness, at)
    return replace(memory, cursor=cursor, detectors=replace(memory.detectors, liveness=liveness), open_findings=())


def _with_in_place_restart(
    memory: RunDetection, monitored: MonitoredRun, order: InPlaceRestart, at: datetime
) -> RunDetection:
    """Return the state after an in-place restart; its minute is skipped, because it also has values from before."""
    cursor, liveness = memory.cursor, with_relaunch(memory.detectors.liveness, at)
    judged_to = None if order.before_step is None else order.resume_step or 0
    read_to = (order.restarted_at or at) + monitored.policy.metrics.period
    cursor = replace(with_next_attempt(cursor, cursor.job, judged_to=judged_to), read_to=read_to)
    if judged_to is not None:
        state = DetectorState(_make_detectors_after_rollback(memory), liveness)
        return RunDetection(memory.run, cursor, state, restart=order.number)
    watch = replace(memory.detectors, liveness=liveness)
    return replace(memory, cursor=cursor, detectors=watch, restart=order.number)


def _with_next_job(memory: RunDetection, run: Run, attempt: Attempt, at: datetime) -> RunDetection:
    liveness = with_relaunch(memory.detectors.liveness, at)
    if _is_rollback(run, attempt):
        cursor = with_next_attempt(memory.cursor, attempt.job_name, judged_to=attempt.resumed_from_step or 0)
        return RunDetection(run.id, cursor, DetectorState(_make_detectors_after_rollback(memory), liveness))
    # Step times of other machines are not comparable.
    detectors = replace(memory.detectors.detectors, throughput_drop=ThroughputDrop(), throughput_rise=ThroughputRise())
    watch = replace(memory.detectors, detectors=detectors, liveness=liveness)
    return replace(memory, cursor=with_next_attempt(memory.cursor, attempt.job_name), detectors=watch, restart=0)


def _make_detectors_after_rollback(memory: RunDetection) -> Detectors:
    """Return fresh detectors: what they learnt after the onset is not reliable. They know the level before it."""
    learnt = memory.detectors.detectors
    earlier = learnt.divergence.find_earlier_level(memory.step)
    return Detectors(rows=RowReader(scale=learnt.rows.scale.copy()), divergence=Divergence(earlier=earlier))


def _is_rollback(run: Run, attempt: Attempt) -> bool:
    """Return whether the attempt is a rollback, so that evaluated step numbers come again with new values."""
    if attempt.rung:
        return True
    if len(run.attempts) > 1 and run.attempts[-2].onset_step is not None:
        return True
    last = run.incidents[-1] if run.incidents else None
    return last is not None and last.onset_step is not None and attempt.number == last.attempt + 1
