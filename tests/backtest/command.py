"""Runs `rerail backtest` in this process."""

from pathlib import Path

import typer
from typer.testing import CliRunner, Result

from cli.backtest.command import backtest

DATA = Path(__file__).parent / "data"


def run(*args: object) -> Result:
    app = typer.Typer()
    app.command()(backtest)
    return CliRunner().invoke(app, [str(arg) for arg in args], env={"COLUMNS": "160", "NO_COLOR": "1"})


def refused(*args: object) -> str:
    """What is wrong and what to do, with which the command refuses, without a half answer before it."""
    result = run(*args)
    assert (result.exit_code, result.stdout) == (2, ""), f"{result.output} {result.exception!r}"
    what, remedy = result.stderr.splitlines()
    assert what.startswith("error: ") and remedy.startswith("to do: ")
    return f"{what}; {remedy}"
