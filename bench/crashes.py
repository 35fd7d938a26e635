"""Every AWS call of a recovery, broken in every way: does the run end as it would have?

    python -m bench.crashes [--every N] [--start N] [--site TEXT] [--stages N] [--json FILE [--minutes M]]

The template is deployed into the local AWS, several times over, and runs are played there from their first event to
their end (`bench.breaking.lives`). The calls that the functions make meanwhile are noted by a hook in their workers
(`crash_worker`), so that no call site is chosen by hand; what the source of the adapters has beside them is told. Then
lives are played again for each site, in each part of them, and each way to break the call.

With `--minutes` it ends by then, and the same command goes on from `--json` where it stopped."""

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from bench.breaking.points import Findings, Outcome, Plan, Point, plans, points
from bench.breaking.stage import modelled_errors
from bench.breaking.table import evidence
from bench.breaking.troupe import Learnt, Performance, Troupe, learn
from bench.evidence import finish

# A life waits most of the time.
STAGES_A_CORE = 2


def take(found: Findings, plan: Plan, performance: Performance) -> list[str]:
    """Take in what came of a life; what is to be said of it at once."""
    found.outcomes += performance.outcomes
    found.known |= performance.sites
    faults = " and ".join(map(str, plan.faults))
    found.together += [f"{faults}: {performance.together}"] if performance.together else []
    found.passing += [f"{faults}: {performance.passing}"] if performance.passing else []
    said = [f"{each.point}: {each.wrong or 'not reached'}" for each in performance.outcomes if not _is_good(each)]
    return said + [f"together: {faults}: {text}" for text in (performance.together, performance.passing) if text]


def _is_good(outcome: Outcome) -> bool:
    return outcome.reached and not outcome.wrong


def main(arguments: Sequence[str] | None = None) -> int:
    """The bench; returns the exit status."""
    options = _options(arguments)
    console = Console()
    found = _before(options.json)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, Troupe(Path(folder), options.stages) as troupe:
        learnt = _learnt(troupe, console)
        if learnt is None:
            return 1
        found.see(learnt.met)
        chosen = _chosen(found, options)
        console.print(f"{len(found.known)} call sites, {len(chosen)} points")
        until = began + 60 * options.minutes if options.minutes else None
        left = _play(troupe, plans(chosen, seed=options.seed), learnt, found, options.json, until, console)
    console.print(f"{time.monotonic() - began:.0f} s" + (f"; {left} points are left: say it again" if left else ""))
    return finish(evidence(found, left=left), options.evidence, console)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.crashes")
    parser.add_argument("--every", type=int, default=1, help="only each N-th of the points, which the seed draws")
    parser.add_argument("--start", type=int, default=0, help="the first of them")
    parser.add_argument("--site", default="", help="only points that contain this")
    parser.add_argument("--seed", type=int, default=1, help="which faults come together in a life")
    stages = STAGES_A_CORE * (os.cpu_count() or 1)
    parser.add_argument("--stages", type=int, default=stages, help="so many local AWSs at once")
    parser.add_argument("--json", type=Path, help="every outcome; what stands there already is not played again")
    parser.add_argument("--minutes", type=float, default=0, help="end by then; 0: when all is done")
    parser.add_argument("--evidence", type=Path, help="what it shows, as a file for docs/proof.md")
    options = parser.parse_args(arguments)
    if options.minutes and not options.json:
        parser.error("--minutes: name a file with --json, so that the rest can be played later")
    return options


def _before(file: Path | None) -> Findings:
    return Findings.from_text(file.read_text()) if file and file.exists() else Findings()


def _learnt(troupe: Troupe, console: Console) -> Learnt | None:
    with console.status("playing without any fault"):
        lessons = list(troupe.lessons())
    for lesson in lessons:
        if lesson.wrong:
            console.print(f"without any fault: {lesson.life}: {lesson.wrong}", markup=False)
            return None
    return learn(lessons)


def _chosen(found: Findings, options: argparse.Namespace) -> list[Point]:
    """What is to be played, and was not played yet."""
    errors = modelled_errors(sorted({site for sites in found.met.values() for site in sites}))
    wanted = [point for point in points(found.met, errors) if options.site in str(point)]
    random.Random(options.seed).shuffle(wanted)
    done = {outcome.point for outcome in found.outcomes}
    return [point for point in wanted[options.start :: options.every] if point not in done]


def _play(
    troupe: Troupe,
    wanted: Sequence[Plan],
    learnt: Learnt,
    found: Findings,
    kept: Path | None,
    until: float | None,
    console: Console,
) -> int:
    """How many points are left when the time is up; what is found is kept after each life."""
    left = sum(len(plan.faults) for plan in wanted)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("breaking", total=left)
        for plan, performance in troupe.performances(wanted, learnt):
            for line in take(found, plan, performance):
                progress.console.print(line, markup=False, highlight=False)
            progress.advance(task, len(plan.faults))
            left -= len(plan.faults)
            if kept:
                kept.write_text(found.as_text())
            if until and time.monotonic() > until:
                break
    return left


if __name__ == "__main__":
    sys.exit(main())
