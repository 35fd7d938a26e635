"""Nights in a hostile world: does every run still end as it must, with never two of its jobs alive?

    python -m bench.chaos [--nights N] [--seed S] [--hours H] [--soak MINUTES]

The real loop and the real round work on stand-ins for AWS, minute by minute. Jobs die of everything that kills jobs,
and the world lies: events are lost, repeated, hours late and out of order, some speak of other accounts or of nothing
at all; the functions' clocks jump; SageMaker does not answer for an hour; a second deployment watches the same account;
the table is restored from a day-old backup. Then the world is quiet for a few hours, and what has become of each run is
judged. A night is a function of its seed: what fails can be played again."""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import timedelta
from random import Random
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from rerail.errors import BadMessage, Blind, RerailError, Throttled
from rerail.loop import Supervisor
from rerail.model import JobStatus, Run
from rerail.policy import Limits, Policy, Retries
from rerail.rounds import Round
from rerail.switch import SwitchedPolicies
from rerail.wakeups import read
from rerail.watching import Watching
from tests.fakes import FakeBrake, FakeBus, FakeMemories, FakeQueue, FakeRuns, FakeSeries, World

REASONS = (
    "InternalServerError: We encountered an internal error.  Please try again.",
    "CapacityError: Unable to provision requested ML compute capacity.",
    "AlgorithmError: RuntimeError: CUDA error: uncorrectable ECC error encountered, exit code: 1",
    "AlgorithmError: , exit code: 137",
    "AlgorithmError: NCCL watchdog timeout, exit code: 1",
)
MINUTE = timedelta(minutes=1)
SAVE_EVERY, STEPS_A_SAVE, STEPS = 10, 100, 20_000
QUIET_HOURS = 4
# Chances a minute: that a job fails, a human stops it, the hostile states begin.
FAILS, STOPPED, BLIND, JUMPS = 1 / 90, 1 / 3000, 1 / 400, 1 / 300
LOST, REPEATED, LATE = 0.3, 0.3, 0.3
POLICY = Policy(limits=replace(Limits(), attempts=500, account_relaunches=0), retries=Retries(infrastructure=100))


class Broken(Exception):
    """A promise was broken; the message says which, and when."""


@dataclass
class Deployment:
    """One Rerail with its own table, bus and clock, in the world's account."""

    world: World
    hostile: Callable[[Any], Any]
    runs: FakeRuns = field(default_factory=FakeRuns)
    bus: FakeBus = field(default_factory=FakeBus)
    queue: FakeQueue = field(default_factory=FakeQueue)
    memories: FakeMemories = field(default_factory=FakeMemories)
    brake: FakeBrake = field(default_factory=FakeBrake)
    skew: timedelta = timedelta()

    def clock(self) -> Any:
        return self.world.clock() + self.skew

    def supervisor(self) -> Supervisor:
        return Supervisor(
            runs=self.runs,
            jobs=self.hostile(self.world.sagemaker),
            checkpoints=self.world.checkpoints,
            policies=SwitchedPolicies(self.world.policies, self.world.switch),
            bus=self.bus,
            mailbox=self.world.mailbox,
            brake=self.brake,
            clock=self.clock,
        )

    def hear(self, message: str) -> None:
        """One message of the queue: what cannot be read or done now goes back, as SQS would have it, or is dropped."""
        try:
            self.supervisor().handle(read(message))
        except (BadMessage, Blind, Throttled):
            return

    def sweep(self) -> None:
        policies = SwitchedPolicies(self.world.policies, self.world.switch)
        watching = Watching(FakeSeries(), self.memories)
        jobs = self.hostile(self.world.sagemaker)
        each = Round(
            self.runs,
            jobs,
            self.world.checkpoints,
            policies,
            watching,
            self.world.mailbox,
            self.queue,
            self.clock,
        )
        with suppress(RerailError):  # the next minute's round asks again
            each.make()
        waiting, self.queue.waiting = self.queue.waiting, []
        for wakeup in waiting:
            self.hear(json.dumps({"source": "rerail.sweep", "detail": wakeup}))


