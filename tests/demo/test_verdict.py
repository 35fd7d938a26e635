"""The verdict on a demo: a run that ended as its scenario must passes, and whatever is amiss is named."""

from copy import deepcopy
from typing import Any

import pytest

from cli.demo.scenarios import SCENARIOS, Name
from cli.demo.verdict import shortcomings


def save(step: int, *, attempt: int = 1, aside: bool = False, health: str = "clean", reason: str = "periodic"):
    folder = f"{f'quarantine/a{attempt}-' if aside else ''}step-{step:09d}"
    known = {"attempt": attempt, "reason": reason, "health": health, "whole": True}
    return {"folder": folder, "step": step, "aside": aside, **known}


def attempt(cause: str | None = None, *, resumed: int | None = None, repairs: int = 0) -> dict[str, Any]:
    return {"cause": cause, "resumed_from_step": resumed, "self_repairs": repairs}


HANDSHAKE = {"step": 700, "stopped_because": "the emergency checkpoint of step 700 is committed: stopping the job"}
GOOD: dict[Name, dict[str, Any]] = {
    Name.SPIKE: {
        "state": "completed",
        "attempts": [attempt("diverged"), attempt(resumed=625)],
        "incidents": [{"onset_step": 638, "resumed_from_step": 625, "lost_steps": 80}],
        "findings": ["divergence", "loss_spike"],
        "handshake": HANDSHAKE,
        "checkpoints": [
            save(650, attempt=2),
            save(625),
            save(700, aside=True, health="suspect"),
            save(650, aside=True),
        ],
        "final_step": 880,
        "reference_max_abs_loss_difference": 0.0,
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


@pytest.mark.parametrize("name", GOOD)
def test_what_ended_as_it_must_has_no_shortcomings(name):
    """Each kind of scenario with the report of a good run."""
    assert shortcomings(SCENARIOS[name], GOOD[name]) == []


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        (Name.SPIKE, {"handshake": None}, "the agent was not asked"),
        (Name.SPIKE, {"handshake": HANDSHAKE | {"stopped_because": "the deadline"}}, "but: the deadline"),
        (Name.SPIKE, {"handshake": HANDSHAKE | {"stopped_because": ""}}, "but: not at all"),
        (Name.SPIKE, {"checkpoints": [save(625)]}, "no tainted checkpoint was put aside"),
        (Name.SPIKE, {"checkpoints": [save(625, health="suspect"), save(700, aside=True)]}, "not there, or not clean"),
        (Name.SPIKE, {"checkpoints": [save(625), save(600, aside=True)]}, "put aside without need"),
        (
            Name.SPIKE,
            {"incidents": [{"onset_step": 620, "resumed_from_step": 625, "lost_steps": 0}]},
            "not older than the onset at step 620",
        ),
        (Name.SPIKE, {"findings": ["divergence"]}, "did not say loss_spike"),
        (Name.SLOW, {"incidents": [{"onset_step": None, "resumed_from_step": 675, "lost_steps": 9}]}, "are [9]"),
        (Name.SLOW, {"attempts": [attempt("hardware"), attempt(), attempt(resumed=700)]}, "there are 3 attempts"),
        (Name.SIGTERM, {"checkpoints": [save(75)]}, "the newest checkpoint is of step 75 (periodic)"),
        (Name.SIGTERM, {"checkpoints": []}, "nothing was saved"),
        (Name.SIGTERM, {"state": "completed"}, "the run is completed, it must end stopped"),
        (Name.SPOT, {"attempts": [attempt()]}, "restarted the job 0 times"),
        (Name.SPOT, {"attempts": [attempt(repairs=1), attempt()]}, "Rerail relaunched what SageMaker"),
        (Name.SPOT, {"reference_max_abs_loss_difference": 1e-9}, "the loss differs"),
        (Name.SPOT, {"final_step": 150}, "the last step is 150, it must be 160"),
    ],
)
def test_what_is_amiss_is_named(name, changes, said):
    """One sentence for each thing, with the numbers."""
    problems = shortcomings(SCENARIOS[name], deepcopy(GOOD[name]) | changes)
    assert [problem for problem in problems if said in problem]
