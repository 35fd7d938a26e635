"""The `rerail` command and its subcommands."""

import typer

from cli.commands import CommandGroup, options

app = typer.Typer(
    name="rerail",
    help="Keeps SageMaker training runs on their rails.",
    cls=CommandGroup,
    callback=options,
    no_args_is_help=True,
    rich_markup_mode=None,  # Rich is half of what a help page would cost
    pretty_exceptions_show_locals=False,
)

if __name__ == "__main__":
    app()
