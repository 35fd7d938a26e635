"""The brake on all relaunches of an account: never more than its limit in any window, whoever asks how often."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerail.model.codec import dumps, loads
from rerail.model.rate_limit import Launches, LaunchRequest, admit

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)


def asked(launches: Launches, name: str, minute: float, *, limit: int = 2):
    return admit(launches, LaunchRequest(name), at=NOON + minute * MINUTE, limit=limit, window=HOUR)


@given(
    st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 40)), max_size=60),
    st.integers(1, 4),
    st.sampled_from([MINUTE, HOUR, 5 * HOUR]),
)
def test_in_no_window_are_there_more_than_the_limit(asking, limit, window):
    """Each job is made once, at the latest moment at which it was granted: the hardest reading of the promise."""
    launches, made, at = Launches(), {}, NOON
    for name, minutes in asking:
        at += minutes * MINUTE
        launches, answer = admit(launches, LaunchRequest(name), at=at, limit=limit, window=window)
        launches = loads(Launches, dumps(launches))
        if answer.granted:
            made[name] = at
            assert sum(at - window < then <= at for then in made.values()) <= limit
        else:
            assert at < answer.until <= at + window


def test_the_same_launch_counts_once():
    launches, _ = asked(Launches(), "a", 0)
    launches, again = asked(launches, "a", 1)
    launches, other = asked(launches, "b", 2)
    assert (again.count, again.granted, other.count, other.granted) == (1, True, 2, True)
    assert not asked(launches, "c", 3)[1].granted
    assert asked(launches, "a", 4)[1].granted


def test_one_page_an_hour_from_the_run_that_was_to_page():
    """A crash before the page was recorded asks again, and pages then."""
    launches, _ = asked(Launches(), "a", 0, limit=1)
    launches, first = asked(launches, "b", 1, limit=1)
    launches, again = asked(launches, "b", 2, limit=1)
    launches, other = asked(launches, "c", 3, limit=1)
    assert first.paged_at == again.paged_at == NOON + MINUTE
    assert other.paged_at is None
    launches, _ = asked(launches, "a", 50, limit=1)
    assert asked(launches, "c", 70, limit=1)[1].paged_at == NOON + 70 * MINUTE


def test_a_blocked_launch_gets_the_time_of_its_next_try():
    """When the oldest of the hour has left it."""
    launches, _ = asked(Launches(), "a", 0)
    launches, _ = asked(launches, "b", 10)
    answer = asked(launches, "c", 20)[1]
    assert (answer.granted, answer.until) == (False, NOON + HOUR)
    assert not asked(launches, "c", 59)[1].granted
    assert asked(launches, "c", 60)[1].granted, "at the time that it was given"


def test_a_limit_of_zero_admits_every_launch():
    launches = Launches()
    for number in range(50):
        launches, answer = asked(launches, f"job-{number}", 0, limit=0)
        assert answer.granted


def shared(launches: Launches, run: str, minute: float, *, limit: int = 100, **facts):
    """Request a relaunch of a run that failed a minute before with the error that all runs here share."""
    failed_at = NOON + (minute - 1) * MINUTE
    request = LaunchRequest(f"{run}-a002", run, "error", **{"failed_at": failed_at, **facts})
    return admit(launches, request, at=NOON + minute * MINUTE, limit=limit, window=HOUR)


def spent() -> Launches:
    launches = Launches()
    for run in "abcde":
        launches, answer = shared(launches, run, 0)
        assert answer.granted
    return launches


def test_the_sixth_run_with_an_error_waits_and_the_first_five_do_not():
    launches, sixth = shared(spent(), "f", 1)
    assert (sixth.granted, sixth.until, set(sixth.tries)) == (False, NOON + 11 * MINUTE, set("abcde"))
    assert shared(launches, "a", 2)[1].granted, "its own second relaunch"
    assert asked(launches, "g", 2, limit=100)[1].granted, "without that error"
    assert shared(launches, "f", 2, limit=0)[1].granted, "without a limit"


def test_an_operators_launch_goes_ahead_and_counts_as_a_try():
    launches, approved = shared(spent(), "f", 1, is_approved=True)
    assert approved.granted
    assert set(shared(launches, "g", 2)[1].tries) == set("abcdef")


def test_runs_that_failed_before_the_error_was_solved_wait_no_more():
    """Those that fail with it afterwards count anew."""
    launches, answer = shared(spent(), "f", 10, is_solved=True)
    assert answer.granted
    for run in "ghijklm":
        launches, answer = shared(launches, run, 20, failed_at=NOON + 10 * MINUTE)
        assert answer.granted
    for run in "nopqr":
        launches, answer = shared(launches, run, 21)
        assert answer.granted
    assert set(shared(launches, "s", 22)[1].tries) == set("nopqr")


def test_an_error_is_forgotten_an_hour_after_it_was_last_met():
    launches = spent()
    for minute in (0, 59, 118):
        launches, answer = shared(launches, "f", minute)
        assert not answer.granted
    assert shared(launches, "f", 178)[1].granted


@pytest.mark.threat("T38")
def test_a_run_waits_for_others_for_four_hours_at_most():
    """Even if they are relaunched and fail again and again meanwhile."""
    launches = spent()
    for minute in (100, 150, 200, 235, 239, 240):
        for run in "abcde":
            launches, _ = shared(launches, run, minute)
        launches, answer = shared(launches, "f", minute, failed_at=NOON)
        assert answer.granted is (minute == 240)
        assert answer.until == NOON + min(minute + 10 * (minute < 240), 240) * MINUTE
    assert shared(launches, "g", 241)[1].granted is False


def test_relaunches_of_four_hours_ago_no_longer_count():
    launches = spent()
    for minute in range(1, 240, 58):
        launches, answer = shared(launches, f"r{minute}", minute)
        assert not answer.granted
    assert shared(launches, "f", 240)[1].granted


def test_twenty_tries_of_an_error_are_kept():
    launches = Launches()
    for number in range(30):
        launches, _ = shared(launches, f"r{number}", number, limit=0)
    (error,) = shared(launches, "last", 30)[0].errors.values()
    assert set(error.tries) == {f"r{number}" for number in range(10, 30)}


def test_a_clock_that_was_a_day_ahead_blocks_nothing():
    launches = Launches()
    for run in "abcde":
        launches, _ = shared(launches, run, 1440, limit=5)
    launches, ahead = shared(launches, "f", 1440, limit=5)
    launches, answer = shared(launches, "g", 0, limit=5)
    assert (ahead.granted, answer.granted, answer.count) == (False, True, 1)


def test_a_launch_that_the_rate_postpones_is_no_try_and_one_without_an_error_is_not_kept():
    launches, _ = asked(Launches(), "x", 0, limit=1)
    launches, answer = shared(launches, "a", 1, limit=1)
    assert (answer.granted, launches.errors) == (False, {})


def test_twenty_errors_are_kept():
    launches = Launches()
    for number in range(25):
        request = LaunchRequest(f"r{number}-a002", f"r{number}", f"error {number}")
        launches, _ = admit(launches, request, at=NOON + number * MINUTE, limit=100, window=HOUR)
    assert set(launches.errors) == {f"error {number}" for number in range(5, 25)}
