"""`rerail simulate`: months of training runs in seconds, by the decisions that Rerail really takes."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated

import typer

from cli import place
from cli.backtest.series import BadInput
from cli.console import Console
from cli.names import complete_policies
from cli.parallel import show_progress, spread
from cli.project import read_policy
from cli.simulate import report
from cli.simulate.assumptions import Assumptions
from cli.simulate.measured import read_measurements, replace_assumptions
from cli.simulate.months import SimulationResult, SimulationTask, simulate
from cli.simulate.report import ReportRow
from cli.simulate.sweeps import SWEEPS
from cli.simulate.ways import WAYS
from rerail.model.policy import Policy

WIDTH = 150
MOST_GPUS, MOST_DAYS, MOST_SEEDS, MOST_FACTOR = 100_000.0, 366.0, 1000.0, 20.0


def run_simulations(
    gpus: Annotated[list[int] | None, typer.Option(help="GPUs of the run; may be said several times.")] = None,
    days: Annotated[float, typer.Option(help="How long the run goes on.")] = 14.0,
    seeds: Annotated[int, typer.Option(help="So many runs of each, by different chance.")] = 4,
    seed: Annotated[int, typer.Option(help="The first seed: the same one gives the same answer.")] = 0,
    way: Annotated[
        list[str] | None, typer.Option(help=f"One of {', '.join(WAYS)}; several times; all if none.")
    ] = None,
    sweep: Annotated[
        list[str] | None, typer.Option(help=f"Vary one thing: {', '.join(SWEEPS)}; several times.")
    ] = None,
    policy: Annotated[
        str, typer.Option(help="The policy: a name in policies/, or a file.", autocompletion=complete_policies)
    ] = "default",
    failures: Annotated[float, typer.Option(help="So many times as many faults.")] = 1.0,
    assume: Annotated[
        list[str] | None, typer.Option(help="NAME=NUMBER: an assumption of yours; several times.")
    ] = None,
    measured: Annotated[
        Path | None, typer.Option(help="An acceptance.json of `rerail acceptance`: its times, not the assumed ones.")
    ] = None,
    as_json: Annotated[str, typer.Option("--json", help="Write all figures to this file, - for the screen.")] = "",
    quiet: Annotated[bool, typer.Option(help="Leave out the tables of faults and assumptions.")] = False,
) -> None:
    """What share of its time would a run have trained, by who looks after it? Nothing is launched or stopped."""
    console = Console(width=None if sys.stdout.isatty() else WIDTH, stderr=as_json == "-")
    try:
        usual, sources = Assumptions(), dict[str, str]()
        if measured:
            usual, found = replace_assumptions(usual, read_measurements(measured))
            sources |= found
        own, sweeps = assume or [], sweep or []
        assumed, rules = _assumed(own, usual), read_policy(policy)
        sources |= {text.partition("=")[0]: "--assume" for text in own}
        sizes = _checked(gpus or [16_384], days, seeds, failures)
        _known("way", way or [], list(WAYS))
        _known("sweep", sweeps, list(SWEEPS))
        names = way or ([] if sweep else list(WAYS))
        made = Maker(sizes, days, range(seed, seed + seeds), rules, failures)
        compared = sizes if names else []
        variants = {f"ways:{size}": [(WAYS[k].title, WAYS[k], assumed) for k in names] for size in compared}
        variants |= {key: list(SWEEPS[key].variants(assumed)) for key in sweeps}
        rows = made.simulate_rows(variants, console)
        _show(console, rows, sizes, days, seeds, assumed if not quiet else None, sources)
        _written(rows, as_json)
    except BadInput as error:
        place.fail(" ".join(error.problem.split()), error.remedy)


class Maker:
    """Simulates every variant with every seed, on all cores, under a progress bar."""

    def __init__(
        self, sizes: Sequence[int], days: float, seeds: Sequence[int], policy: Policy, factor: float = 1.0
    ) -> None:
        self.sizes, self.days, self.seeds, self.policy, self.factor = sizes, days, seeds, policy, factor

    def simulate_rows(self, variants: dict[str, list[tuple]], console: Console) -> dict[str, list[ReportRow]]:  # type: ignore[type-arg]
        """Return the rows of each group in the given order; sweeps use the last size."""
        places, tasks = [], []
        for group, group_variants in variants.items():
            size = int(group.removeprefix("ways:")) if group.startswith("ways:") else self.sizes[-1]
            for name, way, assumed in group_variants:
                for seed in self.seeds:
                    places.append((group, name))
                    tasks.append(SimulationTask(way, size, self.days, seed, assumed, self.policy, self.factor))
        outcomes: list[SimulationResult | None] = [None] * len(tasks)
        is_logged = not console.is_terminal and len(tasks) > 1
        if is_logged:
            print(f"simulating {len(tasks)} times {self.days:g} days ...", file=sys.stderr, flush=True)
        results = show_progress(spread(_numbered, list(enumerate(tasks))), len(tasks), "simulating", console)
        for count, (number, outcome) in enumerate(results, 1):
            outcomes[number] = outcome
            if is_logged and count % max(1, len(tasks) // 5) == 0:
                print(f"{count} of {len(tasks)} simulated", file=sys.stderr, flush=True)
        rows: dict[str, dict[str, list[SimulationResult]]] = {}
        for (group, name), done in zip(places, outcomes, strict=True):
            assert done
            rows.setdefault(group, {}).setdefault(name, []).append(done)
        return {
            group: [ReportRow(name, list(results)) for name, results in named.items()] for group, named in rows.items()
        }


def _numbered(task: tuple[int, SimulationTask]) -> tuple[int, SimulationResult]:
    return task[0], simulate(task[1])


def _checked(gpus: list[int], days: float, seeds: int, failures: float) -> list[int]:
    given = [("--gpus", float(size), 1.0, MOST_GPUS) for size in gpus]
    given += [("--days", days, 0.1, MOST_DAYS), ("--seeds", float(seeds), 1.0, MOST_SEEDS)]
    for name, number, least, most in [*given, ("--failures", failures, 0.0, MOST_FACTOR)]:
        if not least <= number <= most:
            raise BadInput(f"{name} is {number:g}", f"give a number from {least:g} to {most:,g}")
    return list(dict.fromkeys(gpus))


def _known(what: str, names: list[str], known: list[str]) -> None:
    for name in names:
        if name not in known:
            raise BadInput(f"there is no {what} {name!r}", f"give one of {', '.join(known)}")


def _assumed(given: list[str], assumed: Assumptions) -> Assumptions:
    numbers = [
        field.name for field in fields(Assumptions) if isinstance(getattr(Assumptions(), field.name), int | float)
    ]
    for text in given:
        name, _, value = text.partition("=")
        if name not in numbers:
            raise BadInput(f"--assume {text!r} names no assumption with a number", f"give one of {', '.join(numbers)}")
        try:
            number = float(value)
        except ValueError as error:
            raise BadInput(f"--assume {text!r} gives no number", f"write {name}=NUMBER") from error
        if not 0 <= number <= 1e9 or (name == "step_s" and number < 0.01):
            raise BadInput(f"--assume {text!r} is out of range", "give a number from 0 to 1,000,000,000")
        kind = type(getattr(assumed, name))
        assumed = replace(assumed, **{name: kind(number)})
    return assumed


def _show(
    console: Console,
    rows: dict[str, list[ReportRow]],
    sizes: list[int],
    days: float,
    seeds: int,
    assumed: Assumptions | None,
    sources: Mapping[str, str],
) -> None:
    tables = [report.make_rates_table(assumed), report.make_assumptions_table(assumed, sources)] if assumed else []
    for group, group_rows in rows.items():
        if group.startswith("ways:"):
            size = int(group.removeprefix("ways:"))
            tables += [
                report.make_ways_table(group_rows, gpus=size, days=days, seeds=seeds),
                report.make_costs_table(group_rows, gpus=size),
            ]
        else:
            tables.append(report.make_sweep_table(f"{SWEEPS[group].title}; {sizes[-1]:,} GPUs", group_rows))
    report.show(console, tables)


def _written(rows: dict[str, list[ReportRow]], where: str) -> None:
    if not where:
        return
    text = json.dumps({group: report.make_json(group_rows) for group, group_rows in rows.items()}, indent=2)
    if where == "-":
        typer.echo(text)
        return
    try:
        Path(where).write_text(f"{text}\n", encoding="utf-8")
    except OSError as error:
        raise BadInput(f"cannot write {where}: {error}", "name another file for --json") from error
