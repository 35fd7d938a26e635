"""Goodput: how fast the core decides, and what share of its time a simulated run trains; `make bench-goodput`.

The goals: Rerail loses at most a quarter of what SageMaker's own means lose. On 16,384 GPUs the default policy trains
0.90 of the time, 0.95 with a warm pool, and 0.98 with restarts in the job. A missed goal is reported, with the bound
that the assumptions set.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from cli.console import Console
from cli.simulate import pages, report
from cli.simulate.accounts import Spent
from cli.simulate.assumptions import Assumptions
from cli.simulate.command import WIDTH, Maker
from cli.simulate.months import read_policy
from cli.simulate.report import FEWEST_GPUS, GOAL, GOAL_DEFAULT, GOAL_IN_PLACE, ReportRow
from cli.simulate.supervised import Supervised
from cli.simulate.sweeps import SWEEPS
from cli.simulate.ways import DEFAULT, SAGEMAKER_ASYNC, SNAPSHOTS, WARM, WAYS
from cli.simulate.world import SimulatedRun
from rerail.decisions.decide import decide
from rerail.decisions.decision import Decision
from rerail.model.policy import Policy
from rerail.model.run import Run
from rerail.model.signals import Signal

SIZES = (64, 512, 2048, FEWEST_GPUS)
SIGNALS_A_MINUTE = 1_000_000
OF_WHAT_IS_LOST = 0.25
SWEPT_SEEDS = 2
PAGE_TABLES = ("goals", f"ways {FEWEST_GPUS}")
# What a relaunch and a restart in the job cannot do without, however fast the decision is.
UNAVOIDABLE = (Spent.MACHINES, Spent.REPAIR, Spent.INIT, Spent.RESTART, Spent.SAVES, Spent.SNAPSHOTS)


@dataclass(frozen=True, slots=True)
class GoodputVerdict:
    """One goal: what was asked for, what was measured, and whether that is met."""

    what: str
    asked: float
    measured: float
    met: bool


def signals_a_minute(days: float = 3.0) -> float:
    """Return the rate at which one core passes the signals of a simulated run through `decide` again."""
    received: list[tuple[Run, Signal, Policy]] = []

    def noting(run: Run, signal: Signal, policy: Policy) -> Decision:
        received.append((run, signal, policy))
        return decide(run, signal, policy)

    world = SimulatedRun(SNAPSHOTS, FEWEST_GPUS, days, 0, Assumptions())
    world.watch = Supervised(world, read_policy(), noting)
    world.run()
    began = time.perf_counter()
    for run, signal, policy in received:
        decide(run, signal, policy)
    return len(received) / (time.perf_counter() - began) * 60


def bound(row: ReportRow) -> float:
    """Return the share that would train without waiting, late detection or lost steps."""
    return 1 - sum(row.compute_share(what) for what in UNAVOIDABLE)


def verdicts(rows: dict[int, list[ReportRow]], speed: float) -> list[GoodputVerdict]:
    """Return the goals in order."""
    largest = {row.outcomes[0].task.way.key: row for row in rows[FEWEST_GPUS]}
    found = [GoodputVerdict("signals a minute, one core", SIGNALS_A_MINUTE, speed, speed >= SIGNALS_A_MINUTE)]
    for way, goal in ((DEFAULT, GOAL_DEFAULT), (WARM, GOAL), (SNAPSHOTS, GOAL_IN_PLACE)):
        row = largest[way.key]
        what = f"ETTR on {FEWEST_GPUS:,} GPUs, {way.key} (bound {bound(row):.4f})"
        found.append(GoodputVerdict(what, goal, row.ettr, row.ettr >= goal))
    for gpus, results in rows.items():
        named = {row.outcomes[0].task.way.key: row for row in results}
        left = (1 - named[SNAPSHOTS.key].ettr) / (1 - named[SAGEMAKER_ASYNC.key].ettr)
        what = f"lost on {gpus:,} GPUs, of what SageMaker's own means lose"
        found.append(GoodputVerdict(what, OF_WHAT_IS_LOST, left, left <= OF_WHAT_IS_LOST))
    return found


def _tables(rows: dict[str, list[ReportRow]], days: float, seeds: int) -> dict[str, Table]:
    assumed = Assumptions()
    tables = {"rates": report.make_rates_table(assumed), "assumptions": report.make_assumptions_table(assumed)}
    for size in SIZES:
        tables[f"ways {size}"] = report.make_ways_table(rows[f"ways:{size}"], gpus=size, days=days, seeds=seeds)
        tables[f"takings {size}"] = report.make_costs_table(rows[f"ways:{size}"], gpus=size)
    swept = {key: sweep for key, sweep in SWEEPS.items() if key in rows}
    return tables | {
        key: report.make_sweep_table(f"{sweep.title}; {SIZES[-1]:,} GPUs", rows[key]) for key, sweep in swept.items()
    }


def _goals(found: Sequence[GoodputVerdict]) -> Table:
    table = Table(title="Goals", title_justify="left", header_style="bold")
    for name in ("", "asked", "measured", "goal"):
        table.add_column(name, justify="right" if name in ("asked", "measured") else "left")
    for verdict in found:
        said = "met" if verdict.met else "missed"
        table.add_row(
            said, *(f"{n:,.0f}" if n > 100 else f"{n:.3f}" for n in (verdict.asked, verdict.measured)), verdict.what
        )
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days", type=float, default=27.0)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--no-sweeps", action="store_true", help="leave out what each setting is worth")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--page", type=Path, help="write the tables into this page, docs/goodput.md")
    given = parser.parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    speed = signals_a_minute()
    assumed = Assumptions()
    asked = {f"ways:{size}": [(way.title, way, assumed) for way in WAYS.values()] for size in SIZES}
    rows = Maker(SIZES, given.days, range(given.seeds), read_policy()).simulate_rows(asked, console)
    if not given.no_sweeps:
        varied = {key: list(sweep.variants(assumed)) for key, sweep in SWEEPS.items()}
        rows |= Maker(SIZES, given.days, range(SWEPT_SEEDS), read_policy()).simulate_rows(varied, console)
    found = verdicts({size: rows[f"ways:{size}"] for size in SIZES}, speed)
    tables = _tables(rows, given.days, given.seeds) | {"goals": _goals(found)}
    report.show(console, list(tables.values()))
    if given.page:
        pages.write(given.page, {name: tables[name] for name in PAGE_TABLES})
    if given.json:
        figures = {group: report.make_json(group_rows) for group, group_rows in rows.items()}
        goals = [{"what": v.what, "asked": v.asked, "measured": v.measured, "met": v.met} for v in found]
        given.json.write_text(json.dumps({"goals": goals, **figures}, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
