"""`rerail status` and `rerail show`: the fleet at a glance, and one run in full."""

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Annotated, Any

import typer
from botocore.exceptions import BotoCoreError, ClientError
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cli import place
from cli.place import Local, now
from rerail import pools
from rerail.advice import advise, spoken_advice
from rerail.aws.s3 import S3Checkpoints
from rerail.aws.ssm import SsmPolicies
from rerail.codec import plain
from rerail.errors import RerailError
from rerail.launching import spoken_dollars
from rerail.ledger import left
from rerail.machines import spoken_machines
from rerail.model import Attempt, Run, RunState, TimelineEntry
from rerail.money import run_dollars, runtime_left, unpriced
from rerail.policy import Policy
from rerail.ports import policy_of
from rerail.remedies import spoken
from rerail.repairs import spoken_repairs

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for another program.")]
STYLES = {
    RunState.WATCHING: "green",
    RunState.COMPLETED: "green",
    RunState.STOPPED: "dim",
    RunState.HELD: "bold red",
}


def status(
    local: Local = False,
    as_json: AsJson = False,
    advice: Annotated[
        bool, typer.Option("--advice", help="Say how often each would best save; lists its saves.")
    ] = False,
) -> None:
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
            run.id,
            styled(run.state) + _waits_for(run),
            _policy(run),
            str(run.current.number),
            _job(run.current),
            _incident(run),
        )
    console.print(table)
    policies = SsmPolicies(where.outputs["PolicyPrefix"], now)
    for run in runs if advice else ():
        for line in saving(run, policy_of(run, policies)):
            console.print(f"{run.id}: {line}", highlight=False)


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
    policy = policy_of(record, SsmPolicies(where.outputs["PolicyPrefix"], now))
    console.print(f"failures it can still afford: {budgets(record, policy)}", highlight=False)
    for line in (*waits(record), *machines(record), *spending(record, policy), *saving(record, policy)):
        console.print(line, highlight=False)
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
            attempt.job_name + (f"\non {spoken_machines(attempt.machines)}" if attempt.machines else ""),
            _job(attempt),
            "\n".join(
                (step(attempt.resumed_from_step) + (f" ({attempt.rung})" if attempt.rung else ""), *_orders(attempt))
            ),
            step(attempt.last_step),
            attempt.cause or "",
            escape(attempt.failure_reason[:120]),
        )
    return table


def _orders(attempt: Attempt) -> Iterator[str]:
    """Where each restart in place has begun, or was to begin."""
    for order in attempt.orders:
        start = "the newest save" if order.resume_step is None else step(order.resume_step)
        yield f"in place: {start}" + ("" if order.restarted_at else ", failed" if order.failed else ", ordered")


def timeline_table(timeline: Any, *, newest: int | None = None) -> Table:
    """A row a decision, oldest first."""
    table = Table("time", "state", "decision and reason", title="timeline", expand=True)
    entries: list[TimelineEntry] = list(timeline)
    for entry in entries[-newest:] if newest else entries:
        table.add_row(clock(entry.at), styled(entry.after), escape(entry.reason))
    return table


def waits(run: Run) -> Iterator[str]:
    """What the run waits for, and how to answer a proposal."""
    if run.kept_back:
        yield f"[yellow]its next job waits:[/] {run.kept_back}"
    if run.proposal:
        proposal = run.proposal
        cost = "" if proposal.dollars is None else f", for about {spoken_dollars(proposal.dollars)}"
        until = clock(proposal.expires_at)
        yield f"[yellow]{proposal.id} waits for {proposal.awaits}:[/] {escape(proposal.what)}{cost}, until {until}"
        words = " or ".join(f"rerail {verb} {run.id} --proposal {proposal.id}" for verb in ("approve", "deny"))
        yield f"answer with: {words}"


def machines(run: Run) -> Iterator[str]:
    """Machines that are kept warm for nobody, and what SageMaker itself has mended."""
    if kept := pools.keeper(run):
        told = kept.pool.status if kept.pool else "if SageMaker keeps one"
        yield f"warm pool of {kept.job_name}: {told}, for {spoken(timedelta(seconds=kept.keep_alive_seconds))} at most"
    if repairs := spoken_repairs(run.current.repairs):
        lost = spoken(timedelta(seconds=run.current.repair_seconds))
        yield f"restarted by SageMaker itself: {repairs}; {lost} until it trained again"


def spending(run: Run, policy: Policy) -> Iterator[str]:
    """What the run has cost, and what it may still cost and last."""
    spent, cap = run_dollars(run, now(), policy.prices), policy.limits.run_dollars
    if spent is None:
        yield f"cost so far: not known, nobody has said what a machine {unpriced(run, policy.prices)} costs"
    elif spent:
        yield f"cost so far: {spoken_dollars(spent)}" + (f" of at most {spoken_dollars(cap)}" if cap else "")
    left = runtime_left(run, now(), policy)
    if left is not None:
        yield f"left of its MaxRuntimeInSeconds: {spoken(timedelta(seconds=max(0.0, left)))}"


def saving(run: Run, policy: Policy) -> Iterator[str]:
    """How often it would best save; nothing where that cannot be looked up."""
    try:
        checkpoints = S3Checkpoints().under(run.checkpoint_uri) if run.checkpoint_uri else ()
    except (RerailError, ClientError, BotoCoreError):
        return
    if advice := advise(run, checkpoints, policy, at=now()):
        yield f"saving: {spoken_advice(advice)}"


def budgets(run: Run, policy: Policy) -> str:
    """What is left of each cause's budget."""
    return ", ".join(f"{count} {cause}" for cause, count in left(run.ledger, policy).items())


def styled(state: RunState) -> str:
    return f"[{STYLES.get(state, 'yellow')}]{state}[/]"


def clock(at: datetime) -> str:
    return f"{at:%H:%M:%S}"


def step(value: int | None) -> str:
    return "" if value is None else str(value)


def _policy(run: Run) -> str:
    return f"{run.policy} (observing only)" if run.observe_only else run.policy


def _waits_for(run: Run) -> str:
    word = run.proposal.awaits if run.proposal else run.kept_back
    return f" for {word}" if word else ""


def _job(attempt: Attempt) -> str:
    return f"{attempt.status or 'not launched yet'}" + (f" / {attempt.secondary}" if attempt.secondary else "")


def _incident(run: Run) -> str:
    if not run.incidents:
        return ""
    last = run.incidents[-1]
    return f"{clock(last.happened_at)} {last.cause}: {escape(last.resolution or last.reason)}"
