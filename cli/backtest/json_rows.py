"""Read a log in JSON: an object a line, a list of objects, or one list of values for each name."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from cli.backtest import tables, trainer
from cli.backtest.series import BadInput, LogSeries, normalize_name
from cli.text_files import open_text, read_text

WHAT_IS_READ = "give JSON lines, a list of objects, or one list of numbers for each name"
# A logger may name the kind of a row in one of these. Others than an evaluation are of training, such as `warmup`.
_MODES = ("mode", "split", "phase", "stage")
_EVALUATION = re.compile("(?:^|_)(?:val|eval|test|dev|infer|predict|sanity)")
_DEEPEST = 4


def is_lines(file: Path) -> bool:
    """Return whether the first line of a file is an object in JSON."""
    try:
        with open_text(file) as lines:
            starts = iter(partial(lines.readline, tables.LINE_LIMIT), "")
            first = next((line for line in starts if line.strip()), "")
    except OSError as error:
        raise BadInput(f"{file} cannot be read: {error}", "give a file that can be read") from error
    is_cut = len(first) == tables.LINE_LIMIT
    return first.lstrip().startswith("{") and (is_cut or isinstance(_parse(first), dict))


def read(file: Path, *, loss: str = "") -> LogSeries:
    """Return the training rows of a log in JSON; raise BadInput if it has none."""
    try:
        text = read_text(file)
    except OSError as error:
        raise BadInput(f"{file} cannot be read: {error}", "give JSON in a file that can be read") from error
    whole = _parse(text)
    if isinstance(whole, dict) and "log_history" in whole:
        return trainer.read(file)
    rows = (
        list(_list_rows(whole)) if whole is not None else [(n, _parse(line)) for n, line in enumerate(text.split("\n"))]
    )
    flat = [(number, dict(_flatten(row))) for number, row in rows if isinstance(row, dict) and _is_training(row)]
    if not flat:
        raise BadInput(f"{file} is no log in JSON", WHAT_IS_READ)
    names = list(dict.fromkeys(name for _, row in flat for name in row))
    return tables.read_rows(file, names, flat, loss=loss)


def _parse(text: str) -> Any:
    """Return the value of a text in JSON; None if it is none, as a line that was cut off."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _list_rows(whole: Any) -> Iterator[tuple[int, Any]]:
    if isinstance(whole, list):
        yield from enumerate(whole)
    elif isinstance(whole, dict):
        columns = {name: values for name, values in whole.items() if isinstance(values, list)}
        longest = max(map(len, columns.values()), default=0)
        for number in range(longest):
            yield number, {name: values[number] for name, values in columns.items() if number < len(values)}
        if not columns:
            yield 0, whole


def _is_training(row: Mapping[str, Any]) -> bool:
    modes: Sequence[Any] = [row[name] for name in _MODES if isinstance(row.get(name), str)]
    return not any(_EVALUATION.search(normalize_name(mode)) for mode in modes)


def _flatten(row: Mapping[str, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, str | None]]:
    """Yield the values of an object as texts, those of objects in it by their joined names."""
    for name, value in row.items():
        if isinstance(value, dict) and depth < _DEEPEST:
            yield from _flatten(value, f"{prefix}{name}/", depth + 1)
        elif value is None or isinstance(value, str | int | float):
            yield f"{prefix}{name}", None if value is None else str(value)
