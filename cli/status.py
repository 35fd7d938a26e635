"""`rerail status`: the fleet at a glance, once or redrawn every few seconds."""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any, Literal

import typer
from botocore.exceptions import BotoCoreError, ClientError
from rich.console import Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from cli import place
from cli.console import Console
from cli.fleet import FleetReader, select_rows
from cli.names import complete_policies, complete_states
from cli.place import AsJson, Local
from cli.runs import STYLES, describe_saving, lacks_step_metric
from rerail.decisions.checkpoint_health import find_open_warning
from rerail.incident_report.fleet import FleetRow, FleetStatus, describe_incident, describe_state
from rerail.model.errors import RerailError
from rerail.model.formatting import format_dollars
from rerail.model.run import Run, RunState
from rerail.ports import policy_of

ENDED_SHOWN = 10
# From so many columns on there is room for the last incident, and for the policy.
WIDE, WIDER = 110, 150
MOST_TODO = 10
PAUSES = {
    True: ("PAUSED: no job is stopped or launched", "bold red"),
    False: ("active", "green"),
    None: ("pause unknown", "yellow"),
}
MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0

States = Annotated[
    list[RunState] | None,
    typer.Option("--state", help="Only runs in this state; may be given again.", autocompletion=complete_states),
]
PolicyName = Annotated[
    str, typer.Option("--policy", help="Only runs under this policy.", autocompletion=complete_policies)
]


def status(
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Redraw it every few seconds, until Ctrl-C.")] = False,
    every: Annotated[float, typer.Option(help="With --watch: seconds between two looks.", min=1.0)] = 5.0,
    state: States = None,
    policy: PolicyName = "",
    everything: Annotated[bool, typer.Option("--all", help="All ended runs, not only the newest.")] = False,
    advice: Annotated[
        bool, typer.Option("--advice", help="Say how often each would best save; lists its saves.")
    ] = False,
    organization: Annotated[
        bool, typer.Option("--organization", help="All accounts, as the hub knows them; with the hub's credentials.")
    ] = False,
    open_it: Annotated[bool, typer.Option("--open", help="Open them as a page in the browser.")] = False,
    local: Local = False,
    as_json: AsJson = False,
) -> None:
    """All runs: their state, step, cost and goodput, and what is to be done."""
    from rerail.aws.ssm import SsmPolicies

    if organization:
        if watch or state or policy or everything or advice or open_it or local:
            place.fail("--organization takes --json alone", "leave the other options out")
        from cli.organization import show_organization

        show_organization(as_json=as_json)
        return
    if watch + as_json + open_it > 1:
        place.fail("--watch, --json and --open exclude each other", "leave all but one of them out")
    look = FleetReader(place.find(local=local))
    ended = None if everything else ENDED_SHOWN

    def rows_of(fleet: FleetStatus) -> list[FleetRow]:
        return look.with_saved_steps([*select_rows(fleet.rows, states=state or (), policy=policy, ended=ended)])

    if watch:
        _watch(look, rows_of, every)
        return
    fleet = look.read()
    rows = rows_of(fleet)
    if as_json:
        typer.echo(json.dumps(look.where.complete_plain(make_plain_fleet(fleet, rows)), indent=2))
        return
    if open_it:
        _open_page(replace(fleet, rows=tuple(rows)))
        return
    console = Console()
    console.print(make_picture(fleet, rows, width=console.width))
    if not fleet.rows:
        console.print("no runs yet. A job joins soon after it starts with tag rerail:policy=default")
    policies = SsmPolicies(look.where.outputs["PolicyPrefix"], place.now)
    for row in rows if advice else ():
        for line in describe_saving(row.run, policy_of(row.run, policies)):
            console.print(f"{row.run.id}: {line}")


def _open_page(fleet: FleetStatus) -> None:
    """Write the page of the runs, and open it."""
    from cli.report import open_page, write_page

    def render() -> str:
        from report_page.fleet_page import render_fleet_page

        return render_fleet_page(fleet)

    page = place.LOCAL_STATE / "reports" / "all-runs.html"
    write_page(page, render)
    typer.echo(f"page: {page}")
    open_page(page)


