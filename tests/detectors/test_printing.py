"""The same run is judged alike however its log was printed, and no habit of a logger stops a healthy run."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from functools import cache
from itertools import product

import pytest

from bench.injected import FAULTS, Fault, inject
from bench.loggers import LOGGERS
from rerail.detection.cadence import Cadence
from rerail.detection.detectors import evaluate_series
from rerail.detection.repetition import Repetition
from rerail.detection.resolution import Resolution
from rerail.detection.row import RowReader
from rerail.detection.running_mean import RunningMean
from rerail.model.finding import Kind, Level
from rerail.model.sample import Sample
from tests.detectors.runs import DETECTION, START, falling, levels, lifted, said, samples, slow
from tests.examples import FULL_RUN

LOSS = (Kind.LOSS_SPIKE, Kind.DIVERGENCE)
LOGGER = {logger.name: logger.rewrite for logger in LOGGERS}
FAULT = {fault.name: fault for fault in FAULTS}
# Loggers whose rows show single steps at the run's own rate.
PER_STEP = tuple(key for key in LOGGER if key not in ("minutes", "every 10th", "means of 10", "1 decimal", "2 digits"))


def every_second(*faults: str) -> list[tuple[str, str]]:
    """Pair loggers and faults: each with every second one of the other, in `make proof` with all."""
    pairs = list(product(PER_STEP, faults))
    return pairs if FULL_RUN else pairs[::2]


@cache
def run(rows: int = 1200, *, seed: int = 3) -> Sequence[Sample]:
    """Return a healthy run with step times of about 0.5 s."""
    rng = random.Random(seed)
    losses = falling(rows, noise=0.02, seed=seed)
    return [
        Sample(step=row + 1, loss=loss, step_time_s=0.5 * rng.lognormvariate(0, 0.03))
        for row, loss in enumerate(losses)
    ]


def printed(logger: str, fault: Fault, healthy: Sequence[Sample]) -> list[Sample]:
    injected = inject(fault, healthy, random.Random(5))
    return [row.sample for row in LOGGER[logger](injected.samples, random.Random(6))]


@pytest.mark.parametrize("logger", LOGGER)
def test_a_healthy_run_is_not_stopped(logger):
    findings = [f for _, f in evaluate_series(printed(logger, FAULT["none"], run()), DETECTION)]
    assert [finding.kind for finding in findings if finding.level is Level.INTERVENE] == []
    assert len(findings) <= 1


@pytest.mark.parametrize(
    ("logger", "fault"), every_second("lasting x2", "ramp to x3", "NaN", "slower x2", "creeping x1.5")
)
def test_a_lasting_fault_is_acted_on(logger, fault):
    """Slow steps with a slow rank."""
    findings = said(replace(sample, suspect="rank 3 is slow") for sample in printed(logger, FAULT[fault], run()))
    assert Level.INTERVENE in levels(findings)


@pytest.mark.parametrize("fault", ["recovers x5", "burst of slow rows"])
@pytest.mark.parametrize("logger", PER_STEP)
def test_what_recovers_is_not_acted_on(logger, fault):
    assert Level.INTERVENE not in levels(said(printed(logger, FAULT[fault], run())))


def test_minutes_show_a_divergence_within_the_hour():
    """Each minute aggregates 120 steps, so twenty of them are patience enough."""
    rows = printed("minutes", FAULT["lasting x5"], run(20_000))
    (at, _), *_ = [(row, f) for row, f in said(rows, *LOSS) if f.level is Level.INTERVENE]
    onset = next(row for row, sample in enumerate(rows) if (sample.loss or 0) > 6)
    assert at - onset < 60


@pytest.mark.parametrize(
    ("epoch", "pause", "shift", "quantum", "plain", "hidden", "wrong"),
    [
        # Means are recognized in two epochs of 52 rows, or after 128 rows of one.
        (51, 9999, 9999, 0.0, 1500, 0, 0),
        (52, 9999, 9999, 0.0, 205, 45, 62),
        (70, 9999, 9999, 0.0, 143, 24, 9),
        (250, 9999, 9999, 0.0, 127, 7, 3),
        # A single large value, such as a step with an evaluation, is not the restart of a mean; nor is a new level.
        (250, 170, 9999, 0.0, 127, 28, 10),
        (250, 9999, 333, 0.0, 127, 13, 5),
        # What rounding makes uncertain is hidden.
        (250, 9999, 9999, 3e-4, 127, 294, 288),
    ],
)
def test_values_behind_running_means_are_recovered(epoch, pause, shift, quantum, plain, hidden, wrong):
    """Values before that are taken as printed; those that decide whether the mean has restarted are hidden."""
    reader, rng, found = RunningMean(), random.Random(1), []
    total = 0.0
    for row in range(1500):
        value = rng.gauss(1, 0.1) * (50 if row % pause == pause - 1 else 1) * (2 if row >= shift else 1)
        total = value if row % epoch == 0 else total + value
        recovered = reader.read(total / (row % epoch + 1), quantum)
        found += [None if recovered is None else abs(recovered - value) > 1e-6] if reader.is_mean else []
    assert (1500 - len(found), found.count(None), found.count(True)) == (plain, hidden, wrong)


def test_plain_values_are_not_taken_for_means():
    reader, rng = RunningMean(), random.Random(2)
    values = [rng.gauss(1, 0.05) for _ in range(5000)]
    assert [reader.read(value, 0.0) for value in values] == values
    reader, smooth = RunningMean(), [1 + 50 / (row + 20) for row in range(800)]
    assert [reader.read(value, 0.0) for value in smooth] == smooth


def test_launches_are_not_read_as_one_epoch_of_running_means():
    dice, reader = random.Random(1), RowReader()
    losses = [4 + dice.gauss(0, 0.1) / (row + 1) for row in range(160)]
    rows = [reader.read(Sample(step=row % 60, loss=loss)) for row, loss in enumerate(losses)]
    assert not any(row.is_recovered for row in rows)


def test_a_loss_that_is_printed_several_times_counts_once():
    """A loss printed four times is one value: two large ones in a row are eight rows, and no lasting rise."""
    rng = random.Random(8)
    losses = [math.exp(rng.gauss(0, 0.3)) for _ in range(500)]
    losses[400] = losses[401] = 3.0
    assert said(samples([loss for loss in losses for _ in range(4)]), *LOSS) == said(samples(losses), *LOSS) == []


def test_a_converged_loss_that_rounding_repeats_is_not_frozen():
    rng = random.Random(4)
    losses = [round(0.03 + 0.002 * rng.gauss(0, 1), 2) for _ in range(2000)]
    assert said(samples(losses), Kind.FROZEN_LOSS) == []


def test_a_loss_that_varied_more_than_rounding_and_stands_still_is_frozen():
    losses = [round(loss, 2) for loss in falling(400, noise=0.05)]
    frozen = samples(losses + [losses[-1]] * 200)
    assert levels(said(frozen, Kind.FROZEN_LOSS)) == [Level.WARN, Level.INTERVENE]


def test_a_gradient_norm_that_was_never_finite_says_nothing():
    rows = [replace(sample, grad_norm=float("nan")) for sample in samples(falling(300))]
    assert said(rows, Kind.NON_FINITE) == []


def test_rises_that_the_run_recovers_from_do_not_stop_it_when_they_return():
    """A rise of 70 rows every 300 is how this run goes; a longer and higher one is not."""
    losses = falling(3000, noise=0.01)
    for start in range(600, 2400, 300):
        losses = lifted(losses, start, start + 90, times=1.6)
    first, *others = [row for row, f in said(samples(losses), Kind.DIVERGENCE) if f.level is Level.INTERVENE] or [None]
    assert others == []
    losses = lifted(losses, 2600, 3000, times=4)
    assert [row for row, f in said(samples(losses), Kind.DIVERGENCE) if f.level is Level.INTERVENE and row > 2600]


def test_slow_steps_that_recover_on_their_own_are_reported_once():
    """The mean of an epoch that begins with a pause falls back each time."""
    seconds = [0.5 * (1 + 40 / (row % 400 + 1)) for row in range(4000)]
    findings = said(slow([round(value, 4) for value in seconds]), Kind.THROUGHPUT_DROP)
    assert Level.INTERVENE not in levels(findings)
    assert len(findings) <= 1


@pytest.mark.parametrize(
    ("steps", "changed"),
    [
        ([0, 10, 20, 41, 62, 83], [5]),
        ([0, 10, 20, 24, 28, 32], [5]),
        ([0, 10, 20, 40, 60, 80], []),
        ([0, 10, 20, 25, 30, 35], []),
        ([0, 10, 31, 52, 62, 83, 104, 125, 146], [7]),
        ([0, 10, 31, 31, 5, None, 26, 47, 68], [8]),
        ([0, 10, 31, 52, 73, 94, 137, 180, 223], [4, 8]),
    ],
)
def test_a_logging_interval_changes_with_the_third_row_at_over_twice_or_under_half_of_it(steps, changed):
    cadence = Cadence()
    assert [row for row, step in enumerate(steps) if cadence.changed(step)] == changed


@pytest.mark.parametrize(
    ("losses", "quanta"),
    [
        ([2.0, 2.5, 2.25, 2.0], [1.0, 0.1, 0.01, 0.01]),
        ([1.5e-7, 12345.678, 1e16], [1e-8, 1e-8, 1e-8]),
        ([0.12345678, 1e-9, 0.123456789], [1e-8, 1e-9, 0.0]),
        ([1e-9, 1e-10], [1e-9, 0.0]),
        ([0.25, *[2.0] * 62, 2.0, 2.0], [*[0.01] * 63, 0.01, 1.0]),
    ],
)
def test_the_finest_difference_of_the_last_groups_of_rows_is_the_resolution(losses, quanta):
    """Numbers of eleven characters are printed in full; finer rows are forgotten after two groups of 32."""
    resolution = Resolution()
    assert [resolution.read(loss) for loss in losses] == quanta


def test_a_loss_repeats_if_six_of_the_last_eight_were_printed_as_often():
    repetition, seen = Repetition(), []
    for number, times in enumerate([1, 2, 2, 2, 2, 2, 3, 2, 2, 4, 5, 2]):
        seen.append([repetition.is_repeated(float(number)) for _ in range(times)])
    assert [sum(repeats) for repeats in seen] == [0, 0, 0, 0, 0, 0, 0, 0, 1, 3, 4, 0]


@pytest.mark.parametrize(
    ("level", "rows", "loss", "has_begun"),
    [
        (2.0, 200, 4.4, False),
        (2.0, 200, 4.6, True),
        (2.0, 204, 4.4, False),
        (2.0, 206, 4.4, True),
        (2.0, 197, 4.4, False),
        (2.0, 195, 4.4, True),
        (8.3, 200, 10.0, False),
        (8.1, 200, 10.0, True),
        (-9.0, 200, 0.0, False),
        (-9.0, 200, 1.0, True),
    ],
)
def test_steps_that_begin_again_are_another_epoch_or_another_launch(level, rows, loss, has_begun):
    """As many rows as before make it an epoch, unless the loss is back halfway to that of the first rows."""
    reader = RowReader()
    for step in (*range(200), *range(rows)):
        reader.read(Sample(step=step, loss=10.0 if step < 3 else level))
    row = reader.read(Sample(step=0, loss=loss))
    assert (row.is_new_launch, row.is_new_series) == (has_begun, has_begun)


@pytest.mark.parametrize(
    ("rates", "rows"),
    [
        ([1.0, 0.4, 0.7], []),
        ([1.0, *[0.2] * 64, 0.41], [65]),
        ([1.0, *[None, 0.3] * 3, 0.7], []),
        ([1.0, *[0.1, 1.0] * 30], []),
        ([0.0, 1e-6, *[math.nan] * 64, 1e-3], [66]),
        ([1e-6, 2e-6, *[3e-6] * 9, 1e-5], []),
        ([1.0, *[0.01] * 63, 1.0, *[0.01] * 63, 1.0, *[0.01] * 64, 1.0], [64, 193]),
    ],
)
def test_a_learning_rate_that_doubles_the_highest_before_is_raised(rates, rows):
    """The highest counts less with each row that prints one: of several optimizers each prints its own."""
    reader = RowReader()
    read = [reader.read(Sample(step=step, loss=1.0, lr=rate)) for step, rate in enumerate(rates)]
    assert [step for step, row in enumerate(read) if row.rows_since_raise == 0] == rows


@pytest.mark.parametrize(("step", "is_launch", "is_series"), [(170, 0, 0), (169, 1, 0), (100, 1, 0), (99, 1, 1)])
def test_steps_that_go_back_are_out_of_order_or_another_launch(step, is_launch, is_series):
    """Up to three rows are out of order; a launch that resumes from a checkpoint keeps the loss comparable."""
    reader = RowReader()
    for before in range(0, 201, 10):
        reader.read(Sample(step=before, loss=2.0))
    row = reader.read(Sample(step=step, loss=2.0))
    assert (row.is_new_launch, row.is_new_series) == (is_launch, is_series)


@pytest.mark.parametrize(
    ("seconds", "count", "factor"), [(112, 1, 1), (113, 1, 2), (226, 1, 4), (9999, 1, 8), (400, 3, 4), (9, 4, 4)]
)
def test_the_patience_in_rows_is_bounded_by_two_and_a_half_hours(seconds, count, factor):
    """Eight rows are the least. The bound is read from times or from steps; four rows in one need a quarter of it."""
    for is_timed in (True, False):
        reader = RowReader()
        for number in range(9):
            at = START + number * timedelta(seconds=seconds) if is_timed else None
            step_s = seconds / 5 if number > 1 and not is_timed else None
            row = reader.read(Sample(step=5 * number, at=at, count=count, step_time_s=step_s))
        assert (row.find_patience_factor(80), row.find_patience_factor(15)) == (factor, 4 if count == 4 else 1)
