"""The `rerail` command and its subcommands."""

import typer

from cli import local_aws, operators, runs
from cli.backtest.command import backtest
from cli.checkpoints import checkpoints
from cli.commands import Commands, options
from cli.connect import connect
from cli.demo import command as demo
from cli.deploy.command import deploy, destroy
from cli.diagnose import diagnose
from cli.doctor.command import doctor
from cli.drill import drill
from cli.logs import logs
from cli.metrics import metrics
from cli.policies.command import app as policies
from cli.report import report
from cli.simulate.command import simulated
from cli.status import status
from cli.submit.command import follow, submit
from cli.tensorboard.command import tensorboard

app = typer.Typer(
    name="rerail",
    help="Keeps SageMaker training runs on their rails.",
    cls=Commands,
    callback=options,
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
app.command()(status)
app.command()(runs.show)
app.command()(logs)
app.command()(checkpoints)
app.command()(report)
app.command()(operators.hold)
app.command()(operators.release)
app.command()(operators.stop)
app.command()(operators.restart)
app.command()(operators.rollback)
app.command()(operators.save)
app.command()(drill)
app.command()(operators.approve)
app.command()(operators.deny)
app.command()(operators.switch)
app.command()(deploy)
app.command()(destroy)
app.command()(doctor)
app.command()(connect)
app.command()(tensorboard)
app.add_typer(policies, name="policy")
app.add_typer(local_aws.app, name="local")

if __name__ == "__main__":
    app()
