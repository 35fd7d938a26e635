"""A schedule of the learning rate that starts again after a resume is reported once; one that goes on is not."""

import math
from collections.abc import Callable, Sequence

import pytest

from rerail.model.finding import Finding, Kind, Level
from rerail.model.sample import Sample
from rerail.model.thresholds import Thresholds
from rerail_agent.detection import StepDetection

Schedule = Callable[[int], float | None]
STEPS, SAVED = 1000, 600
WARM_UP = 100


def anneal(step: int) -> float:
    return 3e-4 * (1 + math.cos(math.pi * step / STEPS)) / 2


def warm_up(step: int) -> float:
    return 3e-4 * min(1.0, step / WARM_UP) * (1 - 0.9 * step / STEPS)


def decay(step: int) -> float:
    return 0.1 ** (1 + step // 300)


def plan(step: int) -> float:
    """Return the rate of another phase, which is low at first."""
    return 1e-3 if step <= SAVED else 1e-4 if step <= SAVED + WARM_UP else 2e-4


def repeat(step: int) -> float:
    """Return the rate of cycles that end where checkpoints are saved."""
    return anneal((step - 1) % (SAVED // 3) * 3)


def evaluate(state: str, schedule: Schedule, steps: Sequence[int]) -> tuple[str, list[Finding]]:
    """Return the state after these steps of a process that has resumed from a state, and its findings."""
    detection = StepDetection(Thresholds())
    if state:
        detection.restore(state)
    samples = [Sample(step=step, loss=2.0 + 0.01 * (step % 7), lr=schedule(step)) for step in steps]
    found = [finding for sample in samples for finding in detection.evaluate(sample)]
    return detection.dump_state(), found


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        (anneal, "0.0003 after the resume, 0.000104"),
        (warm_up, "3e-06 after the resume, 0.000138"),
        (decay, "0.1 after the resume, 0.001"),
    ],
)
@pytest.mark.parametrize("every", [1, 10])
def test_a_schedule_that_starts_again_is_reported_once(schedule: Schedule, rates: str, every: int) -> None:
    state, before = evaluate("", schedule, range(every, SAVED + 1, every))
    _, after = evaluate(state, lambda step: schedule(step - SAVED), range(SAVED + 1, STEPS))
    assert before == []
    evidence = f"learning rate {rates} when it was saved: its schedule seems to have started again"
    assert [(finding.kind, finding.level, finding.evidence) for finding in after] == [
        (Kind.RESUME_MISMATCH, Level.WARN, evidence)
    ]


@pytest.mark.parametrize("schedule", [anneal, warm_up, decay, plan, repeat, lambda step: 1e-3, lambda step: None])
@pytest.mark.parametrize("saved", [40, 99, SAVED, 990])
@pytest.mark.parametrize("every", [1, 10])
def test_a_schedule_that_goes_on_is_not_reported(schedule: Schedule, saved: int, every: int) -> None:
    state, before = evaluate("", schedule, range(every, saved + 1, every))
    _, after = evaluate(state, schedule, range(saved + every, STEPS + 1, every))
    assert (before, after) == ([], [])


@pytest.mark.parametrize("rate", ["1e-3", math.nan, math.inf, -1.0, None, [1e-3]])
def test_a_rate_that_is_no_number_changes_nothing(rate: object) -> None:
    state, found = evaluate("", lambda step: rate if step % 2 else 1e-3, range(1, 50))  # type: ignore[return-value]
    assert found == []
    assert evaluate(state, lambda step: 1e-3, range(50, 60))[1] == []


@pytest.mark.parametrize("state", [[], [1], "rates", {"newest": 1}, [None, 1, False], None])
def test_a_state_without_rates_that_can_be_read_changes_nothing(state: object) -> None:
    detection = StepDetection(Thresholds())
    with pytest.raises((ValueError, TypeError)):
        detection._rates.restore(state)
    assert detection._rates.dump_state() == [0.0, 0.0, False, 1.0]


def test_a_rate_that_a_rollback_has_lowered_is_not_compared() -> None:
    """The next attempt has the whole rate again, by order."""
    state, _ = evaluate("", anneal, range(1, SAVED + 1))
    lowered = StepDetection(Thresholds(), rate_scale=0.3)
    lowered.restore(state)
    found = [lowered.evaluate(Sample(step=step, loss=2.0, lr=0.3 * anneal(step))) for step in range(SAVED, 650)]
    assert not any(found)
    assert evaluate(lowered.dump_state(), anneal, range(650, 700))[1] == []
