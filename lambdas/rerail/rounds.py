"""The minute's round: ask about every open run, and wake the supervisor for those where something is to be done.

It only reads. What it would decide is decided again by the supervisor, the one that writes and acts."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta

from rerail.decide import decide
from rerail.errors import RerailError
from rerail.model import Run
from rerail.observe import observe
from rerail.ports import Checkpoints, Jobs, Policies, Queue, Runs, policy_of

# How far back the round looks for tagged jobs whose events were lost; several rounds overlap.
LOOK_BACK = timedelta(minutes=15)
READERS = 8


@dataclass(frozen=True, slots=True)
class RoundReport:
    """What one round saw; `blind` are the runs about which nothing could be learnt."""

    open: int
    due: int
    discovered: int
    blind: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Round:
    """The round over its ports."""

    runs: Runs
    jobs: Jobs
    checkpoints: Checkpoints
    policies: Policies
    queue: Queue
    clock: Callable[[], datetime]

    def make(self) -> RoundReport:
        """Ask about every open run and look for jobs that nobody told us of."""
        at = self.clock()
        with ThreadPoolExecutor(READERS) as readers:
            verdicts = list(readers.map(lambda named: self._look(named[0], named[1], at), self.runs.open_runs()))
        due = [run for run, needs in verdicts if needs]
        self.queue.wake([{"run": run} for run in due], at=at)  # first: the list below may be refused
        strangers = self.runs.unheard_of(self.jobs.changed_since(at - LOOK_BACK))
        self.queue.wake([{"job": job} for job in sorted(strangers)], at=at)
        blind = tuple(run for run, needs in verdicts if needs is None)
        return RoundReport(open=len(verdicts), due=len(due), discovered=len(strangers), blind=blind)

    def _look(self, name: str, run: Run | None, at: datetime) -> tuple[str, bool | None]:
        """Whether the supervisor has anything to do for the run; None where nobody can tell."""
        if run is None:
            return name, None
        try:
            policy = policy_of(run, self.policies)
            if run.pending:
                return run.id, True
            signals = observe(run, self.jobs, self.checkpoints, at=at)
            return run.id, any(decide(run, signal, policy).run != run for signal in signals)
        except RerailError:
            return run.id, None  # blind is not healthy: counted, reported, and never a reason to act
