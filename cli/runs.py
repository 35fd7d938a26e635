"""`rerail status` and `rerail show`: the fleet at a glance, and one run in full."""

import json
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cli import place
from cli.place import Local, Place, now
from rerail.aws.ssm import SsmPolicies
from rerail.codec import plain
from rerail.ledger import left
from rerail.model import Attempt, Run, RunState, TimelineEntry

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for another program.")]
STYLES = {
    RunState.WATCHING: "green",
    RunState.COMPLETED: "green",
    RunState.STOPPED: "dim",
    RunState.HELD: "bold red",
}


def status(local: Local = False, as_json: AsJson = False) -> None:
    """All runs: their state, attempt, last incident and what is to be done."""
    where = place.find(local=local)
    runs = sorted(where.runs.all_runs(), key=lambda run: (run.state.is_end, run.created_at), reverse=False)
    if as_json:
        typer.echo(json.dumps([plain(run) for run in runs], indent=2))
        return
    console = Console()
    if not runs:
        console.print(f"no runs in {where.name}. A job joins with the tag rerail:policy=default", highlight=False)
        return
    table = Table("run", "state", "policy", "attempt", "job", "last incident", title=where.name, title_justify="left")
    for run in runs:
        table.add_row(
            run.id, styled(run.state), _policy(run), str(run.current.number), _job(run.current), _incident(run)
        )
    console.print(table)


def show(
    run: Annotated[str, typer.Argument(help="The run, as `rerail status` names it.")],
    local: Local = False,
    as_json: AsJson = False,
) -> None:
    """One run: its attempts, its incidents, its budgets, and every decision with its reason."""
    where = place.find(local=local)
    record = where.runs.load(run)
    if record is None:
        place.fail(f"there is no run {run!r} in {where.name}", "`rerail status` lists the runs")
    timeline = where.runs.timeline(run)
    if as_json:
        typer.echo(json.dumps({"run": plain(record), "timeline": [plain(entry) for entry in timeline]}, indent=2))
        return
    console = Console()
    console.print(f"[bold]{record.id}[/] {styled(record.state)} under policy {_policy(record)}", highlight=False)
    if record.hold_reason:
        console.print(f"[red]held:[/] {escape(record.hold_reason)}\nrelease with: rerail release {record.id}")
    console.print(f"failures it can still afford: {budgets(where, record)}", highlight=False)
    console.print(attempts_table(record))
    console.print(timeline_table(timeline))
    for entry in record.ledger.entries:
        console.print(f"  ledger {escape(entry)}", highlight=False, style="dim")


def attempts_table(run: Run) -> Table:
    """A row an attempt."""
    table = Table("attempt", "job", "status", "resumed from", "last step", "cause", "why", title="attempts")
    for attempt in run.attempts:
        table.add_row(
            str(attempt.number),
            attempt.job_name,
            _job(attempt),
            step(attempt.resumed_from_step),
            step(attempt.last_step),
            attempt.cause or "",
            escape(attempt.failure_reason[:120]),
        )
    return table


def timeline_table(timeline: Any, *, newest: int | None = None) -> Table:
    """A row a decision, oldest first."""
    table = Table("time", "state", "decision and reason", title="timeline", expand=True)
    entries: list[TimelineEntry] = list(timeline)
    for entry in entries[-newest:] if newest else entries:
        table.add_row(clock(entry.at), styled(entry.after), escape(entry.reason))
    return table


def budgets(where: Place, run: Run) -> str:
    """What is left of each cause's budget."""
    policy = SsmPolicies(where.outputs["PolicyPrefix"], now).get(run.policy)
    return ", ".join(f"{count} {cause}" for cause, count in left(run.ledger, policy).items())


def styled(state: RunState) -> str:
    return f"[{STYLES.get(state, 'yellow')}]{state}[/]"


def clock(at: datetime) -> str:
    return f"{at:%H:%M:%S}"


def step(value: int | None) -> str:
    return "" if value is None else str(value)


def _policy(run: Run) -> str:
    return f"{run.policy} (observing only)" if run.observe_only else run.policy


def _job(attempt: Attempt) -> str:
    return f"{attempt.status or 'not launched yet'}" + (f" / {attempt.secondary}" if attempt.secondary else "")


def _incident(run: Run) -> str:
    if not run.incidents:
        return ""
    last = run.incidents[-1]
    return f"{clock(last.happened_at)} {last.cause}: {escape(last.resolution or last.reason)}"
