"""A clock of ours that jumps, or an outage of ours: what nobody heard is not held against a job."""

import math
from dataclasses import dataclass
from datetime import timedelta

import pytest

from rerail.detection.clock_skew import FRESH, JUMP, find_silence_start
from rerail.model.run import RunState
from tests.fakes import MIDNIGHT, Clock, World

MINUTE, STEPS_A_MINUTE = timedelta(minutes=1), 10


@dataclass
class Skewed:
    """The functions' clock, beside the world's."""

    true: Clock
    skew: timedelta = timedelta()

    def __call__(self):
        return self.true() + self.skew

    def pass_by(self, duration):
        self.true.pass_by(duration)


@pytest.fixture
def world() -> World:
    world = World()
    world.sagemaker.defined_metrics = ("step", "loss", "nonfinite")
    world.adopt()
    world.clock = Skewed(world.clock)
    return world


def train(world, minutes, *, first=0, prints=True):
    """The job trains and saves; its last step."""
    step = first
    for _ in range(minutes):
        if prints:
            step += STEPS_A_MINUTE
            row = {"step": float(step), "nonfinite": 0.0, "count": 10.0, "loss": 2 + 3 * math.exp(-step / 500)}
            world.series.print("gpt", world.clock.true(), **row)
            if step % 100 == 0:
                world.checkpoints.save(step=step)
        world.minutes(1)
    return step


@pytest.mark.parametrize("hours", [-3, -1, 1, 2.5])
def test_a_clock_that_jumps_stops_no_healthy_job(world, hours):
    """There, for an hour, and back."""
    last = train(world, 60)
    world.clock.skew = timedelta(hours=hours)
    last = train(world, 60, first=last)
    world.clock.skew = timedelta()
    train(world, 30, first=last)
    assert world.run().state is RunState.WATCHING
    assert world.sagemaker.live() == ["gpt"]


def test_a_stall_during_a_missing_sweep_is_found_later(world):
    """The sweep was away for an hour: silence counts from its return."""
    train(world, 60)
    world.clock.pass_by(timedelta(hours=1))
    train(world, 4, prints=False)
    assert world.sagemaker.live() == ["gpt"]
    train(world, 20, prints=False)
    assert world.run().incidents[0].kind == "stall"


def test_doubt_begins_with_a_jump_and_ends_with_a_row_of_now():
    at = MIDNIGHT
    assert (timedelta(minutes=3), timedelta(minutes=5)) == (JUMP, FRESH)
    for back in (-1, 1):
        assert find_silence_start(None, at, age=None, at=at + back * JUMP) is None
        assert find_silence_start(at, at, age=back * FRESH, at=at) is None
        assert find_silence_start(None, None, age=back * (FRESH + MINUTE), at=at) == at
        assert find_silence_start(None, at, age=MINUTE, at=at + back * (JUMP + MINUTE)) == at + back * (JUMP + MINUTE)
    since = at + 2 * JUMP
    assert find_silence_start(None, at, age=since - at, at=since) == since
    later = since + MINUTE
    assert find_silence_start(since, since, age=None, at=later) == since
    assert find_silence_start(since, since, age=FRESH + MINUTE, at=later) == later
    assert find_silence_start(since, since, age=MINUTE, at=later) is None


@pytest.mark.parametrize(
    ("minutes", "after", "saves_every"), [(-14, 3, 10), (-14, 8, 30), (2, 3, 30), (9, 8, 10), (14, 3, 30), (14, 8, 10)]
)
def test_a_clock_that_is_wrong_while_metrics_are_missing_stops_no_healthy_job(world, minutes, after, saves_every):
    """It goes on saving: its saves are held against the time of its last row, which AWS has told, not against ours."""
    for minute in range(170):
        step = minute * STEPS_A_MINUTE
        if minute < 120:
            row = {"step": float(step), "nonfinite": 0.0, "count": 10.0, "loss": 2 + 3 * math.exp(-step / 500)}
            world.series.print("gpt", world.clock.true(), **row)
        if minute == 120 + after:
            world.clock.skew = timedelta(minutes=minutes)
        if minute % saves_every == 0:
            world.checkpoints.save(step=step)
        world.minutes(1)
    assert world.sagemaker.live() == ["gpt"]
    assert world.run().current.number == 1


@pytest.mark.parametrize("minutes", [-12, 6, 11, 14])
def test_a_clock_that_was_wrong_from_the_first_look_on_stops_no_healthy_job(world, minutes):
    """The rows that come each minute look old, or of the future: they are signs of life all the same. Nothing was saved
    yet, so that nothing else speaks for the job."""
    world.clock.skew = timedelta(minutes=minutes)
    for minute in range(60):
        step = minute * STEPS_A_MINUTE
        if minute % 10 != 9:  # one is late
            row = {"step": float(step), "nonfinite": 0.0, "count": 10.0, "loss": 2 + 3 * math.exp(-step / 500)}
            world.series.print("gpt", world.clock.true(), **row)
        world.minutes(1)
    assert world.sagemaker.live() == ["gpt"]
    assert world.run().current.number == 1
