"""Nights in a hostile world: short ones in the suite, as long as wanted by hand."""

from dataclasses import replace

import pytest

from bench.chaos import ALL, ALL_TIMES, KINDS, Outcome, Task, evidence, plan
from bench.mutants import MUTANTS, found
from bench.nights import Hazards, Night, together
from bench.promises import Promise

# Those that need a night of many hours to show are left to the bench.
SLOW = (
    "charges that are forgotten",
    "budgets without end",
    "a clock that is believed",
    "a message that fails is dropped",
    "holds that page nobody",
    "checkpoints that are tidied away",
    "a record that is believed after a restore",
)
QUICK = [mutant for mutant in MUTANTS if mutant.what not in SLOW]


@pytest.mark.rehearsal
@pytest.mark.parametrize("seed", [2, 7])
def test_every_promise_is_kept_with_every_hazard_at_once(seed):
    """Events lost, late, repeated, forged; clocks, functions, SageMaker and the table; two deployments."""
    night = Night(seed, hazards=replace(together(), backup_minutes=60), hours=3, jobs=2)
    counts = night.play()
    assert counts["tables restored"] == 1 and counts["relaunches"] >= 2
    assert min(night.audit.checked[promise] for promise in (Promise.ONE_LIVE, Promise.ENDS, Promise.SAVES)) > 0


def test_a_night_is_a_function_of_its_seed():
    """What fails can be played again."""
    first, second = (Night(5, hazards=together(), hours=1, jobs=1).play() for _ in range(2))
    assert first == second


@pytest.mark.rehearsal
@pytest.mark.parametrize("mutant", QUICK, ids=lambda mutant: mutant.what)
def test_a_product_that_is_broken_on_purpose_is_found_out(mutant):
    """By the promise that it breaks: an audit that sees nothing would prove nothing."""
    _, seen = found(mutant, seeds=range(1))
    assert seen is not None and seen.promise in mutant.breaks


def test_a_broken_promise_is_a_failure_of_the_evidence():
    """With the seed that plays it again; and a mutant that nobody noticed is one too."""
    kept, broken = Outcome(Task(ALL, 1, 2)), Outcome(Task(ALL, 7, 2), broken="two live", promise=Promise.ONE_LIVE)
    unseen = Outcome(Task(MUTANTS[0].what, 0, 2, MUTANTS[0]))
    assert evidence([kept]).holds
    told = evidence([kept, broken, unseen])
    assert [failure.what for failure in told.failures] == [f"{ALL}, seed 7, 2 h", f"not found out: {MUTANTS[0].what}"]
    assert not any(goal.met for goal in told.goals)


def test_each_hazard_is_played_alone_and_all_of_them_more_often():
    """A table that is restored needs more than a day."""
    tasks = plan(2, 12, 0)
    assert {task.kind for task in tasks} == set(KINDS)
    assert sum(task.kind == ALL for task in tasks) == 2 * ALL_TIMES
    assert all(task.hours > 24 for task in tasks if KINDS[task.kind].restored)


def test_a_world_may_lie_before_there_is_anything_to_lie_about():
    """From the first minute on somebody makes up events."""
    assert Night(1, hazards=Hazards(forged=1.0, strangers=1.0), hours=1).play()["events forged"] > 50
