"""The benchmarks of scale and speed: a small version of each runs, and its figures are what they are called."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import scale, speed
from stacks.parts import supervise


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_an_exponent_is_found(power):
    sizes = [10, 100, 1000]
    assert scale.exponent(sizes, [3 * size**power for size in sizes]) == pytest.approx(power)


def test_the_batches_and_priorities_are_as_documented():
    assert scale.BATCH == supervise.BATCH
    policies = [scale.policy_of(number) for number in range(100)]
    assert {name: policies.count(name) for name in scale.PRIORITIES} == {
        name: share for name, (share, _) in scale.PRIORITIES.items()
    }


def test_each_piece_of_work_takes_its_turn():
    done: list[str] = []
    spent = speed.race({"a": lambda: done.append("a"), "b": lambda: done.append("b")}, rounds=2)
    assert done == ["a", "b"] * 2 and all(spent.values())


@pytest.mark.slow
def test_a_small_fleet_is_swept_and_relaunched(tmp_path: Path, run_module):
    """No run is missing in the sweep, none is launched twice."""
    evidence = run_module("bench.scale", "--runs", "5,20", "--jobs", "10", "--evidence", str(tmp_path / "scale.json"))
    sweeps, storm = evidence["sheets"]
    assert [row[:2] for row in sweeps["rows"]] == [
        ["metrics", 5],
        ["metrics", 20],
        ["heartbeats", 5],
        ["heartbeats", 20],
    ]
    assert sum(row[3] for row in storm["rows"]) == 10 and evidence["failures"] == []


@pytest.mark.slow
def test_a_small_measurement_of_speed_runs(tmp_path: Path, run_module):
    options = ("--starts", "1", "--rounds", "1", "--logs", "1", "--evidence", str(tmp_path / "speed.json"))
    assert len(run_module("bench.speed", *options)["sheets"]) == 3


@pytest.mark.slow
def test_reading_a_listing_takes_time_in_proportion_to_it(tmp_path: Path, run_module):
    """A small version: it fails if the time grows with the square of the listing."""
    options = ("--most", "2000", "--rounds", "2", "--evidence", str(tmp_path / "layouts.json"))
    assert run_module("bench.layouts", *options)["failures"] == []


@pytest.fixture
def run_module():
    """Run a benchmark as its own process, because it changes the environment; return its evidence."""

    def run(module: str, *options: str) -> dict:
        done = subprocess.run([sys.executable, "-m", module, *options], cwd=speed.ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return json.loads(Path(options[-1]).read_text())

    return run
