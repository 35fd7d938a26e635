"""`rerail local`: the local AWS, started and ended by hand."""

import json

import typer

from cli import place
from cli.lean_values import LeanCommand
from cli.place import AsJson
from cli.project import IS_CHECKOUT, find_policies

app = typer.Typer(help="An AWS on this machine, with Rerail deployed into it.", no_args_is_help=True)


@app.command(cls=LeanCommand)
def up(
    scale: float = typer.Option(60.0, help="How many times as fast as AWS its clocks run."), as_json: AsJson = False
) -> None:
    """Start it, deploy the template, and leave it running."""
    from cli.operators import say
    from local.stack import LocalAws, LocalAwsError

    try:
        policies = None if IS_CHECKOUT else find_policies()
        aws = LocalAws(
            place.LOCAL_STATE, scale=scale, schedule_scale=scale, assemblies=place.SYNTHESES, policies=policies
        )
        aws.start(lambda line: say(line, as_json), detached=True)
    except LocalAwsError as error:
        place.fail(str(error), "remove the cause named above, then try again")
    if as_json:
        facts = {"endpoint": aws.endpoint_url, "pid": aws.pid, "scale": scale, "outputs": aws.outputs}
        typer.echo(json.dumps(facts, indent=2))
        return
    say(f"running: `rerail status --local` looks at it, AWS_ENDPOINT_URL={aws.endpoint_url} reaches it")


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
