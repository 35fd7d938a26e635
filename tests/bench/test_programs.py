"""Every program of bench/ starts and ends at its smallest size; whether it meets its goals is not asked here."""

import csv
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BENCH = ROOT / "bench"
CORPUS = "CORPUS"  # stands for a folder with two short logs of the corpus
SMALLEST = {
    "agent": "--steps 1 --agreements 1 --commands 1 --poll 0.01",
    "bubbles": "--cases 1",
    "cost": "",
    "culprits": "",
    "detection": f"--corpus {CORPUS}",
    "goodput": "--days 0.1 --seeds 1 --no-sweeps",
    "idle": "--hours 4",
    "invariance": "--logs 1 --logger plain",
    "layouts": "--rounds 1 --most 101",
    "saving": "--size xs --rounds 1",
    "scale": "--runs 2 --jobs 2",
    "shapes": "--seeds 1",
    "speed": "--starts 1 --rounds 1 --logs 1 --runs 1",
    "stragglers": "--trials 1",
}
# What starts these at a small size elsewhere.
ELSEWHERE = {"soak": "tests/demo/soak_runs"}
BAD_USAGE = 2


def test_every_program_is_started():
    programs = {file.stem for file in BENCH.glob("*.py") if '__name__ == "__main__"' in file.read_text()}
    assert programs == SMALLEST.keys() | ELSEWHERE.keys()


@pytest.fixture
def corpus(tmp_path) -> Path:
    """Return a folder with the shortest log of two sources, and their labels."""
    with (BENCH / "corpus" / "index.csv").open() as file:
        runs = sorted(csv.DictReader(file), key=lambda run: int(run["n_points"]))
    first = runs[0]
    chosen = [first, next(run for run in runs if run["group"] != first["group"])]
    (tmp_path / "runs").mkdir()
    for run in chosen:
        for file in (BENCH / "corpus" / "runs").glob(f"{run['id']}.*"):
            shutil.copy(file, tmp_path / "runs")
    with (tmp_path / "index.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(first))
        writer.writeheader()
        writer.writerows(chosen)
    shutil.copy(BENCH / "corpus" / "labels.csv", tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("program", SMALLEST)
def test_a_program_ends_with_its_figures(program, corpus):
    options = SMALLEST[program].replace(CORPUS, str(corpus)).split()
    command = [sys.executable, "-m", f"bench.{program}", *options]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert "Traceback" not in ended.stderr
    assert ended.returncode < BAD_USAGE, ended.stderr
    assert ended.stdout.strip()
