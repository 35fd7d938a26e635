"""Scores our detectors beside published rules on labelled training logs: `python -m bench.detection`, `make bench`.

Prints a row for each contender, ours first, and what a minute's aggregate costs against every step. With `--floor` the
exit status is 1 when our numbers are worse than those in the file, 2 when an input cannot be used.
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.floor import BadFloor, read_floors, shortfalls, write_floors
from bench.judging import CONTENDERS, PER_MINUTE, PER_STEP, Judged, Task, judge
from bench.rules import RULES
from cli.backtest.corpus import BadCorpus, LogCorpus, read_corpus
from cli.backtest.scoring import FAMILIES, Hit, Recall, Score, measures, score
from cli.parallel import show_progress, spread
from rerail.model.thresholds import Thresholds

HERE = Path(__file__).resolve().parent
NARROWEST = 165


def main(argv: Sequence[str] | None = None) -> int:
    """The benchmark; returns the exit status."""
    options = _options(argv)
    console = Console() if sys.stdout.isatty() else Console(width=NARROWEST)
    began = time.perf_counter()
    try:
        floors = read_floors(options.floor, contenders=CONTENDERS) if options.floor else {}
        corpus = _select(read_corpus(options.corpus), options.split)
        judged = _judge_all(corpus, replace(Thresholds(), plateau=options.plateau), console)
    except (BadCorpus, BadFloor) as error:
        print(f"bench.detection: {error}", file=sys.stderr)
        return 2
    scores = {name: _score(name, judged) for name in CONTENDERS}
    console.print(_table(corpus, judged, scores))
    console.print(_minutes_table(judged, scores))
    unscored = sum((one.unscored for one in judged), start=Counter[str]())
    if unscored:
        console.print(f"said besides, and not scored: {', '.join(f'{n} {kind}' for kind, n in unscored.items())}")
    console.print(f"{time.perf_counter() - began:.1f} s in all", highlight=False)
    measured = {name: measures(scores[name]) for name in (PER_STEP, PER_MINUTE)}
    if options.json:
        options.json.write_text(json.dumps(_report(judged, scores), indent=1) + "\n", encoding="utf-8")
    if options.write_floor:
        write_floors(options.write_floor, measured)
    worse = shortfalls(measured, floors)
    for line in worse:
        console.print(f"worse than {options.floor.name}: {line}", style="red", highlight=False)
    return 1 if worse else 0


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    options = argparse.ArgumentParser(prog="python -m bench.detection", description=(__doc__ or "").splitlines()[0])
    options.add_argument("--corpus", type=Path, default=HERE / "corpus", help="a folder with index.csv and runs/")
    options.add_argument("--split", help="only the logs of this split, as index.csv names it: aside, tune")
    options.add_argument("--json", type=Path, help="write every number to this file")
    options.add_argument("--floor", type=Path, help="exit with status 1 when ours is worse than this file says")
    options.add_argument("--write-floor", type=Path, help="write a floor from what is measured now")
    options.add_argument("--plateau", action=argparse.BooleanOptionalAction, default=True, help="look for plateaus")
    return options.parse_args(argv)


def _select(corpus: LogCorpus, split: str | None) -> LogCorpus:
    runs = tuple(run for run in corpus.runs if split in (None, run.split))
    if not runs:
        raise BadCorpus(f"{corpus.folder} has no log of the split {split!r}", "name one of the column split")
    return replace(corpus, runs=runs)


def _judge_all(corpus: LogCorpus, detection: Thresholds, console: Console) -> list[Judged]:
    """Every log, the longest first, so that no core waits for the last one."""
    longest_first = sorted(corpus.runs, key=lambda run: -run.rows)
    tasks = [Task(corpus.file(run), run, detection) for run in longest_first]
    judged = show_progress(spread(judge, tasks), len(tasks), "judging logs", console)
    return sorted(judged, key=lambda one: one.run.id)


def _score(name: str, judged: Sequence[Judged]) -> Score:
    runs = [one.by_minute if name == PER_MINUTE else one.run for one in judged]
    return score(runs, {one.run.id: one.calls[name] for one in judged})


def _table(corpus: LogCorpus, judged: Sequence[Judged], scores: dict[str, Score]) -> Table:
    rows = sum(run.rows for run in corpus.runs)
    title = (
        f"{len(corpus.runs)} logs, {rows:,} rows. Recall is macro / micro, alarms and wrong interventions per 100k rows"
    )
    table = Table("", title=title, title_justify="left")
    for heading in ("loss", "not finite", "plateau", "throughput", "false alarms", "interventions\nright / wrong"):
        table.add_column(heading, justify="right")
    for heading in ("lasting loss\nacted on", "loss delay, rows\nmedian / p90", "samples a second\nper core"):
        table.add_column(heading, justify="right")
    for name in CONTENDERS:
        one = scores[name]
        table.add_row(
            name,
            *(_recall(one.families.get(family)) for family in dict.fromkeys(FAMILIES.values())),
            f"{one.per_100k(one.false_alarms):.1f}",
            f"{one.right} / {one.per_100k(one.wrong):.1f}",
            "{} of {}".format(*one.lasting.get("loss", (0, 0))),
            _spread(_delays(name, "loss", judged, one)["rows"]),
            f"{_speed(name, judged):,.0f}",
            style="bold" if name == PER_STEP else "",
            end_section=name == PER_MINUTE,
        )
    return table


def _recall(recall: Recall | None) -> str:
    return f"{recall.macro:.2f} / {recall.micro:.2f}" if recall else "-"


def _speed(name: str, judged: Sequence[Judged]) -> float:
    """Samples a second of CPU: rows, or minutes."""
    samples = sum(len(one.last_rows) if name == PER_MINUTE else one.run.rows for one in judged)
    return samples / (sum(one.cpu_s[name] for one in judged) or 1e-9)


def _minutes_table(judged: Sequence[Judged], scores: dict[str, Score]) -> Table:
    table = Table("family", title="Every step against one sample a minute: recall macro, delay median / p90")
    table.title_justify = "left"
    for name in (PER_STEP, PER_MINUTE):
        for heading in ("recall", "rows", "seconds"):
            table.add_column(f"{name}\n{heading}", justify="right")
    for family in dict.fromkeys(FAMILIES.values()):
        cells = []
        for name in (PER_STEP, PER_MINUTE):
            recall = scores[name].families.get(family)
            late = _delays(name, family, judged, scores[name])
            cells += [f"{recall.macro:.2f}" if recall else "-", _spread(late["rows"]), _spread(late["seconds"])]
        table.add_row(family, *cells)
    return table


def _delays(name: str, family: str, judged: Sequence[Judged], one: Score) -> dict[str, list[float]]:
    """From the onset as labelled to the row at which it was said, in logged rows, and in seconds where the log tells
    the time. A minute speaks when it is over; what CloudWatch takes to publish it comes on top."""
    by_run = {each.run.id: each for each in judged}
    late: dict[str, list[float]] = {"rows": [], "seconds": []}
    for hit in one.hits:
        if FAMILIES[hit.label.kind] == family:
            rows, seconds = _lateness(name, by_run[hit.run], hit)
            late["rows"].append(rows)
            late["seconds"] += [] if seconds is None else [seconds]
    return {unit: sorted(values) for unit, values in late.items()}


def _lateness(name: str, judged: Judged, hit: Hit) -> tuple[float, float | None]:
    labels = (judged.by_minute if name == PER_MINUTE else judged.run).labels
    onset = judged.run.labels[next(i for i, label in enumerate(labels) if label is hit.label)].onset
    row = judged.last_rows[hit.row] if name == PER_MINUTE else hit.row
    spoken = judged.minute_clock if name == PER_MINUTE else judged.step_clock
    seconds = max(0.0, spoken[hit.row] - judged.step_clock[onset]) if spoken and judged.step_clock else None
    return max(0, row - onset), seconds


def _spread(values: Sequence[float]) -> str:
    return f"{median(values):.0f} / {values[int(0.9 * (len(values) - 1))]:.0f}" if values else "-"


def _report(judged: Sequence[Judged], scores: dict[str, Score]) -> dict[str, Any]:
    says = {rule.name: rule.says for rule in RULES}
    return {
        name: {
            "rule": says.get(name, "rerail.detection"),
            **scores[name].as_json(),
            "delays": {
                family: {unit: _quantiles(late) for unit, late in _delays(name, family, judged, scores[name]).items()}
                for family in scores[name].families
            },
            "samples_per_cpu_second": round(_speed(name, judged)),
        }
        for name in CONTENDERS
    }


def _quantiles(values: Sequence[float]) -> dict[str, float] | None:
    return {"median": median(values), "p90": values[int(0.9 * (len(values) - 1))]} if values else None


if __name__ == "__main__":
    sys.exit(main())
