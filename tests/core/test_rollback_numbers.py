"""The arithmetic of a rollback: which step, which samples, which rate, at the limits of each."""

from dataclasses import replace

import pytest

from rerail.decisions.rollback_ladder import RollbackPlan, plan_rollback
from rerail.model import skipped_samples
from rerail.model.policy import Ladder, Policy
from tests.core.test_ladder import BATCH, next_attempt, run_at, saves, take_all_rungs

SKIP_FIRST = Policy(ladder=Ladder(replays=0))
RATE_FIRST = Policy(ladder=Ladder(replays=0, skips=0, far_skips=0))


def skipped(*arguments) -> tuple[int, int]:
    planned = plan_rollback(*arguments)
    assert isinstance(planned, RollbackPlan)
    (window,) = skipped_samples.parse_ranges(planned.skip_samples)
    return window


@pytest.mark.parametrize(("factor", "least", "taken"), [(0.5, 0.5, True), (0.5, 0.51, False)])
def test_the_lowest_rate_may_be_reached_and_not_passed(factor, least, taken):
    policy = Policy(ladder=replace(RATE_FIRST.ladder, rate_factor=factor, least_rate=least))
    assert isinstance(plan_rollback(run_at(), 1_000, saves(800), policy), RollbackPlan) is taken


def test_a_plan_names_its_distance_and_its_changes():
    """In the words that the notice and the timeline show."""
    plans, hold = take_all_rungs(run_at(), 1_000, saves(*range(100, 1_101, 100)), Policy())
    assert [plan.why for plan in plans] == [
        "rung replay: back to 100 steps before the onset at step 1000",
        "rung skip: back to 100 steps before the onset at step 1000, skipping samples 14400-17599 "
        "(200 batches around the onset)",
        "rung far_skip: farther back than before, to 200 steps before the onset at step 1000, skipping samples "
        "15184-23183 (500 batches around the onset)",
        "rung lower_rate: back to 200 steps before the onset at step 1000, "
        "with the learning rate at 0.9 of the schedule",
    ]
    assert hold.why.startswith("the loss went wrong again at step 1000 after replay in attempt 2, skip in attempt 3")
    nothing = Policy(ladder=Ladder(replays=0, skips=0, far_skips=0, lower_rates=0))
    assert plan_rollback(run_at(), 1_000, saves(800), nothing).why == (
        "the loss went wrong again at step 1000 after nothing"
    )


def test_an_older_checkpoint_at_the_margin_itself_is_taken():
    """The margin is kept by a checkpoint that is exactly so old."""
    policy = Policy(ladder=Ladder(replays=0, skips=1, margin_steps=100))
    run = run_at()
    planned = plan_rollback(run, 1_000, saves(950, 900), policy)
    assert planned.resume_step == 900
    run = next_attempt(run, replace(planned, resume_step=950), 1_000)
    assert plan_rollback(run, 1_000, saves(950, 900), policy).resume_step == 900


def test_a_job_without_a_checkpoint_folder_goes_back_to_before_the_onset():
    run = replace(run_at(), checkpoint_uri="")
    assert [plan_rollback(run, onset, [], Policy()).resume_step for onset in (0, 1, 2)] == [0, 0, 1]


@pytest.mark.parametrize(
    ("onset", "said"), [(100, "back to 40 steps before the onset at step 100"), (101, "have the job keep more of them")]
)
def test_only_an_onset_beyond_the_margin_is_blamed_on_retention(onset, said):
    assert said in plan_rollback(run_at(), onset, saves(onset - 40), Policy()).why


def test_the_window_is_counted_on_from_the_last_checkpoint_before_the_onset():
    """Of this attempt, or of what it resumed from; a checkpoint at the onset has the bad samples already."""
    window = skipped(run_at(), 1_000, saves(500, 1_000), SKIP_FIRST)
    assert window == ((999 - 100) * BATCH, (999 + 100) * BATCH - 1)
    # Attempt 2 resumed from step 500, where attempt 1 had another data position than steps x batch.
    odd = [replace(saves(650)[0], consumed_samples=50_000), *saves(100, 200, 300, 400), *saves(500, attempt=1)]
    assert skipped(run_at(2, resumed=500), 700, odd, SKIP_FIRST) == ((699 - 100) * BATCH, (699 + 100) * BATCH - 1)
    # Nothing of its own: what any attempt knew is nearer than the start.
    assert skipped(run_at(2), 700, odd, SKIP_FIRST)[0] == 50_000 + (699 - 650 - 100) * BATCH


def test_one_batch_at_the_start_is_skipped_from_sample_zero():
    """The smallest window, at the first step, without a checkpoint before it."""
    policy = Policy(ladder=Ladder(replays=0, skip_batches=1))
    saved = saves(10, 20)
    for onset, first in ((0, 0), (1, 0), (2, BATCH)):
        assert skipped(run_at(), onset, saved, policy) == (first, first + BATCH - 1)


def test_the_batch_is_the_most_frequent_of_the_pairs_near_the_onset():
    """Of two that are equally frequent the smaller one; pairs of a later attempt do not begin at zero."""
    policy = Policy(ladder=Ladder(replays=0, skip_batches=1))

    def batch(saved, onset, run=None) -> int:
        first, last = skipped(run or run_at(), onset, saved, policy)
        return last - first + 1

    near = [replace(c, consumed_samples=16 * 600 + 32 * (c.step - 600)) for c in saves(*range(610, 1_001, 10))]
    far = saves(*range(10, 601, 10))
    assert batch([*far, *near], 1_001) == 32
    assert batch(far, 601) == 16
    assert batch([*saves(10, 20), replace(saves(30)[0], consumed_samples=20 * 16 + 10 * 48)], 40) == 16
    tie = [replace(saves(10)[0], consumed_samples=480), replace(saves(20)[0], consumed_samples=640)]
    assert batch(tie, 30) == 16
    later = [replace(c, attempt=2, consumed_samples=5_000 + 16 * c.step) for c in saves(100, 110)]
    assert batch(later, 120, run_at(2, resumed=100)) == 16
    same = [*saves(100), replace(saves(100)[0], consumed_samples=9_000), replace(saves(110)[0], consumed_samples=9_000)]
    assert batch(same, 120) == 16
