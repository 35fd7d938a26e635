"""A log by the minute: as CloudWatch keeps it, with labels that move along."""

import math
from datetime import timedelta

from cli.backtest.minutes import START, clock, minutes
from cli.backtest.scoring import Label, Labelled
from rerail.model.sample import Sample


def log(count: int, *, seconds: float | None = 10.0) -> list[Sample]:
    return [Sample(step=i + 1, loss=float(i), step_time_s=seconds) for i in range(count)]


def test_a_minute_has_a_mean_and_a_maximum():
    """Six steps of ten seconds; a step that ends with the minute belongs to the next one."""
    found = minutes(log(12))
    assert found.last_rows == (4, 10, 11)
    first = found.samples[0]
    assert (first.count, first.loss, first.loss_max) == (5, 2.0, 4.0)
    assert (first.step, first.at) == (5, START)


def test_a_minute_without_steps_is_not_there():
    """A pause is a hole in the series, as in CloudWatch."""
    samples = log(12)
    samples[6] = Sample(step=7, loss=6.0, step_time_s=200.0)
    assert [(one.at - START) / timedelta(minutes=1) for one in minutes(samples).samples if one.at] == [0, 1, 4, 5]


def test_a_row_lasts_as_long_as_the_steps_since_the_row_before():
    """Logged every hundredth step."""
    assert clock([Sample(step=step, step_time_s=0.5) for step in (100, 200, 300)]) == [0.5, 50.5, 100.5]


def test_a_log_that_tells_no_time_is_cut_by_rows():
    """Nothing logged, or times that cannot be seconds a step."""
    for seconds in (None, 1e-5, 1e7):
        found = minutes(log(70, seconds=seconds))
        assert (found.last_rows, found.ends_s) == ((29, 59, 69), None)


def test_what_is_not_finite_leaves_a_flag_and_no_number():
    """CloudWatch refuses a NaN; the flag is a metric of its own."""
    samples = [Sample(loss=1.0), Sample(loss=math.nan), Sample(loss=3.0)]
    (one,) = minutes(samples).samples
    assert (one.loss, one.loss_max, one.nonfinite, one.count) == (2.0, 3.0, True, 3)
    (empty,) = minutes([Sample(loss=math.nan)]).samples
    assert (empty.loss, empty.loss_max, empty.nonfinite) == (None, None, True)


def test_labels_move_to_the_minutes_of_their_rows():
    """The size of the run stays in rows, so that rates per row compare."""
    run = Labelled("a", "g", 70, (Label("loss_spike", 29, 61),))
    moved = minutes(log(70, seconds=None)).labelled(run)
    assert (moved.labels[0].onset, moved.labels[0].end, moved.rows) == (0, 2, 70)
