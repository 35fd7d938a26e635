"""The minute's round: ask about every open run, and wake the supervisor for those where something is to be done.

It only reads. What it would decide is decided again by the supervisor, the one that writes and acts."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from rerail.codec import plain
from rerail.decide import decide
from rerail.errors import RerailError
from rerail.metrics import expected
from rerail.model import JobStatus, Run, RunState
from rerail.observe import observe
from rerail.policy import Policy
from rerail.ports import Beats, Checkpoints, Jobs, Mailbox, Policies, Queue, Runs, policy_of
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


@dataclass(frozen=True, slots=True)
class Look:
    """One run as the round found it: `due` is None where nobody can tell; `watchable` while its job is in progress."""

    name: str
    due: bool | None
    watchable: Watchable | None = None


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

    def make(self) -> RoundReport:
        """Ask about every open run, judge the metrics of those in training, look for jobs that nobody told us of."""
        at = self.clock()
        with ThreadPoolExecutor(READERS) as readers:
            looks = list(readers.map(lambda named: self._look(named[0], named[1], at), self.runs.open_runs()))
        due = [look.name for look in looks if look.due]
        self.queue.wake([{"run": name} for name in due], at=at)  # first: what follows may be refused
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
        )

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
        try:
            policy = policy_of(run, self.policies)
            signals = observe(run, self.jobs, self.checkpoints, at=at)
        except RerailError:
            # Blind is not healthy: counted, reported, and never a reason to act; what is owed is owed all the same.
            return Look(name, True if run.pending else None)
        due = bool(run.pending) or any(decide(run, signal, policy).run != run for signal in signals)
        return Look(name, due, _watchable(run, policy, signals))


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
