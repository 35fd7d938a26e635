"""Lengths of time on the command line."""

import pytest
import typer

from cli.durations import LONGEST_S, parse_seconds


@pytest.mark.parametrize(
    ("text", "meant"), [("90s", 90), ("30m", 1800), (" 1.5h ", 5400), ("2d", 172_800), ("9" * 30 + "d", LONGEST_S)]
)
def test_a_duration_is_read_in_the_units_of_policies(text: str, meant: float) -> None:
    assert parse_seconds(text, "--since") == meant


@pytest.mark.parametrize("text", ["", "90", "-5m", "nans", "infh", "1e9h", "5 m", "1h30m", "٣m" + "x" * 1000])
def test_what_is_none_is_refused_in_one_line_that_names_the_option(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as refused:
        parse_seconds(text, "--patience")
    assert refused.value.exit_code == 2
    problem, remedy = capsys.readouterr().err.splitlines()
    assert problem.startswith("error: --patience") and len(problem) < 200
    assert remedy == "to do: write it as 90s, 30m, 2h or 1d"
