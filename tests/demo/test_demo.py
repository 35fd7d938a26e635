"""`rerail demo`, end to end as a user runs it: every scenario ends as it must, and the JSON says how."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
RERAIL = [sys.executable, "-m", "cli.main", "demo"]


@pytest.fixture
def play(tmp_path: Path):
    """Runs a scenario; its facts, and what it printed."""

    def play(scenario: str) -> tuple[dict[str, Any], str]:
        facts, page = tmp_path / "facts.json", tmp_path / "report.html"
        options = ["--scenario", scenario, "--json", str(facts), "--html", str(page)]
        environment = {**os.environ, "RERAIL_LOCAL_STATE": str(tmp_path)}
        demo = subprocess.run(
            [*RERAIL, *options], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=400
        )
        assert demo.returncode == 0, demo.stdout + demo.stderr
        assert scenario in page.read_text()
        return json.loads(facts.read_text()), demo.stdout

    return play


@pytest.mark.parametrize(
    ("scenario", "causes"),
    [("crash", ["unknown"]), ("infra", ["infrastructure"]), ("capacity", ["infrastructure", "capacity"])],
)
def test_what_a_relaunch_can_mend_is_mended_without_a_trace_in_the_loss(play, scenario, causes):
    """The run completes, resumed from its newest checkpoint, and each step's loss equals the undisturbed run's."""
    facts, printed = play(scenario)
    assert (facts["scenario"], facts["state"]) == (scenario, "completed")
    assert [attempt["cause"] for attempt in facts["attempts"] if attempt["cause"]] == causes
    last = facts["attempts"][-1]
    assert (last["status"], last["last_step"]) == ("Completed", facts["final_step"])
    assert last["resumed_from_step"] > 0
    assert last["first_step"] == last["resumed_from_step"] + 1
    assert facts["reference_max_abs_loss_difference"] == 0
    (incident,) = facts["incidents"]
    assert (incident["kind"], incident["cause"]) == ("job_failed", causes[0])
    assert 0 <= incident["detected_after_s"] < incident["mttr_s"] < 90
    assert 0 < incident["lost_steps"] <= 60
    assert "relaunch" in incident["actions"]
    assert "clock x60" in printed, "the screen says that durations are scaled"


def test_a_bug_is_held_before_a_third_attempt(play):
    """Two attempts die of the same error at the same step."""
    facts, printed = play("bug")
    assert facts["state"] == "held"
    assert [attempt["cause"] for attempt in facts["attempts"]] == ["user_code", "user_code"]
    assert "the same error at step" in facts["incidents"][-1]["reason"]
    assert "hold" in facts["incidents"][-1]["actions"]
    assert "the same error at step" in printed


def test_running_out_of_memory_is_held_at_once(play):
    """The policy has no retries for it."""
    facts, _ = play("oom")
    assert facts["state"] == "held"
    assert [attempt["cause"] for attempt in facts["attempts"]] == ["oom"]
    assert facts["incidents"][-1]["mttr_s"] is None


def test_a_loss_that_runs_away_is_rolled_back_to_before_it(play):
    """Warned at once, stopped when it did not mend, resumed from before the onset: the curve is the undisturbed one."""
    facts, printed = play("spike")
    assert [attempt["cause"] for attempt in facts["attempts"] if attempt["cause"]] == ["diverged"]
    assert {"loss_spike", "divergence"} <= set(facts["findings"])
    assert 0 < facts["attempts"][1]["resumed_from_step"] <= 640
    assert facts["reference_max_abs_loss_difference"] == 0
    assert printed.index("warning: loss_spike") < printed.index("stopping the job")


def test_a_job_that_became_slow_is_moved_without_losing_a_step(play):
    """It saves first, and the fresh machines carry on where it stopped."""
    facts, _ = play("slow")
    assert [attempt["cause"] for attempt in facts["attempts"] if attempt["cause"]] == ["hardware"]
    assert facts["incidents"][0]["lost_steps"] == 0
    assert facts["reference_max_abs_loss_difference"] == 0
