"""`rerail backtest`: what Rerail would have said and done on your own logs."""

import json
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cli import place
from cli.backtest import plots, report, sources, text
from cli.backtest.evaluation import EvaluatedLog, evaluate_logs, score_logs
from cli.backtest.series import BadInput
from cli.console import Console
from cli.names import complete_policies
from cli.place import Local
from cli.project import read_policy

NARROWEST = 120
Item = TypeVar("Item")


def backtest(
    path: Annotated[
        str,
        typer.Argument(
            help="A training log: text as your framework prints it, CSV or JSON (loss, step, time, step time, "
            "throughput, gradient norm, named as by your logger), a trainer_state.json, a TensorBoard folder, a "
            "corpus, or job:NAME."
        ),
    ],
    policy: Annotated[
        str,
        typer.Option(
            help="The policy whose thresholds judge: a name in policies/, or a file.", autocompletion=complete_policies
        ),
    ] = "default",
    plateau: Annotated[bool, typer.Option(help="Look for plateaus, even if the policy does not.")] = True,
    by_minute: Annotated[
        bool,
        typer.Option(
            "--by-minute", help="Evaluate one sample a minute, as for a job without the agent (CloudWatch's metrics)."
        ),
    ] = False,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=REGEX for a text log that is not read without; NAME is step, loss, step_time_s, ... Repeatable."
        ),
    ] = None,
    loss: Annotated[str, typer.Option(help="The name of the loss to judge, in a log that has several.")] = "",
    findings: Annotated[
        Path | None, typer.Option(help="Write what labels can judge to this file, as JSON lines.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw logs with their findings into this folder.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for another program.")] = False,
    local: Local = False,
) -> None:
    """Ask what Rerail would have said and done on logs of the past. Nothing is launched, stopped or changed."""
    console = Console(stderr=as_json) if sys.stdout.isatty() else Console(width=NARROWEST, stderr=as_json)
    try:
        if plot:
            plots.check()
        detection = replace(read_policy(policy).detection, plateau=plateau)
        began = time.perf_counter()
        logs = sources.find(path, local=local, patterns=text.parse_patterns(metric or ()), loss=loss)
        judged = list(_shown(evaluate_logs(logs, detection, by_minute=by_minute), len(logs), "judging logs", console))
        judged.sort(key=lambda log: log.log.name)
        quality, seconds = score_logs(judged), time.perf_counter() - began
        if findings:
            _write(judged, findings)
        if as_json:
            typer.echo(json.dumps(report.make_json(judged, policy=policy, seconds=seconds, scored=quality), indent=2))
        else:
            report.show(console, judged, policy=policy, seconds=seconds, scored=quality)
        if plot:
            worth = plots.select_logs(judged)
            drawn = list(_shown(plots.draw(worth, plot), len(worth), "drawing", console))
            console.print(f"{len(drawn)} picture(s) in {plot}")
    except BadInput as error:
        place.fail(" ".join(error.problem.split()), error.remedy)


def _shown(results: Iterator[Item], total: int, what: str, console: Console) -> Iterable[Item]:
    """The results as they come, under a progress bar. The first is taken before the bar starts its thread: work is
    spread by forking, and a process is forked best while it has one thread."""
    first = next(results, None)
    if first is None:
        return
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, disable=total < 2) as progress:
        bar = progress.add_task(what, total=total, completed=1)
        yield first
        for result in results:
            progress.advance(bar)
            yield result


def _write(judged: list[EvaluatedLog], file: Path) -> None:
    lines = [json.dumps(line) for log in judged for line in log.scorable_lines()]
    try:
        file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    except OSError as error:
        raise BadInput(f"cannot write {file}: {error}", "name another file for --findings") from error
