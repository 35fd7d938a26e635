"""`rerail show`: one run in full, and the words and tables that other commands use for runs too."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import typer
from botocore.exceptions import BotoCoreError, ClientError
from rich.console import Group
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from cli import place
from cli.console import Console
from cli.fleet import FleetReader
from cli.names import RunName, find_run
from cli.place import AsJson, Local, Place, now
from cli.utilization import read_utilization
from rerail.accounting.costs import find_run_cap, find_runtime_left, find_unpriced_type, sum_run_dollars
from rerail.accounting.goodput import RECENT, Account, find_incident_dollars, find_recent_share, make_account
from rerail.accounting.save_interval import advise_interval, format_advice
from rerail.decisions import warm_pools
from rerail.decisions.budgets import remaining_retries
from rerail.decisions.decision import HELD_RESOLUTION
from rerail.decisions.emergency_checkpoint import format_deadline
from rerail.decisions.start_check import format_ordered
from rerail.incident_report.costs import format_length, has_goodput
from rerail.incident_report.evidence import find_evidence
from rerail.incident_report.facts import Facts
from rerail.incident_report.fleet import FleetRow
from rerail.incident_report.report import IncidentReport, make_report
from rerail.incident_report.summary import Urgency
from rerail.model.codec import to_plain
from rerail.model.errors import RerailError
from rerail.model.formatting import format_dollars, format_duration
from rerail.model.machines import format_instance_types
from rerail.model.policy import Policy
from rerail.model.run import AfterStop, Attempt, Incident, JobStatus, LaunchCheck, Run, RunState, TimelineEntry
from rerail.model.self_repairs import format_repairs
from rerail.ports import policy_of

STYLES = {RunState.WATCHING: "green", RunState.COMPLETED: "green", RunState.STOPPED: "dim", RunState.HELD: "bold red"}


def show(run: RunName, local: Local = False, as_json: AsJson = False) -> None:
    """One run: what happened, what to do, its attempts, incidents, budgets, time and money, and every decision."""
    from rerail.aws.ssm import SsmPolicies

    where = place.find(local=local)
    record = find_run(where, run)
    timeline = tuple(where.runs.timeline(run))
    policy = policy_of(record, SsmPolicies(where.outputs["PolicyPrefix"], now))
    incident_report = make_report(Facts(record, now(), policy, timeline))
    if as_json:
        plain = make_plain_run(incident_report, record, timeline, policy)
        typer.echo(json.dumps(where.complete_plain(plain), indent=2))
        return
    incident_report = complete_commands(where, incident_report)
    console = Console()
    console.print(f"[bold]{record.id}[/] {format_state(record.state)} under policy {_policy(record)}")
    console.print(f"now {now():%Y-%m-%d %H:%M:%S}, all times are UTC", style="dim")
    console.print(make_headline(incident_report))
    for line in (
        describe_step(FleetReader(where).read_row(record)),
        *describe_waits(record),
        *describe_machines(record),
        *describe_utilization(where, record),
        *describe_spending(record, policy),
        *describe_saving(record, policy),
    ):
        console.print(line)
    console.print(f"retries left: {format_budgets(record, policy)}")
    console.print(make_attempts_table(record))
    if record.incidents:
        console.print(make_incidents_table(record, policy))
    if has_goodput(record):
        console.print(make_time_table(make_account(record, now(), policy), find_recent_share(record, now())))
    console.print(make_timeline_table(timeline))
    for entry in record.ledger.entries:
        console.print(f"  ledger {escape(entry)}", style="dim")


def describe_step(row: FleetRow) -> str:
    """Return the newest step of the current attempt and its age, in words."""
    number = row.run.current.number
    if row.step is None and lacks_step_metric(row.run):
        return "step: - (its jobs define no metric named step)"
    if row.step is None:
        yet = " yet" if row.run.current.ended_at is None else ""
        return f"step: - (attempt {number} has reported none{yet})"
    age = f", {format_duration(now() - row.step_at)} ago" if row.step_at else ""
    return f"step {row.step:,} in attempt {number}{age}"


def lacks_step_metric(run: Run) -> bool:
    """Return whether no step can arrive: without an agent, its jobs define no metric for it."""
    return run.defined_metrics is not None and "step" not in run.defined_metrics and not run.current.agent


def complete_commands(where: Place, incident_report: IncidentReport) -> IncidentReport:
    """Return the report with its commands as they must be typed here."""
    names = ("happened", "did", "todo", "commands")
    return replace(incident_report, **{name: where.complete_plain(getattr(incident_report, name)) for name in names})


def make_headline(incident_report: IncidentReport) -> Panel:
    """Return what happened, what was done, and what to do with which commands."""
    style = {Urgency.NEEDED: "red", Urgency.RECOVERING: "yellow", Urgency.NONE: "green"}[incident_report.tone]
    rows = Table.grid(padding=(0, 2))
    rows.add_row("happened", escape(incident_report.happened))
    if incident_report.did:
        rows.add_row("done", escape(incident_report.did))
    if incident_report.tone is Urgency.NEEDED or not incident_report.todo[0].startswith("Nothing"):
        rows.add_row("to do", escape("\n".join(incident_report.todo)))
        if commands := "\n".join(c for c in incident_report.commands if " show " not in c):
            rows.add_row("", f"[cyan]{escape(commands)}[/]")
        if incident_report.by:
            rows.add_row("until", format_limit(incident_report.by))
        if incident_report.runbook:
            rows.add_row("see", f"[cyan]rerail runbook {incident_report.runbook}[/]")
    return Panel(rows, title=escape(incident_report.headline), title_align="left", border_style=style)


def make_incidents_table(run: Run, policy: Policy) -> Table:
    """Return two lines for each incident: what happened and how it ended, then times, cost and what was done."""
    table = _make_list("incidents")
    for incident in run.incidents:
        dollars = find_incident_dollars(run, incident, now(), policy.prices)
        head = f"{format_moment(incident.happened_at)}  {incident.kind}: {incident.cause}, "
        facts = (
            f"decided after {format_duration(max(timedelta(), incident.decided_at - incident.happened_at))}",
            f"recovered after {format_duration(incident.closed_at - incident.happened_at)}"
            if incident.recovered and incident.closed_at
            else "",
            f"{incident.lost_steps} lost steps" if incident.lost_steps is not None else "",
            "" if dollars is None else format_dollars(dollars),
            ", ".join(dict.fromkeys(incident.actions)),
        )
        resolution = "recovered" if incident.recovered else incident.resolution or "not recovered yet"
        resolution = resolution.replace(HELD_RESOLUTION, "held")
        first = Text.assemble(head, (resolution, "" if incident.closed_at else "yellow"))
        table.add_row(str(incident.number), Group(first, Text(", ".join(filter(None, facts)), style="dim")))
    return table


def _make_list(title: str) -> Table:
    """Return a table of numbered entries of several lines, which fits a narrow terminal."""
    table = Table(title=title, title_justify="left", title_style="bold", box=None, show_header=False, pad_edge=False)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    return table


def make_time_table(account: Account, recent: float | None) -> Table:
    """Return goodput, and badput by kind."""
    table = Table("", "share", "time", title="where the time went", title_justify="left", title_style="bold", box=None)
    if not account.wall_s:
        return table
    table.add_row("[green]goodput[/]", f"{account.goodput_s / account.wall_s:.1%}", format_length(account.goodput_s))
    if recent is not None and account.wall_s > RECENT.total_seconds():
        table.add_row(f"  of the last {RECENT.total_seconds() / 3600:.0f} h", f"{recent:.1%}", "")
    for kind, seconds in sorted(account.badput_s.items(), key=lambda item: -item[1]):
        if seconds:
            table.add_row(kind.label, f"{seconds / account.wall_s:.1%}", format_length(seconds))
    return table


def make_plain_run(
    incident_report: IncidentReport, run: Run, timeline: Sequence[TimelineEntry], policy: Policy
) -> dict[str, Any]:
    """Return the record, the timeline and what they come to as JSON types; seconds and dollars."""
    spent = make_account(run, now(), policy)
    return {
        "headline": incident_report.headline,
        "happened": incident_report.happened,
        "did": incident_report.did,
        "todo": list(incident_report.todo),
        "commands": list(incident_report.commands),
        "runbook": incident_report.runbook,
        "account": {
            "goodput": spent.share,
            "goodput_24h": find_recent_share(run, now()),
            "goodput_s": spent.goodput_s,
            "badput_s": {str(kind): seconds for kind, seconds in spent.badput_s.items()},
            "dollars": spent.dollars,
            "lost_dollars": spent.lost_dollars,
            "saved_s": spent.saved_s,
            "saved_dollars": spent.saved_dollars,
            "mttd_s": spent.mttd_s,
            "mttr_s": spent.mttr_s,
        },
        "budgets": {str(cause): count for cause, count in remaining_retries(run.ledger, policy).items()},
        "incidents": [_plain_incident(run, incident, policy) for incident in run.incidents],
        "run": to_plain(replace(run, signing_key="")),  # what it is for ends where others read it
        "timeline": [to_plain(entry) for entry in timeline],
    }


def _plain_incident(run: Run, incident: Incident, policy: Policy) -> dict[str, Any]:
    ended = incident.closed_at if incident.recovered else None
    return {
        **to_plain(incident),
        "mttd_s": max(0.0, (incident.decided_at - incident.happened_at).total_seconds()),
        "mttr_s": (ended - incident.happened_at).total_seconds() if ended else None,
        "lost_steps": incident.lost_steps,
        "dollars": find_incident_dollars(run, incident, now(), policy.prices),
    }


def make_attempts_table(run: Run) -> Table:
    """Return the job of each attempt with its steps, and below it one line of evidence of why it ended."""
    table = _make_list("attempts")
    for attempt in run.attempts:
        start = _start(attempt)
        steps = (
            f"from step {start}" if start else "",
            "(drill)" if attempt.drill else f"({attempt.rung})" if attempt.rung else "",
            f"to step {attempt.last_step}" if attempt.last_step is not None else "",
        )
        facts = (
            _job(attempt) + (f" ({attempt.cause})" if attempt.cause else ""),
            " ".join(filter(None, steps)),
            *_orders(attempt),
            f"on {format_instance_types(attempt.machines)}" if attempt.machines else "",
            f"failed on {attempt.gpu}" if attempt.gpu else "",
        )
        lines = [Text.assemble((attempt.job_name, "bold"), "  ", ", ".join(filter(None, facts)))]
        if evidence := find_evidence(attempt, run):
            lines.append(Text(evidence, style="red" if attempt.status is JobStatus.FAILED else ""))
        table.add_row(str(attempt.number), Group(*lines))
    return table


def _start(attempt: Attempt) -> str:
    """Return the step it resumed from; of a script that resumes by itself, the one before its first reported step."""
    if attempt.resumed_from_step is None and attempt.began_step is not None:
        return f"{attempt.began_step} (by itself)"
    return format_step(attempt.began_step) + format_ordered(attempt)


def _orders(attempt: Attempt) -> Iterator[str]:
    """Where each restart in place has begun, or was to begin."""
    for order in attempt.in_place_restarts:
        start = "the newest save" if order.began_step is None else format_step(order.began_step)
        start += format_ordered(order)
        yield f"in place: {start}" + ("" if order.restarted_at else ", failed" if order.failed else ", ordered")


def make_timeline_table(timeline: Any, *, newest: int | None = None) -> Table:
    """Return a row for each decision, oldest first."""
    table = Table(title="timeline", title_justify="left", title_style="bold", box=None, pad_edge=False, expand=True)
    table.add_column("time", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("decision and reason", ratio=1)
    entries: list[TimelineEntry] = list(timeline)
    for entry in entries[-newest:] if newest else entries:
        table.add_row(format_moment(entry.at), format_state(entry.after), escape(entry.reason))
    return table


def format_wait(check: LaunchCheck) -> str:
    """Return what a launch or a proposal waits for, as users read it."""
    return "the end of the pause" if check is LaunchCheck.PAUSE else check


def describe_waits(run: Run) -> Iterator[str]:
    """Yield what the run waits for, and how to answer a proposal."""
    if run.blocked_by:
        yield f"[yellow]its next job waits for:[/] {format_wait(run.blocked_by)}"
    if run.state is RunState.SAVING and run.stop:
        verb = "stop" if run.stop.then is AfterStop.END else "restart"
        yield f"it waits for a checkpoint {format_deadline(run.stop)}; `rerail {verb} {run.id} --now` stops at once"
    if run.proposal:
        proposal = run.proposal
        source = f" ({proposal.dollars_source})" if proposal.dollars_source else ""
        cost = "" if proposal.dollars is None else f", for about {format_dollars(proposal.dollars)}{source}"
        until = format_limit(proposal.expires_at)
        whom = format_wait(proposal.awaits)
        yield f"[yellow]{proposal.id} waits for {whom}:[/] {escape(proposal.what)}{cost}, until {until}"
        words = " or ".join(f"`rerail {verb} {run.id} --proposal {proposal.id}`" for verb in ("approve", "deny"))
        yield f"answer with: {words}"


def describe_machines(run: Run) -> Iterator[str]:
    """Yield the warm pool that is kept, and SageMaker's own repairs."""
    if kept := warm_pools.find_pool_attempt(run):
        status = kept.pool.status if kept.pool else "if SageMaker keeps one"
        most = format_duration(timedelta(seconds=kept.keep_alive_seconds))
        yield f"warm pool of {kept.job_name}: {status}, for {most} at most"
    if repairs := format_repairs(run.current.repairs):
        lost = format_duration(timedelta(seconds=run.current.repair_seconds))
        yield f"restarted by SageMaker itself: {repairs}; {lost} until it trained again"


