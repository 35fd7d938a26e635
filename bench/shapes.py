"""Shapes of training logs that have fooled detectors, as generators: `python -m bench.shapes`.

Each shape has a seed, and what may be said of it: silence, at most so many findings, no intervention, or a finding of
some kind. None is taken from a log.
"""

import argparse
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from rerail.detection.detectors import evaluate_series
from rerail.model.finding import Finding, Kind, Level
from rerail.model.sample import Sample
from rerail.model.thresholds import Thresholds

SEEDS = 10
LOSS_KINDS = (Kind.LOSS_SPIKE, Kind.DIVERGENCE)

Said = Sequence[tuple[int, Finding]]


@dataclass(frozen=True, slots=True)
class Shape:
    """A shape of a log, and whether what was said of it is right."""

    name: str
    make: Callable[[random.Random], Iterator[Sample]]
    # Takes the findings with their rows.
    is_right: Callable[[Said], bool]
    expected: str


def _is_silent(said: Said) -> bool:
    return not said


def _stops_nothing(said: Said) -> bool:
    return all(finding.level is not Level.INTERVENE for _, finding in said)


def _count(said: Said, *kinds: Kind) -> int:
    return sum(finding.kind in kinds for _, finding in said)


def _notices(said: Said) -> int:
    """A notice is sent once for an onset, however often it is found."""
    return len({(finding.kind, finding.onset_step) for _, finding in said})


def _stops(said: Said) -> int:
    return sum(finding.level is Level.INTERVENE for _, finding in said)


def _timed(seconds: Sequence[float]) -> Iterator[Sample]:
    for row, value in enumerate(seconds):
        yield Sample(step=row, loss=2.0 + 3 / (1 + row / 50), step_time_s=value)


def _faster_for_a_while(rng: random.Random) -> Iterator[Sample]:
    levels = [(1.0, 0.06, 380), (0.8, 0.02, 420), (1.0, 0.06, 900)]
    yield from _timed([level * math.exp(rng.gauss(0, noise)) for level, noise, rows in levels for _ in range(rows)])


def _short_falls(rng: random.Random) -> Iterator[Sample]:
    seconds: list[float] = []
    while len(seconds) < 5000:
        seconds += [math.exp(rng.gauss(0, 0.03)) for _ in range(rng.randint(300, 900))]
        rows = rng.randint(20, 120)
        seconds += [(0.6 + 0.4 * row / rows) * math.exp(rng.gauss(0, 0.03)) for row in range(rows)]
    yield from _timed(seconds)


def _doubled(rng: random.Random) -> Iterator[Sample]:
    yield from _timed([(1 if row < 700 else 2) * math.exp(rng.gauss(0, 0.03)) for row in range(2100)])


def _launches(rng: random.Random) -> Iterator[Sample]:
    for _ in range(rng.choice((3, 8, 40))):
        pace, rows = rng.choice((1.0, 1.6, 3.0)), rng.randint(120, 300)
        for row in range(rows):
            loss = (1 + 9 * math.exp(-row / 30)) * math.exp(rng.gauss(0, 0.03))
            yield Sample(step=row, loss=loss, step_time_s=pace * math.exp(rng.gauss(0, 0.03)))


def _equal_launches(rng: random.Random) -> Iterator[Sample]:
    """As of cross-validation: each has the same number of steps."""
    rows = rng.randint(60, 300)
    for _ in range(rng.randint(4, 12)):
        for row in range(rows):
            yield Sample(step=row, loss=(1 + 9 * math.exp(-row / 30)) * math.exp(rng.gauss(0, 0.03)))


def _folds(rng: random.Random) -> Iterator[Sample]:
    """Each begins at some multiple of the loss at which the one before ended, as easy and hard folds do."""
    rows, level = rng.randint(60, 300), 0.4
    for _ in range(rng.randint(3, 10)):
        level, warm_up = level * rng.choice((0.5, 1, 2)), rng.choice((0, 20))
        height = rng.choice((1.3, 3, 5, 10))
        for row in range(rows):
            loss = level * height ** math.exp(-max(0, row - warm_up) / 30)
            yield Sample(step=row + 1, loss=loss * math.exp(rng.gauss(0, 0.03)))


def _folds_of_a_job(rng: random.Random) -> Iterator[Sample]:
    """Folds in the minutes of a job, which have no step once the steps have begun again."""
    before = 0
    for sample in _folds(rng):
        yield replace(sample, step=None, begins_again=(sample.step or 0) < before)
        before = sample.step or 0


