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
from local.pace import VARIABLE

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
# The longest two come first, and one without a demo third: so the third demo goes to the worker of the shorter one.


@pytest.mark.parametrize(
    ("scenario", "rungs", "rate"),
    [
        ("ladder", ["", "replay", "skip"], 1.0),
        pytest.param("ladder-rate", ["", "replay", "skip", "far_skip", "lower_rate"], 0.9, marks=rehearsal),
    ],
)
def test_a_loss_that_diverges_again_takes_the_next_rung(play, scenario, rungs, rate):
    """Each rung from before the onset; what one skips the next ones skip too; it is one incident to its end."""
    facts, printed = play(scenario)
    assert (facts["state"], facts["rungs"]) == ("completed", rungs)
    (incident,) = facts["incidents"]
    attempts = facts["attempts"]
    assert all(attempt["resumed_from_step"] < incident["onset_step"] for attempt in attempts[1:])
    assert [bool(attempt["skip_samples"]) for attempt in attempts] == [
        "skip" in rungs[: n + 1] for n in range(len(rungs))
    ]
    assert [attempt["rate"] for attempt in attempts] == [1.0] * (len(rungs) - 1) + [rate]
    assert all(f"rung {rung}: " in " ".join(printed.split()) for rung in rungs[1:])


def test_a_script_that_knows_nothing_of_rerail_is_rolled_back_all_the_same(play):
    """A plain Hugging Face script: seen by its metrics alone, its tainted saves moved out of its way, its losses those
    of an undisturbed run to the last bit."""
    facts, printed = play("hf")
    assert facts["state"] == "completed"
    first, second = facts["attempts"]
    (incident,) = facts["incidents"]
    assert (incident["kind"], first["cause"]) == ("non_finite", "diverged")
    assert 0 < second["resumed_from_step"] < incident["onset_step"] <= 138, "step 138 is the first with a NaN"
    assert second["first_step"] == second["resumed_from_step"] + 1
    assert all(key.startswith("a001/checkpoint-") for key in facts["set_aside"])
    assert facts["reference_max_abs_loss_difference"] == 0
    assert "moved to quarantine by the supervisor" in printed


def test_every_scenario_is_rehearsed():
    """None is added that nobody ever plays."""
    text = Path(__file__).read_text()
    assert [name for name in Name if f'"{name}"' not in text] == []


@pytest.mark.parametrize(
    ("scenario", "causes"),
    [
        ("crash", ["unknown"]),
        pytest.param("infra", ["infrastructure"], marks=rehearsal),
        pytest.param("capacity", ["infrastructure", "capacity"], marks=rehearsal),
    ],
)
def test_a_relaunch_leaves_the_loss_of_every_step_unchanged(play, scenario, causes):
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
    assert facts["findings"] == [], "until the fault, and after it, there is nothing to warn of"
    assert 0 <= incident["detected_after_s"] < incident["mttr_s"]
    assert 0 < incident["lost_steps"] <= 60
    assert "relaunch" in incident["actions"]
    assert f"clock x{facts['clock_scale']:g}" in printed, "the screen says that durations are scaled"


@rehearsal
def test_a_bug_is_held_before_a_third_attempt(play):
    """Two attempts die of the same error at the same step."""
    facts, printed = play("bug")
    assert facts["state"] == "held"
    assert [attempt["cause"] for attempt in facts["attempts"]] == ["user_code", "user_code"]
    assert "the same error at step" in facts["incidents"][-1]["reason"]
    assert "hold" in facts["incidents"][-1]["actions"]
    assert "the same error at step" in printed


@rehearsal
def test_running_out_of_memory_is_held_at_once(play):
    """The policy has no retries for it."""
    facts, _ = play("oom")
    assert facts["state"] == "held"
    assert [attempt["cause"] for attempt in facts["attempts"]] == ["oom"]
    assert facts["incidents"][-1]["mttr_s"] is None


@rehearsal
def test_a_loss_that_runs_away_is_rolled_back_to_before_it(play):
    """Warned at once, stopped when it did not mend, resumed from before the onset: the curve is the undisturbed one."""
    facts, printed = play("spike")
    assert [attempt["cause"] for attempt in facts["attempts"] if attempt["cause"]] == ["diverged"]
    assert {"loss_spike", "divergence"} <= set(facts["findings"])
    assert 0 < facts["attempts"][1]["resumed_from_step"] <= 640
    assert facts["reference_max_abs_loss_difference"] == 0
    assert printed.index("warning: loss_spike") < printed.index("stopping the job")
    quarantined = [save for save in facts["checkpoints"] if save["aside"]]
    assert facts["handshake"]["step"] in [save["step"] for save in quarantined], (
        "the emergency checkpoint is kept as evidence"
    )
    assert all(save["step"] > facts["attempts"][1]["resumed_from_step"] for save in quarantined)


