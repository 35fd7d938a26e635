"""An operator's wishes, put on the bus for the supervisor, and the kill switch of the account."""

import getpass
import json
from enum import StrEnum
from typing import Annotated

import typer
from rich import print as say

from cli import place
from cli.place import Local, Place
from rerail.signals import Verb
from rerail.switch import OFF, ON
from rerail.wakeups import COMMAND, OPERATOR

RunName = Annotated[str, typer.Argument(help="The run, as `rerail status` names it.")]
Why = Annotated[str, typer.Option("--why", help="Kept in the run's timeline, with your name.")]

ProposalId = Annotated[str, typer.Option("--proposal", help="The proposal's id, as the page names it.")]
SPOKEN = {ON: "jobs are stopped and created as the policies say", OFF: "no job is stopped or created"}


class SwitchWish(StrEnum):
    """What may be asked of the kill switch."""

    ON = ON
    OFF = OFF
    STATUS = "status"


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


def approve(run: RunName, proposal: ProposalId = "", why: Why = "", local: Local = False) -> None:
    """Say yes to what is proposed for a run: its job is stopped and relaunched, or its next one created."""
    answer(place.find(local=local), run, Verb.APPROVE, proposal, why)


def deny(run: RunName, proposal: ProposalId = "", why: Why = "", local: Local = False) -> None:
    """Say no to what is proposed for a run: a job that runs goes on, a dead run is held."""
    answer(place.find(local=local), run, Verb.DENY, proposal, why)


def switch(
    wish: Annotated[SwitchWish, typer.Argument(help="off: no job is stopped or created until it is on again.")],
    local: Local = False,
) -> None:
    """Throw the kill switch of the account, or see how it stands; honoured within a minute or two."""
    where = place.find(local=local)
    ssm, name = where.client("ssm"), where.outputs["SwitchParameter"]
    if wish is not SwitchWish.STATUS:
        ssm.put_parameter(Name=name, Value=wish.value, Overwrite=True, Type="String")
    stands = ssm.get_parameter(Name=name)["Parameter"]["Value"]
    means = SPOKEN.get(stands, "neither on nor off, which counts for nothing")
    say(f"the kill switch of {where.name} is {stands}: {means}")


def answer(where: Place, run: str, verb: Verb, proposal: str, why: str) -> None:
    """Without an id, to what stands now: it is shown, and it alone is answered."""
    record = where.runs.load(run)
    if record is None:
        place.fail(f"there is no run {run!r} in {where.name}", "`rerail status` lists the runs")
    if record.proposal is None:
        place.fail(f"nothing waits for approval in run {run!r} ({record.state})", f"`rerail show {run}` tells why")
    if proposal and proposal != record.proposal.id:
        standing = record.proposal
        place.fail(
            f"{proposal} does not stand any more, {standing.id} does: {standing.what}",
            f"look at `rerail show {run}`, then answer {standing.id}",
        )
    say(f"{record.proposal.id}: {record.proposal.what} ({record.proposal.why})")
    _ask(where, run, verb, why, proposal=record.proposal.id)


def _ask(where: Place, run: str, verb: Verb, why: str, **more: str) -> None:
    if where.runs.load(run) is None:
        place.fail(f"there is no run {run!r} in {where.name}", "`rerail status` lists the runs")
    detail = {"run": run, "verb": verb.value, "who": getpass.getuser(), "why": why, **more}
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
