"""`rerail policy check`, `list` and `show`."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from cli import place
from cli.console import Console
from cli.lean_values import LeanCommand
from cli.names import complete_policies
from cli.place import AsJson, Local
from cli.policies.check import check_file
from cli.policies.deployed import Stands, compare_policies, read_deployed_texts
from cli.policies.words import list_rows
from cli.project import read_policy_text
from rerail.model.errors import PolicyError
from rerail.model.policy import Policy, parse_policy

app = typer.Typer(
    help="Policies: checked, compared with what is deployed, shown in full.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
STYLES = {Stands.SAME: "green", Stands.DIFFERS: "yellow", Stands.NOT_DEPLOYED: "yellow", Stands.NOT_IN_FILES: "yellow"}
SHOWN = 4


@app.command(cls=LeanCommand)
def check(
    files: Annotated[list[Path], typer.Argument(help="TOML files, such as policies/*.toml.", metavar="FILE...")],
    as_json: AsJson = False,
) -> None:
    """Read policies as the deployment would; exit status 1 if one cannot be deployed. What is odd does not fail."""
    found = [check_file(file) for file in files]
    if as_json:
        typer.echo(json.dumps({"files": [asdict(policy) for policy in found]}, indent=2))
    else:
        console = Console(soft_wrap=True)
        for policy in found:
            read = f"[green]ok[/], policy {policy.name} with {policy.given} value{'s' * (policy.given != 1)}"
            state = "[red]cannot be deployed[/]" if policy.problems else read
            console.print(f"{escape(policy.file)}: {state}")
            for problem in policy.problems:
                console.print(f"  [red]error[/] {escape(problem)}")
            for warning in policy.warnings:
                console.print(f"  [yellow]odd[/]   {escape(warning)}")
    if any(policy.problems for policy in found):
        raise typer.Exit(1)


@app.command("list", cls=LeanCommand)
def list_policies(local: Local = False, as_json: AsJson = False) -> None:
    """The deployed policies beside the files in policies/, and which of them differ."""
    where = place.find(local=local)
    found = compare_policies(where)
    if as_json:
        typer.echo(json.dumps({"policies": [asdict(policy) for policy in found]}, indent=2))
        return
    table = Table("policy", "mode", "stands", "what differs", title=where.name, title_justify="left")
    for policy in found:
        more = f" and {len(policy.fields) - SHOWN} more" if len(policy.fields) > SHOWN else ""
        difference = policy.problem or ", ".join(policy.fields[:SHOWN]) + more
        table.add_row(policy.name, policy.mode, f"[{STYLES[policy.stands]}]{policy.stands}[/]", escape(difference))
    Console().print(table)


@app.command(cls=LeanCommand)
def show(
    name: Annotated[
        str, typer.Argument(help="A policy's name, or a TOML file.", autocompletion=complete_policies, metavar="NAME")
    ],
    deployed: Annotated[
        bool, typer.Option("--deployed", help="As it is deployed in the account, not as its file is.")
    ] = False,
    local: Local = False,
    as_json: AsJson = False,
) -> None:
    """Every value that is in force under a policy, and which of them are not the default's."""
    text, source = _deployed(name, local=local) if deployed or local else read_policy_text(name)
    try:
        policy = parse_policy(text, name=Path(name).stem)
    except PolicyError as error:
        place.fail(str(error), f"`rerail policy check {source}` names all that is wrong")
    values, usual = dict(list_rows(policy)), dict(list_rows(Policy()))
    if as_json:
        fields = {
            key: {"value": value, "default": usual[key], "differs": value != usual[key]}
            for key, value in values.items()
        }
        typer.echo(json.dumps({"name": policy.name, "source": source, "fields": fields}, indent=2))
        return
    _print(policy.name, source, values, usual)


def _print(name: str, source: str, values: Mapping[str, Any], usual: Mapping[str, Any]) -> None:
    table = Table("", "field", "value", "default", title=f"{name}, from {source}", title_justify="left")
    for key, value in values.items():
        differs = value != usual[key]
        text, default = escape(json.dumps(value)), escape(json.dumps(usual[key]))
        row = ("*", key, text, default) if differs else ("", key, text, "")
        table.add_row(*row, style="bold yellow" if differs else None)
    console = Console()
    console.print(table)
    count = sum(value != usual[key] for key, value in values.items())
    console.print(f"* {count} of {len(values)} values are not the default's")


def _deployed(name: str, *, local: bool) -> tuple[str, str]:
    where = place.find(local=local)
    texts = read_deployed_texts(where)
    if name not in texts:
        place.fail(
            f"no policy {name!r} is deployed in {where.name}", f"give one of {', '.join(sorted(texts)) or 'none'}"
        )
    return texts[name], where.name
