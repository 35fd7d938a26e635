"""The verdict on a demo: a run that ended as its scenario must passes, and whatever is amiss is named."""

from copy import deepcopy
from typing import Any

import pytest

from cli.demo.scenarios import SCENARIOS, Name
from cli.demo.verdict import find_shortcomings


def moved(*steps: int) -> list[str]:
    return [f"a001/checkpoint-{step}/{name}" for step in steps for name in ("model.safetensors", "trainer_state.json")]


def save(step: int, *, attempt: int = 1, quarantined: bool = False, health: str = "clean", reason: str = "periodic"):
    folder = f"{f'quarantine/a{attempt}-' if quarantined else ''}step-{step:09d}"
    known = {"attempt": attempt, "reason": reason, "health": health, "whole": True}
    return {"folder": folder, "step": step, "aside": quarantined, **known}


def attempt(
    cause: str | None = None, *, resumed: int | None = None, repairs: int = 0, skips: str = "", rate: float = 1.0
) -> dict[str, Any]:
    asked = {"skip_samples": skips, "rate": rate, "microbatches": 1}
    return {"cause": cause, "resumed_from_step": resumed, "self_repairs": repairs, **asked}


def on(kind: str, job: str, *, start_s: float | None = 1.8, pool: str | None = None, taken_by: str | None = None):
    return {"job": job, "instance_type": kind, "start_s": start_s, "pool": pool, "pool_reused_by": taken_by}


def moved_run(*attempts: dict[str, Any]) -> dict[str, Any]:
    """A good run of the scenarios about machines."""
    return {
        "state": "completed",
        "clock_scale": 1,
        "attempts": list(attempts),
        "incidents": [],
        "findings": [],
        "handshake": None,
        "checkpoints": [],
        "set_aside": [],
        "rungs": [],
        "final_step": 160,
        "reference_max_abs_loss_difference": 0.0,
    }


