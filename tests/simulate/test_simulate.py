"""`rerail simulate`: what it prints, what it writes, and how it refuses."""

import json

import pytest
import typer
from typer.testing import CliRunner, Result

from cli.simulate.command import run_simulations

pytestmark = pytest.mark.slow

QUICK = ("--days", "0.2", "--seeds", "2", "--gpus", "2048")


def run(*args: object) -> Result:
    app = typer.Typer()
    app.command()(run_simulations)
    return CliRunner().invoke(app, [str(arg) for arg in args], env={"COLUMNS": "200", "NO_COLOR": "1"})


def test_the_table_has_assumptions_and_results():
    """Faults and assumptions with their sources first, then a line for each way."""
    result = run(*QUICK, "--way", "human", "--way", "warm")
    assert result.exit_code == 0, result.output
    assert "The Llama 3 Herd of Models" in result.output and "assumed, no figure is published" in " ".join(
        result.output.split()
    )
    assert "people on call" in result.output and "and a warm pool" in result.output
    assert "2,048 GPUs, a deadly failure every 24.7 h" in result.output
    assert result.stderr.splitlines()[0] == "simulating 4 times 0.2 days ..."


def test_the_same_seed_writes_the_same_figures(tmp_path):
    """Two runs of the command agree in every figure; shares add up."""
    files = [tmp_path / name for name in ("one.json", "two.json")]
    for file in files:
        assert run(*QUICK, "--way", "snapshots", "--seed", "5", "--quiet", "--json", file).exit_code == 0
    one, two = (json.loads(file.read_text()) for file in files)
    assert one == two
    (row,) = one["ways:2048"]
    assert sum(row["shares"].values()) == pytest.approx(1)
    assert row["ettr"] == pytest.approx(sum(row["ettr_by_seed"]) / 2)


def test_one_thing_is_varied(tmp_path):
    """A sweep has a line for each variant, and an assumption of one's own takes the place of ours."""
    result = run(*QUICK, "--seeds", "1", "--sweep", "pool", "--quiet", "--assume", "init_s=30", "--json", "-")
    assert result.exit_code == 0, result.output
    names = [row["name"] for row in json.loads(result.stdout)["pool"]]
    assert len(names) == len(set(names)) == 6


MEASURED = (
    '{"schema": 1, "kind": "rerail acceptance", "region": "eu-west-1", "clock_scale": 1, "made_at": '
    '"2026-11-23T12:00:00+00:00", "measurements": {"startup_s": {"median": 321}, "upload_s": {"median": 3}}}'
)


def test_measured_times_take_the_place_of_assumed_ones(tmp_path):
    """Each with its source; small files say nothing of how fast a large checkpoint is, and --assume wins."""
    file = tmp_path / "acceptance.json"
    file.write_text(MEASURED)
    words = ("--way", "warm", "--measured", file, "--assume", "repair_s=5")
    printed = run(*QUICK, *words)
    assert printed.exit_code == 0, printed.output
    rows = {line.split()[1]: " ".join(line.split()) for line in printed.output.splitlines() if line.startswith("│")}
    assert "321 │ s │ measured by `rerail acceptance` in eu-west-1 on 2026-11-23" in rows["cold_s"]
    assert "5 │ s │ --assume" in rows["repair_s"] and "30 │ s │ from a save's end" in rows["durable_s"]
    file.write_text(MEASURED.replace('"clock_scale": 1', '"clock_scale": 60'))
    refused = run(*QUICK, *words)
    assert refused.exit_code == 2 and "field 'clock_scale' is not 1" in refused.stderr


@pytest.mark.parametrize(
    "args",
    [
        ("--gpus", "0"),
        ("--days", "0"),
        ("--days", "nan"),
        ("--seeds", "0"),
        ("--failures", "-1"),
        ("--way", "magic"),
        ("--sweep", "magic"),
        ("--policy", "magic"),
        ("--assume", "init_s"),
        ("--assume", "magic=1"),
        ("--assume", "init_s=soon"),
        ("--assume", "step_s=0"),
    ],
    ids=" ".join,
)
def test_a_mistake_gives_one_clear_error(args):
    """It names what is wrong and the remedy, and nothing is simulated."""
    result = run(*QUICK, *args)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    what, remedy = result.stderr.splitlines()
    assert what.startswith("error: ") and remedy.startswith("to do: ")
