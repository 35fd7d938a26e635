"""Nights in a hostile world: does every run still end as it must, with never two of its jobs alive?

    python -m bench.chaos [--nights N] [--hours H] [--seed S] [--evidence FILE]
    python -m bench.chaos --soak MINUTES

The real loop and the real round work on stand-ins for AWS, minute by minute (bench/nights.py). Jobs die of everything
that kills jobs, operators and humans interfere, and the world lies: each hazard alone, then all at once. An audit
(bench/promises.py) that stands outside of the product watches for the first promise that is not kept; products that
are broken on purpose (bench/mutants.py) show that it would see one. A night is a function of its seed: what fails can
be played again."""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from bench.evidence import Evidence, Failure, Goal, Sheet, finish
from bench.mutants import MUTANTS, Mutant, found
from bench.nights import ALONE, CALM, DAY_MINUTES, Hazards, Night, together
from bench.parallel import spread
from bench.promises import Broken, Promise

NONE, ALL = "none of them", "all at once"
KINDS: Mapping[str, Hazards] = {NONE: CALM, **ALONE, ALL: together()}
# Of the nights with everything at once there are so many times as many.
ALL_TIMES = 3
DAY_AND_A_QUARTER = DAY_MINUTES // 60 + 6
MUTANT_SEEDS = 6
STRIKES = (
    "events lost",
    "events repeated",
    "events hours late",
    "events out of order",
    "events of others",
    "events forged",
    "clock jumps",
    "hours without an answer",
    "hours without metrics",
    "tables restored",
    "second deployments",
    "overtaken in a call",
    "functions killed",
    "calls throttled",
)
CLAIM = (
    "Whatever the world does to its events, clocks, calls, functions and table, Rerail keeps its promises: "
    + "; ".join(Promise)
    + "."
)
NOTES = (
    "A night is the real loop, round, detectors and codecs on stand-ins for SageMaker, SQS, DynamoDB, CloudWatch "
    "and S3, with the default policy and three runs at a time. Jobs train, save each ten minutes and die of "
    "infrastructure, hardware, capacity and their own bugs (one in 90 minutes, and now and then all attempts for "
    "hours); operators hold, release, stop and restart; humans stop jobs in the console. After the hostile hours "
    "come four quiet ones, and then each run is judged. In every minute all jobs are healthy until they die, so "
    "that no stop can be right that nobody has asked for.",
    "The audit reads the world, and each record beside the one before; it asks the product for nothing. It keeps "
    "a breach where the product cannot catch it. Nights that restore a table last thirty hours: the backup is a "
    "day old.",
    "Forged events are put straight onto the queue, which is more than anybody can do who may only put events: "
    "what EventBridge and the rules let through of them is tested against the deployed template "
    "(tests/deployed/test_forged_events.py). Commands and findings are not forged here, for they do not get that "
    "far.",
    "AWS refuses calls that are signed by a clock that is more than a quarter of an hour wrong. With everything "
    "at once clocks are wrong by at most that; alone, by up to three hours, and the calls are answered all the "
    "same. The agents inside the jobs are not covered here.",
    "What had ended, or was held, when a table was restored from a backup that is older than the run, is not "
    "known any more: that is not counted as broken, for its job is over and people had been told.",
)


@dataclass(frozen=True)
class Task:
    """A night, or a mutant."""

    kind: str
    seed: int
    hours: int
    mutant: Mutant | None = None


@dataclass
class Outcome:
    """What became of it: `broken` is the first promise that was not kept, in words."""

    task: Task
    counts: Counter[str] = field(default_factory=Counter)
    checked: Counter[Promise] = field(default_factory=Counter)
    broken: str = ""
    promise: Promise | None = None
    tried: int = 1


def play(task: Task) -> Outcome:
    """One task, in any process."""
    if task.mutant:
        tried, seen = found(task.mutant, seeds=range(task.seed, task.seed + MUTANT_SEEDS), hours=task.hours)
        return Outcome(task, broken=str(seen or ""), promise=seen.promise if seen else None, tried=tried)
    night = Night(task.seed, hazards=KINDS[task.kind], hours=task.hours)
    try:
        night.play()
    except Broken as broken:
        return Outcome(task, night.counts, night.audit.checked, str(broken), broken.promise)
    return Outcome(task, night.counts, night.audit.checked)


def plan(nights: int, hours: int, seed: int, kinds: Iterable[str] = tuple(KINDS)) -> list[Task]:
    """The longest first, so that no core waits for another at the end."""
    tasks = [
        Task(kind, each, max(hours, DAY_AND_A_QUARTER) if KINDS[kind].restored else hours)
        for kind in kinds
        for each in range(seed, seed + nights * (ALL_TIMES if kind == ALL else 1))
    ]
    return sorted(tasks, key=lambda task: (task.kind != ALL, -task.hours))


