"""Operators' commands, put on the bus for the supervisor, and the pause of the account."""

import getpass
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import typer
from botocore.exceptions import BotoCoreError, ClientError

from cli import place
from cli.console import Console
from cli.names import RunName, find_run
from cli.place import AsJson, Local, Place
from cli.saves import explain_passed_over, list_checkpoints
from cli.trouble import explain
from rerail.decisions.decision import find_manifest_key, format_next_command, has_agent
from rerail.decisions.file_copies import list_copies_before
from rerail.decisions.on_command import find_refusal
from rerail.incident_report.fleet import find_policy
from rerail.messages.messages import COMMAND, OPERATOR
from rerail.model.policy import Policy
from rerail.model.run import Run, RunState
from rerail.model.signals import OperatorVerb
from rerail.supervisor.pause import ACTIVE, PAUSED, parse_pause

Why = Annotated[str, typer.Option("--why", help="Kept in the run's timeline, with your name.")]

Now = Annotated[bool, typer.Option("--now", help="Do not wait for a checkpoint.")]
ProposalId = Annotated[str, typer.Option("--proposal", help="The proposal's id, as the page names it.")]
MOST_NAMED = 12  # steps, in an error
SPOKEN = {
    True: "Rerail is paused for this account, within two minutes: no job is stopped or launched. "
    "To lift the pause: rerail resume",
    False: "Rerail is active for this account, within two minutes: what waited for the end of the pause goes on",
}


def hold(run: RunName, why: Why = "", local: Local = False, as_json: AsJson = False) -> None:
    """Stop supervising a run; a job that is running goes on."""
    where = place.find(local=local)
    check_effect(where, find_run(where, run), OperatorVerb.HOLD)
    ask(where, run, OperatorVerb.HOLD, why, as_json=as_json)


def release(run: RunName, why: Why = "", local: Local = False, as_json: AsJson = False) -> None:
    """Take a held run up again: every budget starts afresh, a dead job is relaunched."""
    where = place.find(local=local)
    check_effect(where, find_run(where, run), OperatorVerb.RELEASE)
    ask(where, run, OperatorVerb.RELEASE, why, as_json=as_json)


def stop(run: RunName, why: Why = "", at_once: Now = False, local: Local = False, as_json: AsJson = False) -> None:
    """End a run: wait for its next checkpoint, then stop its job."""
    ask_to_stop(place.find(local=local), run, OperatorVerb.STOP, why, at_once=at_once, as_json=as_json)


def restart(run: RunName, why: Why = "", at_once: Now = False, local: Local = False, as_json: AsJson = False) -> None:
    """Move a run to fresh machines: wait for its next checkpoint, stop its job, relaunch from there."""
    ask_to_stop(place.find(local=local), run, OperatorVerb.RESTART, why, at_once=at_once, as_json=as_json)


def ask_to_stop(where: Place, run: str, verb: OperatorVerb, why: str, *, at_once: bool, as_json: bool) -> None:
    """Have the job stopped, and say until when it is waited for a checkpoint."""
    record = find_run(where, run)
    check_effect(where, record, verb)
    ask(where, run, verb, why, as_json=as_json, at_once=at_once)
    if not at_once and record.current.training_started_at and record.current.may_be_live and record.checkpoint_uri:
        until = format_save_deadline(record)
        now = f"rerail {verb} {run} --now"
        then = f"if it is accepted, the job waits for a checkpoint {until}; `{where.complete_text(now)}` stops at once"
        say(then, as_json)


def format_save_deadline(run: Run) -> str:
    """Return until when a save that is asked for now is waited for, in words: as `checkpoint_then_stop` decides."""
    at, patience = place.now(), (run.last_policy or Policy()).save.deadline
    if not run.current.agent and run.current.training_started_at:
        patience = min(patience, at - run.current.training_started_at)
    return f"until {at + patience:%H:%M} UTC"


