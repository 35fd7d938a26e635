"""Budgets: failures charge them, proven progress and pardons give them back, and capacity costs time."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from rerail.decisions.budgets import (
    MAX_ENTRIES,
    remaining_retries,
    with_charge,
    with_fresh_budgets,
    with_recent_charges,
    with_refund,
    with_split,
    with_start,
    without_charge,
)
from rerail.model.causes import Cause
from rerail.model.policy import Limits, Policy, Retries
from rerail.model.run import Ledger
from tests.core.strategies import counts, ledgers, moments

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
causes = st.sampled_from(Cause)


def failed(ledger: Ledger, cause: Cause, *, trained: bool = True, progressed: bool = False, at=NOON) -> Ledger:
    return with_charge(ledger, cause, trained=trained, progressed=progressed, at=at)


def test_each_cause_has_its_own_account():
    ledger = failed(failed(failed(Ledger(), Cause.HARDWARE), Cause.HARDWARE), Cause.USER_CODE)
    assert ledger.charges == {Cause.HARDWARE: 2, Cause.USER_CODE: 1}
    assert ledger.entries == (
        "2026-01-31T12:00:00Z hardware: failure 1 since the last progress",
        "2026-01-31T12:00:00Z hardware: failure 2 since the last progress",
        "2026-01-31T12:00:00Z user_code: failure 1 since the last progress",
    )


def test_what_is_older_than_the_window_no_longer_counts():
    """Two nodes lost on Monday say nothing of Wednesday; a window of 0 forgets nothing."""
    monday, wednesday = NOON, NOON + timedelta(hours=48)
    ledger = failed(failed(Ledger(), Cause.HARDWARE), Cause.OOM)
    ledger = failed(ledger, Cause.HARDWARE, at=wednesday - MINUTE)
    day = timedelta(hours=24)
    assert with_recent_charges(ledger, window=day, at=monday + MINUTE) == ledger
    assert with_recent_charges(ledger, window=timedelta(0), at=wednesday) == ledger
    now = with_recent_charges(ledger, window=day, at=wednesday)
    assert now.charges == {Cause.HARDWARE: 1}
    assert now.without_progress == ledger.without_progress
    assert now.entries[-1] == "2026-02-02T12:00:00Z older than the window, no longer counted: hardware: 1, oom: 1"


@given(st.lists(st.tuples(causes, st.integers(0, 600)), max_size=30), st.integers(1, 2000))
def test_a_charge_counts_for_as_long_as_its_window(failures, window):
    """Whatever the order: within the window each failure counts once, after it never again."""
    ledger, at, charges = Ledger(), NOON, []
    for cause, minutes in failures:
        at += minutes * MINUTE
        ledger = with_recent_charges(ledger, window=window * MINUTE, at=at)
        if cause is not Cause.CAPACITY:
            ledger = failed(ledger, cause, at=at)
            charges.append((cause, at))
        recent = [known for known, then in charges if at - then < window * MINUTE]
        assert dict(ledger.charges) == {known: recent.count(known) for known in recent}


def test_charges_of_an_older_version_count_until_progress():
    """Their times were not kept."""
    ledger = failed(Ledger(charges={Cause.HANG: 2}), Cause.HANG)
    assert with_recent_charges(ledger, window=MINUTE, at=NOON + MINUTE).charges == {Cause.HANG: 2}


def test_an_attempt_is_without_progress_when_it_trained_and_left_nothing():
    """One that never trained could leave nothing, and one that left a checkpoint did its work."""
    assert failed(Ledger(), Cause.UNKNOWN).without_progress == 1
    assert failed(Ledger(), Cause.UNKNOWN, trained=False).without_progress == 0
    assert failed(Ledger(without_progress=2), Cause.UNKNOWN, progressed=True).without_progress == 2


def test_a_withdrawn_stop_takes_back_its_own_charge():
    """A diverged loss is not charged as a failure without progress, so none is taken back."""
    for cause, left in ((Cause.HANG, 1), (Cause.DIVERGED, 2)):
        ledger = failed(failed(Ledger(), cause), cause, at=NOON + MINUTE)
        withdrawn = without_charge(ledger, cause, at=NOON + MINUTE)
        assert (withdrawn.charges, withdrawn.charged_at) == ({cause: 1}, {cause: (NOON,)})
        assert withdrawn.without_progress == left


def test_a_newer_checkpoint_refunds_everything():
    spent = Ledger(charges={Cause.OOM: 3}, without_progress=2, progress_step=100, capacity_since=NOON, starts=(NOON,))
    spent = replace(spent, charged_at={Cause.OOM: (NOON,)}, fallbacks=("ml.g5.xlarge",))
    ledger = with_refund(spent, newest_step=101, at=NOON)
    assert (ledger.charges, ledger.charged_at, ledger.fallbacks) == ({}, {}, ())
    assert (ledger.without_progress, ledger.capacity_since) == (0, None)
    assert ledger.progress_step == 101
    assert ledger.starts == (NOON,), "a restart storm is a storm even if it makes progress"
    assert ledger.entries[-1] == "2026-01-31T12:00:00Z progress to step 101: all retries are available again"


@given(ledgers, counts)
def test_budgets_never_grow_without_progress(ledger, step):
    """The same or an older checkpoint changes nothing, and no checkpoint at all (step 0) is no progress."""
    after = with_refund(ledger, newest_step=step, at=NOON)
    assert (after == ledger) == (step <= (ledger.progress_step or 0))


def test_capacity_costs_time_and_not_attempts():
    ledger = failed(Ledger(starts=(NOON,)), Cause.CAPACITY, trained=False)
    assert (ledger.charges, ledger.without_progress, ledger.starts) == ({}, 0, ())
    later = failed(ledger, Cause.CAPACITY, at=NOON + 5 * MINUTE)
    assert later.capacity_since == NOON
    assert later.entries[-1] == "2026-01-31T12:05:00Z no capacity since 12:00:00"


def test_a_split_costs_neither_a_retry_nor_a_start():
    ledger = with_split(Ledger({Cause.HANG: 1}, 1, starts=(NOON, NOON), capacity_since=NOON), at=NOON)
    entries = ("2026-01-31T12:00:00Z oom: not charged, the batch can be split",)
    assert ledger == Ledger({Cause.HANG: 1}, 1, starts=(NOON,), entries=entries)


def test_a_failure_of_another_kind_ends_the_wait_for_capacity():
    assert failed(Ledger(capacity_since=NOON), Cause.UNKNOWN).capacity_since is None


def test_starts_are_remembered_as_long_as_the_storm_window():
    limits = Limits(starts_window=10 * MINUTE)
    ledger = Ledger(starts=(NOON - 10 * MINUTE, NOON - 9 * MINUTE))
    assert with_start(ledger, at=NOON, limits=limits).starts == (NOON - 9 * MINUTE, NOON)


def test_a_release_clears_every_charge_and_keeps_the_history():
    """Whoever releases a run has looked: budgets start afresh, what was proven stays proven."""
    spent = Ledger({Cause.OOM: 1}, 3, 100, (NOON,), NOON, ("before",), fallbacks=("ml.g5.xlarge",))
    spent = replace(spent, charged_at={Cause.OOM: (NOON,)})
    assert with_fresh_budgets(spent, who="ada", at=NOON) == Ledger(
        progress_step=100, entries=("before", "2026-01-31T12:00:00Z released by ada: every charge forgiven")
    )


def test_what_is_left_is_never_less_than_nothing():
    """A policy that was tightened under a running run leaves nothing, not a debt."""
    policy = Policy(retries=Retries(hardware=3, oom=0, hang=1))
    ledger = Ledger(charges={Cause.HARDWARE: 1, Cause.HANG: 5, Cause.UNKNOWN: 9})
    rest = remaining_retries(ledger, policy)
    assert (rest[Cause.HARDWARE], rest[Cause.HANG], rest[Cause.OOM]) == (2, 0, 0)
    assert not {Cause.UNKNOWN, Cause.CAPACITY} & set(rest)


@given(st.lists(st.tuples(causes, moments), min_size=MAX_ENTRIES, max_size=2 * MAX_ENTRIES))
def test_the_diary_stays_short(failures):
    ledger = Ledger()
    for cause, at in failures:
        ledger = failed(ledger, cause, at=at)
    assert len(ledger.entries) == MAX_ENTRIES
    assert ledger.entries[-1].startswith(f"{failures[-1][1]:%Y-%m-%dT%H:%M:%SZ}")
