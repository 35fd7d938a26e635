"""A tiny soak, end to end: a real training with two faults, and the model of its reference run."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.rehearsal,
    pytest.mark.time_limit(400, reason="real trainings beside other suites"),
]
ROOT = Path(__file__).parents[2]


def test_a_tiny_soak_holds(tmp_path):
    """Losses to the last bit, each sample once, every fault named as what it was, and nothing left behind."""
    file = tmp_path / "evidence.json"
    options = ["--scenario", "crash", "--scenario", "in-save", "--state", str(tmp_path / "soak")]
    command = [sys.executable, "-m", "bench.soak", *options, "--evidence", str(file)]
    soak = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert soak.returncode == 0, soak.stdout + soak.stderr
    sheet = json.loads(file.read_text())["sheets"][0]
    (run,) = sheet["rows"]
    row = dict(zip(sheet["columns"], run, strict=True))
    assert (row["faults"], row["attempts"], row["other bits"]) == (2, 3, 0)
    assert (row["losses compared"], row["samples"]) == (row["steps"], 16 * row["steps"])
    assert not (tmp_path / "soak" / "1").exists(), "a soak that holds leaves nothing"
