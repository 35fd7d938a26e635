"""Rewrite a training log as another logger would print it: the events stay, their appearance changes.

Each logger maps the rows of a log to printed rows. A printed row names the last row of the log that it contains, so
that labels can be moved along.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import NamedTuple

from cli.backtest.minutes import minutes
from rerail.model.sample import Sample

# Rows of an epoch: the running means of `epoch_means` restart after this many, within a tenth.
EPOCH_ROWS = 300
SMOOTHING = 0.9
REGULAR_PAUSE_ROWS = 100
PAUSE_STEPS = 20
REPEATED_ROWS = 50
EVERY = 10
MISSING = 0.1


class PrintedRow(NamedTuple):
    """A printed row, and the last row of the log that it contains."""

    sample: Sample
    row: int


@dataclass(frozen=True, slots=True)
class Logger:
    """A way to print a log."""

    name: str
    rewrite: Callable[[Sequence[Sample], random.Random], Iterator[PrintedRow]]
    # An event shows in this many more rows, because they are means.
    memory_rows: int = 0


def _with_values(sample: Sample, loss: float | None, seconds: float | None) -> Sample:
    return replace(sample, loss=loss, step_time_s=seconds)


def _print_plain(samples: Sequence[Sample], _: random.Random) -> Iterator[PrintedRow]:
    for row, sample in enumerate(samples):
        yield PrintedRow(sample, row)


def _print_epoch_means(samples: Sequence[Sample], rng: random.Random) -> Iterator[PrintedRow]:
    epoch = rng.randint(int(0.9 * EPOCH_ROWS), int(1.1 * EPOCH_ROWS))
    losses = seconds = count = 0.0
    for row, sample in enumerate(samples):
        if row % epoch == 0:
            losses = seconds = count = 0.0
        count += 1
        losses += sample.loss or 0.0
        seconds += sample.step_time_s or 0.0
        yield PrintedRow(_with_values(sample, losses / count, seconds / count), row)


def _print_smoothed(samples: Sequence[Sample], _: random.Random) -> Iterator[PrintedRow]:
    loss = seconds = None
    for row, sample in enumerate(samples):
        loss, seconds = _smooth(loss, sample.loss), _smooth(seconds, sample.step_time_s)
        yield PrintedRow(_with_values(sample, loss, seconds), row)


def _smooth(average: float | None, value: float | None) -> float | None:
    return value if average is None or value is None else SMOOTHING * average + (1 - SMOOTHING) * value


def _print_decimals(places: int) -> Callable[[Sequence[Sample], random.Random], Iterator[PrintedRow]]:
    def rewrite(samples: Sequence[Sample], _: random.Random) -> Iterator[PrintedRow]:
        for row, sample in enumerate(samples):
            yield PrintedRow(replace(sample, loss=None if sample.loss is None else round(sample.loss, places)), row)

    return rewrite


def _print_digits(digits: int) -> Callable[[Sequence[Sample], random.Random], Iterator[PrintedRow]]:
    def rewrite(samples: Sequence[Sample], _: random.Random) -> Iterator[PrintedRow]:
        for row, sample in enumerate(samples):
            loss, seconds = sample.loss, sample.step_time_s
            yield PrintedRow(
                _with_values(
                    sample,
                    None if loss is None else float(f"{loss:.{digits}g}"),
                    None if seconds is None else float(f"{seconds:.{digits}g}"),
                ),
                row,
            )

    return rewrite


def _print_every(samples: Sequence[Sample], _: random.Random) -> Iterator[PrintedRow]:
    for row in range(EVERY - 1, len(samples), EVERY):
        yield PrintedRow(samples[row], row)


def _print_block_means(samples: Sequence[Sample], _: random.Random) -> Iterator[PrintedRow]:
    for row in range(EVERY - 1, len(samples), EVERY):
        block = samples[row - EVERY + 1 : row + 1]
        losses = [sample.loss for sample in block if sample.loss is not None]
        seconds = [sample.step_time_s for sample in block if sample.step_time_s is not None]
        values = fmean(losses) if losses else None, fmean(seconds) if seconds else None
        yield PrintedRow(_with_values(samples[row], *values), row)


def _print_minutes(samples: Sequence[Sample], _: random.Random) -> Iterator[PrintedRow]:
    by_minute = minutes(samples)
    for sample, row in zip(by_minute.samples, by_minute.last_rows, strict=True):
        yield PrintedRow(sample, row)


def _print_scaled(samples: Sequence[Sample], _: random.Random) -> Iterator[PrintedRow]:
    for row, sample in enumerate(samples):
        yield PrintedRow(replace(sample, loss=None if sample.loss is None else sample.loss * 1000), row)


def _print_shifted(share: float) -> Callable[[Sequence[Sample], random.Random], Iterator[PrintedRow]]:
    """Subtract a constant: 1 makes every loss of the first half of the log negative, 0 makes the losses cross zero."""

    def rewrite(samples: Sequence[Sample], _: random.Random) -> Iterator[PrintedRow]:
        losses = [sample.loss for sample in samples[: len(samples) // 2] if sample.loss is not None]
        offset = 1.5 * max(losses) if share == 1 else median(losses)
        for row, sample in enumerate(samples):
            yield PrintedRow(replace(sample, loss=None if sample.loss is None else sample.loss - offset), row)

    return rewrite


def _print_pauses(regular: bool) -> Callable[[Sequence[Sample], random.Random], Iterator[PrintedRow]]:
    """Evaluations or checkpoints make single steps much longer."""

    def rewrite(samples: Sequence[Sample], rng: random.Random) -> Iterator[PrintedRow]:
        for row, sample in enumerate(samples):
            pauses = row % REGULAR_PAUSE_ROWS == 99 if regular else rng.random() < 1 / REGULAR_PAUSE_ROWS
            seconds = sample.step_time_s
            if pauses and seconds is not None:
                seconds *= PAUSE_STEPS * (1 if regular else rng.uniform(0.5, 1.5))
            yield PrintedRow(replace(sample, step_time_s=seconds), row)

    return rewrite


def _print_restarts(samples: Sequence[Sample], rng: random.Random) -> Iterator[PrintedRow]:
    """Three relaunches from a checkpoint: the last rows are printed again, with about the same losses."""
    at = {len(samples) * part // 10 for part in (2, 4, 8)}
    for row, sample in enumerate(samples):
        if row in at:
            for repeated in samples[row - REPEATED_ROWS : row]:
                loss = None if repeated.loss is None else repeated.loss * rng.uniform(0.999, 1.001)
                yield PrintedRow(replace(repeated, loss=loss), row)
        yield PrintedRow(sample, row)


def _print_ranks(samples: Sequence[Sample], rng: random.Random) -> Iterator[PrintedRow]:
    """Two ranks print every step, each with its own batch."""
    for row, sample in enumerate(samples):
        loss = None if sample.loss is None else sample.loss * rng.uniform(0.98, 1.02)
        yield PrintedRow(sample, row)
        yield PrintedRow(replace(sample, loss=loss), row)


def _print_missing(samples: Sequence[Sample], rng: random.Random) -> Iterator[PrintedRow]:
    for row, sample in enumerate(samples):
        if rng.random() >= MISSING:
            yield PrintedRow(sample, row)


MINUTES = "minutes"
LOGGERS = (
    Logger("plain", _print_plain),
    Logger("epoch means", _print_epoch_means, memory_rows=int(1.1 * EPOCH_ROWS)),
    Logger("smoothed", _print_smoothed, memory_rows=60),
    Logger("1 decimal", _print_decimals(1)),
    Logger("2 decimals", _print_decimals(2)),
    Logger("3 decimals", _print_decimals(3)),
    Logger("2 digits", _print_digits(2)),
    Logger("3 digits", _print_digits(3)),
    Logger("every 10th", _print_every),
    Logger("means of 10", _print_block_means),
    Logger(MINUTES, _print_minutes),
    Logger("scaled x1000", _print_scaled),
    Logger("below zero", _print_shifted(1)),
    Logger("across zero", _print_shifted(0)),
    Logger("regular pauses", _print_pauses(regular=True)),
    Logger("irregular pauses", _print_pauses(regular=False)),
    Logger("restarts", _print_restarts),
    Logger("two ranks", _print_ranks),
    Logger("missing rows", _print_missing),
)