def describe_utilization(where: Place, run: Run) -> Iterator[str]:
    """Yield how busy the machines of the running job are; nothing if that cannot be read."""
    attempt = run.current
    if not attempt.may_be_live:
        return
    try:
        busy = read_utilization(where.client("cloudwatch"), attempt.job_name, attempt.instance_count, at=now())
    except (ClientError, BotoCoreError):
        return
    if busy:
        yield str(busy)


def describe_spending(run: Run, policy: Policy) -> Iterator[str]:
    """Yield what the run has cost, its cap, and the runtime that is left."""
    spent, (cap, _) = make_account(run, now(), policy).dollars, find_run_cap(policy)
    if spent is None:
        yield f"cost so far: not known, the policy has no price for {find_unpriced_type(run, policy.prices)}"
    elif spent:
        counted = sum_run_dollars(run, now(), policy.prices) if run.ledger.forgiven else spent
        since = "" if counted is None or counted == spent else f", {format_dollars(counted)} since its release"
        yield f"cost so far: {format_dollars(spent)}{since}" + (f" of at most {format_dollars(cap)}" if cap else "")
    left = find_runtime_left(run, now(), policy)
    if left is not None:
        yield f"left of its MaxRuntimeInSeconds: {format_duration(timedelta(seconds=max(0.0, left)))}"


