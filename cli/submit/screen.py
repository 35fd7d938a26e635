"""What people see of a submission, and its exit status."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import typer

from cli.console import Console, echo
from rerail.model.run import RunState


@dataclass(frozen=True, slots=True)
class SubmitScreen:
    """The terminal output of a submission; with JSON on stdout it goes to stderr."""

    as_json: bool

    def say(self, text: str) -> None:
        """Print one line of Rerail's own; what it quotes may contain line ends."""
        Console(stderr=self.as_json, markup=False, soft_wrap=True).print(" ".join(text.splitlines()), style="cyan")

    def show(self, text: str) -> None:
        """Print a line of the job."""
        echo(text, err=self.as_json)

    def end(self, outcome: Mapping[str, Any]) -> None:
        """Print the result, and exit with status 1 if a followed run did not complete."""
        if self.as_json:
            typer.echo(json.dumps(outcome, indent=2, default=str))
        if outcome.get("state", RunState.COMPLETED) != RunState.COMPLETED:
            raise typer.Exit(1)
