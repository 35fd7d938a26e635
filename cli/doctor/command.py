"""`rerail doctor`: asks everything, and says of each thing how it stands and what to do."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from cli import place
from cli.console import Console
from cli.doctor import account, job, quotas, roles, storage, subject
from cli.doctor.check import Check, CheckStatus, Question, ask, find_worst
from cli.doctor.deployment import Deployment
from cli.doctor.subject import Subject
from cli.names import complete_runs
from cli.place import AsJson, Local

STYLES = {
    CheckStatus.OK: "green",
    CheckStatus.WARN: "yellow",
    CheckStatus.BROKEN: "bold red",
    CheckStatus.UNKNOWN: "dim",
}
OF_A_JOB: tuple[Question[Subject], ...] = (*job.QUESTIONS, *storage.QUESTIONS, *roles.QUESTIONS, *quotas.QUESTIONS)
NAME_WIDTH = 20


def doctor(
    job: Annotated[str, typer.Option("--job", help="Look at this training job too.", metavar="NAME")] = "",
    run: Annotated[
        str,
        typer.Option(
            "--run", help="Look at the newest job of this run too.", metavar="RUN", autocompletion=complete_runs
        ),
    ] = "",
    request: Annotated[
        Path | None,
        typer.Option("--request", help="Look at a job to come: what `rerail submit --dry-run` prints.", metavar="FILE"),
    ] = None,
    local: Local = False,
    as_json: AsJson = False,
) -> None:
    """Is everything ready? Exit status 1 if something is broken, 2 if nothing at all can be told."""
    if sum(map(bool, (job, run, request))) > 1:
        place.fail("--job, --run and --request exclude each other", "give one of them")
    where = place.find(local=local)
    deployment = Deployment(where)
    asked = _subject(deployment, job, run, request)
    checks = list(_answers(deployment, asked))
    verdict = find_worst(checks)
    if as_json:
        answer = {"place": where.name, "verdict": verdict.value, "checks": [asdict(check) for check in checks]}
        typer.echo(json.dumps(where.complete_plain(answer), indent=2))
    else:
        _print(checks)
    raise typer.Exit({CheckStatus.BROKEN: 1, CheckStatus.UNKNOWN: 2}.get(verdict, 0))


def _subject(deployment: Deployment, job: str, run: str, request: Path | None) -> Subject | None:
    if job:
        return subject.describe_job(deployment, job)
    if run:
        return subject.describe_run(deployment, run)
    return subject.read_request(deployment, request) if request else None


def _answers(deployment: Deployment, asked: Subject | None) -> Iterator[Check]:
    yield from ask("account", account.QUESTIONS, deployment)
    if asked:
        yield from ask(f"job {asked.name}" if asked.exists else f"request {asked.name}", OF_A_JOB, asked)


def _print(checks: Sequence[Check]) -> None:
    console, about = Console(soft_wrap=True), ""
    for check in checks:
        if check.about != about:
            about = check.about
            console.print(f"[bold]{escape(about)}[/]")
        line = f"[{STYLES[check.verdict]}]{check.verdict:<8}[/]{check.name:<{NAME_WIDTH}} {escape(check.said)}"
        console.print(f"  {line}")
        if check.remedy:
            console.print(f"  {'':<8}{'':<{NAME_WIDTH}} to do: {escape(check.remedy)}")
    counts = Counter(check.verdict for check in checks)
    console.print(", ".join(f"{counts[verdict]} {verdict}" for verdict in CheckStatus if counts[verdict]))