def _watch(look: FleetReader, rows_of: Any, every: float) -> None:
    """Redraw until Ctrl-C; the last picture stays on the terminal, to be read. What cannot be looked up now is said,
    and looked up again."""
    console = Console()
    if not console.is_terminal:
        place.fail("--watch needs a terminal to redraw", "leave it out, or ask again and again with --json")
    with console.status(f"reading the runs of {look.where.name}"):
        fleet = look.read()
    trouble = Text()
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                drawn = make_picture(fleet, rows_of(fleet), width=console.width, height=console.height - 1)
                live.update(Group(drawn, trouble), refresh=True)
                time.sleep(every)
                try:
                    fleet, trouble = look.read(), Text()
                except (ClientError, BotoCoreError, RerailError) as error:
                    said = f"cannot look now: {' '.join(str(error).split())}"
                    trouble = Text(said, style="red", no_wrap=True, overflow="ellipsis")
    except KeyboardInterrupt:
        console.print(make_picture(fleet, rows_of(fleet), width=console.width))


def make_picture(
    fleet: FleetStatus, rows: Sequence[FleetRow], *, width: int, height: int | None = None
) -> RenderableType:
    """Return the head, a row for each run and what to do, cut to the height if one is given."""
    todos = [row for row in rows if row.todo]
    room = len(rows)
    if height is not None:
        room = max(3, height - 9 - 2 * min(len(todos), MOST_TODO) - len(fleet.alarms or ()))
    parts: list[RenderableType] = [make_head(fleet)]
    if rows:
        parts += [Text(), make_table(rows[:room], fleet.at, width=width, folds=height is None)]
    left = len(fleet.rows) - min(room, len(rows))
    if rows and left:
        parts.append(Text(f"and {left} more runs: --all, --state and --policy choose", style="dim"))
    if todos:
        parts += [Text(), *_todos(todos, wraps=height is None)]
    return Group(*parts)


def make_head(fleet: FleetStatus) -> RenderableType:
    """Return the deployment, the runs by state, the pause and the supervisor's health."""
    first = Text.assemble(("Rerail", "bold"), f"  {fleet.name}  ", (f"{fleet.at:%Y-%m-%d %H:%M:%S} UTC", "dim"))
    counts = Text("  ").join(
        Text.assemble((str(count), "bold"), " ", (state, STYLES.get(RunState(state), "yellow")))
        for state, count in fleet.counts.items()
    )
    words = Text.assemble(PAUSES[fleet.paused], "   supervisor ", _health(fleet))
    lines = [first, counts, words] if fleet.counts else [first, words]
    lines += [Text.assemble(("  alarm  ", "bold red"), said) for said in fleet.alarms or ()]
    for error, runs in fleet.shared_errors.items():
        some = ", ".join(runs[:3]) + (f" and {len(runs) - 3} more" if len(runs) > 3 else "")
        lines.append(Text.assemble(("  error  ", "bold red"), f"{error}: {some}"))
    if fleet.unread:
        said = f"written by another version than this: {', '.join(fleet.unread)}. To do: use that one, or deploy it"
        lines.append(Text.assemble(("  unread ", "bold red"), said))
    return Group(*lines)


def _health(fleet: FleetStatus) -> tuple[str, str]:
    if fleet.alarms is None:
        return "not known: its alarms cannot be read", "yellow"
    if fleet.alarms:
        return f"NOT WELL: {len(fleet.alarms)} alarm" + ("s" if len(fleet.alarms) > 1 else ""), "bold red"
    return "well", "green"


