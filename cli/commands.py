"""The command line as a whole: its version, and one clear error for whatever AWS answers."""

from importlib.metadata import version
from typing import Annotated, Any

import typer
from botocore.exceptions import BotoCoreError, ClientError
from typer.core import TyperGroup

from cli import place
from cli.trouble import explained
from rerail.errors import RerailError

VERSION = version("rerail")


class Commands(TyperGroup):
    """Every command below it ends with a sentence and exit status 2 where it would end with a traceback of AWS's."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (ClientError, BotoCoreError) as error:
            place.fail(*explained(error))
        except RerailError as error:
            cause = error.__cause__
            if isinstance(cause, ClientError | BotoCoreError):
                place.fail(*explained(cause))
            place.fail(str(error), "mend what it names; `rerail doctor` says what is broken")


def _say_version(asked: bool) -> None:
    if asked:
        typer.echo(f"rerail {VERSION}")
        raise typer.Exit


def options(
    is_asked: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Say which version this is.")
    ] = False,
) -> None:
    """Keeps SageMaker training runs on their rails."""
