"""The texts, delays and limits of single remedies and launch checks, at their boundaries."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from rerail.decisions.launch_checks import Consequence, Obstacle, find_obstacle, with_runtime_left
from rerail.decisions.remedies import (
    MAX_TITLE_CHARS,
    Failure,
    Hold,
    Relaunch,
    choose_capacity_verdict,
    draw_delay,
    format_error,
    no_sound_checkpoint,
    resume_from_the_one_before,
)
from rerail.model.causes import Cause
from rerail.model.diagnosis import Diagnosis
from rerail.model.machines import Cluster
from rerail.model.policy import Capacity, Limits, MaxRuntime, Mode, Policy
from rerail.model.run import Attempt, JobStatus, LaunchCheck, Ledger, Run, RunState
from rerail.model.runbooks import Runbook
from tests.fakes import BUCKET, MIDNIGHT

MINUTE = timedelta(minutes=1)
DAMAGED = Cause.DAMAGED_CHECKPOINT


def make_failure(cause: Cause = Cause.USER_CODE, evidence: str = "KeyError: 'eos'", **facts: Any) -> Failure:
    usual = {"last_step": 40, "resume_step": None, "at": MIDNIGHT}
    return Failure(Diagnosis(cause, evidence, "rule", "print"), **usual | facts)


def make_run(*attempts: Attempt, **facts: Any) -> Run:
    known = attempts or (Attempt(1, "gpt", JobStatus.FAILED),)
    return Run("gpt", "default", RunState.WAITING, MIDNIGHT, known, BUCKET, **facts)


# Remedies


@pytest.mark.parametrize(
    ("evidence", "facts", "times", "text"),
    [
        ("KeyError: 'eos'", {}, 1, "KeyError: 'eos' at step 40"),
        ("KeyError: 'eos'", {}, 2, "KeyError: 'eos' at step 40, twice"),
        ("KeyError: 'eos'", {"last_step": None}, 5, "KeyError: 'eos', 5 times"),
        ("", {}, 2, ""),
        ("ValueError: no data. Try again later", {}, 1, "ValueError: no data at step 40"),
        ("ValueError: no data. try again later", {}, 1, "ValueError: no data. try again later at step 40"),
        ("torch.cuda.OutOfMemoryError: full., exit code: 1", {}, 1, "OutOfMemoryError: full at step 40"),
        ("X" * MAX_TITLE_CHARS, {}, 1, "X" * MAX_TITLE_CHARS + " at step 40"),
        (f"{'X' * 56} {'Y' * 9}", {"last_step": None}, 1, "X" * 56),
    ],
)
def test_an_error_is_named_in_a_few_words(evidence: str, facts: dict[str, Any], times: int, text: str):
    assert format_error(make_failure(evidence=evidence, **facts), times=times) == text
    if times == 1:
        assert format_error(make_failure(evidence=evidence, **facts)) == text


def test_a_damaged_checkpoint_without_a_sound_one_holds_the_run():
    which, remedy = (
        "is damaged, and there is no sound one before it",
        "(with S3 versioning, restore its previous version)",
    )
    hold = no_sound_checkpoint(make_run(), make_failure(DAMAGED, damaged_step=0), Policy())
    assert hold == Hold(
        f"the checkpoint at step 0 {which}",
        f"delete or replace the damaged file in {BUCKET} {remedy}, then release the run",
        Runbook.DAMAGED_CHECKPOINT,
    )
    unknown = no_sound_checkpoint(replace(make_run(), checkpoint_uri=""), make_failure(DAMAGED), Policy())
    assert isinstance(unknown, Hold)
    assert unknown.why == f"a checkpoint {which}"
    assert "in the folder that the script loads it from (" in unknown.advice
    for facts in ({"resume_step": 0}, {"restored": "ckpt.pt"}):
        assert no_sound_checkpoint(make_run(), make_failure(DAMAGED, **facts), Policy()) is None
    assert no_sound_checkpoint(make_run(), make_failure(), Policy()) is None


def test_a_damaged_checkpoint_is_left_for_the_one_before():
    delay = draw_delay(Policy().backoff.base, seed="gpt:1")
    found = resume_from_the_one_before(make_run(), make_failure(DAMAGED, damaged_step=20, resume_step=10), Policy())
    assert isinstance(found, Relaunch)
    assert found.delay == delay
    assert found.why.startswith("the checkpoint at step 20 is damaged and is quarantined; damaged_checkpoint: ")
    assert found.why.endswith(" retries left")
    copied = resume_from_the_one_before(make_run(), make_failure(DAMAGED, restored="ckpt.pt of step 10"), Policy())
    assert isinstance(copied, Relaunch)
    assert ": ckpt.pt of step 10; damaged_checkpoint: " in copied.why
    assert resume_from_the_one_before(make_run(), make_failure(DAMAGED), Policy()) is None
    assert resume_from_the_one_before(make_run(), make_failure(damaged_step=20), Policy()) is None


@pytest.mark.parametrize(
    ("waited", "fallbacks", "longest", "falls_back"),
    [
        (MINUTE, (), 2 * MINUTE, False),
        (10 * MINUTE, (), 5 * MINUTE, False),
        (300 * MINUTE, (), 20 * MINUTE, False),
        (25 * MINUTE, ("ml.p4de.24xlarge",), 5 * MINUTE, False),
        (30 * MINUTE - timedelta(seconds=1), ("ml.p4de.24xlarge",), 2 * MINUTE, False),
        (30 * MINUTE, ("ml.p4de.24xlarge",), 2 * MINUTE, True),
    ],
)
def test_the_wait_for_capacity_grows_until_a_fall_back_is_due(
    waited: timedelta, fallbacks: tuple[str, ...], longest: timedelta, falls_back: bool
):
    run = make_run(
        cluster=Cluster(instance_types=("ml.p4d.24xlarge",), count=1), ledger=Ledger(capacity_since=MIDNIGHT), version=7
    )
    policy = Policy(capacity=Capacity(fallbacks=fallbacks))
    found = choose_capacity_verdict(run, policy, at=MIDNIGHT + waited)
    assert isinstance(found, Relaunch)
    assert found.delay == draw_delay(longest, seed="gpt:7", least=0.5)
    assert longest / 2 <= found.delay <= longest
    assert (found.machines is not None) is falls_back
    assert "passed over" not in found.why


# Launch checks


def trained(seconds: float, **facts: Any) -> Run:
    """Return a run of 3,600 s at most whose first attempt has trained so long, and whose second is to be launched."""
    first = Attempt(
        1, "gpt", JobStatus.FAILED, training_started_at=MIDNIGHT, ended_at=MIDNIGHT + timedelta(seconds=seconds)
    )
    return make_run(first, Attempt(2, "gpt-a002"), **{"max_runtime_s": 3600} | facts)


@pytest.mark.parametrize(("seconds", "is_over"), [(3599, False), (3599.5, False), (3600, True), (3601, True)])
def test_a_run_is_launched_while_time_is_left(seconds: float, is_over: bool):
    found = find_obstacle(trained(seconds), MIDNIGHT + timedelta(hours=2), Policy())
    assert (found is not None) is is_over
    if found:
        assert (found.check, found.means) == (LaunchCheck.RUN_TIME, Consequence.END)


def test_a_job_that_still_trains_uses_the_runs_time():
    live = Attempt(1, "gpt", JobStatus.IN_PROGRESS, training_started_at=MIDNIGHT)
    run = make_run(live, Attempt(2, "gpt-a002"), max_runtime_s=3600)
    assert find_obstacle(run, MIDNIGHT + 59 * MINUTE, Policy()) is None
    over = find_obstacle(run, MIDNIGHT + 61 * MINUTE, Policy())
    assert over is not None and over.check is LaunchCheck.RUN_TIME
    assert with_runtime_left(run, MIDNIGHT + 10 * MINUTE, Policy()).current.max_runtime_s == 3000


def test_an_attempt_gets_the_time_that_is_left_but_never_too_little():
    def left(run: Run, policy: Policy = Policy()) -> int | None:  # noqa: B008
        return with_runtime_left(run, MIDNIGHT, policy).current.max_runtime_s

    assert left(trained(600)) == 3000
    assert left(trained(3590)) == min(Policy().limits.least_runtime.total_seconds(), 3600)
    assert left(trained(59, max_runtime_s=60), Policy(limits=Limits(least_runtime=timedelta(0)))) == 1
    assert left(trained(600), Policy(max_runtime=MaxRuntime.PER_ATTEMPT)) is None
    assert left(trained(600, max_runtime_s=None)) is None
    assert left(make_run(Attempt(1, "gpt"), max_runtime_s=3600)) is None


def test_a_launch_waits_for_an_approval_in_that_mode():
    found = find_obstacle(trained(1), MIDNIGHT, Policy(mode=Mode.APPROVE))
    assert found == Obstacle(
        LaunchCheck.APPROVAL, Consequence.WAIT, "gpt-a002 waits for approval", "`rerail approve gpt`", Runbook.APPROVAL
    )
    approved = make_run(Attempt(2, "gpt-a002", approved_by="ada"))
    assert find_obstacle(approved, MIDNIGHT, Policy(mode=Mode.APPROVE)) is None


def test_a_paused_account_launches_nothing():
    found = find_obstacle(trained(1), MIDNIGHT, Policy(mode=Mode.PAUSE))
    assert found is not None
    assert (found.check, found.means) == (LaunchCheck.PAUSE, Consequence.WAIT)


@pytest.mark.parametrize(("hours", "is_spent"), [(0.99, False), (1.0, True), (1.01, True)])
def test_a_cap_on_dollars_is_reached_at_its_amount(hours: float, is_spent: bool):
    """One machine of a dollar an hour trains, and its cost counts up to now."""
    first = Attempt(
        1, "gpt", JobStatus.IN_PROGRESS, instance_type="ml.x", created_at=MIDNIGHT, training_started_at=MIDNIGHT
    )
    policy = Policy(prices={"ml.x": 1.0}, limits=Limits(run_dollars=1.0))
    found = find_obstacle(make_run(first), MIDNIGHT + timedelta(hours=hours), policy)
    assert (found is not None) is is_spent
