"""What people see of a deployment: permissions, resources, progress, and what to do next."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from cli.deploy import permissions
from cli.deploy.changes import ResourceChange
from cli.deploy.formation import is_met
from cli.deploy.target import Target

SHOWN = 40
STYLES = {True: "bold red", None: "yellow", False: ""}


def show_target(console: Console, target: Target, stack: str, status: str) -> None:
    """Print the account and region."""
    table = Table(show_header=False, box=None)
    table.add_row("account", target.account)
    table.add_row("region", target.region)
    table.add_row("you are", Text(target.who))
    table.add_row("stack", f"{stack}, {status or 'not deployed yet'}")
    console.print(table)


def show_permissions(console: Console, change: permissions.Change) -> None:
    """Print the changed permissions, grouped by principal."""
    if not change:
        console.print("permissions: as they are")
        return
    for sign, style, granted in (("+", "green", change.added), ("-", "red", change.removed)):
        for who, sentences in permissions.format_lines(granted).items():
            console.print(Text(f"{sign} {who}", style=f"bold {style}"))
            for sentence in sentences:
                console.print(Text(f"  {sign} {sentence}", style=style))
    wild = sum(grant.is_wild for grant in change.added)
    console.print(f"permissions: {len(change.added)} more, {len(change.removed)} fewer; {wild} of the new on wildcards")


def show_resources(console: Console, found: Sequence[ResourceChange]) -> None:
    """Print each changed or removed resource, and the number of new ones."""
    new = [change for change in found if change.action == "Add"]
    for change in [change for change in found if change.action != "Add"][:SHOWN]:
        style = "bold red" if change.danger else STYLES[change.replaced]
        console.print(Text(f"  {change.spoken}", style=style))
    if len(found) - len(new) > SHOWN:
        console.print(f"  and {len(found) - len(new) - SHOWN} more")
    console.print(f"resources: {len(new)} new, {len(found) - len(new)} of those that are there")


@contextmanager
def show_progress(console: Console, what: str, ids: Collection[str]) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Show a bar on a terminal, or a line for each resource elsewhere; yield the function to call with each event."""
    total = len(ids)
    if not console.is_terminal:
        met = 0

        def print_event(event: Mapping[str, Any]) -> None:
            nonlocal met
            there = is_met(event) and event["LogicalResourceId"] in ids
            met += there
            if there or "FAILED" in event["ResourceStatus"]:
                console.print(Text(f"{what}: {met}/{total} {_format_event(event)}"))

        yield print_event
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.fields[now]}", markup=False), console=console, transient=True) as bar:
        task = bar.add_task(what, total=total, now="")

        def advance(event: Mapping[str, Any]) -> None:
            there = is_met(event) and event["LogicalResourceId"] in ids
            bar.update(task, advance=int(there), now=_format_event(event))
            if "FAILED" in event["ResourceStatus"]:
                bar.console.print(Text(_format_event(event), style="red"))

        yield advance


def _format_event(event: Mapping[str, Any]) -> str:
    reason = event.get("ResourceStatusReason") or ""
    id, status = permissions.strip_hash(event["LogicalResourceId"]), event["ResourceStatus"]
    return f"{id} {status}" + (f": {reason}" if "FAILED" in status else "")


def show_next_steps(
    console: Console, outputs: Mapping[str, str], *, address: str, was_there: bool, local: bool
) -> None:
    """Print the outputs and what to do next."""
    table = Table("output", "value", title="deployed", title_justify="left")
    for name, value in sorted(outputs.items()):
        table.add_row(name, value)
    console.print(table)
    flag = " --local" if local else ""
    if address:
        console.print(f"1. If you have not yet: confirm the mail that AWS sends to {address}, or no one is paged.")
    else:
        console.print(
            "1. No one is paged by e-mail yet: run this again with -c pageEmail=YOU@EXAMPLE.COM", style="yellow"
        )
    if was_there:
        console.print(f"2. Open runs go on as they were: `rerail status{flag}`.")
    else:
        console.print(
            "2. Supervise a job: give it the tag rerail:policy=default, or `rerail submit train.py --role ROLE`."
        )
        console.print("   The alarm of the dead man may ring once, until the first sweep.")
    console.print(f"3. `rerail doctor{flag}` says whether everything is in its place.")
