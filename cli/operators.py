"""An operator's wishes, put on the bus for the supervisor: hold, release, stop, restart."""

import getpass
import json
from typing import Annotated

import typer
from rich import print as say

from cli import place
from cli.place import Local, Place
from rerail.signals import Verb
from rerail.wakeups import COMMAND, OPERATOR

RunName = Annotated[str, typer.Argument(help="The run, as `rerail status` names it.")]
Why = Annotated[str, typer.Option("--why", help="Kept in the run's timeline, with your name.")]


def hold(run: RunName, why: Why = "", local: Local = False) -> None:
    """Stop supervising a run; a job that is running goes on."""
    _ask(place.find(local=local), run, Verb.HOLD, why)


def release(run: RunName, why: Why = "", local: Local = False) -> None:
    """Take a held run up again: every budget starts afresh, a dead job is relaunched."""
    _ask(place.find(local=local), run, Verb.RELEASE, why)


def stop(run: RunName, why: Why = "", local: Local = False) -> None:
    """End a run: wait for its next checkpoint, then stop its job."""
    _ask(place.find(local=local), run, Verb.STOP, why)


def restart(run: RunName, why: Why = "", local: Local = False) -> None:
    """Move a run to fresh machines: wait for its next checkpoint, stop its job, relaunch from there."""
    _ask(place.find(local=local), run, Verb.RESTART, why)


def _ask(where: Place, run: str, verb: Verb, why: str) -> None:
    if where.runs.load(run) is None:
        place.fail(f"there is no run {run!r} in {where.name}", "`rerail status` lists the runs")
    detail = {"run": run, "verb": verb.value, "who": getpass.getuser(), "why": why}
    entry = {
        "EventBusName": where.outputs["BusName"],
        "Source": OPERATOR,
        "DetailType": COMMAND,
        "Detail": json.dumps(detail),
    }
    answer = where.client("events").put_events(Entries=[entry])
    if answer["FailedEntryCount"]:
        place.fail(f"the bus refused the command: {answer['Entries'][0].get('ErrorMessage')}", "try again")
    say(f"asked: {verb} {run}. `rerail show {run}` tells what became of it.")