@rehearsal
def test_a_loss_that_is_no_number_is_rolled_back_within_its_job(play):
    """Its own init restarts the processes from before the onset: one job, one attempt, the undisturbed curve."""
    facts, _ = play("inplace")
    assert (facts["state"], len(facts["attempts"]), facts["handshake"]) == ("completed", 1, None)
    assert facts["reference_max_abs_loss_difference"] == 0
    (restart,), (incident,) = facts["restarts"], facts["incidents"]
    assert incident["actions"] == ["restart"]
    assert restart["resume_step"] == incident["resumed_from_step"] < incident["onset_step"]
    assert 0 < restart["running_after_s"] < restart["step_after_s"]
    assert incident["next_step_after_s"] > 0


@rehearsal
def test_a_job_that_became_slow_is_moved_without_losing_a_step(play):
    """It is asked to save, is stopped only when it has, and the fresh machines carry on where it stopped."""
    facts, _ = play("slow")
    assert facts["handshake"]["reason"] == "throughput_drop"
    assert facts["handshake"]["step"] <= facts["attempts"][1]["resumed_from_step"]
    assert [attempt["cause"] for attempt in facts["attempts"] if attempt["cause"]] == ["hardware"]
    assert facts["incidents"][0]["lost_steps"] == 0
    assert facts["reference_max_abs_loss_difference"] == 0


@rehearsal
def test_a_job_that_a_human_stops_saves_first_and_is_not_relaunched(play):
    """The last step is in S3 when the job is gone, and the run ends there."""
    facts, _ = play("sigterm")
    assert (facts["state"], len(facts["attempts"])) == ("stopped", 1)
    newest = facts["checkpoints"][0]
    assert (newest["step"], newest["reason"], newest["whole"]) == (facts["final_step"], "sigterm", True)
    assert 85 <= newest["step"] < 160


@rehearsal
def test_what_sagemaker_itself_restarts_is_left_to_it(play):
    """A spot job that waits for its machine longer than any step may take is neither stopped nor relaunched."""
    facts, _ = play("spot")
    assert (facts["state"], len(facts["attempts"])) == ("completed", 1)
    assert facts["attempts"][0]["self_repairs"] == 1
    assert facts["incidents"] == []
    assert facts["reference_max_abs_loss_difference"] == 0


@rehearsal
@pytest.mark.parametrize(("scenario", "becomes"), [("warm", "Reused"), ("suspect", "Terminated")])
def test_machines_that_are_kept_are_used_again_unless_they_are_suspect(play, scenario, becomes):
    """The script's own crash: the next attempt starts sooner. Wrong results: it starts on others."""
    facts, printed = play(scenario)
    first, second = facts["attempts"]
    assert (facts["state"], first["pool"]) == ("completed", becomes)
    assert (second["start_s"] < first["start_s"] / 2) == (scenario == "warm")
    assert ("the warm pool is given back first" in printed) == (scenario == "suspect")


@rehearsal
def test_without_machines_the_run_goes_to_the_policys_next_best(play):
    """It waits first; what it has trained is not lost."""
    facts, printed = play("fallback")
    assert [attempt["instance_type"] for attempt in facts["attempts"]] == ["ml.m5.large", "ml.m5.large", "ml.m5.xlarge"]
    assert facts["attempts"][-1]["resumed_from_step"] > 0
    assert "calling it back, to go to ml.m5.xlarge" in " ".join(printed.split())


@rehearsal
def test_a_layout_of_three_dimensions_is_resumed_as_a_smaller_one(play):
    """Eight processes, then four: pipeline and tensor parallelism stay, and the losses are those of one process."""
    facts, _ = play("parallel")
    first, _, last = facts["attempts"]
    assert (first["instance_type"], last["instance_type"]) == ("ml.m5.large", "ml.m5.xlarge")
    assert first["last_step"] == 59
    assert (last["resumed_from_step"], last["last_step"]) == (50, facts["final_step"])
    assert facts["reference_max_abs_loss_difference"] < 1e-3


@rehearsal
@pytest.mark.parametrize("scenario", ["heal", "nan", "stall", "blind", "idle", "approve", "storm"])
def test_every_other_scenario_ends_as_it_must(play, scenario):
    """The demo itself says what is not as it must be, and fails."""
    facts, _ = play(scenario)
    assert facts["scenario"] == scenario


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
@pytest.mark.parametrize("scenarios", ["crash", pytest.param("crash storm hf", marks=rehearsal)])
def test_scenarios_end_as_they_must_on_a_busy_machine(tmp_path, monkeypatch, scenarios):
    """A fault of the job itself; and at once with it one that SageMaker causes in four jobs, and one that only metrics
    show. The clock is slowed, and the screen says so."""
    monkeypatch.delenv(VARIABLE, raising=False)
    with ThreadPoolExecutor() as threads:
        played = {name: threads.submit(play_in, tmp_path / name, name) for name in scenarios.split()}
    for name, outcome in played.items():
        facts, printed = outcome.result()
        assert facts["scenario"] == name
        assert facts["clock_scale"] < 60
        assert "this machine is busy or slow" in printed
