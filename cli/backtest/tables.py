"""Reads one CSV of a training run, whatever its columns are called."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TextIO

from cli.backtest.series import (
    METRICS,
    NAMES,
    BadInput,
    LogSeries,
    are_durations,
    count_epochs_on,
    find_columns,
    make_sample,
    make_series,
    parse_time,
)
from cli.text_files import open_text
from cli.training_logs.numbers import parse

# In characters; a header or a row of thousands of columns has fewer.
LINE_LIMIT = 1_000_000
NOTHING = {"", "none", "null", "na", "n/a", "-"}


def read(file: Path, *, loss: str = "") -> LogSeries:
    """Return the rows that have a metric, with their numbers; validation rows and logger comments are left out."""
    try:
        with open_text(file) as lines:
            header = _read_header(lines, file)
            delimiter = _find_delimiter(header)
            text = ("" if line.startswith("#") else line for line in lines)
            if delimiter == ";":  # spreadsheets of many countries write a comma in numbers
                text = (line.replace(",", ".") for line in text)
            elif delimiter == " ":
                header, text = _join_columns(header.lstrip("#")), (_join_columns(line) for line in text)
            table = csv.DictReader(chain([header], text), delimiter=delimiter)
            if not table.fieldnames:
                raise BadInput(f"{file} is empty", "give a CSV with a header line and a column loss")
            names = [name for name in table.fieldnames if name]
            return read_rows(file, names, ((table.line_num - 2, row) for row in table), loss=loss)
    except (OSError, csv.Error) as error:
        raise BadInput(f"{file} cannot be read: {error}", "give a CSV, gzipped or not") from error


def is_table(file: Path) -> bool:
    """Return whether a file begins with a header and a row of numbers, whatever its name."""
    try:
        with open_text(file) as lines:
            header, rows = lines.readline(LINE_LIMIT), iter(partial(lines.readline, LINE_LIMIT), "")
            row = next((line for line in rows if not line.startswith("#")), "")
    except OSError:
        return False
    delimiter = _find_delimiter(header)
    if delimiter == " ":
        header, row = _join_columns(header.lstrip("#")), _join_columns(row)
    names, values = header.split(delimiter), row.split(delimiter)
    is_header = 1 < len(names) == len(values) and ":" not in header
    is_header = is_header and (delimiter == " " or "loss" in header.lower())
    return is_header and all(not value.strip() or parse(value) is not None for value in values)


def _read_header(lines: TextIO, file: Path) -> str:
    header = lines.readline(LINE_LIMIT)
    if len(header) == LINE_LIMIT:
        raise BadInput(f"{file}: its first line has {LINE_LIMIT:,} characters or more", "give a CSV with a header line")
    return header


def _find_delimiter(header: str) -> str:
    most = max(",", "\t", ";", key=header.count)
    return " " if header.startswith("#") and most not in header else most


def _join_columns(line: str) -> str:
    """Return a line of a table in columns of spaces with one space between each two."""
    return " ".join(line.split())


def read_rows(
    file: Path, names: Sequence[str], rows: Iterable[tuple[int, Mapping[str, str | None]]], *, loss: str = ""
) -> LogSeries:
    """Return a log from rows of texts by their names, each with its place."""
    columns = find_columns(names, where=str(file), loss=loss)
    read = [(number, row, values) for number, row in rows if (values := _read_row(row, columns, file, number))]
    if not read:
        raise BadInput(
            f"{file} has a header but no row with a number in {_metrics(columns)}", "give the logged rows too"
        )
    count_epochs_on([values for _, _, values in read])
    at = columns.get("at", "")
    if "step_time_s" not in columns and are_durations(row.get(at) for _, row, _ in read):
        for number, row, values in read:
            values["step_time_s"] = _number(row.get(at), at, file, number)
        at = ""
    samples = [
        make_sample({"step": float(number), **values}, at=parse_time(row.get(at) or "")) for number, row, values in read
    ]
    name = file.name.removesuffix(".gz").removesuffix(".csv")
    return make_series(name, samples, columns, rows=tuple(number for number, _, _ in read))


def _read_row(
    row: Mapping[str, str | None], columns: Mapping[str, str], file: Path, number: int
) -> dict[str, float | None]:
    """Return the numbers of a row by our columns; none if it has no metric, or is the header of another launch."""
    if all(row.get(name) == name for name in columns.values()):
        return {}
    values = {column: _number(row.get(name), name, file, number) for column, name in columns.items() if column != "at"}
    return {} if all(values.get(metric) is None for metric in METRICS) else values


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
