"""`rerail runbook`: a runbook in the terminal."""

import json
from typing import Annotated

import typer

from cli import place
from cli.console import Console
from cli.place import AsJson

Name = Annotated[str, typer.Argument(help="The runbook, as pages and `rerail show` name it.")]


def runbook(name: Name, as_json: AsJson = False) -> None:
    """Print a runbook: what a page means and what to do about it."""
    from rich.markdown import Markdown

    from report_page.runbooks import read_runbook
    from rerail.model.runbooks import Runbook

    text = read_runbook(name) if name in set(Runbook) else ""
    if not text:
        place.fail(f"there is no runbook {name!r:.100}", f"give one of {', '.join(Runbook)}")
    if as_json:
        typer.echo(json.dumps({"name": name, "text": text}, indent=2))
        return
    Console().print(Markdown(text))