def _folds_without_steps(rng: random.Random) -> Iterator[Sample]:
    """Each begins at the loss of an untrained model, and ends where the difficulty of its data lets it end."""
    rows, start, noise = rng.randint(60, 300), rng.choice((0.7, 2.3, 6.9)), rng.choice((0.02, 0.05, 0.1))
    floor, pace = start / rng.choice((4, 10, 50)), rows / rng.choice((3, 5, 10))
    for _ in range(rng.randint(3, 10)):
        end = floor * math.exp(rng.uniform(-0.5, 0.5))
        height = start * math.exp(rng.gauss(0, 0.05)) / end
        for row in range(rows):
            yield Sample(loss=end * height ** math.exp(-row / pace) * math.exp(rng.gauss(0, noise)))


def _warm_restarts(rng: random.Random) -> Iterator[Sample]:
    """The learning rate falls as a cosine and is raised again, four times; the loss rises with it."""
    rows, height, noise = rng.randint(80, 400), rng.choice((0.3, 0.7, 1.2)), rng.choice((0.02, 0.05, 0.1))
    for row in range(4 * rows):
        rate = 0.5 + 0.5 * math.cos(math.pi * (row % rows) / rows)
        loss = 0.5 * math.exp(1.5 * math.exp(-row / 40) + height * rate + rng.gauss(0, noise))
        yield Sample(step=row, loss=loss, lr=rate / 1000)


def _losses(values: Sequence[float]) -> Iterator[Sample]:
    for row, value in enumerate(values):
        yield Sample(step=row, loss=value)


def _fall_and_climb(rng: random.Random) -> Iterator[Sample]:
    fall = [30 ** (1 - row / 20) for row in range(20)]
    climb = [1 + 5 * row / 300 for row in range(300)]
    yield from _losses([value * math.exp(rng.gauss(0, 0.3)) for value in (*fall, *climb)])


def _staircase(rng: random.Random) -> Iterator[Sample]:
    values, level = [], 2.0
    for _ in range(20):
        values += [level * math.exp(rng.gauss(0, 0.02)) for _ in range(rng.randint(80, 120))]
        level += 0.5
    yield from _losses(values)


def _mostly_zero(rng: random.Random) -> Iterator[Sample]:
    means = [-0.08 + 0.1 * row / 1500 for row in range(1500)]
    yield from _losses([0.0 if rng.random() < 0.6 else round(rng.gauss(mean / 0.4, 0.05), 2) for mean in means])


def _growing_with_reward(rng: random.Random) -> Iterator[Sample]:
    fall = [0.1 + 0.9 * math.exp(-row / 30) for row in range(200)]
    growth = [0.1 * 30 ** (row / 500) for row in range(500)]
    yield from _losses([value * math.exp(rng.gauss(0, 0.5)) for value in (*fall, *growth, *([3.0] * 200))])


def _growing_from_the_start(rng: random.Random) -> Iterator[Sample]:
    return _losses([3 * math.exp(18 * row / 7000 + 0.3 * rng.gauss(0, 1)) for row in range(7000)])


def _irregular_means(rng: random.Random) -> Iterator[Sample]:
    values: list[float] = []
    level = 3.0
    for _ in range(15):
        rows, total = rng.randint(60, 260), 0.0
        for row in range(rows):
            total += level * (0.7 + 0.3 * min(1, row / rows)) * math.exp(rng.gauss(0, 0.2))
            values.append(total / (row + 1))
        level *= 0.97
    yield from _losses(values)


def _frequent_spikes(rng: random.Random) -> Iterator[Sample]:
    values = [2.0 * math.exp(rng.gauss(0, 0.02)) for _ in range(1000)]
    for start in range(120, 1000, 80):
        height = rng.uniform(10, 20)
        for row in range(start, min(1000, start + 50)):
            values[row] *= 1 + (height - 1) * math.exp(-(row - start) / 8)
    yield from _losses(values)


def _early_divergence(rng: random.Random) -> Iterator[Sample]:
    values = [2 + 6 * math.exp(-row / 25) for row in range(240)]
    for row in range(240):
        values[row] *= (1.7 if row in (84, 92) else 1) * math.exp(rng.gauss(0, 0.02))
        if row >= 114:
            values[row] *= (1 + 0.5 * min(1.0, (row - 114) / 51)) * math.exp(rng.gauss(0, 0.04))
    yield from _losses(values)


EARLY_SPIKES = (34, 45, 50, 57, 88, 95)


def _early_spikes(rng: random.Random) -> Iterator[Sample]:
    factors = [1.8 if row in EARLY_SPIKES else 1.0 for row in range(140)]
    yield from _losses([factor * 2.0 * math.exp(rng.gauss(0, 0.01)) for factor in factors])


