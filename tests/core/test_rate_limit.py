"""The brake on all relaunches of an account: never more than its limit in any window, whoever asks how often."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from rerail.model.codec import dumps, loads
from rerail.model.rate_limit import Launches, Request, admit

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)


def asked(launches: Launches, name: str, minute: float, *, limit: int = 2):
    return admit(launches, Request(name), at=NOON + minute * MINUTE, limit=limit, window=HOUR)


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
        launches, answer = admit(launches, Request(name), at=at, limit=limit, window=window)
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
