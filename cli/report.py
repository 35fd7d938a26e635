"""`rerail report`: a run's incident report as one page, made here from what AWS knows now."""

import json
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from cli import place
from cli.console import echo
from cli.names import RunName, explain_unknown_run
from cli.place import AsJson, Local, Place, now
from cli.runs import complete_commands
from rerail.incident_report.facts import Facts
from rerail.incident_report.report import IncidentReport, ReportSection, make_report
from rerail.model.codec import to_plain

Open = Annotated[bool, typer.Option("--open", help="Open the page in the browser.")]
Out = Annotated[Path | None, typer.Option("--out", help="Write the page to this file.")]


def report(run: RunName, open_it: Open = False, out: Out = None, local: Local = False, as_json: AsJson = False) -> None:
    """One run's incident report: what happened, what to do, curves, evidence, cost, and what to change."""
    where = place.find(local=local)
    known = gather_facts(where, run)
    if known is None:
        place.fail(*explain_unknown_run(where, run))
    incident_report = make_report(known)
    if as_json:
        typer.echo(json.dumps(where.complete_plain(to_plain(incident_report)), indent=2))
        return
    page = out or place.LOCAL_STATE / "reports" / f"{run}.html"
    incident_report = complete_commands(where, incident_report)
    save(page, incident_report, region="" if where.is_local else where.client("sagemaker").meta.region_name)
    typer.echo(f"report: {page}")
    for problem in incident_report.unread:
        echo(f"could not be read: {problem}", err=True)
    if open_it:
        open_page(page)


def gather_facts(where: Place, run: str) -> Facts | None:
    """Return all that a report needs, read now; None if there is no such run."""
    from rerail.aws.cloudwatch import CloudWatchSeries
    from rerail.aws.logs import CloudWatchLogs
    from rerail.aws.s3 import S3Checkpoints
    from rerail.aws.ssm import SsmPolicies
    from rerail.incident_report.gather import FactGatherer

    gathering = FactGatherer(
        runs=where.runs,
        policies=SsmPolicies(where.outputs["PolicyPrefix"], now),
        series=CloudWatchSeries(),
        logs=CloudWatchLogs(),
        checkpoints=S3Checkpoints(),
        clock=now,
    )
    return gathering.gather(run)


def save(page: Path, incident_report: IncidentReport, *, region: str = "") -> None:
    """Write the page with links to the region's console; exit with an error if it cannot be written."""

    def render() -> str:
        from report_page.page import render_page

        return render_page(incident_report, region=region)

    write_page(page, render)


def write_page(page: Path, render: Callable[[], str]) -> None:
    """Write what `render` returns; exit with an error if it cannot be rendered or written.

    `render` imports what it renders with: no other command needs it, or waits for it.
    """
    try:
        text = render()
    except ModuleNotFoundError as error:
        place.fail(f"reports are drawn with {error.name}, which is not installed", "pip install 'rerail[report]'")
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text, encoding="utf-8")
    except OSError as error:
        place.fail(f"cannot write {page}: {error.strerror}", "name another file with --out")


def open_page(page: Path) -> None:
    """Open the page in the browser, or say that there is none here."""
    if not webbrowser.open(page.resolve().as_uri()):
        typer.echo("no browser could be opened here: copy the file to where there is one", err=True)


def save_for(where: Place, run: str, page: Path, sections: Sequence[ReportSection]) -> None:
    """Write the page of a run that exists, with additional sections."""
    known = gather_facts(where, run)
    assert known is not None, "the run was seen a moment ago"
    save(page, make_report(known, sections=sections))
