"""Propose the MetricDefinitions of a job from a log of it, and say what each reads there."""

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from cli.training_logs.find import FoundMetrics, find_metrics, read_raw_lines, strip
from cli.training_logs.numbers import NOT_FINITE, compile_reader, parse, read_number, write_definition
from rerail.model.metrics import MetricNames

# SageMaker's limit for the expression of a metric definition.
LONGEST_EXPRESSION = 500
WATCHED = ("step", "loss", "grad_norm", "tokens_per_s", "nonfinite")
_LONGEST_LINE = 200
_EPOCH = re.compile(r"(?i)\bepoch\b[^0-9a-z]{0,5}([0-9]+)(?![.0-9])")


class LogProposal(NamedTuple):
    """Definitions for a log, one of the lines that they read, and what to say about them."""

    definitions: list[dict[str, str]]
    line: str
    report: list[str]


class _Reading(NamedTuple):
    """What a definition reads in a log: the values in order, how many lines have several, and the first line."""

    values: list[float]
    doubled: int
    line: str


def propose(log: Path) -> LogProposal:
    """Return the definitions for the lines of a log; raise BadInput where its loss cannot be told."""
    raw = read_raw_lines(log)
    found = find_metrics([strip(line) for line in raw], where=str(log), coloured=any("\x1b[" in line for line in raw))
    names = MetricNames()
    definitions, report = [], [f"{log.name}: {f'lines of {found.framework}' if found.framework else 'own lines'}"]
    line = ""
    for metric in WATCHED:
        if metric not in found.expressions or (metric == "step" and "epoch" in found.expressions):
            continue
        expression = write_definition(found.expressions[metric])
        reading = _read(expression, raw)
        report += _describe(metric, reading, expression)
        if reading.values and len(expression) <= LONGEST_EXPRESSION:
            definitions.append({"Name": getattr(names, metric), "Regex": expression})
            line = reading.line if metric == "loss" else line
    report += _list_warnings(found, raw)
    return LogProposal(definitions, line[-_LONGEST_LINE:].strip(), report)


def _read(expression: str, lines: Sequence[str]) -> _Reading:
    pattern, values, doubled, first = re.compile(expression), [], 0, ""
    for line in lines:
        matches = pattern.findall(line)
        doubled += len(matches) > 1
        value = parse(matches[-1]) if matches else None
        if value is not None:
            first = first or line
            values.append(value)
    return _Reading(values, doubled, first)


def _describe(metric: str, reading: _Reading, expression: str) -> Iterator[str]:
    values = reading.values
    if not values:
        yield f"  {metric}: read nowhere by a definition, since CloudWatch takes finite numbers without separators"
        return
    ends, span = f"{values[0]:g} first, {values[-1]:g} last", f"{min(values):g} to {max(values):g}"
    yield f"  {metric}: {len(values)} values, {ends}, {span}"
    if reading.doubled:
        yield f"    warning: {reading.doubled} lines have several; the last of a line is taken"
    if len(expression) > LONGEST_EXPRESSION:
        yield f"    warning: its expression is longer than SageMaker's {LONGEST_EXPRESSION} characters and is left out"


def _list_warnings(found: FoundMetrics, lines: Sequence[str]) -> Iterator[str]:
    for note in found.notes:
        yield f"  note: {note}"
    if "step" not in found.expressions:
        yield "  warning: no step beside the loss; without one, replayed steps are judged twice: print the step as well"
    elif "epoch" in found.expressions:
        yield "  warning: its steps restart with each epoch and cannot be the step metric; print a global step too"
    elif repeated := _count_repeated(found, lines):
        what, advice = "a step", "let one rank print"
        if "epoch" in found.expressions["step"].lower():
            what, advice = "an epoch", "if one rank prints them, name no step"
        yield f"  warning: {what} is printed {repeated} times, as by several ranks; {advice}"
    if "step" in found.expressions and len({match[1] for line in lines if (match := _EPOCH.search(line))}) == 1:
        yield "  note: the log has one epoch; if the steps begin again with the next, name no step"
    if missed := _count_not_finite(found, lines):
        yield f"  note: values of the loss that are nan or inf: {missed}; CloudWatch keeps none, and they are missing"


def _count_repeated(found: FoundMetrics, lines: Sequence[str]) -> int:
    """Return how often most steps with a loss are printed; 0 if once."""
    step, loss = (re.compile(write_definition(found.expressions[metric])) for metric in ("step", "loss"))
    counts = Counter(step.findall(line)[-1] for line in lines if step.search(line) and loss.search(line))
    often = Counter(counts.values()).most_common(1)
    return often[0][0] if often and often[0][0] > 1 else 0


def _count_not_finite(found: FoundMetrics, lines: Sequence[str]) -> int:
    reader = compile_reader(found.expressions["loss"])
    values = [read_number(reader, strip(line)) for line in lines if re.search(NOT_FINITE, line, re.IGNORECASE)]
    return sum(value is not None and not math.isfinite(value) for value in values)