def describe_saving(run: Run, policy: Policy) -> Iterator[str]:
    """Yield the recommended checkpoint interval; nothing if it cannot be computed."""
    from rerail.aws.s3 import S3Checkpoints

    try:
        checkpoints = S3Checkpoints().list_checkpoints(run.checkpoint_uri) if run.checkpoint_uri else ()
    except (RerailError, ClientError, BotoCoreError):
        return
    if advice := advise_interval(run, checkpoints, policy, at=now()):
        yield f"saving: {format_advice(advice)}"


def format_budgets(run: Run, policy: Policy) -> str:
    """Return the retries that each cause has left."""
    return ", ".join(f"{count} {cause}" for cause, count in remaining_retries(run.ledger, policy).items())


def format_state(state: RunState) -> str:
    return f"[{STYLES.get(state, 'yellow')}]{state}[/]"


def format_clock(at: datetime) -> str:
    return f"{at:%H:%M:%S}"


def format_moment(at: datetime) -> str:
    """Return the time of day, with the date if it is not today (UTC)."""
    return format_clock(at) if at.date() == now().date() else f"{at:%Y-%m-%d %H:%M:%S}"


def format_limit(at: datetime) -> str:
    """Return the moment, and how far from now it is."""
    left = at - now()
    distance = format_length(abs(left).total_seconds())
    return f"{format_moment(at)} ({f'in {distance}' if left >= timedelta() else f'{distance} ago'})"


def format_step(value: int | None) -> str:
    return "" if value is None else str(value)


def _policy(run: Run) -> str:
    return f"{run.policy} (observing only)" if run.observe_only else run.policy


def _job(attempt: Attempt) -> str:
    return f"{attempt.status or 'not launched yet'}" + (f" / {attempt.secondary}" if attempt.secondary else "")
