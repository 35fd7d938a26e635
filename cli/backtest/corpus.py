"""Read a corpus of training logs: `index.csv`, `labels.csv` where there is one, and `runs/<id>.csv.gz`."""

import csv
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

from cli.backtest.scoring import FAMILIES, Label, Labelled
from cli.text_files import open_text
from rerail.model.sample import Sample

COLUMNS = ("step", "loss", "step_time_s", "grad_norm", "lr")


class BadCorpus(Exception):
    """A file of the corpus cannot be read; the message has the problem and the remedy."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem, remedy)
        self.problem, self.remedy = problem, remedy

    def __str__(self) -> str:
        return f"{self.problem}; {self.remedy}"


@dataclass(frozen=True, slots=True)
class LogCorpus:
    """A folder of logs."""

    folder: Path
    runs: tuple[Labelled, ...]
    labelled: bool

    def file(self, run: Labelled) -> Path:
        return self.folder / "runs" / f"{run.id}.csv.gz"


def read_corpus(folder: Path) -> LogCorpus:
    """Return the runs and labels of the folder; the logs themselves are read one by one, with `read_log`."""
    labels = _labels(folder / "labels.csv")
    runs = tuple(
        Labelled(
            id=row["id"],
            group=row.get("group") or row["id"],
            rows=_whole(row["n_points"], folder / "index.csv", "n_points"),
            labels=tuple(labels.get(row["id"], ())),
            split=row.get("split") or "",
        )
        for row in _table(folder / "index.csv", needs=("id", "n_points"))
    )
    if not runs:
        raise BadCorpus(f"{folder / 'index.csv'} names no run", "write a line with id and n_points for each")
    return LogCorpus(folder, runs, labelled=(folder / "labels.csv").exists())


def read_log(file: Path) -> list[Sample]:
    """Return every row of one log, in log order."""
    try:
        with open_text(file) as lines:
            rows = csv.reader(lines)
            header = next(rows, [])
            if missing := [name for name in COLUMNS if name not in header]:
                raise BadCorpus(f"{file} has no column {missing[0]}", f"the header must be {','.join(COLUMNS)}")
            cells = itemgetter(*(header.index(name) for name in COLUMNS))
            return [_sample(*cells(row)) for row in rows if row]
    except FileNotFoundError as error:
        raise BadCorpus(f"{file} is missing", "add it, or remove its line from index.csv") from error
    except (OSError, ValueError, IndexError, OverflowError, csv.Error) as error:
        raise BadCorpus(f"{file} cannot be read: {error}", "it must be a gzipped CSV of numbers") from error


def _sample(step: str, loss: str, step_time_s: str, grad_norm: str, lr: str) -> Sample:
    """Return a row as it was printed, with None for an empty cell."""
    return Sample(
        int(float(step)) if step else None,
        None,
        float(loss) if loss else None,
        float(grad_norm) if grad_norm else None,
        float(step_time_s) if step_time_s else None,
        float(lr) if lr else None,
    )


def _labels(file: Path) -> dict[str, list[Label]]:
    labels: dict[str, list[Label]] = defaultdict(list)
    if not file.exists():
        return labels
    for row in _table(file, needs=("run_id", "kind", "onset_row", "end_row", "score", "recovered")):
        if row["kind"] not in FAMILIES:
            raise BadCorpus(f"{file}: there is no kind {row['kind']!r}", f"write one of {', '.join(FAMILIES)}")
        onset, end = (_whole(row[name], file, name) for name in ("onset_row", "end_row"))
        labels[row["run_id"]].append(Label(row["kind"], onset, end, score=row["score"], recovered=row["recovered"]))
    return labels


def _table(file: Path, *, needs: tuple[str, ...]) -> Iterator[dict[str, str]]:
    try:
        with open_text(file) as lines:
            rows = csv.DictReader(lines)
            if missing := [name for name in needs if name not in (rows.fieldnames or ())]:
                raise BadCorpus(f"{file} has no column {missing[0]}", f"it needs {', '.join(needs)}")
            yield from rows
    except (OSError, csv.Error) as error:
        raise BadCorpus(f"{file} cannot be read: {error}", "a corpus has an index.csv and runs/") from error


def _whole(text: str, file: Path, column: str) -> int:
    try:
        return int(float(text))
    except (TypeError, ValueError, OverflowError) as error:
        raise BadCorpus(f"{file}: {column} is {text!r:.100}", "write a whole number") from error
