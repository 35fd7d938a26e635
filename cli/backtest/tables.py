"""Reads one CSV of a training run, whatever its columns are called."""

import csv
import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from cli.backtest.series import (
    METRICS,
    NAMES,
    BadInput,
    LogSeries,
    add_step_times,
    find_columns,
    make_sample,
    parse_time,
)
from rerail.model.sample import Sample

NOTHING = {"", "none", "null", "na", "n/a", "-"}


def read(file: Path) -> LogSeries:
    """Return the rows that have a metric, with their numbers; validation rows and logger comments are left out."""
    try:
        with _opened(file) as lines:
            rows = csv.DictReader(lines, delimiter="\t" if ".tsv" in file.suffixes else ",")
            if not rows.fieldnames:
                raise BadInput(f"{file} is empty", "give a CSV with a header line and a column loss")
            columns = find_columns([name for name in rows.fieldnames if name], where=str(file))
            read = [(number, one) for number, row in enumerate(rows) if (one := _row(row, columns, file, number))]
    except (OSError, UnicodeDecodeError, csv.Error, EOFError) as error:
        raise BadInput(f"{file} cannot be read: {error}", "give a CSV in UTF-8, gzipped or not") from error
    if not read:
        raise BadInput(
            f"{file} has a header but no row with a number in {_metrics(columns)}", "give the logged rows too"
        )
    numbers, samples = zip(*read, strict=True)
    return LogSeries(file.name.removesuffix(".gz").removesuffix(".csv"), add_step_times(samples), rows=numbers)


@contextmanager
def _opened(file: Path) -> Iterator[TextIO]:
    with (
        gzip.open(file, "rt", newline="") if file.suffix == ".gz" else file.open(newline="", encoding="utf-8") as lines
    ):
        yield lines


def _row(row: dict[str, str | None], columns: dict[str, str], file: Path, number: int) -> Sample | None:
    values = {column: _number(row.get(name), name, file, number) for column, name in columns.items() if column != "at"}
    if all(values.get(metric) is None for metric in METRICS):
        return None
    if "step" not in columns:
        values["step"] = float(number)
    return make_sample(values, at=parse_time(row.get(columns.get("at", "")) or ""))


def _number(text: str | None, name: str, file: Path, number: int) -> float | None:
    if text is None or text.strip().lower() in NOTHING:
        return None
    if text.strip().lower() in ("true", "false"):
        return float(text.strip().lower() == "true")
    try:
        return float(text)
    except ValueError as error:
        place = f"{file}, line {number + 2}"
        raise BadInput(
            f"{place}: column {name:.100} says {text!r:.100}", "write a number, nan, inf, or nothing"
        ) from error


def _metrics(columns: dict[str, str]) -> str:
    return " or ".join(name for column, name in columns.items() if column in METRICS and column in NAMES)
