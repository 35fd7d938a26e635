"""The points at which calls are broken, how scenarios are run, and what counts as wrong, without any AWS."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.deployed.faults.points import (
    HUNG,
    KILLED,
    LOST,
    REFUSED,
    WAYS,
    Phase,
    Plan,
    Point,
    plans,
    points,
)
from tests.deployed.faults.runners import Learnt, Lesson, learn, run_plan
from tests.deployed.faults.scenarios import FILES, PHASES, SCENARIOS, ScenarioResult, ScenarioRun

LOAD = "supervise dynamodb:GetItem dynamodb._get for load"
CREATE = "supervise sagemaker:CreateTrainingJob sagemaker._create for create"
SCENARIO = "with an agent"
ADOPTION, RECOVERY = Phase(SCENARIO, "adoption"), Phase(SCENARIO, "recovery")


def test_every_site_is_broken_in_every_way_wherever_it_is_met():
    """An error of the service's model is tried once, wherever that is; the other ways everywhere."""
    met = {ADOPTION: [LOAD], RECOVERY: [LOAD, CREATE]}
    found = list(points(met, {LOAD: ["A", "B", "ThrottlingException"], CREATE: ["ResourceInUse"]}))
    assert len(found) == len(set(found)) == 3 * len(WAYS) + 3
    for how in WAYS:
        assert Point(*RECOVERY, CREATE, how) in found and Point(*ADOPTION, LOAD, how) in found
    assert {point.phase for point in found if point.how in ("A", "B")} == {"adoption", "recovery"}


def test_refusals_of_what_only_looks_are_dealt_out():
    """It is killed, kept waiting and left without an answer everywhere, and refused in each way somewhere."""
    looks = LOAD.replace("supervise", "sweep")
    found = list(points({ADOPTION: [looks], RECOVERY: [looks]}, {looks: ["A"]}))
    assert len(found) == len(set(found)) == 2 * len((*KILLED, *LOST, *HUNG)) + len(REFUSED) + 1
    for how in (*REFUSED, "A"):
        assert sum(point.how == how for point in found) == 1


def test_each_point_is_in_one_plan_and_no_plan_has_two_in_one_phase():
    """As few scenarios as there can be: as many as the phase has points that has most."""
    chosen = list(points({ADOPTION: [LOAD], RECOVERY: [LOAD, CREATE]}, {}))
    found = plans(chosen, seed=3)
    assert sorted(point for plan in found for point in plan.faults) == sorted(chosen)
    assert len(found) == 2 * len(WAYS)
    for plan in found:
        assert len({point.phase for point in plan.faults}) == len(plan.faults)
        assert {point.scenario for point in plan.faults} == {plan.scenario}
    assert found == plans(reversed(chosen), seed=3) != plans(chosen, seed=4)


def test_what_only_new_functions_come_to_needs_a_new_function():
    lessons = [
        Lesson(SCENARIO, True, {RECOVERY: frozenset({CREATE, LOAD})}, frozenset({"a", "b"}), ""),
        Lesson(SCENARIO, False, {RECOVERY: frozenset({CREATE})}, frozenset({"a"}), ""),
        Lesson(SCENARIO, False, {RECOVERY: frozenset({CREATE, "now and then"})}, frozenset({"a", "c"}), ""),
    ]
    known = learn(lessons)
    assert known.met[RECOVERY] == {CREATE, LOAD}
    assert known.once[RECOVERY] == {LOAD}
    assert known.notices == {SCENARIO: {"a"}}


class FakeRunner:
    """A runner whose scenarios go wrong where these points, or one of them, are broken."""

    def __init__(self, *wrong: Point, once: bool = False) -> None:
        self.wrong, self.once, self.result = set(wrong), once, 0

    def execute(self, plan: Plan, learnt: Learnt) -> tuple[ScenarioResult, set[str]]:
        self.result += 1
        bad = self.wrong <= set(plan.faults) and not (self.once and self.result > 1)
        return ScenarioResult(fired={point.phase for point in plan.faults}, wrong="bad" if bad else ""), set()


def test_a_plan_that_fails_is_repeated_with_each_fault_alone():
    """So that the one is named that it goes wrong with; or both, where it takes both; or none, where it passes."""
    one, other = Point(*RECOVERY, CREATE, "killed after"), Point(*ADOPTION, LOAD, "killed before")
    plan, learnt = Plan(SCENARIO, (other, one)), Learnt({}, {}, {})
    found = run_plan(FakeRunner(one), plan, learnt)
    assert [outcome.point for outcome in found.outcomes if outcome.wrong] == [one] and not found.together
    found = run_plan(FakeRunner(one, other), plan, learnt)
    assert not any(outcome.wrong for outcome in found.outcomes) and found.together == "bad"
    found = run_plan(FakeRunner(one, other, once=True), plan, learnt)
    assert not found.together and found.passing == "bad"


def make_run(tmp_path: Path, scenario: str, *lines: tuple[int, str, int], keys: tuple[str, ...] = ()) -> ScenarioRun:
    """A scenario of which only its jobs' marks and what lies in S3 are known."""
    pages = [{"Contents": [{"Key": key} for key in keys]}]
    paginator = SimpleNamespace(paginate=lambda **asked: pages)
    faulty = SimpleNamespace(marks=tmp_path, s3=SimpleNamespace(get_paginator=lambda name: paginator))
    scenario_run = ScenarioRun(faulty, 1, Plan(scenario, ()))  # type: ignore[arg-type]
    scenario_run.folder.mkdir()
    marks = [{"attempt": attempt, "word": word, "step": step, "at": 0.0} for attempt, word, step in lines]
    (scenario_run.folder / "log.jsonl").write_text("".join(json.dumps(mark) + "\n" for mark in marks))
    return scenario_run


def test_steps_that_nobody_trained_are_found(tmp_path: Path):
    """An attempt that begins where nothing was saved, or behind the trouble; and a run that never finished."""
    scenario_run = make_run(
        tmp_path, SCENARIO, (1, "from", 0), (1, "saved", 10), (1, "found", 15), (1, "saved", 16), (2, "from", 16)
    )
    assert list(scenario_run._of_the_steps()) == [
        "attempt 2 began behind the trouble of step 15",
        "the last step was never trained",
    ]
    scenario_run.folder.joinpath("log.jsonl").write_text(json.dumps({"attempt": 2, "word": "from", "step": 30}) + "\n")
    assert "attempt 2 began at step 30, which nobody had saved" in list(scenario_run._of_the_steps())


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_save_that_is_neither_in_its_place_nor_quarantined_is_found(tmp_path: Path, scenario: str):
    there = [pattern.format(step=10) for pattern in FILES[scenario]]
    keys = tuple(f"rerail-quarantine/crash-00001/a001/crash-00001{name}" for name in there)
    assert list(make_run(tmp_path, scenario, (1, "saved", 10), keys=keys)._of_the_saves()) == []
    (tmp_path / "lost").mkdir()
    lost = make_run(tmp_path / "lost", scenario, (1, "saved", 10), keys=keys[:1])
    assert list(lost._of_the_saves()) == [f"{name} is lost" for name in there[1:]]


def test_every_place_is_a_phase_of_a_scenario_that_is_run():
    assert {place.scenario for place in PHASES} == set(SCENARIOS) == set(FILES)
