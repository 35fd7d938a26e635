"""The sweep: check every open run once a minute, and wake the supervisor for those with something to do.

It never writes to runs. What it decides is decided again by the supervisor, which alone writes and acts.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from queue import Empty, SimpleQueue

from rerail.accounting.goodput import Account, make_account
from rerail.decisions.decide import decide
from rerail.decisions.decision import select_known
from rerail.decisions.file_copies import list_due_copies
from rerail.decisions.on_job import DEFECT
from rerail.detection.evaluate import Monitor, MonitoredRun, describe_error, with_heartbeat
from rerail.detection.idle import is_load_due
from rerail.hyperpod.clusters import ClusterRecords, default_of, find_overdue
from rerail.messages import service_metrics
from rerail.messages.service_metrics import MetricValue
from rerail.model.checkpoint_layouts import list_save_times
from rerail.model.codec import to_plain
from rerail.model.errors import BoundsExceeded, RerailError
from rerail.model.metrics import select_names
from rerail.model.partitions import PARTITIONS, is_turn
from rerail.model.policy import Policy
from rerail.model.run import JobStatus, Run, RunState
from rerail.model.signals import JobObserved, Signal
from rerail.ports import (
    Checkpoints,
    Jobs,
    ListedSaves,
    Mailbox,
    Pause,
    PausedPolicies,
    Queue,
    ReceivedHeartbeats,
    Runs,
    policy_of,
)
from rerail.supervisor.observe import may_have_lost_job, observe, observe_policy
from rerail.sweep.describe_schedule import EACH_MINUTE, OWN_MINUTE, has_changed, is_known, make_unchanged_job
from rerail.sweep.fleet_metrics import Fleet, make_fleet, sum_fleets
from rerail.sweep.fleet_metrics import list_metrics as of_the_fleet
from rerail.sweep.launch_order import WaitingLaunch, choose_launches, make_launch
from rerail.sweep.shards import ENOUGH, Shard, Shards, fan_out, hash_name, select_newest

# How far back the sweep looks for tagged jobs whose events were lost; several sweeps overlap.
LOOK_BACK = timedelta(minutes=15)
READERS = 8
# The supervisor is woken for the due ones of so many checked runs together, or of fewer once no other was checked for
# so many seconds.
WAKE_TOGETHER, WAKE_AFTER_S = 50, 1.0
# Runs whose metrics are read together: two concurrent calls of GetMetricData.
BATCH_SIZE = 200
# States of a run whose job is live and not being stopped.
LIVE_STATES = (RunState.WATCHING, RunState.STARTING)
# Statuses in which a job without a run is adopted.
WORTH_ADOPTING = (JobStatus.IN_PROGRESS, JobStatus.FAILED)


@dataclass(frozen=True, slots=True)
class SweepReport:
    """The result of one sweep."""

    open: int  # open runs
    due: int  # runs for which the supervisor was woken
    discovered: int  # jobs without a run for which the supervisor was woken
    unknown: tuple[str, ...]  # runs whose state could not be determined
    monitored: int = 0  # runs whose job trains
    found: int = 0  # findings
    unread: str = ""  # why metrics could not be read, if so
    with_heartbeat: int = 0  # runs evaluated by their heartbeat
    bad_heartbeats: Mapping[str, str] = field(default_factory=dict)  # run -> why its heartbeat could not be read
    broken: Mapping[str, str] = field(default_factory=dict)  # run -> why its record could not be processed
    fleet: Fleet = field(default_factory=Fleet, compare=False)  # all runs of this sweep as one
    paused: bool | None = None  # whether Rerail is paused; None where that was not read
    unswept: tuple[int, ...] = ()  # parts of the fleet without a recent report of another invocation


def list_metrics(report: SweepReport) -> Iterator[MetricValue]:
    """Yield the metrics of a sweep beside its counts: whether it was complete comes first."""
    yield service_metrics.COMPLETED.of(0 if report.unswept else 1)
    yield service_metrics.UNREAD.of(1 if report.unread else 0)
    if report.paused is not None:
        yield service_metrics.PAUSED.of(float(report.paused))
    yield from of_the_fleet(report.fleet)


@dataclass(frozen=True, slots=True)
class RunCheck:
    """One run as the sweep found it."""

    name: str  # the run's id
    due: bool | None  # whether the supervisor is needed; None where unknown
    monitored: MonitoredRun | None = None  # while its job is in progress
    run: Run | None = None  # None where it could not be read
    policy: Policy | None = None  # None where it could not be read
    launch: WaitingLaunch | None = None  # where it waits for its next job and nothing else
    account: Account | None = None
    problem: str = ""  # an unexpected error, if any
    # The supervisor must list its checkpoints: they are to be copied, or more than is read, which is not reported yet.
    needs_listing: bool = False


def _count_checks(checks: Sequence[RunCheck]) -> SweepReport:
    """Return the report of these checks, without the evaluation of metrics and heartbeats."""
    return SweepReport(
        open=len(checks),
        due=sum(check.due or False for check in checks),
        discovered=0,
        unknown=tuple(check.name for check in checks if check.due is None),
        broken={check.name: check.problem for check in checks if check.problem},
        fleet=make_fleet([item.run for item in checks if item.run], [item.account for item in checks if item.account]),
    )


@dataclass(frozen=True, slots=True)
class ChangedJobs:
    """The jobs that SageMaker lists as recently changed."""

    jobs: Mapping[str, tuple[JobStatus, str]] = field(default_factory=dict)  # name -> status and secondary status
    # The same as hashes (see Shard.changed); None where every job is described anyway.
    marks: Mapping[int, int] | None = None
    refused: RerailError | None = None  # why they could not be listed, if so


@dataclass(frozen=True, slots=True)
class Sweep:
    """The sweep over its ports."""

    runs: Runs
    jobs: Jobs
    checkpoints: Checkpoints
    policies: PausedPolicies
    monitor: Monitor
    mailbox: Mailbox
    queue: Queue
    clock: Callable[[], datetime]
    pause: Pause | None = None
    clusters: ClusterRecords | None = None
    shards: Shards | None = None

    def run(self, *, name: str = "", has_time: Callable[[], bool] = lambda: True) -> SweepReport:
        """Check every open run, evaluate the metrics of training jobs, and look for jobs whose events were lost.

        Once `has_time` is False, the remaining runs are left to the supervisor; their metrics wait a minute. `name` is
        the function's own name: in a large fleet, other invocations of it sweep a shard each. Their results are
        included in the next sweep's report.
        """
        at = self.clock()
        runs, left = self._list_runs(range(PARTITIONS))
        fleet = len(runs) * PARTITIONS // (PARTITIONS - len(left))
        changed = self._list_changed_jobs(at) if fleet > EACH_MINUTE else ChangedJobs()
        error = self._hand_on_parts(left, Shard((), at, fleet, changed.marks or {}), runs=len(runs), to=name)
        report = self._check_runs(runs, changed, at, parts=PARTITIONS - len(left), fleet=fleet, has_time=has_time)
        self.queue.wake([{"cluster": name} for name in self._list_overdue_clusters(at)], at=at)
        if first_error := changed.refused or error:
            raise first_error
        jobs = self.jobs.changed_since(at - LOOK_BACK) if changed.marks is None else changed.jobs
        unknown = self.runs.find_unknown_jobs([name for name, (status, _) in jobs.items() if status in WORTH_ADOPTING])
        lost = [run.current.job_name for _, run in runs if run and may_have_lost_job(run)]
        self.queue.wake([{"job": job} for job in sorted({*unknown, *(name for name in lost if name in jobs)})], at=at)
        paused = self.pause.is_paused() if self.pause else None
        return self._with_shard_reports(replace(report, discovered=len(unknown), paused=paused), left, at)

    def run_shard(self, share: Shard, *, name: str = "", has_time: Callable[[], bool] = lambda: True) -> SweepReport:
        """Sweep one shard of the fleet, and store the report for the next sweep."""
        at = self.clock()
        if share.is_stale(at) or self.shards is None:
            return SweepReport(0, 0, 0, ())
        runs, left = self._list_runs(share.parts)
        error = self._hand_on_parts(left, share, runs=len(runs), to=name)
        parts = share.parts[: len(share.parts) - len(left)]
        changed = ChangedJobs(marks=share.changed)
        report = self._check_runs(runs, changed, at, parts=len(parts), fleet=share.fleet, has_time=has_time)
        self.shards.keep(parts, report, at=at)
        if error:
            raise error
        return report

    def _list_runs(self, parts: Sequence[int]) -> tuple[list[tuple[str, Run | None]], Sequence[int]]:
        """Return the open runs, part after part until they are enough for one invocation, and the remaining parts."""
        runs: list[tuple[str, Run | None]] = []
        for read, part in enumerate(parts, start=1):
            runs += self.runs.open_runs((part,))
            if len(runs) >= ENOUGH and self.shards:
                return runs, parts[read:]
        return runs, ()

    def _list_changed_jobs(self, at: datetime) -> ChangedJobs:
        """Return the recently changed jobs, as hashes too.

        If they cannot be listed, every job counts as unchanged, and the error is raised at the end of the sweep.
        """
        try:
            jobs = self.jobs.changed_since(at - LOOK_BACK)
        except RerailError as error:
            return ChangedJobs(marks={}, refused=error)
        return ChangedJobs(jobs, {hash_name(name): hash_name(name, *states) for name, states in jobs.items()})

    def _hand_on_parts(self, left: Sequence[int], share: Shard, *, runs: int, to: str) -> RerailError | None:
        """Invoke the function for the remaining parts; return the last error, which does not stop the others."""
        failed: RerailError | None = None
        for parts in fan_out(runs=runs, read=len(share.parts or range(PARTITIONS)) - len(left), left=left):
            assert self.shards is not None
            try:
                self.shards.hand_on(replace(share, parts=parts), to=to)
            except RerailError as error:
                failed = error
        return failed

    def _with_shard_reports(self, report: SweepReport, left: Sequence[int], at: datetime) -> SweepReport:
        """Return the report with those of the shards that other invocations sweep."""
        if not left or self.shards is None:
            return report
        others, unswept = select_newest(self.shards.reports(), left, at=at)
        return replace(merge_reports([report, *others]), paused=report.paused, unswept=unswept)

    def _check_runs(
        self,
        runs: list[tuple[str, Run | None]],
        changed: ChangedJobs,
        at: datetime,
        *,
        parts: int,
        fleet: int,
        has_time: Callable[[], bool],
    ) -> SweepReport:
        """Check these runs, wake the supervisor for those that are due, and evaluate their metrics."""
        checks = [_with_account(check, at) for check in self._check_all(runs, changed, at, fleet, has_time)]
        # First, because what follows may be refused; as many as fit.
        launches = choose_launches([check.launch for check in checks if check.due and check.launch], parts=parts, at=at)
        self.queue.wake([{"run": name} for name in launches], at=at)
        monitored = [check.monitored for check in checks if check.monitored]
        heartbeats = self._read_heartbeats(monitored)
        monitored = [with_heartbeat(run, heartbeats.received.get(run.run.mailbox), at=at) for run in monitored]
        monitored = [run for run in monitored if run.is_due(at)]
        # Separately, so that an error of CloudWatch does not affect runs with heartbeats.
        by_heartbeat, _ = self._evaluate([run for run in monitored if run.heartbeat], at)
        by_metrics, unread = self._evaluate([run for run in monitored if not run.heartbeat], at)
        return replace(
            _count_checks(checks),
            monitored=sum(run.is_training and run.has_signals for run in monitored),
            found=by_metrics + by_heartbeat,
            unread=unread,
            with_heartbeat=sum(run.heartbeat is not None for run in monitored),
            bad_heartbeats=heartbeats.unread,
        )

    def _check_all(
        self,
        runs: list[tuple[str, Run | None]],
        changed: ChangedJobs,
        at: datetime,
        fleet: int,
        has_time: Callable[[], bool],
    ) -> list[RunCheck]:
        """Check these runs, and wake the supervisor for those that are due as they are found.

        Those that only wait to be launched are not woken here: of them, the order depends on all.
        """

        def check(named: tuple[str, Run | None]) -> RunCheck:
            if not has_time():
                return RunCheck(named[0], True, run=named[1])
            return self._check_safely(*named, changed, at, fleet=fleet)

        if len(runs) <= 1:  # it needs no thread of its own
            checks = [check(named) for named in runs]
            self._wake(checks, at)
            return checks
        found: SimpleQueue[Future[RunCheck]] = SimpleQueue()
        with ThreadPoolExecutor(READERS) as readers:
            futures = [readers.submit(check, named) for named in runs]
            for future in futures:
                future.add_done_callback(found.put)
            waiting: list[RunCheck] = []
            left = len(futures)
            while left:
                try:
                    waiting.append(found.get(timeout=WAKE_AFTER_S).result())
                    left -= 1
                    is_late = False
                except Empty:
                    is_late = True
                if is_late or not left or len(waiting) >= WAKE_TOGETHER:
                    self._wake(waiting, at)
                    waiting = []
        return [future.result() for future in futures]

    def _wake(self, checks: Sequence[RunCheck], at: datetime) -> None:
        """Wake the supervisor for the runs that are due, except those that only wait to be launched."""
        due = [check for check in checks if check.due and not check.launch]
        if due:
            self.queue.wake([{"run": c.name} | ({"lists": True} if c.needs_listing else {}) for c in due], at=at)

    def _check_safely(self, name: str, run: Run | None, changed: ChangedJobs, at: datetime, *, fleet: int) -> RunCheck:
        """Check one run; an unexpected error becomes its result, so that all other runs are still checked."""
        try:
            if run is None or changed.marks is None:
                return self._check_run(name, run, at)
            if run.state in LIVE_STATES and has_changed(run, changed.marks):
                return self._skip_check(name, run)
            return self._check_run(name, run, at, known=is_known(run, changed.marks, fleet=fleet, at=at))
        except Exception as error:
            return RunCheck(name, None, problem=f"{type(error).__name__}: {error!s:.300}")

    def _list_overdue_clusters(self, at: datetime) -> list[str]:
        """Return the HyperPod clusters with a repair that takes too long."""
        records = list(self.clusters.waiting()) if self.clusters else []
        policy = default_of(self.policies) if records else Policy().hyperpod
        return [record.cluster for record in records if find_overdue(record, at=at, policy=policy)]

    def _read_heartbeats(self, runs: list[MonitoredRun]) -> ReceivedHeartbeats:
        """Return the heartbeats of runs with an agent: they contain more than metrics and cost less to read."""
        keys = {
            monitored.run.mailbox: monitored.run.signing_key
            for monitored in runs
            if monitored.is_training and monitored.run.current.agent
        }
        return self.mailbox.heartbeats(list(keys), keys) if keys else ReceivedHeartbeats({}, {})

    def _evaluate(self, runs: list[MonitoredRun], at: datetime) -> tuple[int, str]:
        """Return the number of findings, and why some runs could not be evaluated, if so.

        Runs are evaluated in batches: after an outage of CloudWatch each has hours of values, too many to hold for a
        thousand runs.
        """
        findings, unread = 0, ""
        for start in range(0, len(runs), BATCH_SIZE):
            count, problem = self._evaluate_batch(runs[start : start + BATCH_SIZE], at)
            findings, unread = findings + count, unread or problem
        return findings, unread

    def _evaluate_batch(self, runs: list[MonitoredRun], at: datetime) -> tuple[int, str]:
        """Return the number of findings and the problem, if any, for one batch.

        Findings are sent before the detectors' state is saved: a sweep that dies in between sends them again.
        """
        try:
            evaluations, problems = self.monitor.evaluate(runs, at=at)
        except RerailError as error:
            return 0, str(error)
        except Exception as error:  # one run's stored state cannot even be read: evaluate the others without it
            if len(runs) == 1:
                return 0, describe_error(runs[0], error)
            half = len(runs) // 2
            (first, first_problem), (second, second_problem) = (
                self._evaluate_batch(runs[:half], at),
                self._evaluate_batch(runs[half:], at),
            )
            return first + second, first_problem or second_problem
        reported = [item for item in evaluations if item.findings or item.first_step is not None]
        messages = [
            {
                "run": evaluation.memory.run,
                "job": evaluation.memory.cursor.job,
                "findings": [to_plain(finding) for finding in evaluation.findings],
                **({} if evaluation.first_step is None else {"first_step": evaluation.first_step}),
            }
            for evaluation in reported
        ]
        self.queue.wake(messages, at=at)
        self.monitor.keep(evaluations)
        return sum(len(evaluation.findings) for evaluation in evaluations), next(iter(problems), "")

    def _skip_check(self, name: str, run: Run) -> RunCheck:
        """Return the run as due without a check: when thousands of jobs change, the supervisor describes each once."""
        try:
            return RunCheck(name, True, run=run, policy=policy_of(run, self.policies))
        except RerailError:
            return RunCheck(name, True, run=run)

    def _check_run(self, name: str, run: Run | None, at: datetime, *, known: bool = False) -> RunCheck:
        """Return whether the supervisor is needed for the run, and whether its job trains.

        With `known`, the recorded job is used instead of a description.
        """
        if run is None:
            return RunCheck(name, None)
        policy: Policy | None = None
        try:
            policy = policy_of(run, self.policies)
            known_job = make_unchanged_job(run) if known else None
            signals = observe(run, self.jobs, self.checkpoints, at=at, known=known_job)
            monitored, needs_listing = self._make_monitored(run, policy, signals, at)
            signals = (*observe_policy(run, self.policies, at=at), *signals)
        except RerailError:
            # Unknown is not healthy: it is counted and reported, but never a reason to act. Pending actions stay due.
            return RunCheck(name, True if run.has_work else None, run=run, policy=policy)
        decisions = [decide(run, signal, policy) for signal in signals]
        due = run.has_work or any(decision.run != run for decision in decisions)
        launch = make_launch(run, decisions, priority=policy.priority) if due else None
        return RunCheck(name, due or needs_listing, monitored, run, policy, launch, needs_listing=needs_listing)

    def _make_monitored(
        self, run: Run, policy: Policy, signals: tuple[Signal, ...], at: datetime
    ) -> tuple[MonitoredRun | None, bool]:
        """Return the run for the detectors if its job is in progress and has metrics or heartbeats, else None.

        And whether the supervisor must list its checkpoints: see RunCheck.needs_listing.
        """
        seen = next((signal for signal in signals if isinstance(signal, JobObserved)), None)
        if seen is None or seen.job.status is not JobStatus.IN_PROGRESS:
            return None, False
        if run.state not in LIVE_STATES:
            return None, False
        names = select_names(policy.metrics, seen.job.defined_metrics)
        if names is None and not run.current.agent:
            if not seen.job.is_training or not is_load_due(run.id, at, policy.metrics.period):
                return None, False
            saves = self._list_saves_if_possible(run)
            monitored = MonitoredRun(run, policy, None, is_training=True, saved_at=tuple(saves.times))
            return monitored, bool(list_due_copies(run, select_known(run, saves.files), policy, at=at))
        try:
            saves = self._list_saves(run, seen, at)
            needs_listing = bool(list_due_copies(run, select_known(run, saves.files), policy, at=at))
        except BoundsExceeded:
            saves, needs_listing = ListedSaves(()), DEFECT not in run.defects
        saved_at = tuple(saves.times)
        return MonitoredRun(run, policy, names, is_training=seen.job.is_training, saved_at=saved_at), needs_listing

    def _list_saves_if_possible(self, run: Run) -> ListedSaves:
        """Return when checkpoints were saved; if they cannot be listed, none is known: then the run is not stopped."""
        try:
            return self.checkpoints.list_saves(run.checkpoint_uri) if run.checkpoint_uri else ListedSaves(())
        except RerailError:
            return ListedSaves(())

    def _list_saves(self, run: Run, seen: JobObserved, at: datetime) -> ListedSaves:
        """Return when checkpoints were saved; if they were not listed, list them every few minutes."""
        if seen.checkpoints is not None or not run.checkpoint_uri or not seen.job.is_training:
            return ListedSaves(list_save_times(seen.checkpoints or ()))
        if not is_turn(run.id, at, every=OWN_MINUTE):
            return ListedSaves(())
        return self.checkpoints.list_saves(run.checkpoint_uri)


def _with_account(check: RunCheck, at: datetime) -> RunCheck:
    """Return the check with the run's account; if that fails, with the problem."""
    if check.run is None or check.policy is None:
        return check
    try:
        return replace(check, account=make_account(check.run, at, check.policy))
    except Exception as error:  # the run's visit must not depend on its account
        return replace(check, problem=f"{type(error).__name__}: {error!s:.300}")


def merge_reports(reports: Iterable[SweepReport]) -> SweepReport:
    """Return the reports of several invocations on one fleet as one."""
    parts = list(reports)
    return SweepReport(
        open=sum(part.open for part in parts),
        due=sum(part.due for part in parts),
        discovered=sum(part.discovered for part in parts),
        unknown=tuple(name for part in parts for name in part.unknown),
        monitored=sum(part.monitored for part in parts),
        found=sum(part.found for part in parts),
        unread=next((part.unread for part in parts if part.unread), ""),
        with_heartbeat=sum(part.with_heartbeat for part in parts),
        bad_heartbeats={name: why for part in parts for name, why in part.bad_heartbeats.items()},
        broken={name: why for part in parts for name, why in part.broken.items()},
        fleet=sum_fleets(part.fleet for part in parts),
    )
