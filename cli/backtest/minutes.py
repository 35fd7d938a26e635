"""A log as CloudWatch would keep it: one sample a minute, with the mean and the largest of its points."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from statistics import fmean, median

from cli.backtest.scoring import Label, Labelled
from rerail.model.sample import Sample

START = datetime(2024, 1, 1, tzinfo=UTC)
MINUTE_S = 60.0
# Where a log tells no time, or none that can be meant as seconds a step: this many rows are a minute.
ROWS_A_MINUTE = 30
SHORTEST_ROW_S, LONGEST_ROW_S = 0.1, 3600.0


@dataclass(frozen=True, slots=True)
class Minutes:
    """The minutes that hold points, in order: each one's sample, its last row and, where known, its end in seconds."""

    samples: tuple[Sample, ...]
    last_rows: tuple[int, ...]
    ends_s: tuple[float, ...] | None

    def of_row(self, row: int) -> int:
        """The minute that holds a row."""
        low, high = 0, len(self.last_rows) - 1
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.last_rows[middle] >= row else (middle + 1, high)
        return low

    def labelled(self, run: Labelled) -> Labelled:
        """The run with its labels in minutes, in the same order. Its size stays in rows, so that rates compare."""
        labels = tuple(
            Label(label.kind, self.of_row(label.onset), self.of_row(label.end), label.score, label.recovered)
            for label in run.labels
        )
        return Labelled(run.id, run.group, run.rows, labels)


def clock(samples: Sequence[Sample]) -> list[float] | None:
    """Seconds since the start at the end of each row; None where the log tells no believable time."""
    seconds = _row_seconds(samples)
    known = [value for value in seconds if value is not None]
    if len(known) < 0.9 * len(samples) or not known or not SHORTEST_ROW_S <= median(known) <= LONGEST_ROW_S:
        return None
    usual, now, ends = median(known), 0.0, []
    for value in seconds:
        now += usual if value is None else value
        ends.append(now)
    return ends


def minutes(samples: Sequence[Sample]) -> Minutes:
    """The log by the minute, or by groups of rows where it tells no time."""
    ends = clock(samples)
    of_row = [int(end // MINUTE_S) for end in ends] if ends else [row // ROWS_A_MINUTE for row in range(len(samples))]
    groups: dict[int, list[int]] = {}
    for row, minute in enumerate(of_row):
        groups.setdefault(minute, []).append(row)
    return Minutes(
        samples=tuple(_aggregate([samples[row] for row in rows], minute) for minute, rows in groups.items()),
        last_rows=tuple(rows[-1] for rows in groups.values()),
        ends_s=tuple((minute + 1) * MINUTE_S for minute in groups) if ends else None,
    )


def _row_seconds(samples: Sequence[Sample]) -> list[float | None]:
    """Return the seconds of each row: its time per step, times the steps since the row before."""
    seconds: list[float | None] = []
    before: int | None = None
    for sample in samples:
        steps = sample.step - before if sample.step is not None and before is not None else 1
        known = sample.step_time_s is not None and math.isfinite(sample.step_time_s)
        seconds.append(sample.step_time_s * max(1, steps) if known and sample.step_time_s is not None else None)
        before = sample.step
    return seconds


def _aggregate(rows: Sequence[Sample], minute: int) -> Sample:
    losses = _finite(row.loss for row in rows)
    steps = [row.step for row in rows if row.step is not None]
    return Sample(
        step=max(steps) if steps else None,
        at=START + timedelta(minutes=minute),
        loss=fmean(losses) if losses else None,
        grad_norm=_mean(row.grad_norm for row in rows),
        step_time_s=_mean(row.step_time_s for row in rows),
        lr=_mean(row.lr for row in rows),
        # CloudWatch takes no NaN; the flag that our metric lines carry is a number.
        nonfinite=any(row.nonfinite or _broken(row.loss) or _broken(row.grad_norm) for row in rows),
        count=len(rows),
        loss_max=max(losses, default=None),
        suspect=next((row.suspect for row in rows if row.suspect), ""),
    )


def _finite(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None and math.isfinite(value)]


def _mean(values: Iterable[float | None]) -> float | None:
    known = _finite(values)
    return fmean(known) if known else None


def _broken(value: float | None) -> bool:
    return value is not None and not math.isfinite(value)
