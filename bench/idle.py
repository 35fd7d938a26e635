"""Simulate the load of healthy and hung jobs, and count what `rerail.detection.idle` says of them.

The jobs are made up: ten minutes to hours of computing at a level of their own, and pauses for loading, evaluation,
compilation, upload and download. `--seed` draws other jobs.
"""

import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from rerail.decisions.on_finding import OVERDUE_INTERVALS
from rerail.detection.idle import READ_EVERY, describe_hosts, find_idle
from rerail.model.finding import Level
from rerail.model.metrics import LOOK_BACK, HostLoad
from rerail.model.thresholds import Thresholds

START, MINUTE = datetime(2026, 1, 1, tzinfo=UTC), timedelta(minutes=1)
WINDOW = int(LOOK_BACK / MINUTE)
# What a pause leaves of the GPUs' and the CPUs' usual load, and whether it ends with a checkpoint.
PAUSES = {
    "loading": (0.0, 1.5, False),
    "evaluation": (0.4, 0.7, False),
    "compilation": (0.0, 0.3, False),
    "upload": (0.0, 0.15, True),
    "download": (0.0, 0.15, False),
}
# What a hang leaves of the CPUs: nothing, or a process that waits without sleeping.
HANGS = (0.0, 0.1)


@dataclass
class MadeUpJob:
    """The load of each minute, and the minutes at which checkpoints were saved."""

    levels: list[tuple[float | None, float]] = field(default_factory=list)
    saves: list[int] = field(default_factory=list)

    def evaluate(self, minute: int) -> tuple[bool, bool]:
        """Return whether the job is reported in this minute, and whether it would be stopped."""
        levels = list(enumerate(self.levels[:minute], 1))[-WINDOW:]
        loads = [HostLoad(START + ended * MINUTE, *level) for ended, level in levels]
        saves = [START + save * MINUTE for save in self.saves if save <= minute]
        at = START + (minute + 1) * MINUTE
        hosts = describe_hosts({"algo-1": loads}, at=at, period=MINUTE)
        found = find_idle(hosts, saves, at=at, detection=Thresholds())
        if found is None or found.level is not Level.INTERVENE or len(saves) < 2:
            return found is not None, False
        longest = max(later - earlier for earlier, later in zip(saves[-10:], saves[-9:], strict=False))
        return True, at - saves[-1] > OVERDUE_INTERVALS * longest


def make_job(drawn: random.Random, *, minutes: int, longest: float) -> MadeUpJob:
    """Return a healthy job with pauses of at most `longest` minutes, each kind of a length of its own."""
    has_gpu, job = drawn.random() < 0.8, MadeUpJob()
    gpu, cpu = drawn.uniform(40, 100) * drawn.choice([1, 4, 8]), drawn.uniform(100, 3000)
    save_every, kinds = drawn.choice([10, 20, 30, 60]), drawn.sample(list(PAUSES), k=drawn.randint(1, 4))
    lengths = {kind: drawn.uniform(1, longest) for kind in kinds}
    while len(job.levels) < minutes:
        for _ in range(drawn.randint(10, 90)):
            job.levels.append((gpu * drawn.uniform(0.7, 1) if has_gpu else None, cpu * drawn.uniform(0.5, 1.2)))
            if len(job.levels) % save_every == 0:
                job.saves.append(len(job.levels))
        kind = drawn.choice(kinds)
        gpu_share, cpu_share, saves = PAUSES[kind]
        for _ in range(max(1, round(lengths[kind] * drawn.uniform(0.7, 1.3)))):
            job.levels.append((gpu * gpu_share if has_gpu else None, cpu * cpu_share))
        if saves:
            job.saves.append(len(job.levels))
    return job


def hang(drawn: random.Random, job: MadeUpJob) -> int:
    """Hang the job at a random minute after its first hour, for an hour; return that minute."""
    minute = drawn.randint(60, len(job.levels) - 1)
    has_gpu, cpu = job.levels[0][0] is not None, max(level[1] for level in job.levels)
    left = drawn.choice(HANGS) if has_gpu else 0.0
    job.levels[minute:] = [(0.0 if has_gpu else None, left * cpu)] * 60
    job.saves = [save for save in job.saves if save <= minute]
    return minute


def choose_readings(drawn: random.Random, first: int, end: int) -> range:
    """Return the minutes in which a job's load is read."""
    return range(first + drawn.randrange(READ_EVERY), end, READ_EVERY)


def measure(
    hours: Annotated[int, typer.Option(help="Hours of healthy jobs, four each; as many jobs hang.")] = 500,
    seed: Annotated[int, typer.Option(help="Draws the jobs.")] = 1,
    longest: Annotated[float, typer.Option(help="The longest usual pause, in minutes.")] = 15.0,
) -> None:
    """Print how many healthy jobs are reported or stopped, and how many hangs are found in time."""
    drawn = random.Random(seed)
    jobs = [make_job(drawn, minutes=240, longest=longest) for _ in range(hours // 4)]
    seen = [[job.evaluate(minute) for minute in choose_readings(drawn, 0, len(job.levels))] for job in jobs]
    print(f"healthy: {len(jobs)} jobs, {sum(len(job.levels) for job in jobs) / 60:.0f} hours")
    print(f"  reported {sum(any(told for told, _ in answers) for answers in seen)}")
    print(f"  stopped {sum(any(stopped for _, stopped in answers) for answers in seen)}")
    delays = []
    for _ in jobs:
        job = make_job(drawn, minutes=240, longest=longest)
        began = hang(drawn, job)
        found = (minute - began for minute in choose_readings(drawn, began, len(job.levels)) if job.evaluate(minute)[0])
        delays.append(next(found, None))
    in_time = sum(delay is not None and delay <= 20 for delay in delays)
    print(f"hung with idle GPUs: {len(delays)} jobs, {in_time} reported within 20 minutes")
    print(f"  within an hour {sum(delay is not None for delay in delays)}")


if __name__ == "__main__":
    typer.run(measure)
