"""Read a text log by regular expressions, like the metric definitions of a SageMaker job."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from cli.backtest.series import METRICS, NAMES, BadInput, LogSeries, add_step_times, make_sample
from rerail.model.sample import Sample

COLUMNS = tuple(name for name in NAMES if name not in ("at", "nonfinite"))
EXAMPLE = "--metric 'loss=loss: ([0-9.e+-]+|nan)'"


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
            pattern = re.compile(expression)
        except re.error as error:
            raise BadInput(f"--metric {name}: {error} in {expression[:200]!r}", "correct the expression") from error
        if pattern.groups != 1:
            raise BadInput(f"--metric {name} has {pattern.groups} groups", f"put one around the number: {EXAMPLE}")
        patterns[name] = pattern
    if patterns and not set(METRICS) & set(patterns):
        raise BadInput(f"--metric gives none of {', '.join(METRICS)}", f"add one: {EXAMPLE}")
    return patterns


def read(file: Path, patterns: Mapping[str, re.Pattern[str]]) -> LogSeries:
    """Return a sample for each line that has a metric to evaluate; a step counts until the next one is printed."""
    try:
        # Progress bars end their lines with a carriage return.
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise BadInput(f"cannot read {file}: {error}", "give a file that can be read") from error
    samples: list[Sample] = []
    rows: list[int] = []
    step: float | None = None
    for row, line in enumerate(lines):
        values = {name: value for name, p in patterns.items() if (value := _find_number(p, line)) is not None}
        step = values.get("step", step)
        if set(METRICS) & set(values):
            samples.append(make_sample({**values, "step": len(samples) if step is None else step}))
            rows.append(row)
    if not samples:
        raise BadInput(f"no line of {file} matches", f"check the expressions against a line of it, such as {EXAMPLE}")
    return LogSeries(file.name, add_step_times(samples), tuple(rows))


def _find_number(pattern: re.Pattern[str], line: str) -> float | None:
    """Return the last match in the line; None if there is none, or it is not a number."""
    matches = pattern.findall(line)
    try:
        return float(matches[-1].replace(",", "")) if matches else None
    except ValueError:
        return None
