"""The checks for a machine with GPUs: they run on a CPU as far as it can, and each fails when its subject is broken."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rerail_agent import acceptance
from rerail_agent.acceptance import GpuCheck, GpuCheckOptions, GpuCheckStatus
from rerail_agent.checkpoints.plan import SavePlan

pytestmark = pytest.mark.slow

stage = SavePlan.stage
multiply = torch.Tensor.__matmul__


@pytest.fixture
def options(tmp_path: Path) -> GpuCheckOptions:
    return GpuCheckOptions("cpu", 4 << 20, 1, str(tmp_path))


def find_first(found: list[GpuCheck], name: str) -> GpuCheck:
    return next(check for check in found if check.name == name)


def stage_damaged(plan: SavePlan, leaves: Any, into: Any = None) -> None:
    stage(plan, leaves, into)
    for part in [part.copy for part in plan.parts] if into is None else into:
        if part.numel() and part.is_floating_point():
            part.view(-1)[:1] += 1


def multiply_wrongly(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    product = multiply(one, other)
    return product + product.is_floating_point() * 1  # the expected numbers are computed with integers


def restore_no_random_state(state: Any) -> None:
    """Do nothing."""


@pytest.mark.parametrize(
    ("check", "name", "owner", "attribute", "broken"),
    [
        ("machine", "compute", torch.Tensor, "__matmul__", multiply_wrongly),
        ("save", "save", SavePlan, "stage", stage_damaged),
        ("snapshots", "snapshots", SavePlan, "stage", stage_damaged),
        ("exactness", "exactness in bfloat16", acceptance, "set_random_state", restore_no_random_state),
    ],
)
def test_a_check_passes_and_fails_when_its_subject_is_broken(
    check: str,
    name: str,
    owner: object,
    attribute: str,
    broken: Callable[..., Any],
    options: GpuCheckOptions,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(torch, "use_deterministic_algorithms", lambda mode: None)  # of this process, for other tests
    # A CPU computes bfloat16 slowly: fewer steps than on a GPU show as well whether losses after a resume are equal.
    monkeypatch.setattr(acceptance, "EXACT_STEPS", 4)
    monkeypatch.setattr(acceptance, "EXACT_SAVE", 2)
    passed = find_first(acceptance.run_check(check, options), name)
    assert passed.status is GpuCheckStatus.PASSED, passed.detail
    monkeypatch.setattr(owner, attribute, broken)
    (tmp_path / "broken").mkdir()
    again = GpuCheckOptions("cpu", options.state_bytes, 1, str(tmp_path / "broken"))
    failed = find_first(acceptance.run_check(check, again), name)
    assert failed.status is GpuCheckStatus.FAILED, failed.detail


def test_two_ranks_agree_and_a_missing_result_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a user runs it, with a file for the findings; a check that hangs or dies is a failed one."""
    file = tmp_path / "findings.json"
    status = acceptance.main(["--device", "cpu", "--only", "ranks", "--folder", str(tmp_path), "--json", str(file)])
    written = json.loads(file.read_text())
    assert (status, [check["status"] for check in written["checks"]]) == (0, ["passed", "passed"])
    assert written["machine"]["PyTorch"] == torch.__version__
    assert "none of 2 failed" in capsys.readouterr().out
    chosen = GpuCheckOptions("cpu", 4 << 20, 1, str(tmp_path))
    (hung,) = acceptance.run_apart("ranks", chosen, limit_s=0.01)
    assert (hung.status, hung.detail) == (GpuCheckStatus.FAILED, "no result within 0.01 s")


def test_flags_that_take_effect_at_different_steps_fail(
    options: GpuCheckOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [{"backend": "gloo", "wrong": 0, "speed": 1.0, "agreed": [(3,), (step,)]} for step in (4, 5)]

    class Finished:
        exitcode = 0

        def __init__(self, **arguments: Any) -> None: ...
        def start(self) -> None: ...
        def join(self) -> None: ...

    class Context:
        Process = Finished

        class SimpleQueue:
            def get(self) -> dict[str, Any]:
                return answers.pop()

    monkeypatch.setattr(acceptance.multiprocessing, "get_context", lambda kind: Context)
    found = acceptance.run_check("ranks", options)
    assert [check.status for check in found] == [GpuCheckStatus.PASSED, GpuCheckStatus.FAILED], found


def test_without_a_gpu_nothing_is_said_to_work(capsys: pytest.CaptureFixture[str]) -> None:
    assert acceptance.main([]) == 2
    assert "Run this on a machine with one" in capsys.readouterr().out
