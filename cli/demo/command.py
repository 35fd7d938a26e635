"""`rerail demo`: deploy, train, break, watch it recover, report."""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.status import Status

from cli import place
from cli.console import Console
from cli.demo import report as reports
from cli.demo.scenarios import SCENARIOS, Name, Scenario
from cli.demo.screen import DemoScreen
from cli.demo.stage import PATIENCE_ROWS, Stage, poll_until_over
from cli.demo.verdict import find_shortcomings
from cli.place import Place
from cli.report import save_for
from local.deploy import DeployError
from local.pace import FASTEST_SCALE, measure_pace
from local.stack import LocalAws, LocalAwsError

PATIENCE_S = 420.0
NARROWEST = 120
STDOUT = Path("-")


def demo(
    scenario: Annotated[Name, typer.Option(help="The fault to cause.")] = Name.CRASH,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the facts to this file; - is stdout, the rest then on stderr.")
    ] = None,
    html: Annotated[Path, typer.Option(help="Write the report page here.")] = place.LOCAL_STATE / "demo.html",
    scale: Annotated[
        float | None,
        typer.Option(help="How many times as fast as AWS the clocks run; measured by default: 60, less if it is busy."),
    ] = None,
) -> None:
    """Train a real model under supervision, break it, watch it recover. Exit status 0 if it ended as expected."""
    json_to_stdout = json_file == STDOUT
    console = Console(stderr=json_to_stdout) if sys.stdout.isatty() else Console(width=NARROWEST, stderr=json_to_stdout)
    chosen = SCENARIOS[scenario]
    console.print(f"[bold]rerail demo: {scenario}[/] - {chosen.summary}")
    if missing := [package for package in chosen.script.packages if importlib.util.find_spec(package) is None]:
        place.fail(
            f"the script of {scenario} imports {' and '.join(missing)}, which this Python does not have",
            f"`make demo SCENARIO={scenario}` installs it; elsewhere: pip install {' '.join(missing)}",
        )
    if scale is None:
        scale = _measured_scale(console)
    console.print(
        f"clock x{scale:g}: SageMaker's pace, the minute's sweep and the policy's durations are divided by {scale:g}",
    )
    if chosen.findings:
        rows = round(PATIENCE_ROWS * FASTEST_SCALE / scale)
        console.print(f"the detectors' patience is cut to {rows} rows, one a second")
    aws = LocalAws(place.LOCAL_STATE / "demo", scale=scale, schedule_scale=scale, assemblies=place.SYNTHESES)
    try:
        with console.status("starting") as status:
            aws.start(lambda line: _progress(console, status, line))
        problems = _play(console, aws, scenario, chosen, scale, json_file, html)
    except (LocalAwsError, DeployError, TimeoutError) as error:
        place.fail(str(error), f"look into {aws.log_file}")
    finally:
        aws.stop()
    raise typer.Exit(1 if problems else 0)


def _measured_scale(console: Console) -> float:
    """Return the fastest clock that this machine can keep now, and say so where it is not the usual one."""
    try:
        pace = measure_pace()
    except ValueError as error:
        place.fail(str(error), "unset it to have the speed measured")
    if pace.slowdown > 1:
        console.print(
            f"this machine is busy or slow (1/{pace.slowdown:g} of the reference speed): the clock runs at "
            f"x{pace.scale:g} instead of x{FASTEST_SCALE:g}, so the demo takes about {pace.slowdown:g} times as long",
        )
    return pace.scale


def _progress(console: Console, status: Status, line: str) -> None:
    status.update(line)
    console.print(f"  {line}", markup=False)


def _play(
    console: Console, aws: LocalAws, name: Name, scenario: Scenario, scale: float, json_file: Path | None, html: Path
) -> bool:
    """Play the scenario on a running local AWS and report; True if anything is not as it must be."""
    place.use_local(aws.endpoint_url)
    stage = Stage(aws, scenario, run_id=f"demo-{name}", scale=scale)
    stage.set_up()
    with DemoScreen(console, steps=scenario.steps) as screen:
        for picture in poll_until_over(stage, within_s=PATIENCE_S):
            screen.show(picture)
    report = {**reports.collect_facts(name, stage), "report": str(html)}
    problems = find_shortcomings(scenario, report)
    page = reports.make_page(scenario, stage, report, problems)
    console.print(page)
    facts = reports.make_section(scenario, stage, report, problems)
    save_for(Place("the demo", aws.outputs), stage.run_id, html, (facts,))
    console.print(f"report: {html}")
    if json_file == STDOUT:
        typer.echo(json.dumps(report, indent=2))
    elif json_file:
        json_file.write_text(json.dumps(report, indent=2) + "\n")
        console.print(f"facts:  {json_file}")
    return bool(problems)