def played(tasks: Sequence[Task], console: Console) -> Iterator[Outcome]:
    """Outcomes as they come, with a bar; a broken promise is said at once."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("nights", total=len(tasks))
        for outcome in spread(play, tasks):
            if outcome.broken and not outcome.task.mutant:
                where = f"{outcome.task.kind}, seed {outcome.task.seed}"
                progress.console.print(f"{where}: {outcome.broken}", markup=False, highlight=False)
            progress.advance(bar)
            yield outcome


def evidence(outcomes: Sequence[Outcome]) -> Evidence:
    """What the nights have shown, and what the mutants."""
    nights = [outcome for outcome in outcomes if not outcome.task.mutant]
    mutants = [outcome for outcome in outcomes if outcome.task.mutant]
    broken = [outcome for outcome in nights if outcome.broken]
    seen = [outcome for outcome in mutants if outcome.task.mutant and outcome.promise in outcome.task.mutant.breaks]
    goals = [Goal("nights with a broken promise", "none", f"{len(broken)} of {len(nights)}", not broken)]
    if mutants:
        told = f"{len(seen)} of {len(mutants)}"
        goals.append(Goal("products broken on purpose that are found out", "all", told, len(seen) == len(mutants)))
    failures = [
        Failure(f"{each.task.kind}, seed {each.task.seed}, {each.task.hours} h", each.broken) for each in broken
    ]
    failures += [Failure(f"not found out: {each.task.kind}", each.broken) for each in mutants if each not in seen]
    sheets = [_hazards(nights), _promises(nights)]
    return Evidence(
        claim=CLAIM,
        sheets=tuple(sheets + ([_mutants(mutants)] if mutants else [])),
        goals=tuple(goals),
        notes=NOTES,
        failures=tuple(failures),
    )


def _hazards(nights: Sequence[Outcome]) -> Sheet:
    rows = []
    for kind in KINDS:
        some = [outcome for outcome in nights if outcome.task.kind == kind]
        counts = sum((outcome.counts for outcome in some), Counter[str]())
        if some:
            rows.append(
                (
                    kind,
                    len(some),
                    sum(outcome.task.hours for outcome in some),
                    sum(counts[strike] for strike in STRIKES),
                    counts["messages"],
                    counts["put aside with an alarm"],
                    counts["relaunches"],
                    counts["holds"],
                    sum(bool(outcome.broken) for outcome in some),
                )
            )
    columns = (
        "hazard",
        "nights",
        "hours",
        "strikes",
        "messages",
        "put aside",
        "relaunches",
        "holds",
        "broken promises",
    )
    return Sheet("Each hazard alone, and all at once", columns, tuple(rows))


def _promises(nights: Sequence[Outcome]) -> Sheet:
    checked = sum((outcome.checked for outcome in nights), Counter[Promise]())
    broken = Counter(outcome.promise for outcome in nights if outcome.promise)
    rows = tuple((promise.value, checked[promise], broken[promise]) for promise in Promise)
    return Sheet("Promises, and how often each was put to the test", ("promise", "checked", "broken"), rows)


def _mutants(mutants: Sequence[Outcome]) -> Sheet:
    rows = tuple((each.task.kind, str(each.promise or "nothing"), each.tried) for each in mutants)
    columns = ("product", "found out by", "nights until then")
    return Sheet("Products broken on purpose: does anybody notice?", columns, rows, words=2)


def soak(minutes: float, hours: int, seed: int, console: Console) -> list[Outcome]:
    """Nights with everything at once, until the time is up."""
    end, outcomes = time.monotonic() + minutes * 60, list[Outcome]()
    while not outcomes or time.monotonic() < end:
        tasks = plan(2, hours, seed, [ALL])
        outcomes += played(tasks, console)
        seed += len(tasks)
    return outcomes


def main(arguments: Sequence[str] | None = None) -> int:
    """Play the nights, show what they have shown, and write it where that was asked for."""
    parser = argparse.ArgumentParser(prog="python -m bench.chaos")
    parser.add_argument("--nights", type=int, default=6, help=f"for each hazard; {ALL_TIMES} times as many with all")
    parser.add_argument("--seed", type=int, default=0, help="the first night's")
    parser.add_argument("--hours", type=int, default=12, help="of hostility in each; a restored table needs a day more")
    parser.add_argument("--soak", type=float, default=0.0, help="nights with all hazards for so many minutes instead")
    parser.add_argument("--evidence", type=Path, help="a file for what was found, as JSON")
    options = parser.parse_args(arguments)
    console = Console()
    if options.soak:
        outcomes = soak(options.soak, options.hours, options.seed, console)
    else:
        mutants = [Task(mutant.what, options.seed, DAY_AND_A_QUARTER, mutant) for mutant in MUTANTS]
        found_out = {task.kind: number for number, task in enumerate(mutants)}
        outcomes = list(played([*plan(options.nights, options.hours, options.seed), *mutants], console))
        outcomes.sort(key=lambda outcome: found_out.get(outcome.task.kind, -1))
    return finish(evidence(outcomes), options.evidence, console)


if __name__ == "__main__":
    sys.exit(main())