OWN, OTHER = "ml.m5.large", "ml.m5.xlarge"
TAKEN = attempt("unknown") | on(OWN, "demo", pool="Reused", taken_by="demo-a002")
SOONER = attempt(resumed=75) | on(OWN, "demo-a002", start_s=0.4)
HANDSHAKE = {"step": 700, "stopped_because": "the emergency checkpoint of step 700 is committed: stopping the job"}
YES = {"answered": 1, "words": True, "said": "ada said approve: creating demo-a002 from step 75"}
OTHER_RUNS = {
    "states": ["completed"] * 4,
    "most_in_window": 2,
    "limit": 2,
    "window_s": 60.0,
    "rate_limited": 2,
    "pages": 1,
}
COST = {"cap": 0.02, "dollars": 0.03, "most": 0.04}
GOOD: dict[Name, dict[str, Any]] = {
    Name.SPIKE: {
        "state": "completed",
        "attempts": [attempt("diverged"), attempt(resumed=625)],
        "rungs": ["", "replay"],
        "incidents": [{"onset_step": 638, "resumed_from_step": 625, "lost_steps": 80}],
        "findings": ["divergence", "loss_spike"],
        "handshake": HANDSHAKE,
        "checkpoints": [
            save(650, attempt=2),
            save(625),
            save(700, quarantined=True, health="suspect"),
            save(650, quarantined=True),
        ],
        "final_step": 880,
        "reference_max_abs_loss_difference": 0.0,
    },
    Name.LADDER_RATE: {
        "state": "completed",
        "attempts": [
            attempt("diverged"),
            attempt("diverged", resumed=350),
            attempt("diverged", resumed=350, skips="5904-6863"),
            attempt("diverged", resumed=325, skips="5200-7999"),
            attempt(resumed=325, skips="5200-7999", rate=0.9),
        ],
        "rungs": ["", "replay", "skip", "far_skip", "lower_rate"],
        "incidents": [{"onset_step": 399, "resumed_from_step": 350, "lost_steps": 115}],
        "findings": ["divergence", "loss_spike"],
        "handshake": HANDSHAKE,
        "checkpoints": [],
        "final_step": 560,
        "reference_max_abs_loss_difference": 0.4,
    },
    Name.SLOW: {
        "state": "completed",
        "attempts": [attempt("hardware"), attempt(resumed=700)],
        "incidents": [{"onset_step": None, "resumed_from_step": 700, "lost_steps": 0}],
        "findings": ["throughput_drop"],
        "handshake": HANDSHAKE,
        "checkpoints": [save(700, reason="emergency")],
        "final_step": 880,
        "reference_max_abs_loss_difference": 0.0,
    },
    Name.SIGTERM: {
        "state": "stopped",
        "attempts": [attempt()],
        "incidents": [],
        "findings": [],
        "handshake": None,
        "checkpoints": [save(93, reason="sigterm"), save(75)],
        "final_step": 93,
        "reference_max_abs_loss_difference": 0.0,
    },
    Name.HF: {
        "state": "completed",
        "attempts": [attempt("diverged"), {**attempt(resumed=125), "first_step": 126}],
        "incidents": [{"onset_step": 130, "resumed_from_step": 125, "lost_steps": 80}],
        "findings": ["non_finite"],
        "handshake": None,
        "checkpoints": [],
        "set_aside": moved(150, 175),
        "final_step": 260,
        "reference_max_abs_loss_difference": 0.0,
    },
    Name.INPLACE: {
        "state": "completed",
        "attempts": [attempt("diverged")],
        "incidents": [{"onset_step": 640, "resumed_from_step": 600, "lost_steps": 42}],
        "findings": ["non_finite"],
        "handshake": None,
        "checkpoints": [
            save(650),
            save(600),
            save(654, quarantined=True),
            save(650, quarantined=True),
            save(625, quarantined=True),
        ],
        "restarts": [{"step_after_s": 3.3}],
        "final_step": 880,
        "reference_max_abs_loss_difference": 0.0,
    },
    Name.WARM: moved_run(TAKEN, SOONER),
    Name.OOM_HEAL: moved_run(attempt("oom"), attempt(resumed=75) | {"microbatches": 2}),
    Name.SUSPECT: moved_run(
        attempt("hardware") | on(OWN, "demo", pool="Terminated"), attempt(resumed=75) | on(OWN, "demo-a002")
    ),
    Name.FALLBACK: moved_run(
        attempt("infrastructure") | on(OWN, "demo"),
        attempt("capacity", resumed=75) | on(OWN, "demo-a002", start_s=None),
        attempt(resumed=75) | on(OTHER, "demo-a003"),
    ),
    Name.APPROVE: moved_run(attempt("infrastructure") | on(OWN, "demo"), attempt(resumed=75) | on(OWN, "demo-a002"))
    | {"approval": YES},
    Name.STORM: moved_run(attempt("infrastructure") | on(OWN, "demo"), attempt(resumed=75) | on(OWN, "demo-a002"))
    | {"crowd": OTHER_RUNS},
    Name.BUDGET: moved_run(attempt()) | {"state": "held", "handshake": HANDSHAKE, "cost": COST},
    Name.SPOT: {
        "state": "completed",
        "attempts": [attempt(repairs=1)],
        "incidents": [],
        "findings": [],
        "handshake": None,
        "checkpoints": [],
        "final_step": 160,
        "reference_max_abs_loss_difference": 0.0,
    },
}


CLIMBED = GOOD[Name.LADDER_RATE]["attempts"]


