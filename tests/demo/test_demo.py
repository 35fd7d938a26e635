"""`rerail demo`, end to end as a user runs it: every scenario ends as it must, and the JSON says how."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cli.demo.scenarios import Name
from local.pace import FASTEST_SCALE, VARIABLE

pytestmark = [pytest.mark.slow, pytest.mark.time_limit(400, reason="real trainings beside other suites")]
ROOT = Path(__file__).parents[2]
# Far longer than any scenario takes on the slowest clock: only a demo that hangs is ended.
HANGS_AFTER_S = 3600
BUSY_LOOPS = 6
RERAIL = [sys.executable, "-m", "cli.main", "demo"]


Play = Callable[[str], tuple[dict[str, Any], str]]


def play_in(folder: Path, scenario: str) -> tuple[dict[str, Any], str]:
    """Run a scenario with its files in this folder; return its facts, and what it printed."""
    folder.mkdir(exist_ok=True)
    facts, page = folder / "facts.json", folder / "report.html"
    options = ["--scenario", scenario, "--json", str(facts), "--html", str(page)]
    environment = {**os.environ, "RERAIL_LOCAL_STATE": str(folder)}
    demo = subprocess.run(
        [*RERAIL, *options], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=HANGS_AFTER_S
    )
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert scenario in page.read_text()
    return json.loads(facts.read_text()), demo.stdout


@pytest.fixture
def play(tmp_path: Path) -> Play:
    return partial(play_in, tmp_path)


rehearsal = pytest.mark.rehearsal
PRINTED = {
    Name.LADDER: "rung skip: ",
    Name.HF: "moved to quarantine by the supervisor",
    Name.BUG: "the same error at step",
    Name.SPIKE: "warning: loss_spike",
    Name.SUSPECT: "the warm pool is given back first",
    Name.FALLBACK: "calling it back, to go to ml.m5.xlarge",
}
# These come first, since they take longest.
IN_EVERY_SUITE = (Name.LADDER, Name.HF)
REHEARSED = [pytest.param(name, marks=rehearsal) for name in Name if name not in IN_EVERY_SUITE]


@pytest.mark.parametrize("scenario", [*IN_EVERY_SUITE, *REHEARSED])
def test_a_scenario_ends_as_it_must(play, scenario):
    """The demo itself names what is not as it must be, and fails; test_verdict.py has each of its checks."""
    facts, printed = play(scenario)
    assert facts["scenario"] == scenario
    assert PRINTED.get(scenario, "") in " ".join(printed.split())


@pytest.fixture
def six_busy_loops() -> Iterator[None]:
    """Processes that take all the time that two cores have, at normal priority."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(BUSY_LOOPS)]
    yield
    for loop in loops:
        loop.kill()
        loop.wait()


@pytest.mark.load
@pytest.mark.usefixtures("six_busy_loops")
def test_on_a_busy_machine_a_relaunch_leaves_the_loss_of_every_step_unchanged(play, monkeypatch):
    """The run completes, resumed from its newest checkpoint, and each step's loss equals the undisturbed run's. The
    screen says whether the clock is slowed, which a fast machine does not need."""
    monkeypatch.delenv(VARIABLE, raising=False)
    facts, printed = play("crash")
    assert ("this machine is busy or slow" in printed) == (facts["clock_scale"] < FASTEST_SCALE)
    assert (facts["scenario"], facts["state"]) == ("crash", "completed")
    assert [attempt["cause"] for attempt in facts["attempts"] if attempt["cause"]] == ["unknown"]
    last = facts["attempts"][-1]
    assert (last["status"], last["last_step"]) == ("Completed", facts["final_step"])
    assert last["resumed_from_step"] > 0
    assert last["first_step"] == last["resumed_from_step"] + 1
    assert facts["reference_max_abs_loss_difference"] == 0
    (incident,) = facts["incidents"]
    assert (incident["kind"], incident["cause"]) == ("job_failed", "unknown")
    assert facts["findings"] == [], "until the fault, and after it, there is nothing to warn of"
    assert 0 <= incident["detected_after_s"] < incident["mttr_s"]
    assert 0 < incident["lost_steps"] <= 60
    assert "relaunch" in incident["actions"]
    assert f"clock x{facts['clock_scale']:g}" in printed, "the screen says that durations are scaled"


@rehearsal
@pytest.mark.load
@pytest.mark.usefixtures("six_busy_loops")
def test_scenarios_end_as_they_must_on_a_busy_machine(tmp_path, monkeypatch):
    """A fault of the job itself; and at once with it one that SageMaker causes in four jobs, and one that only metrics
    show."""
    monkeypatch.delenv(VARIABLE, raising=False)
    with ThreadPoolExecutor() as threads:
        played = {name: threads.submit(play_in, tmp_path / name, name) for name in ("crash", "storm", "hf")}
    for name, outcome in played.items():
        facts, printed = outcome.result()
        assert facts["scenario"] == name
        assert ("this machine is busy or slow" in printed) == (facts["clock_scale"] < FASTEST_SCALE)
