"""The minute's round: ask about every open run, and wake the supervisor for those where something is to be done.

It only reads. What it would decide is decided again by the supervisor, the one that writes and acts."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta

from rerail.codec import plain
from rerail.decide import decide
from rerail.errors import RerailError
from rerail.metrics import expected
from rerail.model import JobStatus, Run, RunState
from rerail.observe import observe
from rerail.policy import Policy
from rerail.ports import Checkpoints, Jobs, Policies, Queue, Runs, policy_of
from rerail.signals import JobSeen, Signal
from rerail.watching import Watchable, Watching

# How far back the round looks for tagged jobs whose events were lost; several rounds overlap.
LOOK_BACK = timedelta(minutes=15)
READERS = 8


@dataclass(frozen=True, slots=True)
class RoundReport:
    """What one round saw: how many runs are open, watched and due, how many findings and unknown jobs there are.

    `blind` are the runs about which nothing could be learnt; `unread` says why no metrics could be read.
    """

    open: int
    due: int
    discovered: int
    blind: tuple[str, ...]
    watched: int = 0
    found: int = 0
    unread: str = ""


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
        found, unread = self._judge(watchable, at)
        strangers = self.runs.unheard_of(self.jobs.changed_since(at - LOOK_BACK))
        self.queue.wake([{"job": job} for job in sorted(strangers)], at=at)
        return RoundReport(
            open=len(looks),
            due=len(due),
            discovered=len(strangers),
            blind=tuple(look.name for look in looks if look.due is None),
            watched=sum(each.trains for each in watchable),
            found=found,
            unread=unread,
        )

    def _judge(self, watchable: list[Watchable], at: datetime) -> tuple[int, str]:
        """Tell what was found before it is remembered: a round that dies in between tells it again."""
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
            if run.pending:
                return Look(name, True)
            signals = observe(run, self.jobs, self.checkpoints, at=at)
        except RerailError:
            return Look(name, None)  # blind is not healthy: counted, reported, and never a reason to act
        due = any(decide(run, signal, policy).run != run for signal in signals)
        return Look(name, due, _watchable(run, policy, signals))


def _watchable(run: Run, policy: Policy, signals: tuple[Signal, ...]) -> Watchable | None:
    """A run that nobody is stopping, with its job in progress and metrics to be expected of it."""
    seen = next((signal for signal in signals if isinstance(signal, JobSeen)), None)
    if seen is None or seen.job.status is not JobStatus.IN_PROGRESS:
        return None
    if run.state not in (RunState.WATCHING, RunState.STARTING):
        return None
    names = expected(policy.metrics, seen.job.defined_metrics)
    saves = tuple(checkpoint.saved_at for checkpoint in seen.checkpoints or ())
    return Watchable(run, policy, names, trains=seen.job.is_training, saves=saves) if names else None