def make_table(rows: Sequence[FleetRow], at: datetime, *, width: int, folds: bool = True) -> Table:
    """Return a row for each run; narrow terminals get fewer columns, and names on more lines or cut."""
    drawn = Table(box=None, padding=(0, 1), pad_edge=False, header_style="dim")
    lines = [[*_cells(row, at, is_wide=width >= WIDE)] for row in rows]
    overflow: Literal["fold", "ellipsis"] = "fold" if folds else "ellipsis"
    drawn.add_column("run", no_wrap=not folds, overflow=overflow, max_width=max(14, width // 4))
    for place_, name in enumerate(("state", "for", "try", "step", "age", "goodput", "cost"), start=1):
        widest = max(len(name), *(line[place_].cell_len for line in lines))
        drawn.add_column(name, no_wrap=True, min_width=widest, justify="left" if name == "state" else "right")
    if width >= WIDE:
        drawn.add_column("last incident", no_wrap=True, overflow="ellipsis")
    if width >= WIDER:
        drawn.add_column("policy", no_wrap=True)
    for row, cells in zip(rows, lines, strict=True):
        cells += [_incident(row.run, at)] if width >= WIDE else []
        cells += [Text(_policy(row.run))] if width >= WIDER else []
        drawn.add_row(*cells, style="" if row.is_open else "dim")
    return drawn


def _cells(row: FleetRow, at: datetime, *, is_wide: bool) -> Iterator[Text]:
    run = row.run
    yield Text(run.id, style="bold" if row.is_open else "")
    warning = find_open_warning(run)
    words = describe_state(run) if is_wide or warning else run.state.value
    yield Text(words, style="yellow" if warning else STYLES.get(run.state, "yellow"))
    yield Text(format_age(row.since, at))
    yield Text(str(run.current.number))
    yield Text(_format_step(row))
    yield Text(format_age(row.step_at, at))
    yield Text("" if row.share is None else f"{row.share:.1%}")
    yield Text("" if row.dollars is None else format_dollars(row.dollars))


def _format_step(row: FleetRow) -> str:
    """Return the newest step, or why none is known."""
    if row.step is not None:
        return f"{row.step:,}"
    if lacks_step_metric(row.run):
        return "no metric"
    return "none yet" if row.run.current.ended_at is None else "-"


def _incident(run: Run, at: datetime) -> Text:
    if not run.incidents:
        return Text()
    last = run.incidents[-1]
    style = "green" if last.recovered else "red" if last.closed_at else "yellow"
    cause, said = describe_incident(last)
    return Text.assemble(f"{format_age(last.happened_at, at)} ago ", (cause, "bold"), ": ", (said, style))


def _todos(rows: Sequence[FleetRow], *, wraps: bool) -> Iterator[RenderableType]:
    """What an operator has to do, each with its command on a line of its own, to be copied."""
    yield Text("to do", style="bold red")
    for row in rows[:MOST_TODO]:
        said = Text.assemble((row.run.id, "bold"), " ", " ".join(row.todo.split()))
        said.no_wrap, said.overflow = not wraps, "ellipsis"
        yield Padding(said, (0, 0, 0, 1), expand=False)
        yield Text(f"   {row.command}", style="cyan", no_wrap=True)
    if len(rows) > MOST_TODO:
        yield Text(f"  and {len(rows) - MOST_TODO} more: --state held", style="dim")


def _policy(run: Run) -> str:
    return f"{run.policy} (observing)" if run.observe_only else run.policy


def format_age(then: datetime | None, at: datetime) -> str:
    """Return the time since then in a few characters: 14s, 3m, 2.1h, 5d."""
    if then is None:
        return ""
    seconds = max(0.0, (at - then).total_seconds())
    if seconds < MINUTE:
        return f"{seconds:.0f}s"
    if seconds < 100 * MINUTE:
        return f"{seconds / MINUTE:.0f}m"
    if seconds < 2 * DAY:
        return f"{seconds / HOUR:.1f}h" if seconds < 10 * HOUR else f"{seconds / HOUR:.0f}h"
    return f"{seconds / DAY:.0f}d"


def make_plain_fleet(fleet: FleetStatus, rows: Sequence[FleetRow]) -> dict[str, Any]:
    """Return the fleet as JSON types: seconds, dollars, times in ISO 8601."""
    return {
        "place": fleet.name,
        "at": fleet.at.isoformat(),
        "paused": fleet.paused,
        "supervisor": {"alarms": None if fleet.alarms is None else list(fleet.alarms)},
        "counts": dict(fleet.counts),
        "shared_errors": fleet.shared_errors,
        "unread": list(fleet.unread),
        "runs": [_plain(row) for row in rows],
    }


def _plain(row: FleetRow) -> dict[str, Any]:
    run, last = row.run, row.run.incidents[-1] if row.run.incidents else None
    return {
        "id": run.id,
        "state": run.state.value,
        "since": row.since.isoformat() if row.since else None,
        "policy": run.policy,
        "observe_only": run.observe_only,
        "attempt": run.current.number,
        "job": run.current.job_name,
        "job_status": run.current.status,
        "step": row.step,
        "step_at": row.step_at.isoformat() if row.step_at else None,
        "goodput": None if row.share is None else round(row.share, 4),
        "dollars": row.dollars,
        "waits_for": run.proposal.awaits if run.proposal else run.blocked_by,
        "warning": find_open_warning(run),
        "hold_reason": run.hold_text,
        "proposal": run.proposal.id if run.proposal else None,
        "todo": row.todo,
        "command": row.command,
        "incidents": len(run.incidents),
        "last_incident": last
        and {
            "kind": last.kind,
            "cause": last.cause,
            "happened_at": last.happened_at.isoformat(),
            "recovered": last.recovered,
            "resolution": last.resolution,
        },
    }
