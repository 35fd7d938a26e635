"""The bench of scale: its queue is the template's, its fits are right, and a small one of each kind holds."""

import subprocess
import sys

import pytest

from bench import deaths
from bench.evidence import ROOT, read
from bench.made_aws import Throttle
from bench.scale import exponent, pace
from stacks.parts import signals_queue, supervise


def test_the_queue_of_the_bench_is_that_of_the_template():
    """Concurrency, batches, time-out, visibility and tries."""
    assert (deaths.CONCURRENCY, deaths.BATCH) == (supervise.CONCURRENCY, supervise.BATCH)
    assert (signals_queue.TIMEOUT.to_seconds(), signals_queue.TRIES) == (deaths.TIMEOUT_S, deaths.TRIES)
    assert 6 * signals_queue.TIMEOUT.to_seconds() == deaths.VISIBILITY_S


def test_the_priorities_of_the_bench_are_those_of_a_hundred_runs():
    """Each policy has as many of a hundred runs as it says."""
    found = [deaths.priority_of(f"llm-pretraining-{number:05d}") for number in range(100)]
    assert {name: found.count(name) for name in deaths.PRIORITIES} == {
        name: share for name, (share, _) in deaths.PRIORITIES.items()
    }


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_an_exponent_is_found(power):
    """Of figures that grow with that power of their size."""
    sizes = [10, 100, 1000]
    assert exponent(sizes, [3 * size**power for size in sizes]) == pytest.approx(power)


def test_a_pace_is_that_of_the_middle():
    """Neither an early bird nor a straggler changes it."""
    assert pace([0.0, *(100 + number / 2 for number in range(18)), 500.0]) == pytest.approx(2.0)
    assert pace([]) == 0.0


def test_a_throttle_lets_through_what_its_bucket_holds():
    """Two a second, and no more than two at once."""
    throttle = Throttle(2.0, 1.0)
    assert [throttle.admits(at) for at in (10.0, 10.1, 10.2, 10.6, 10.9, 11.2)] == [1, 1, 0, 1, 0, 1]


@pytest.mark.rehearsal
@pytest.mark.parametrize(
    "part",
    [
        ("sweeps", "--runs", "5,20", "--rest", "0", "--ways", "half of each"),
        ("deaths", "--jobs", "10", "--minutes", "8"),
    ],
    ids=["sweeps", "deaths"],
)
def test_a_small_one_holds(tmp_path, part):
    """Nothing fails, nobody is launched twice, no run is missing from what the sweep tells."""
    file = tmp_path / "scale.json"
    command = [sys.executable, "-m", "bench.scale", "--only", *part, "--evidence", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    evidence, _ = read(file)
    assert evidence.holds and evidence.sheets
