"""What people see of a submission, and its exit status."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import typer

from cli.console import Console
from rerail.model.run import RunState


@dataclass(frozen=True, slots=True)
class SubmitScreen:
    """What people see; with JSON on stdout it moves to stderr."""

    as_json: bool

    def say(self, text: str) -> None:
        """A line of ours."""
        Console(stderr=self.as_json, highlight=False, markup=False, soft_wrap=True).print(text, style="cyan")

    def show(self, text: str) -> None:
        """A line of the job's."""
        typer.echo(text, err=self.as_json)

    def end(self, outcome: Mapping[str, Any]) -> None:
        """The last word, and the exit status: 1 where the run was followed to an end that it should not have had."""
        if self.as_json:
            typer.echo(json.dumps(outcome, indent=2, default=str))
        if outcome.get("state", RunState.COMPLETED) != RunState.COMPLETED:
            raise typer.Exit(1)
