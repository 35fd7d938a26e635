"""Read a text log by regular expressions, like the metric definitions of a SageMaker job."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import median

from cli.backtest.series import METRICS, NAMES, BadInput, LogSeries, add_step_times, count_longest, make_sample
from cli.training_logs.expressions import compile_expression
from cli.training_logs.find import find_metrics, read_lines
from cli.training_logs.numbers import compile_reader, read_number
from rerail.model.metrics import LossSilence
from rerail.model.sample import Sample

COLUMNS = tuple(name for name in NAMES if name != "at")
# The step stands in the line of the loss if it does in this share of them.
_ONE_LINE = 0.9
# A scale of the loss that begins at 2**32 is found after fewer.
_MOST_SKIPPED = 40
# The time of day that a logger writes before a line, with or without a date before it.
_STAMP = re.compile(
    r"[^0-9]{0,12}(?:[0-9]{2,4}[-/]?[0-9]{2}(?:[-/][0-9]{2,4})?[T ]+)?"
    r"([0-2][0-9]):([0-5][0-9]):([0-5][0-9](?:[.,][0-9]+)?)(?![0-9:])"
)
_DAY_S = 86_400
_COARSE_S = 10
EXAMPLE = r"--metric 'loss=\bloss: ([-+.0-9eE]+|nan)'"


def parse_patterns(given: Sequence[str]) -> dict[str, re.Pattern[str]]:
    """Return the pattern of each metric from NAME=REGEX; raise BadInput for one that cannot be used."""
    patterns = {}
    for text in given:
        name, equals, expression = text.partition("=")
        if not equals or name not in COLUMNS:
            raise BadInput(
                f"--metric {text[:200]!r} is not NAME=REGEX", f"use one of {', '.join(COLUMNS)}, such as {EXAMPLE}"
            )
        try:
            pattern = compile_expression(expression)
        except re.error as error:
            raise BadInput(f"--metric {name}: {error} in {expression[:200]!r}", "correct the expression") from error
        if pattern.groups != 1:
            raise BadInput(f"--metric {name} has {pattern.groups} groups", f"put one around the number: {EXAMPLE}")
        patterns[name] = pattern
    if patterns and not set(METRICS) & set(patterns):
        raise BadInput(f"--metric gives none of {', '.join(METRICS)}", f"add one: {EXAMPLE}")
    return patterns


def read(file: Path, patterns: Mapping[str, re.Pattern[str]], *, loss: str = "") -> LogSeries:
    """Return a sample for each line that has a metric to evaluate; a step counts until the next one is printed.

    Without patterns the metrics are found by what the log prints; `loss` names the one of several.
    """
    lines = read_lines(file)
    notes: tuple[str, ...] = ()
    found = None if patterns else find_metrics(lines, where=str(file), loss=loss)
    if found:
        patterns = {name: compile_reader(expression) for name, expression in found.expressions.items()}
    rows = [(row, values) for row, line in enumerate(lines) if (values := _read_line(patterns, line))]
    if found:
        # What is read once in a longer log is a setting.
        printed = Counter(name for _, values in rows for name in values)
        names = ", ".join(sorted(name for name, count in printed.items() if count > 1 or len(rows) == 1))
        notes = (f"read as {found.framework or 'a script of its own'}: {names}", *found.notes)
    samples = list(_make_samples(rows))
    if not samples:
        raise BadInput(f"no line of {file} matches", f"check the expressions against a line of it, such as {EXAMPLE}")
    times = _list_times([lines[row] for row, _ in samples])
    steps = add_step_times([replace(sample, at=at) for (_, sample), at in zip(samples, times, strict=True)])
    return LogSeries(file.name, steps, rows=tuple(row for row, _ in samples), notes=notes)


def _list_times(lines: Sequence[str]) -> list[datetime | None]:
    """Return the times that a logger wrote before the lines, on days of their own; none unless they give step times."""
    found = [_STAMP.match(line) for line in lines]
    seconds = [int(m[1]) * 3600 + int(m[2]) * 60 + float(m[3].replace(",", ".")) for m in found if m]
    gaps = [later - before for before, later in pairwise(seconds)]
    falls = sum(-_DAY_S / 2 < gap < 0 for gap in gaps)
    is_clock = bool(gaps) and len(lines) - len(seconds) + falls <= 0.1 * len(lines)
    # Lines that were collected have the time of their batch.
    are_batches = sum(not gap for gap in gaps) > 0.1 * len(lines)
    # Whole seconds are too coarse for lines that follow one another sooner.
    are_whole = sum(second == int(second) for second in seconds) > 0.9 * len(seconds)
    if not is_clock or are_batches or (are_whole and median(gaps) < _COARSE_S):
        return [None] * len(lines)
    days = accumulate((gap < -_DAY_S / 2 for gap in gaps), initial=0)
    times = (datetime.fromtimestamp(day * _DAY_S + time, UTC) for day, time in zip(days, seconds, strict=True))
    return [next(times) if match else None for match in found]


def _read_line(patterns: Mapping[str, re.Pattern[str]], line: str) -> dict[str, float]:
    return {name: value for name, pattern in patterns.items() if (value := read_number(pattern, line)) is not None}


def _make_samples(rows: Sequence[tuple[int, Mapping[str, float]]]) -> Iterator[tuple[int, Sample]]:
    """Yield a sample for each row with a metric, by its place.

    A loss that is missing from a line that used to have it, while steps go on, counts as NaN: as it does for a job,
    for CloudWatch keeps none (`LossSilence`), but by printed steps instead of minutes.
    """
    longest = count_longest([values["step"] for _, values in rows if "step" in values])
    lowest = min((values["epoch"] for _, values in rows if "epoch" in values), default=0.0)
    losses = sum("loss" in values for _, values in rows)
    is_one_line = sum("loss" in values and "step" in values for _, values in rows) >= _ONE_LINE * max(1, losses)
    step = epoch = place = None
    count, last, silence = 0, 0.0, LossSilence()
    for row, values in rows:
        if epoch is not None and values.get("epoch", epoch) <= lowest < epoch:
            count = 0  # another launch, or another model of a cross-validation
        epoch = values.get("epoch", epoch)
        printed = values.get("step", last)
        goes_on = (epoch, printed) != place
        begins_again = printed < last
        place = (epoch, printed)
        last = printed
        if "step" in values:
            step = values["step"] + ((epoch - min(1.0, lowest)) * longest if epoch is not None else 0)
        if "loss" in values:
            silence = silence.with_loss()
        elif "step" in values and goes_on and is_one_line:
            silence = silence.without_loss(begins_again=begins_again)
        # Steps that are said to be finite were skipped, to scale the loss: only many in a row are a fault.
        is_skipped = values.get("nonfinite") == 0 and silence.minutes < _MOST_SKIPPED
        is_lost = "loss" not in values and silence.tells_of_nan and not is_skipped
        if set(METRICS) & set(values) or is_lost:
            given = {**values, "step": float(count) if step is None else step}
            yield row, make_sample({**given, "nonfinite": max(values.get("nonfinite", 0.0), float(is_lost))})
            count += 1
