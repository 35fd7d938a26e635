"""Find the logs at a path: a corpus, a CSV, a Trainer's state, a TensorBoard run or a past job."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from cli.backtest import jobs, json_rows, tables, tensorboards, text, trainer
from cli.backtest.corpus import BadCorpus, read_corpus, read_log
from cli.backtest.scoring import Labelled
from cli.backtest.series import BadInput, LogSeries

JOB = "job:"
ACCEPTED = (
    "give a corpus folder, a CSV, a log in text or JSON, a trainer_state.json, a TensorBoard run folder, or job:NAME "
    "for a past job"
)


@dataclass(frozen=True, slots=True)
class Log:
    """One log: its name, how to read it (in any process), and its labels where it has some."""

    name: str
    read: Callable[[], LogSeries]
    labelled: Labelled | None = None


def find(
    path: str, *, local: bool, patterns: Mapping[str, re.Pattern[str]] | None = None, loss: str = ""
) -> tuple[Log, ...]:
    """Return the logs at a path or of a job; raise BadInput if there are none.

    With patterns the path is a text log, of which these find the metrics. `loss` names the loss of a log with several.
    """
    if path.startswith(JOB):
        return _read_now(jobs.read(path.removeprefix(JOB), local=local))
    place = Path(path)
    if not _is_there(place):
        raise BadInput(f"there is no {path[:300]}", ACCEPTED)
    if patterns:
        return _read_now([text.read(place, patterns)])
    if place.is_dir():
        return _folder(place, loss=loss)
    if place.suffix in (".json", ".jsonl", ".ndjson"):
        return _read_now([json_rows.read(place, loss=loss)])
    if "tfevents" in place.name:
        return _read_now(tensorboards.read(place, loss=loss))
    if place.suffix in (".csv", ".tsv", ".gz") or tables.is_table(place):
        return _read_now([tables.read(place, loss=loss)])
    if json_rows.is_lines(place):
        return _read_now([json_rows.read(place, loss=loss)])
    return _read_now([text.read(place, {}, loss=loss)])


def _is_there(place: Path) -> bool:
    """A name that no file system takes is of nothing."""
    try:
        return place.exists()
    except (OSError, ValueError):
        return False


def _folder(place: Path, *, loss: str) -> tuple[Log, ...]:
    if (place / "index.csv").exists():
        return _corpus(place)
    if state := trainer.find_newest_state(place):
        return _read_now([trainer.read(state)])
    if tensorboards.find_runs(place):
        return _read_now(tensorboards.read(place, loss=loss))
    raise BadInput(f"{place} holds no log", ACCEPTED)


def _corpus(place: Path) -> tuple[Log, ...]:
    try:
        corpus = read_corpus(place)
    except BadCorpus as error:
        raise BadInput(error.problem, error.remedy) from error
    return tuple(
        Log(run.id, partial(_corpus_log, run.id, corpus.file(run)), run if corpus.labelled else None)
        for run in corpus.runs
    )


def _corpus_log(name: str, file: Path) -> LogSeries:
    try:
        return LogSeries(name, tuple(read_log(file)))
    except BadCorpus as error:
        raise BadInput(error.problem, error.remedy) from error


def _read_now(series: Sequence[LogSeries]) -> tuple[Log, ...]:
    return tuple(Log(log_series.name, partial(replace, log_series)) for log_series in series)  # can be pickled