class Night:
    """So many jobs, so many hours, one seed."""

    def __init__(self, seed: int, *, hours: int = 24, jobs: int = 3) -> None:
        self.random = Random(seed)
        self.hours, self.counts = hours, Counter[str]()
        self.world = World()
        self.world.policies.by_name["default"] = POLICY
        self.deployments = [Deployment(self.world, self._hostile)]
        if self.random.random() < 0.3:
            self.deployments.append(Deployment(self.world, self._hostile))
            self.counts["second deployment"] += 1
        self.wire: list[tuple[Any, str]] = []
        self.names = [f"gpt-{number}" for number in range(jobs)]
        self.steps: dict[str, int] = {}
        self.by_hand: set[str] = set()
        self.blind_until = self.jump_until = self.world.clock()
        self.backup: FakeRuns | None = None
        self.quiet = False

    def play(self) -> Counter[str]:
        """Counts of what has happened; raises Broken."""
        for name in self.names:
            self._submitted(name)
        restored_at = self.random.randrange(self.hours * 60) if self.random.random() < 0.5 else -1
        backed_up_at = max(0, restored_at - self.random.randrange(24 * 60))
        for minute in range((self.hours + QUIET_HOURS) * 60):
            self.quiet = minute >= self.hours * 60
            self.world.clock.pass_by(MINUTE)
            if minute == backed_up_at:
                self.backup = deepcopy(self.deployments[0].runs)
            if minute == restored_at and self.backup:
                self.deployments[0].runs = self.backup
                self.deployments[0].memories = FakeMemories()
                self.counts["table restored"] += 1
            self._minute(minute)
        for name in self.names:
            self._judge(name)
        return self.counts

    def _submitted(self, name: str) -> None:
        self.world.sagemaker.submit(name, uri=f"s3://b/{name}/")
        self.steps[name] = 0
        self._tell(name)

    def _minute(self, minute: int) -> None:
        self._jobs_go_on(minute)
        if not self.quiet:
            self._lie()
        due = [entry for entry in self.wire if entry[0] <= self.world.clock()]
        self.wire = [entry for entry in self.wire if entry[0] > self.world.clock()]
        self.random.shuffle(due)
        for _, message in due:
            for deployment in self.deployments:
                deployment.hear(message)
        for deployment in self.deployments:
            deployment.sweep()
        for name in self.names:
            live = self._live(name)
            if len(live) > 1:
                raise Broken(f"two jobs of {name} live at {self.world.clock()}: {', '.join(live)}")
        self.counts["relaunches"] = max(self.counts["relaunches"], len(self.world.sagemaker.jobs) - len(self.names))

    def _jobs_go_on(self, minute: int) -> None:
        sagemaker, chance = self.world.sagemaker, self.random.random
        for name in self.names:
            for job in self._live(name):
                facts = sagemaker.jobs[job]
                if minute % SAVE_EVERY == 0 and facts.training_started_at:
                    self.steps[name] += STEPS_A_SAVE
                    attempt = int(job.rpartition("-a")[2]) if job != name else 1
                    self.world.checkpoints.save(self.steps[name], uri=f"s3://b/{name}/", attempt=attempt)
                if self.steps[name] >= STEPS:
                    self._ended(job, JobStatus.COMPLETED)
                elif not self.quiet and chance() < FAILS:
                    self._ended(job, JobStatus.FAILED, self.random.choice(REASONS))
                elif not self.quiet and chance() < STOPPED:
                    self.by_hand.add(name)
                    self.counts["stopped by a human"] += 1
                    self._ended(job, JobStatus.STOPPED)

    def _ended(self, job: str, status: JobStatus, reason: str = "") -> None:
        self.world.sagemaker.end(job, status, reason)
        self.counts[status.value] += 1
        self._tell(job)

    def _tell(self, job: str) -> None:
        """SageMaker's event: lost, once or more often, at once or late."""
        chance, at = self.random.random, self.world.clock()
        if not self.quiet and chance() < LOST:
            self.counts["events lost"] += 1
            return
        body = json.dumps({"source": "aws.sagemaker", "detail": {"TrainingJobName": job}})
        for _ in range(1 if self.quiet or chance() > REPEATED else self.random.randrange(2, 6)):
            late = timedelta(minutes=self.random.randrange(600)) if not self.quiet and chance() < LATE else timedelta()
            self.counts["events late"] += bool(late)
            self.wire.append((at + late, body))

    def _lie(self) -> None:
        now, chance = self.world.clock(), self.random.random
        if chance() < BLIND:
            self.blind_until = now + timedelta(minutes=60)
            self.counts["blind hours"] += 1
        if chance() < JUMPS:
            self.jump_until = now + timedelta(minutes=self.random.randrange(1, 90))
            self.counts["clock jumps"] += 1
            for deployment in self.deployments:
                deployment.skew = timedelta(minutes=self.random.randrange(-180, 180))
        if now >= self.jump_until:
            for deployment in self.deployments:
                deployment.skew = timedelta()
        if chance() < 0.05:
            self.counts["messages of others"] += 1
            self.wire.append((now, self._nonsense()))

    def _nonsense(self) -> str:
        stranger = {"source": "aws.sagemaker", "account": "999988887777", "detail": {"TrainingJobName": "not-ours"}}
        old = {"source": "rerail.sweep", "detail": {"run": self.random.choice(self.names)}}
        forged = {"source": "rerail.operator", "detail": {"verb": "explode", "run": "gpt-0"}}
        garbled = {"source": "aws.sagemaker", "detail": {"TrainingJobName": 7}}
        return self.random.choice([json.dumps(each) for each in (stranger, old, forged, garbled)] + ["", "{", "[]"])

    def _hostile(self, port: Any) -> Any:
        """SageMaker, which may not answer for an hour."""
        night = self

        class Port:
            def __getattr__(self, name: str) -> Any:
                if name in ("describe", "changed_since") and night.is_blind:
                    raise Blind("SageMaker does not answer")
                return getattr(port, name)

        return Port()

    @property
    def is_blind(self) -> bool:
        """SageMaker does not answer now."""
        return not self.quiet and self.world.clock() < self.blind_until

    def _live(self, name: str) -> list[str]:
        return [job for job in self.world.sagemaker.live() if job == name or job.startswith(f"{name}-a")]

    def _judge(self, name: str) -> None:
        """What has become of a run when the world has been quiet for hours."""
        live = self._live(name)
        record = self.deployments[0].runs.load(name)
        if record is None:
            if live:
                raise Broken(f"{name} lives and is not known")
            return
        self.counts[f"ended {record.state}"] += 1
        if live and live != [record.current.job_name]:
            raise Broken(f"{live[0]} lives, the record of {name} says {record.state} {record.current.job_name}")
        if not live and not record.state.is_end:
            raise Broken(f"no job of {name} lives, and its record says {record.state}: {_last(self, name)}")
        if live and record.state.is_end:
            raise Broken(f"{live[0]} lives, and nobody watches it ({record.state}): {_last(self, name)}")
        if name in self.by_hand and live:
            raise Broken(f"{live[0]} was relaunched after a human's stop")