def rollback(
    run: RunName,
    to: Annotated[int, typer.Option("--to", help="Back to the newest clean checkpoint at or before it.", min=0)],
    why: Why = "",
    local: Local = False,
    as_json: AsJson = False,
) -> None:
    """Roll a run back to a step: nothing that it has saved after it so far is resumed from any more.

    A job that runs is stopped first, a held run is released. Nothing is deleted; --to 0 begins again.
    """
    where = place.find(local=local)
    record = find_run(where, run)
    start = find_rollback_start(where, record, to)
    ask(where, run, OperatorVerb.ROLLBACK, why, as_json=as_json, step=to)
    say(
        f"if it is accepted, {run} starts again from step {start}; "
        f"what it has saved after step {to} is kept, and not resumed from",
        as_json,
    )


def find_rollback_start(where: Place, run: Run, to: int) -> int:
    """The step from which a rollback would go on, 0 being the start; or one clear error that says what there is."""
    if run.state in (RunState.COMPLETED, RunState.STOPPED):
        place.fail(f"{run.id} has ended ({run.state})", f"submit a run with --start-from {run.id}:STEP to begin there")
    if not run.checkpoint_uri:
        if not has_agent(run):
            place.fail(f"the jobs of {run.id} save nowhere that Rerail knows of", "restart it by hand")
        return to
    try:
        saves = list_checkpoints(where.client("s3"), run.checkpoint_uri, signing_key=find_manifest_key(run))
    except (ClientError, BotoCoreError) as error:
        place.fail(f"cannot see what {run.id} has saved: {explain(error).what}", explain(error).remedy)
    now = replace(run, stop=None)
    steps = sorted({save.step for save in saves if save.is_whole and not explain_passed_over(now, save, saves)})
    if not steps:  # of a file that is overwritten in place
        steps = sorted({copy.step for copy in list_copies_before(run, to + 1) if copy.step is not None})
    start = max((step for step in steps if step <= to), default=0)
    if to and not start:
        there = f"clean are {_named(steps)}" if steps else f"`rerail checkpoints {run.id}` lists what there is"
        place.fail(f"nothing clean was saved at or before step {to}", f"{there}; --to 0 begins again")
    return start


def _named(steps: Sequence[int]) -> str:
    """The oldest, since they are what was meant, and how many there are more."""
    more = f" and {len(steps) - MOST_NAMED} newer ones" if len(steps) > MOST_NAMED else ""
    return ", ".join(str(step) for step in steps[:MOST_NAMED]) + more


def save(run: RunName, why: Why = "", local: Local = False, as_json: AsJson = False) -> None:
    """Have a run's agent save a checkpoint now; the job goes on."""
    where = place.find(local=local)
    record = find_run(where, run)
    check_effect(where, record, OperatorVerb.SAVE)
    if not record.current.agent:
        place.fail(f"no agent works in the job of {run}", "add the agent to the job: docs/agent.md")
    ask(where, run, OperatorVerb.SAVE, why, as_json=as_json)
    say(f"if it is accepted, a checkpoint is waited for {format_save_deadline(record)}; the job goes on", as_json)


def approve(
    run: RunName, proposal: ProposalId = "", why: Why = "", local: Local = False, as_json: AsJson = False
) -> None:
    """Say yes to what is proposed for a run: its job is stopped and relaunched, or its next one created."""
    answer(place.find(local=local), run, OperatorVerb.APPROVE, proposal, why, as_json=as_json)


def deny(run: RunName, proposal: ProposalId = "", why: Why = "", local: Local = False, as_json: AsJson = False) -> None:
    """Say no to what is proposed for a run: a job that runs goes on, a dead run is held."""
    answer(place.find(local=local), run, OperatorVerb.DENY, proposal, why, as_json=as_json)


def pause(local: Local = False, as_json: AsJson = False) -> None:
    """Pause Rerail for the account: no job is stopped or launched until `rerail resume`.

    It takes effect within two minutes. Rerail continues to monitor the runs and to send notices.
    """
    write_pause(place.find(local=local), PAUSED, as_json=as_json)


