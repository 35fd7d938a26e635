"""`rerail local`: the local AWS of this checkout, started and ended by hand."""

import typer
from rich import print as say

from cli import place
from local.stack import LocalAws, LocalAwsError

app = typer.Typer(help="An AWS on this machine, with Rerail deployed into it.", no_args_is_help=True)


@app.command()
def up(scale: float = typer.Option(60.0, help="How many times as fast as AWS its clocks run.")) -> None:
    """Start it, deploy the template, and leave it running."""
    try:
        aws = LocalAws(place.LOCAL_STATE, scale=scale, schedule_scale=scale, assemblies=place.SYNTHESES)
        aws.start(say, detached=True)
    except LocalAwsError as error:
        place.fail(str(error), "`rerail local down` ends a running one")
    say(f"running: `rerail status --local` looks at it, AWS_ENDPOINT_URL={aws.endpoint_url} reaches it")


@app.command()
def down() -> None:
    """End it, with everything it started."""
    try:
        LocalAws.attach(place.LOCAL_STATE).stop()
    except LocalAwsError:
        place.fail("no local AWS is running here", "nothing: there is nothing to end")
    say("ended")
