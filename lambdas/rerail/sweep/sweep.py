"""The minute's round: ask about every open run, and wake the supervisor for those where something is to be done.

It only reads. What it would decide is decided again by the supervisor, the one that writes and acts."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from rerail.accounting.goodput import Account, make_account
from rerail.decisions.decide import decide
from rerail.detection.evaluate import Monitor, MonitoredRun, with_heartbeat
from rerail.hyperpod.clusters import ClusterRecords, default_of, find_overdue
from rerail.messages import service_metrics as measures
from rerail.messages.service_metrics import MetricValue
from rerail.model.codec import plain
from rerail.model.errors import RerailError
from rerail.model.metrics import select_names
from rerail.model.policy import Policy
from rerail.model.run import JobStatus, Run, RunState
from rerail.model.signals import JobObserved, Signal
from rerail.ports import Checkpoints, Jobs, Mailbox, Pause, Policies, Queue, ReceivedHeartbeats, Runs, policy_of
from rerail.supervisor.observe import observe
from rerail.sweep.describe_schedule import EACH_MINUTE, OWN_MINUTE, has_changed, is_describe_due, is_known, job_of
from rerail.sweep.fleet_metrics import Fleet, sum_fleets
from rerail.sweep.fleet_metrics import list_metrics as of_the_fleet
from rerail.sweep.fleet_metrics import make_fleet as fleet_of
from rerail.sweep.launch_order import WaitingLaunch, choose_launches, make_launch
from rerail.sweep.shards import ENOUGH, PARTITIONS, Shard, Shards, fan_out, hash_name, select_newest

# How far back the round looks for tagged jobs whose events were lost; several rounds overlap.
LOOK_BACK = timedelta(minutes=15)
READERS = 8
# Runs that are judged together: two calls of GetMetricData at once.
AT_A_TIME = 200
# A run whose job lives, as far as is known, and which nobody is stopping.
IN_A_JOB = (RunState.WATCHING, RunState.STARTING)
# What a job that nobody told us of may be doing: one that has ended otherwise needs no supervisor.
WORTH_ADOPTING = (JobStatus.IN_PROGRESS, JobStatus.FAILED)


@dataclass(frozen=True, slots=True)
class SweepReport:
    """What one round saw: how many runs are open, watched and due, how many findings and unknown jobs there are.

    `blind` are the runs about which nothing could be learnt, `broken` says why of those whose record makes no sense;
    `unread` says why no metrics could be read; `beating` counts the runs that were judged by their heartbeat, `garbled`
    says why others' heartbeats could not be read. `fleet` are all runs that it came by,
    as one; `paused` says whether Rerail is paused, None where nobody was asked; `unswept` are the parts of the fleet of
    which no other invocation has told lately.
    """

    open: int
    due: int
    discovered: int
    blind: tuple[str, ...]
    watched: int = 0
    found: int = 0
    unread: str = ""
    beating: int = 0
    garbled: Mapping[str, str] = field(default_factory=dict)
    broken: Mapping[str, str] = field(default_factory=dict)
    fleet: Fleet = field(default_factory=Fleet, compare=False)
    paused: bool | None = None
    unswept: tuple[int, ...] = ()


def list_metrics(report: SweepReport) -> Iterator[MetricValue]:
    """What is published of a round beside its counts; first of all that it was made, in all its parts."""
    yield measures.COMPLETED.of(0 if report.unswept else 1)
    yield measures.UNREAD.of(1 if report.unread else 0)
    if report.paused is not None:
        yield measures.PAUSED.of(float(report.paused))
    yield from of_the_fleet(report.fleet)


@dataclass(frozen=True, slots=True)
class RunCheck:
    """One run as the round found it: `due` is None where nobody can tell, `launch` where it waits for its next job and
    for nothing else; `watchable` while its job is in progress.

    `run` and `policy` are None where they could not be read; `problem` is what went wrong that never should."""

    name: str
    due: bool | None
    watchable: MonitoredRun | None = None
    run: Run | None = None
    policy: Policy | None = None
    launch: WaitingLaunch | None = None
    account: Account | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ChangedJobs:
    """What SageMaker lists of jobs that changed lately: each with its status, or `refused` says why it cannot be had.
    `marks` are the same as numbers, None where every job is described anyway."""

    jobs: Mapping[str, tuple[JobStatus, str]] = field(default_factory=dict)
    marks: Mapping[int, int] | None = None
    refused: RerailError | None = None


@dataclass(frozen=True, slots=True)
class Sweep:
    """The round over its ports."""

    runs: Runs
    jobs: Jobs
    checkpoints: Checkpoints
    policies: Policies
    watching: Monitor
    mailbox: Mailbox
    queue: Queue
    clock: Callable[[], datetime]
    pause: Pause | None = None
    hyperpods: ClusterRecords | None = None
    shares: Shards | None = None

    def make(self, *, name: str = "") -> SweepReport:
        """Ask about every open run, judge the metrics of those in training, look for jobs that nobody told us of.

        `name` is the function's own: of a large fleet it asks other invocations of it to sweep a share each. What they
        report is told with the next round."""
        at = self.clock()
        taken, left = self._taken(range(PARTITIONS))
        fleet = len(taken) * PARTITIONS // (PARTITIONS - len(left))
        news = self._news(at) if fleet > EACH_MINUTE else ChangedJobs()
        unasked = self._hand_on(left, Shard((), at, fleet, news.marks or {}), runs=len(taken), to=name)
        report = self._swept(taken, news, at, parts=PARTITIONS - len(left), fleet=fleet)
        self.queue.wake([{"cluster": name} for name in self._overdue(at)], at=at)
        if refused := news.refused or unasked:
            raise refused
        jobs = self.jobs.changed_since(at - LOOK_BACK) if news.marks is None else news.jobs
        strangers = self.runs.unheard_of([name for name, (status, _) in jobs.items() if status in WORTH_ADOPTING])
        self.queue.wake([{"job": job} for job in sorted(strangers)], at=at)
        paused = self.pause.is_paused() if self.pause else None
        return self._with_shares(replace(report, discovered=len(strangers), paused=paused), left, at)

    def make_share(self, share: Shard, *, name: str = "") -> SweepReport:
        """Sweep these parts of the fleet, and leave word of it for the next round."""
        at = self.clock()
        if share.is_stale(at) or self.shares is None:
            return SweepReport(0, 0, 0, ())
        taken, left = self._taken(share.parts)
        unasked = self._hand_on(left, share, runs=len(taken), to=name)
        parts = share.parts[: len(share.parts) - len(left)]
        news = ChangedJobs(marks=share.changed)
        report = self._swept(taken, news, at, parts=len(parts), fleet=share.fleet)
        self.shares.keep(parts, report, at=at)
        if unasked:
            raise unasked
        return report

    def _taken(self, parts: Sequence[int]) -> tuple[list[tuple[str, Run | None]], Sequence[int]]:
        """The open runs, part after part, until they are enough for one invocation; and the parts that are left."""
        taken: list[tuple[str, Run | None]] = []
        for read, part in enumerate(parts, start=1):
            taken += self.runs.open_runs((part,))
            if len(taken) >= ENOUGH and self.shares:
                return taken, parts[read:]
        return taken, ()

    def _news(self, at: datetime) -> ChangedJobs:
        """Asked first where the fleet is large. Refused, every job is taken to be as it was; that is said, last of
        all."""
        try:
            jobs = self.jobs.changed_since(at - LOOK_BACK)
        except RerailError as error:
            return ChangedJobs(marks={}, refused=error)
        return ChangedJobs(jobs, {hash_name(name): hash_name(name, *states) for name, states in jobs.items()})

    def _hand_on(self, left: Sequence[int], share: Shard, *, runs: int, to: str) -> RerailError | None:
        """Have the parts that are left swept by others. One that cannot be asked keeps none of the rest waiting."""
        unasked: RerailError | None = None
        for parts in fan_out(runs=runs, read=len(share.parts or range(PARTITIONS)) - len(left), left=left):
            assert self.shares is not None
            try:
                self.shares.hand_on(replace(share, parts=parts), to=to)
            except RerailError as error:
                unasked = error
        return unasked

    def _with_shares(self, report: SweepReport, left: Sequence[int], at: datetime) -> SweepReport:
        """The round with what the others had to say of the parts that they sweep."""
        if not left or self.shares is None:
            return report
        others, unswept = select_newest(self.shares.reports(), left, at=at)
        return replace(merge_reports([report, *others]), paused=report.paused, unswept=unswept)

    def _swept(
        self, taken: list[tuple[str, Run | None]], news: ChangedJobs, at: datetime, *, parts: int, fleet: int
    ) -> SweepReport:
        """Ask about these runs, wake the supervisor for those that are due, and judge what they publish."""

        def look(named: tuple[str, Run | None]) -> RunCheck:
            name, run = named
            try:
                if run is None or news.marks is None:
                    return self._look(name, run, at)
                if run.state in IN_A_JOB and has_changed(run, news.marks):
                    return self._unlooked(name, run)
                return self._look(name, run, at, known=is_known(run, news.marks, fleet=fleet, at=at))
            except Exception as error:  # a record that makes no sense must not keep the round from all other runs
                return RunCheck(name, None, problem=f"{type(error).__name__}: {error!s:.300}")

        with ThreadPoolExecutor(READERS) as readers:
            # A single run needs no thread of its own.
            looks = [_accounted(each, at) for each in (readers.map if len(taken) > 1 else map)(look, taken)]
        due = [look.name for look in looks if look.due and not look.launch]
        due += choose_launches([look.launch for look in looks if look.due and look.launch], parts=parts, at=at)
        self.queue.wake([{"run": name} for name in due], at=at)  # first: what follows may be refused
        watchable = [look.watchable for look in looks if look.watchable]
        beats = self._beats(watchable)
        watchable = [with_heartbeat(each, beats.heard.get(each.run.mailbox), at=at) for each in watchable]
        watchable = [each for each in watchable if each.is_watched]
        # The two apart: what CloudWatch refuses to tell must not deafen us to the heartbeats.
        heard, _ = self._judge([each for each in watchable if each.beat], at)
        found, unread = self._judge([each for each in watchable if not each.beat], at)
        return SweepReport(
            open=len(looks),
            due=sum(look.due or False for look in looks),
            discovered=0,
            blind=tuple(look.name for look in looks if look.due is None),
            broken={look.name: look.problem for look in looks if look.problem},
            watched=sum(each.trains for each in watchable),
            found=found + heard,
            unread=unread,
            beating=sum(each.beat is not None for each in watchable),
            garbled=beats.unread,
            fleet=fleet_of([each.run for each in looks if each.run], [each.account for each in looks if each.account]),
        )

    def _overdue(self, at: datetime) -> list[str]:
        """HyperPod clusters of which something has been mended for too long."""
        waiting = list(self.hyperpods.waiting()) if self.hyperpods else []
        policy = default_of(self.policies) if waiting else Policy().hyperpod
        return [memory.cluster for memory in waiting if find_overdue(memory, at=at, policy=policy)]

    def _beats(self, watchable: list[MonitoredRun]) -> ReceivedHeartbeats:
        """An agent that is there says more, for less: its heartbeat is read before any metric is paid for."""
        keys = {each.run.mailbox: each.run.seal_key for each in watchable if each.trains and each.run.current.agent}
        return self.mailbox.heartbeats(list(keys), keys) if keys else ReceivedHeartbeats({}, {})

    def _judge(self, watchable: list[MonitoredRun], at: datetime) -> tuple[int, str]:
        """How much was found, and why not all could be judged. So many at a time: after an outage of CloudWatch each
        brings hours of values, and those of a thousand runs at once are more than the function can hold."""
        found, unread = 0, ""
        for start in range(0, len(watchable), AT_A_TIME):
            told, refused = self._judged(watchable[start : start + AT_A_TIME], at)
            found, unread = found + told, unread or refused
        return found, unread

    def _judged(self, watchable: list[MonitoredRun], at: datetime) -> tuple[int, str]:
        """Tell what was found before it is remembered: a round that dies in between tells it again."""
        try:
            judgements = self.watching.judge(watchable, at=at)
        except RerailError as error:
            return 0, str(error)
        except Exception as error:  # what is remembered of one run makes no sense: the others are judged without it
            if len(watchable) == 1:
                return 0, f"{watchable[0].run.id} cannot be judged: {type(error).__name__}: {error!s:.300}"
            half = len(watchable) // 2
            (one, why), (other, or_why) = self._judged(watchable[:half], at), self._judged(watchable[half:], at)
            return one + other, why or or_why
        told = [judgement for judgement in judgements if judgement.findings]
        wakeups = [
            {"run": each.memory.run, "job": each.memory.cursor.job, "findings": [plain(f) for f in each.findings]}
            for each in told
        ]
        self.queue.wake(wakeups, at=at)
        self.watching.keep(judgements)
        return sum(len(judgement.findings) for judgement in told), ""

    def _unlooked(self, name: str, run: Run) -> RunCheck:
        """Where thousands of jobs change at once each is described once, by the supervisor."""
        try:
            return RunCheck(name, True, run=run, policy=policy_of(run, self.policies))
        except RerailError:
            return RunCheck(name, True, run=run)

    def _look(self, name: str, run: Run | None, at: datetime, *, known: bool = False) -> RunCheck:
        """What the supervisor has to do for the run, and whether its job trains; where its job is `known`, by what is
        recorded of it."""
        if run is None:
            return RunCheck(name, None)
        policy: Policy | None = None
        try:
            policy = policy_of(run, self.policies)
            signals = observe(run, self.jobs, self.checkpoints, at=at, known=job_of(run) if known else None)
            watchable = self._watchable(run, policy, signals, at)
        except RerailError:
            # Blind is not healthy: counted, reported, and never a reason to act; what is owed is owed all the same.
            return RunCheck(name, True if run.pending else None, run=run, policy=policy)
        decisions = [decide(run, signal, policy) for signal in signals]
        due = bool(run.pending) or any(decision.run != run for decision in decisions)
        launch = make_launch(run, decisions, priority=policy.priority) if due else None
        return RunCheck(name, due, watchable, run, policy, launch)

    def _watchable(self, run: Run, policy: Policy, signals: tuple[Signal, ...], at: datetime) -> MonitoredRun | None:
        """A run that nobody is stopping, with its job in progress and metrics or heartbeats to be expected of it."""
        seen = next((signal for signal in signals if isinstance(signal, JobObserved)), None)
        if seen is None or seen.job.status is not JobStatus.IN_PROGRESS:
            return None
        if run.state not in IN_A_JOB:
            return None
        names = select_names(policy.metrics, seen.job.defined_metrics)
        if names is None and not run.current.agent:
            return None
        return MonitoredRun(run, policy, names, trains=seen.job.is_training, saves=self._saves(run, seen, at))

    def _saves(self, run: Run, seen: JobObserved, at: datetime) -> tuple[datetime, ...]:
        """When it saved, where that was read anyway; and now and then, to see whether saves still arrive."""
        if seen.checkpoints is not None or not run.checkpoint_uri or not seen.job.is_training:
            return tuple(checkpoint.saved_at for checkpoint in seen.checkpoints or ())
        return (
            tuple(self.checkpoints.times(run.checkpoint_uri)) if is_describe_due(run.id, at, every=OWN_MINUTE) else ()
        )


def _accounted(look: RunCheck, at: datetime) -> RunCheck:
    """With the run's figures, from what has been read already; where a record makes none, the others' are told."""
    if look.run is None or look.policy is None:
        return look
    try:
        return replace(look, account=make_account(look.run, at, look.policy))
    except Exception as error:  # whatever it is, what is due for the run is due all the same
        return replace(look, problem=f"{type(error).__name__}: {error!s:.300}")


def merge_reports(reports: Iterable[SweepReport]) -> SweepReport:
    """What several invocations saw of one fleet, as one."""
    told = list(reports)
    return SweepReport(
        open=sum(each.open for each in told),
        due=sum(each.due for each in told),
        discovered=sum(each.discovered for each in told),
        blind=tuple(name for each in told for name in each.blind),
        watched=sum(each.watched for each in told),
        found=sum(each.found for each in told),
        unread=next((each.unread for each in told if each.unread), ""),
        beating=sum(each.beating for each in told),
        garbled={name: why for each in told for name, why in each.garbled.items()},
        broken={name: why for each in told for name, why in each.broken.items()},
        fleet=sum_fleets(each.fleet for each in told),
    )