def resume(local: Local = False, as_json: AsJson = False) -> None:
    """Lift the pause of the account: jobs are stopped and launched as their policies say.

    It takes effect within two minutes. Stops and launches that waited are then carried out.
    """
    write_pause(place.find(local=local), ACTIVE, as_json=as_json)


def write_pause(where: Place, text: str, *, as_json: bool) -> None:
    """Write the parameter that the functions read every minute, and print the new state."""
    name = where.outputs["PauseParameter"]
    where.client("ssm").put_parameter(Name=name, Value=text, Overwrite=True, Type="String")
    is_paused = bool(parse_pause(text))
    if as_json:
        typer.echo(json.dumps({"place": where.name, "paused": is_paused}, indent=2))
        return
    say(SPOKEN[is_paused])


def check_effect(where: Place, run: Run, verb: OperatorVerb) -> None:
    """Exit with status 1 and the reason if the run's record shows that the command would change nothing."""
    from rerail.aws.ssm import SsmPolicies

    # The policy as it is now: a limit may just have been raised.
    policy = find_policy(run, SsmPolicies(where.outputs["PolicyPrefix"], place.now))
    refusal = find_refusal(run, verb, place.now(), policy)
    if not refusal:
        return
    remedy = f"rerail show {run.id}"
    if run.state is RunState.HELD:
        remedy = format_next_command(run)
    place.fail(f"{verb} {run.id}: {refusal}", f"`{where.complete_text(remedy)}`", status=1)


def answer(where: Place, run: str, verb: OperatorVerb, proposal: str, why: str, *, as_json: bool = False) -> None:
    """Without an id, to what stands now: it is shown, and it alone is answered."""
    record = find_run(where, run)
    check_effect(where, record, verb)
    assert record.proposal is not None, "without one there is nothing to answer"
    if proposal and proposal != record.proposal.id:
        standing = record.proposal
        place.fail(
            f"{proposal} does not stand any more, {standing.id} does: {standing.what}",
            f"look at `{where.complete_text(f'rerail show {run}')}`, then answer {standing.id}",
        )
    say(f"{record.proposal.id}: {record.proposal.what} ({record.proposal.why})", as_json)
    ask(where, run, verb, why, as_json=as_json, proposal=record.proposal.id)


def say(text: str, as_json: bool = False) -> None:
    """A line for people; beside JSON it goes to stderr."""
    Console(stderr=as_json, markup=False).print(text)


def ask(
    where: Place,
    run: str,
    verb: OperatorVerb,
    why: str,
    *,
    quietly: bool = False,
    as_json: bool = False,
    **more: str | int,
) -> str:
    """Put the wish on the bus; its id, which the run's timeline quotes."""
    find_run(where, run)
    given = {name: value for name, value in more.items() if value != "" and value is not False}
    detail = {"run": run, "verb": verb.value, "who": getpass.getuser(), "why": why, **given}
    id = put_command(where, detail)
    if as_json:
        typer.echo(json.dumps({**detail, "event": id}, indent=2))
    elif not quietly:
        say(f"asked: {verb} {run}. `{where.complete_text(f'rerail show {run}')}` shows the result.")
    return id


def put_command(where: Place, detail: Mapping[str, Any]) -> str:
    """Put a command on the bus; return the event's id. Exit with an error if the bus refuses it."""
    entry = {
        "EventBusName": where.outputs["BusName"],
        "Source": OPERATOR,
        "DetailType": COMMAND,
        "Detail": json.dumps(detail),
    }
    answer = where.client("events").put_events(Entries=[entry])
    if answer["FailedEntryCount"]:
        place.fail(f"the bus refused the command: {answer['Entries'][0].get('ErrorMessage')}", "try again")
    return str(answer["Entries"][0].get("EventId", ""))