@pytest.mark.parametrize("name", GOOD)
def test_what_ended_as_it_must_has_no_shortcomings(name):
    """Each kind of scenario with the report of a good run."""
    assert find_shortcomings(SCENARIOS[name], GOOD[name]) == []


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        (Name.SPIKE, {"handshake": None}, "the agent was not asked"),
        (Name.SPIKE, {"handshake": HANDSHAKE | {"stopped_because": "the deadline"}}, "but: the deadline"),
        (Name.SPIKE, {"handshake": HANDSHAKE | {"stopped_because": ""}}, "but: not at all"),
        (Name.SPIKE, {"checkpoints": [save(625)]}, "no suspect checkpoint was quarantined"),
        (
            Name.SPIKE,
            {"checkpoints": [save(625, health="suspect"), save(700, quarantined=True)]},
            "not there, or not clean",
        ),
        (Name.SPIKE, {"checkpoints": [save(625), save(600, quarantined=True)]}, "quarantined without need"),
        (
            Name.SPIKE,
            {"incidents": [{"onset_step": 620, "resumed_from_step": 625, "lost_steps": 0}]},
            "not older than the onset at step 620",
        ),
        (Name.SPIKE, {"findings": ["divergence"]}, "did not say loss_spike"),
        (Name.SPIKE, {"rungs": ["", "skip"]}, "the rungs of the attempts are none, skip, they must be none, replay"),
        (Name.LADDER_RATE, {"attempts": [*CLIMBED[:4], attempt(resumed=325, rate=0.9)]}, "5 on rung lower_rate skips"),
        (Name.LADDER_RATE, {"attempts": [*CLIMBED[:4], CLIMBED[3]]}, "attempt 5 on rung lower_rate has 1.0 of the"),
        (Name.LADDER_RATE, {"incidents": [{"onset_step": 350}]}, "attempt 2 resumed from step 350, the onset is at"),
        (Name.INPLACE, {"restarts": []}, "the restarts in place are []"),
        (Name.INPLACE, {"restarts": [{"step_after_s": None}]}, "there must be one that came to its first step"),
        (
            Name.INPLACE,
            {"attempts": [attempt("diverged"), attempt(resumed=600)]},
            "there are 2 attempts, there must be 1",
        ),
        (Name.WARM, {"attempts": [TAKEN | {"pool": "Terminated"}, SOONER]}, "is Terminated, it must be Reused"),
        (Name.WARM, {"attempts": [TAKEN | {"pool_reused_by": "x"}, SOONER]}, "was taken by x, not by demo-a002"),
        (Name.WARM, {"attempts": [TAKEN, SOONER | {"start_s": 1.9}]}, "took 1.9 s to start, the first 1.8 s"),
        (Name.WARM, {"attempts": [TAKEN, SOONER | {"start_s": None}]}, "nothing was saved"),
        (Name.SUSPECT, {"attempts": [TAKEN | {"cause": "hardware"}, SOONER]}, "is Reused, it must be Terminated"),
        (
            Name.FALLBACK,
            {"attempts": [attempt("infrastructure") | on(OWN, "demo"), attempt(resumed=75) | on(OWN, "demo-a002")]},
            "were on ml.m5.large, ml.m5.large; the last one must be on ml.m5.xlarge",
        ),
        (Name.SLOW, {"incidents": [{"onset_step": None, "resumed_from_step": 675, "lost_steps": 9}]}, "are [9]"),
        (Name.SLOW, {"attempts": [attempt("hardware"), attempt(), attempt(resumed=700)]}, "there are 3 attempts"),
        (Name.SIGTERM, {"checkpoints": [save(75)]}, "the newest checkpoint is of step 75 (periodic)"),
        (Name.SIGTERM, {"checkpoints": []}, "nothing was saved"),
        (Name.SIGTERM, {"state": "completed"}, "the run is completed, it must end stopped"),
        (Name.APPROVE, {"approval": YES | {"answered": 0}}, "0 proposals were answered, it must be 1"),
        (Name.APPROVE, {"approval": YES | {"said": ""}}, "the word came to nothing: nothing was said of it"),
        (Name.STORM, {"crowd": OTHER_RUNS | {"most_in_window": 3}}, "3 relaunches within 60.0 s, of at most 2"),
        (Name.STORM, {"crowd": OTHER_RUNS | {"pages": 0}}, "on-call was paged 0 times for it"),
        (Name.STORM, {"crowd": OTHER_RUNS | {"states": ["completed"] * 3 + ["held"]}}, "all must complete"),
        (Name.BUDGET, {"cost": COST | {"dollars": 0.019}}, "the run has cost $0.0190, it must be $0.02 to $0.0400"),
        (Name.BUDGET, {"cost": COST | {"dollars": 0.041}}, "the run has cost $0.0410, it must be"),
        (Name.HF, {"set_aside": []}, "nothing was moved out of the script's way"),
        (Name.HF, {"set_aside": moved(125, 150)}, "moved without need: the checkpoints of steps 125"),
        (
            Name.HF,
            {"incidents": [{"onset_step": 120, "resumed_from_step": 125, "lost_steps": 0}]},
            "not older than the onset at step 120",
        ),
        (
            Name.HF,
            {"attempts": [attempt("diverged"), {**attempt(resumed=125), "first_step": 176}]},
            "the script went on at step 176, not after step 125",
        ),
        (Name.OOM_HEAL, {"attempts": [attempt("oom"), attempt(resumed=75)]}, "are 1, 1; the last must have 2"),
        *((name, {"attempts": []}, "no attempts") for name in (Name.OOM_HEAL, Name.FALLBACK, Name.WARM, Name.HF)),
        (Name.SPOT, {"attempts": [attempt()]}, "restarted the job 0 times"),
        (Name.SPOT, {"attempts": [attempt(repairs=1), attempt()]}, "Rerail relaunched what SageMaker"),
        (Name.SPOT, {"reference_max_abs_loss_difference": 1e-9}, "the loss differs"),
        (Name.SPOT, {"final_step": 150}, "the last step is 150, it must be 160"),
    ],
)
def test_what_is_amiss_is_named(name, changes, said):
    """One sentence for each thing, with the numbers."""
    problems = find_shortcomings(SCENARIOS[name], deepcopy(GOOD[name]) | changes)
    assert [problem for problem in problems if said in problem]
