"""The command line as a whole: its commands, its version, and one clear error for whatever AWS answers.

A command's module is imported when the command is called, completed or asked for its own help. The list of commands is
printed from the table below, since the modules together load the AWS SDK, the supervisor and the simulation."""

import re
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any, NoReturn, cast

import typer
from typer._click.exceptions import NoArgsIsHelpError, UsageError
from typer.core import TyperCommand

from cli.lean_values import LeanCommand, LeanGroup
from rerail.model.errors import RerailError


@dataclass(frozen=True, slots=True)
class ListedCommand:
    """A command as the help lists it: its module, what is defined there (a function or a `Typer`), and the first
    paragraph of its help, which must be equal to that of the command itself."""

    module: str
    attribute: str
    help: str


# The modules that are not `cli.NAME`, and what is defined in them under another name than the command's.
MODULES = {
    **dict.fromkeys(("submit", "follow"), "cli.submit.command"),
    **dict.fromkeys(("deploy", "destroy"), "cli.deploy.command"),
    **dict.fromkeys(
        ("hold", "release", "stop", "restart", "rollback", "save", "approve", "deny", "pause", "resume"),
        "cli.operators",
    ),
    **{name: f"cli.{name}.command" for name in ("demo", "backtest", "simulate", "doctor", "acceptance", "tensorboard")},
    "chain": "cli.chains.command",
    "policy": "cli.policies.command",
    "local": "cli.local_aws",
    "show": "cli.runs",
}
ATTRIBUTES = {"simulate": "run_simulations", "policy": "app", "local": "app"}
# In the order of the help; a line that begins with a blank continues the one above.
SUMMARIES = """
demo         Train a real model under supervision, break it, watch it recover. Exit status 0 if it ended as expected.
submit       Start a script as a supervised training job.
follow       Print the logs of all attempts of a run and what is decided about it, until it has ended.
chain        Run the tasks of a chain in order; skip what is complete and unchanged.
wait         Wait until a run has completed, over all of its attempts.
diagnose     Say what killed a training job, and whether the same job may get further when relaunched.
metrics      Print the MetricDefinitions for jobs that log Rerail's metric line, or for the lines of a log.
backtest     Ask what Rerail would have said and done on logs of the past. Nothing is launched, stopped or changed.
simulate     What share of its time would a run have trained, by who looks after it? Nothing is launched or stopped.
status       All runs: their state, step, cost and goodput, and what is to be done.
show         One run: what happened, what to do, its attempts, incidents, budgets, time and money, and every decision.
search       Find training jobs by metric, argument, tag, input, state or time, with or without Rerail.
logs         Print what the jobs of a run have printed, with the attempt before each line.
checkpoints  What a run has saved, newest first, and which one a relaunch would resume from.
report       One run's incident report: what happened, what to do, curves, evidence, cost, and what to change.
runbook      Print a runbook: what a page means and what to do about it.
adopt        Supervise a running job that was tagged after its start: SageMaker sends no event about a tag.
hold         Stop supervising a run; a job that is running goes on.
release      Take a held run up again: every budget starts afresh, a dead job is relaunched.
stop         End a run: wait for its next checkpoint, then stop its job.
restart      Move a run to fresh machines: wait for its next checkpoint, stop its job, relaunch from there.
rollback     Roll a run back to a step: nothing that it has saved after it so far is resumed from any more.
save         Have a run's agent save a checkpoint now; the job goes on.
drill        Prove that a run can be restarted: save, train some steps, stop, relaunch from that save, compare those
             steps.
approve      Say yes to what is proposed for a run: its job is stopped and relaunched, or its next one created.
deny         Say no to what is proposed for a run: a job that runs goes on, a dead run is held.
pause        Pause Rerail for the account: no job is stopped or launched until `rerail resume`.
resume       Lift the pause of the account: jobs are stopped and launched as their policies say.
deploy       Deploy Rerail into an account and region, or bring it up to date; open runs go on.
destroy      Take Rerail out of an account and region. Runs, mail, reports, logs and the key stay for a later
             deployment.
doctor       Is everything ready? Exit status 1 if something is broken, 2 if nothing at all can be told.
acceptance   Try in an account, for cents, what no emulator can show: jobs that fail are started, and everything is
             removed.
tensorboard  Open TensorBoard on all attempts of runs, and keep it fresh until Ctrl-C.
policy       Policies: checked, compared with what is deployed, shown in full.
local        An AWS on this machine, with Rerail deployed into it.
"""
COMMANDS: Mapping[str, ListedCommand] = {
    name: ListedCommand(MODULES.get(name, f"cli.{name}"), ATTRIBUTES.get(name, name), " ".join(text.split()))
    for name, text in re.findall(r"^(\w+) +(.+(?:\n .+)*)", SUMMARIES, re.MULTILINE)
}


def import_command(name: str) -> Any:
    """Return the command itself, built from its module."""
    listed = COMMANDS[name]
    found = getattr(import_module(listed.module), listed.attribute)
    holder = typer.Typer(rich_markup_mode=None)
    if isinstance(found, typer.Typer):
        holder.add_typer(found, name=name, cls=LeanGroup)
    else:
        holder.command(name, cls=LeanCommand)(found)
    return typer.main.get_group(holder).commands[name]


class ImportedCommands(Mapping[str, Any]):
    """The commands by name, in the order of the help; each is imported when it is looked up."""

    def __getitem__(self, name: str) -> Any:
        return import_command(name)

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class DeferredCommand(TyperCommand):
    """A command that is listed by its name and help, and imported once its arguments are parsed."""

    def get_short_help_str(self, limit: int = 0) -> str:
        """Return the whole summary; Click would cut it off."""
        return str(self.help)

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Return the context of the command itself, which runs, completes or prints its own help."""
        return import_command(str(self.name)).make_context(info_name, args, parent, **extra)


class CommandGroup(LeanGroup):
    """Every command below it ends with one clear error and exit status 2, also for what AWS or Click refuses."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings | {"commands": cast(MutableMapping[str, Any], ImportedCommands())})

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names, in the order of the help."""
        return list(self.commands)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return what stands for the command, without importing it: the help and the completion ask for each."""
        listed = COMMANDS.get(cmd_name)
        return DeferredCommand(name=cmd_name, help=listed.help) if listed else None

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except RerailError as error:
            cause = error.__cause__
            if isinstance(cause, _errors_of_aws()):
                _fail_for(cause)
            from cli import place

            place.fail(str(error), "fix what the message names; `rerail doctor` lists what is broken")
        except _errors_of_aws() as error:
            _fail_for(error)
        except NoArgsIsHelpError:
            raise
        except UsageError as error:
            from cli import place

            path = error.ctx.command_path if error.ctx else "rerail"
            place.fail(error.format_message(), f"`{path} --help` lists what it takes")


def _errors_of_aws() -> tuple[type[Exception], ...]:
    """Return the errors of the AWS SDK; none where it is not imported, since then nothing can have raised them."""
    exceptions = sys.modules.get("botocore.exceptions")
    return (exceptions.ClientError, exceptions.BotoCoreError) if exceptions else ()


def _fail_for(error: Exception) -> NoReturn:
    from cli import place
    from cli.trouble import explain

    place.fail(*explain(error))


def _say_version(asked: bool) -> None:
    if asked:
        # Only here: it reads the metadata of the installed packages.
        from importlib.metadata import version

        typer.echo(f"rerail {version('rerail')}")
        raise typer.Exit


def options(
    is_asked: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Say which version this is.")
    ] = False,
) -> None:
    """Keeps SageMaker training runs on their rails."""
