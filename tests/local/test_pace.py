"""The pace of a machine: what the scaled clocks are slowed by."""

import os
import subprocess

import pytest

from local.pace import FASTEST_SCALE, REFERENCE_S, SLOWEST, VARIABLE, Pace, measure_pace


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


def measured(*rounds: float) -> Pace:
    times = iter(rounds)
    return measure_pace(lambda: next(times))


@pytest.mark.parametrize(("times", "slowdown"), [(0.2, 1), (1.2, 1), (2, 2), (4.1, 4), (100, SLOWEST)])
def test_a_slower_machine_gets_a_slower_clock(times: float, slowdown: float) -> None:
    """Never a faster one than sixty, and small differences are noise."""
    pace = measured(*[times * REFERENCE_S] * 3)
    assert (pace.slowdown, pace.scale, pace.real(3.0)) == (slowdown, FASTEST_SCALE / slowdown, 3 * slowdown)


def test_a_short_load_does_not_count() -> None:
    assert measured(REFERENCE_S, 20 * REFERENCE_S, REFERENCE_S).slowdown == 1


def test_the_environment_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is measured; nonsense is refused with its name and the remedy."""
    monkeypatch.setenv(VARIABLE, "3.5")
    assert measured() == Pace(3.5)
    for nonsense in ("fast", "0.5", "17", "nan"):
        monkeypatch.setenv(VARIABLE, nonsense)
        with pytest.raises(ValueError, match=rf"{VARIABLE} is '{nonsense}': use a number from 1"):
            measured()


@pytest.mark.slow
def test_load_makes_the_machine_slower() -> None:
    """More busy processes than cores: the same work takes longer than before they came."""
    from local.pace import _time_round

    alone = min(_time_round() for _ in range(2))
    loops = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(3 * (os.cpu_count() or 1))]
    try:
        loaded = _time_round()
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    assert loaded > 1.3 * alone