def _small_dip(rng: random.Random) -> Iterator[Sample]:
    values = [1e-4 * (0.2 if 300 <= row < 305 else 1) * math.exp(rng.gauss(0, 0.03)) for row in range(700)]
    yield from _losses(values)


def _smooth_fall(rng: random.Random) -> Iterator[Sample]:
    yield from _losses([1.0 - 0.004 * row / 170 for row in range(170)])


def _slow_rows(rng: random.Random) -> Iterator[Sample]:
    for row in range(200):
        seconds = 300.0 * (1 if row < 120 else 2) * math.exp(rng.gauss(0, 0.02))
        yield Sample(step=row, loss=2.0 * math.exp(rng.gauss(0, 0.01)), step_time_s=seconds)


def _swing(rng: random.Random) -> Iterator[Sample]:
    swing = [400 * math.sin(math.pi * row / 300) for row in range(300)]
    yield from _losses([value + rng.gauss(0, 1) for value in (*([0.0] * 200), *swing, *([0.0] * 200))])


def _constant_below_zero(rng: random.Random) -> Iterator[Sample]:
    yield from _losses([-0.693147 - 1e-9 * rng.random() if row % 2 else -0.693147 for row in range(600)])


def _spikes_found_once(said: Said) -> bool:
    onsets = {finding.onset_step or 0 for _, finding in said if finding.kind is Kind.LOSS_SPIKE}
    return all(sum(start - 2 <= onset < start + 50 for onset in onsets) == 1 for start in range(120, 1000, 80))


SHAPES = (
    Shape("faster and steadier for a while", _faster_for_a_while, _is_silent, "silence"),
    Shape("falls of the step time that creep back", _short_falls, _is_silent, "silence"),
    Shape("step time doubles at a third", _doubled, lambda s: 0 < len(s) <= 2 and _stops_nothing(s), "told"),
    Shape("launches in one file", _launches, lambda s: len(s) <= 40 and _stops_nothing(s), "a note a launch at most"),
    Shape("equal launches in one file", _equal_launches, lambda s: len(s) <= 1 and _stops_nothing(s), "silence"),
    Shape("folds at other levels", _folds, _stops_nothing, "not acted on"),
    Shape("folds of a job", _folds_of_a_job, _stops_nothing, "not acted on"),
    Shape("folds without steps", _folds_without_steps, _stops_nothing, "not acted on"),
    Shape("warm restarts", _warm_restarts, lambda s: len(s) <= 3 and _stops_nothing(s), "a note a restart at most"),
    Shape("fall, then a noisy climb", _fall_and_climb, lambda s: bool(_count(s, *LOSS_KINDS)), "told"),
    Shape("staircase", _staircase, lambda s: _stops(s) <= 1, "acted on once at most"),
    Shape("mostly exact zeros", _mostly_zero, _is_silent, "silence"),
    Shape("grows with the reward", _growing_with_reward, _stops_nothing, "not acted on"),
    Shape("grows from the start", _growing_from_the_start, lambda s: len(s) == 1 and _stops_nothing(s), "told once"),
    Shape("running means at irregular places", _irregular_means, _is_silent, "silence"),
    Shape("spikes every 80 rows", _frequent_spikes, _spikes_found_once, "each found, once"),
    Shape("early spikes, then divergence", _early_divergence, lambda s: bool(_count(s, Kind.DIVERGENCE)), "divergence"),
    Shape("early spikes", _early_spikes, lambda s: _count(s, *LOSS_KINDS) >= len(EARLY_SPIKES) - 2, "found"),
    Shape("a short dip", _small_dip, lambda s: _stops_nothing(s) and len(s) <= 1, "silence"),
    Shape("a smooth small fall", _smooth_fall, _is_silent, "silence"),
    Shape("slow rows, twice as slow", _slow_rows, lambda s: any(row <= 156 for row, _ in s), "told within 3 hours"),
    Shape("a swing and back", _swing, lambda s: 1 <= _notices(s) <= 2 and _stops_nothing(s), "a spike and a rise told"),
    Shape("constant below zero", _constant_below_zero, _is_silent, "silence"),
)


def count_right(shape: Shape, seeds: Sequence[int]) -> int:
    """Return for how many seeds what the detectors say of a shape is right."""
    detection = Thresholds()
    said = (tuple(evaluate_series(shape.make(random.Random(seed)), detection)) for seed in seeds)
    return sum(shape.is_right(findings) for findings in said)


def main() -> None:
    """Print how many seeds of each shape are right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS, help="seeds of each shape")
    seeds = range(parser.parse_args().seeds)
    for shape in SHAPES:
        print(f"{count_right(shape, seeds):3} of {len(seeds)}  {shape.name}: {shape.expected}")


if __name__ == "__main__":
    main()