def _last(night: Night, name: str) -> str:
    run: Run | None = night.deployments[0].runs.load(name)
    reasons = [entry.reason for entry in night.deployments[0].runs.timeline if entry.run == name]
    return " / ".join(reasons[-3:]) + (f" / attempts {len(run.attempts)}" if run else "")


def nights(seeds: Sequence[int], hours: int, console: Console) -> Iterator[tuple[int, Counter[str] | Broken]]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("nights", total=len(seeds))
        for seed in seeds:
            try:
                yield seed, Night(seed, hours=hours).play()
            except Broken as broken:
                progress.console.print(f"seed {seed}: {broken}", markup=False, highlight=False)
                yield seed, broken
            progress.advance(task)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.chaos")
    parser.add_argument("--nights", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0, help="the first night's")
    parser.add_argument("--hours", type=int, default=24, help="of hostility in each")
    parser.add_argument("--soak", type=float, default=0.0, help="go on for so many minutes")
    options = parser.parse_args(arguments)
    console, totals, broken = Console(), Counter[str](), 0
    end, seed, played = time.monotonic() + options.soak * 60, options.seed, 0
    while played < options.nights or time.monotonic() < end:
        batch = range(seed, seed + options.nights)
        for _, outcome in nights(batch, options.hours, console):
            played += 1
            broken += isinstance(outcome, Broken)
            totals += outcome if isinstance(outcome, Counter) else Counter()
        seed += options.nights
    table = Table("what", "times", title=f"{played} nights, {broken} with a broken promise")
    for what, count in sorted(totals.items()):
        table.add_row(what, str(count))
    console.print(table)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
