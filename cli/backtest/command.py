"""`rerail backtest`: what Rerail would have said and done on your own logs."""

import json
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from cli import place
from cli.backtest import report, sources, text
from cli.backtest.evaluation import EvaluatedLog, evaluate_logs, score_logs
from cli.backtest.series import BadInput
from cli.console import Console
from cli.names import complete_policies
from cli.parallel import show_progress
from cli.place import Local
from cli.project import read_policy

NARROWEST = 120


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
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for another program.")] = False,
    local: Local = False,
) -> None:
    """Ask what Rerail would have said and done on logs of the past. Nothing is launched, stopped or changed."""
    console = Console(stderr=as_json) if sys.stdout.isatty() else Console(width=NARROWEST, stderr=as_json)
    try:
        detection = read_policy(policy).detection
        began = time.perf_counter()
        logs = sources.find(path, local=local, patterns=text.parse_patterns(metric or ()), loss=loss)
        evaluated = evaluate_logs(logs, detection, by_minute=by_minute)
        judged = list(show_progress(evaluated, len(logs), "judging logs", console))
        judged.sort(key=lambda log: log.log.name)
        quality, seconds = score_logs(judged), time.perf_counter() - began
        if findings:
            _write(judged, findings)
        if as_json:
            typer.echo(json.dumps(report.make_json(judged, policy=policy, seconds=seconds, scored=quality), indent=2))
        else:
            report.show(console, judged, policy=policy, seconds=seconds, scored=quality)
    except BadInput as error:
        place.fail(" ".join(error.problem.split()), error.remedy)


def _write(judged: list[EvaluatedLog], file: Path) -> None:
    lines = [json.dumps(line) for log in judged for line in log.scorable_lines()]
    try:
        file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    except OSError as error:
        raise BadInput(f"cannot write {file}: {error}", "name another file for --findings") from error
