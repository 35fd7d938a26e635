"""The `rerail` command and its subcommands."""

import typer

from cli import local_aws, operators, runs
from cli.backtest.command import backtest
from cli.checkpoints import checkpoints
from cli.demo import command as demo
from cli.diagnose import diagnose
from cli.metrics import metrics
from cli.simulate.command import simulated
from cli.submit.command import follow, submit

app = typer.Typer(
    name="rerail",
    help="Keeps SageMaker training runs on their rails.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
)
app.command()(demo.demo)
app.command()(submit)
app.command()(follow)
app.command()(diagnose)
app.command()(metrics)
app.command()(backtest)
app.command("simulate")(simulated)
app.command()(runs.status)
app.command()(runs.show)
app.command()(checkpoints)
app.command()(operators.hold)
app.command()(operators.release)
app.command()(operators.stop)
app.command()(operators.restart)
app.command()(operators.approve)
app.command()(operators.deny)
app.command()(operators.switch)
app.add_typer(local_aws.app, name="local")

if __name__ == "__main__":
    app()
