"""`rerail local`: the local AWS, started and ended by hand."""

import json
import os
from enum import StrEnum
from typing import Annotated

import typer

from cli import place
from cli.lean_values import LeanCommand
from cli.names import RunName, find_run
from cli.place import AsJson
from cli.project import IS_CHECKOUT, find_policies

app = typer.Typer(
    help="An AWS on this machine, with Rerail deployed into it.", no_args_is_help=True, rich_markup_mode=None
)


@app.command(cls=LeanCommand)
def up(
    scale: float = typer.Option(60.0, help="How many times as fast as AWS its clocks run."), as_json: AsJson = False
) -> None:
    """Start it, deploy the template, and leave it running."""
    from cli.operators import say
    from local.stack import ACCOUNT, REGION, LocalAws, LocalAwsError

    try:
        policies = None if IS_CHECKOUT else find_policies()
        aws = LocalAws(
            place.LOCAL_STATE, scale=scale, schedule_scale=scale, assemblies=place.SYNTHESES, policies=policies
        )
        aws.start(lambda line: say(line, as_json), detached=True)
    except LocalAwsError as error:
        place.fail(str(error), "correct that, then start it again")
    if as_json:
        facts = {"endpoint": aws.endpoint_url, "pid": aws.pid, "scale": scale, "outputs": aws.outputs}
        typer.echo(json.dumps(facts, indent=2))
        return
    say("running: `rerail status --local` looks at it; other clients reach it with")
    keys = f"AWS_ACCESS_KEY_ID={ACCOUNT} AWS_SECRET_ACCESS_KEY=local"
    typer.echo(f"AWS_ENDPOINT_URL={aws.endpoint_url} {keys} AWS_DEFAULT_REGION={REGION}")


class LocalFault(StrEnum):
    """A fault that `rerail local break` causes in the running job of a run."""

    KILL = "kill"
    OOM = "oom"
    SLOW = "slow"
    HANG = "hang"
    NODE = "node"
    CAPACITY = "capacity"


DONE = {
    LocalFault.KILL: "its processes are killed",
    LocalFault.OOM: "its processes are killed, and the reason is that GPU memory ran out",
    LocalFault.SLOW: "its processes work for 30 % of the time from now on",
    LocalFault.HANG: "its processes are stopped (SIGSTOP), as in a hang",
    LocalFault.NODE: "its machine is lost",
    LocalFault.CAPACITY: "its processes are killed, and there are no machines for the next launch",
}


@app.command("break", cls=LeanCommand)
def break_(
    run: RunName,
    fault: Annotated[LocalFault, typer.Option(help="What happens to the running job.")],
    as_json: AsJson = False,
) -> None:
    """Cause a fault in the running job of a run, whatever its script is; `rerail demo --scenario nan` has a NaN."""
    from cli.operators import say
    from local.sagemaker.control import InjectionRefused, inject

    where = place.find(local=True)
    record = find_run(where, run)
    job = record.current.job_name
    try:
        if fault is LocalFault.CAPACITY:
            inject(os.environ["AWS_ENDPOINT_URL"], "capacity", TrainingJobName=f"{record.id}-a", Count=1)
        kinds = {LocalFault.CAPACITY: "kill", LocalFault.NODE: "internal_error"}
        inject(os.environ["AWS_ENDPOINT_URL"], kinds.get(fault, str(fault)), TrainingJobName=job)
    except InjectionRefused as error:
        place.fail(f"{job} cannot be broken now: {error}", f"`rerail show {run} --local` tells whether it trains")
    if as_json:
        typer.echo(json.dumps({"run": record.id, "job": job, "fault": str(fault)}))
        return
    say(f"{job}: {DONE[fault]}; `rerail follow {run} --local` shows how the run goes on")


@app.command(cls=LeanCommand)
def down(as_json: AsJson = False) -> None:
    """End it, with everything it started."""
    from cli.operators import say
    from local.stack import LocalAws, LocalAwsError

    try:
        LocalAws.attach(place.LOCAL_STATE).stop()
    except LocalAwsError:
        place.fail("no local AWS is running here", "nothing: there is nothing to end")
    if as_json:
        typer.echo(json.dumps({"ended": True}))
        return
    say("ended")
