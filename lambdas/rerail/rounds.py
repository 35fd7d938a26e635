"""The minute's round: ask about every open run, and wake the supervisor for those where something is to be done.

It only reads. What it would decide is decided again by the supervisor, the one that writes and acts."""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from rerail import measures
from rerail.codec import plain
from rerail.decide import decide
from rerail.errors import RerailError
from rerail.fleet import Fleet, fleet
from rerail.fleet import measured as of_the_fleet
from rerail.goodput import account
from rerail.hyperpod import HyperPods, default_of, overdue
from rerail.measures import Measured
from rerail.metrics import expected
from rerail.model import JobStatus, Run, RunState
from rerail.observe import observe
from rerail.policy import Policy
from rerail.ports import Beats, Checkpoints, Jobs, Mailbox, Policies, Queue, Runs, Switch, policy_of
from rerail.signals import JobSeen, Signal
from rerail.watching import Watchable, Watching, with_beat

# How far back the round looks for tagged jobs whose events were lost; several rounds overlap.
LOOK_BACK = timedelta(minutes=15)
READERS = 8


@dataclass(frozen=True, slots=True)
class RoundReport:
    """What one round saw: how many runs are open, watched and due, how many findings and unknown jobs there are.

    `blind` are the runs about which nothing could be learnt; `unread` says why no metrics could be read; `beating`
    counts the runs that were judged by their heartbeat, `garbled` says why others' heartbeats could not be read.
    `fleet` are all runs that it came by, as one; `switched_off` is the kill switch, None where nobody was asked.
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
    fleet: Fleet = field(default_factory=Fleet, compare=False)
    switched_off: bool | None = None


def measured(report: RoundReport) -> Iterator[Measured]:
    """What is published of a round beside its counts; first of all that it was made."""
    yield measures.COMPLETED.of(1)
    yield measures.UNREAD.of(1 if report.unread else 0)
    if report.switched_off is not None:
        yield measures.SWITCHED_OFF.of(float(report.switched_off))
    yield from of_the_fleet(report.fleet)


@dataclass(frozen=True, slots=True)
class Look:
    """One run as the round found it: `due` is None where nobody can tell; `watchable` while its job is in progress.

    `run` and `policy` are None where they could not be read."""

    name: str
    due: bool | None
    watchable: Watchable | None = None
    run: Run | None = None
    policy: Policy | None = None


@dataclass(frozen=True, slots=True)
class Round:
    """The round over its ports."""

    runs: Runs
    jobs: Jobs
    checkpoints: Checkpoints
    policies: Policies
    watching: Watching
    mailbox: Mailbox
    queue: Queue
    clock: Callable[[], datetime]
    switch: Switch | None = None
    hyperpods: HyperPods | None = None

    def make(self) -> RoundReport:
        """Ask about every open run, judge the metrics of those in training, look for jobs that nobody told us of."""
        at = self.clock()
        with ThreadPoolExecutor(READERS) as readers:
            looks = list(readers.map(lambda named: self._look(named[0], named[1], at), self.runs.open_runs()))
        due = [look.name for look in looks if look.due]
        self.queue.wake([{"run": name} for name in due], at=at)  # first: what follows may be refused
        self.queue.wake([{"cluster": name} for name in self._overdue(at)], at=at)
        watchable = [look.watchable for look in looks if look.watchable]
        beats = self._beats(watchable)
        watchable = [with_beat(each, beats.heard.get(each.run.mailbox), at=at) for each in watchable]
        watchable = [each for each in watchable if each.is_watched]
        # The two apart: what CloudWatch refuses to tell must not deafen us to the heartbeats.
        heard, _ = self._judge([each for each in watchable if each.beat], at)
        found, unread = self._judge([each for each in watchable if not each.beat], at)
        strangers = self.runs.unheard_of(self.jobs.changed_since(at - LOOK_BACK))
        self.queue.wake([{"job": job} for job in sorted(strangers)], at=at)
        return RoundReport(
            open=len(looks),
            due=len(due),
            discovered=len(strangers),
            blind=tuple(look.name for look in looks if look.due is None),
            watched=sum(each.trains for each in watchable),
            found=found + heard,
            unread=unread,
            beating=sum(each.beat is not None for each in watchable),
            garbled=beats.unread,
            fleet=_fleet(looks, at),
            switched_off=not self.switch.is_on() if self.switch else None,
        )

    def _overdue(self, at: datetime) -> list[str]:
        """HyperPod clusters of which something has been mended for too long."""
        waiting = list(self.hyperpods.waiting()) if self.hyperpods else []
        policy = default_of(self.policies) if waiting else Policy().hyperpod
        return [memory.cluster for memory in waiting if overdue(memory, at=at, policy=policy)]

    def _beats(self, watchable: list[Watchable]) -> Beats:
        """An agent that is there says more, for less: its heartbeat is read before any metric is paid for."""
        folders = [each.run.mailbox for each in watchable if each.trains and each.run.current.agent]
        return self.mailbox.heartbeats(folders) if folders else Beats({}, {})

    def _judge(self, watchable: list[Watchable], at: datetime) -> tuple[int, str]:
        """Tell what was found before it is remembered: a round that dies in between tells it again."""
        if not watchable:
            return 0, ""
        try:
            judgements = self.watching.judge(watchable, at=at)
        except RerailError as error:
            return 0, str(error)
        told = [judgement for judgement in judgements if judgement.findings]
        wakeups = [
            {"run": each.memory.run, "job": each.memory.cursor.job, "findings": [plain(f) for f in each.findings]}
            for each in told
        ]
        self.queue.wake(wakeups, at=at)
        self.watching.keep(judgements)
        return sum(len(judgement.findings) for judgement in told), ""

    def _look(self, name: str, run: Run | None, at: datetime) -> Look:
        """What the supervisor has to do for the run, and whether its job trains."""
        if run is None:
            return Look(name, None)
        policy: Policy | None = None
        try:
            policy = policy_of(run, self.policies)
            signals = observe(run, self.jobs, self.checkpoints, at=at)
        except RerailError:
            # Blind is not healthy: counted, reported, and never a reason to act; what is owed is owed all the same.
            return Look(name, True if run.pending else None, run=run, policy=policy)
        due = bool(run.pending) or any(decide(run, signal, policy).run != run for signal in signals)
        return Look(name, due, _watchable(run, policy, signals), run, policy)


def _fleet(looks: list[Look], at: datetime) -> Fleet:
    """Of what has been read already: nothing more is asked for."""
    read = [(look.run, look.policy) for look in looks if look.run]
    return fleet([run for run, _ in read], [account(run, at, policy) for run, policy in read if policy])


def _watchable(run: Run, policy: Policy, signals: tuple[Signal, ...]) -> Watchable | None:
    """A run that nobody is stopping, with its job in progress and metrics or heartbeats to be expected of it."""
    seen = next((signal for signal in signals if isinstance(signal, JobSeen)), None)
    if seen is None or seen.job.status is not JobStatus.IN_PROGRESS:
        return None
    if run.state not in (RunState.WATCHING, RunState.STARTING):
        return None
    names = expected(policy.metrics, seen.job.defined_metrics)
    if names is None and not run.current.agent:
        return None
    saves = tuple(checkpoint.saved_at for checkpoint in seen.checkpoints or ())
    return Watchable(run, policy, names, trains=seen.job.is_training, saves=saves)
