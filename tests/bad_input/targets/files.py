"""What users hand over: logs to judge, policies to check, defaults and requests of jobs, lines of their training."""

import gzip
import json
import re
import tempfile
from collections.abc import Callable
from contextlib import redirect_stderr
from datetime import UTC, datetime
from functools import cache
from io import StringIO
from pathlib import Path

import typer

from cli.backtest import jobs, tables, tensorboards, trainer
from cli.backtest.corpus import BadCorpus, read_corpus, read_log
from cli.backtest.evaluation import evaluate_logs
from cli.backtest.series import LogSeries
from cli.backtest.sources import Log
from cli.doctor import subject
from cli.logbook import JobLogLine
from cli.losses import Losses
from cli.policies.check import check_file
from cli.submit.arguments import encode, parse_arguments
from cli.submit.problem import Problem
from cli.submit.settings import read_defaults
from cli.training_logs import expressions
from rerail.model.metrics import make_definitions
from rerail.model.thresholds import Thresholds
from tests.bad_input.targets.parsers import check, clearly, text_of

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
FOREIGN = ({"Name": "step", "Regex": r"step (\S+)"}, {"Name": "loss", "Regex": r"loss[:=] ?(\S+)"})
MOST_JUDGED = 200


def table(data: bytes) -> None:
    """A CSV to backtest, judged where it can be read."""
    _judged(tables.read(_file("log.csv", data)))


def zipped(data: bytes) -> None:
    """The same, gzipped, or called so."""
    _judged(tables.read(_file("log.csv.gz", gzip.compress(data, 1) if len(data) % 2 else data)))


def trainer_state(data: bytes) -> None:
    """A trainer_state.json to backtest."""
    _judged(trainer.read(_file("trainer_state.json", data)))


def corpus(data: bytes) -> None:
    """A corpus's index, labels and one log."""
    base = _folder()
    index, labels, log = (*data.split(b"\n\n", 2), b"", b"")[:3]
    _file("index.csv", index), _file("labels.csv", labels)
    read_corpus(base)
    _file("one.csv.gz", gzip.compress(log, 1))
    read_log(base / "one.csv.gz")


def events(data: bytes) -> None:
    """A TensorBoard event file to backtest."""
    (_folder() / "board").mkdir(exist_ok=True)
    _file("board/events.out.tfevents.1.host", data)
    for series in tensorboards.read(_folder() / "board"):
        _judged(series)


def _judged(series: LogSeries) -> None:
    short = LogSeries(series.name, series.samples[:MOST_JUDGED])
    for judged in evaluate_logs([Log("one", lambda: short)], Thresholds()):
        judged.scorable_lines()


def policy_file(data: bytes) -> None:
    """A policy's file, of which everything that is wrong is told."""
    found = check_file(_file("fuzzed.toml", data))
    for line in (*found.problems, *found.warnings):
        check(line)


def defaults(data: bytes) -> None:
    """A project's rerail.toml."""
    _file("rerail.toml", data)
    read_defaults(_folder(), _folder())


def request(data: bytes) -> None:
    """A request that the doctor is asked about, as far as its questions look at it."""
    file = _file("request.json", data)

    class Nowhere:
        region = "eu-west-1"

    said = StringIO()
    try:
        with redirect_stderr(said):
            found = subject.read_request(Nowhere(), file)  # type: ignore[arg-type]
    except typer.Exit as end:
        assert end.exit_code == 2 and "to do: " in said.getvalue()
        return
    for name in ASKED:
        getattr(found, name)
    for definition in found.metric_definitions:
        expressions.find_flaw(definition.get("Regex", ""))


ASKED = (
    *("name", "role", "uri", "bucket", "prefix", "instance_type", "instance_count", "is_spot", "max_runtime_s"),
    *("metric_definitions", "has_agent"),
)


def log_lines(data: bytes) -> None:
    """Lines of a job's log, as `rerail logs`, `drill` and `backtest job:` read them."""
    ours, foreign = Losses.of(make_definitions()), Losses.of(FOREIGN)
    for text in text_of(data).splitlines():
        line = JobLogLine("gpt", "algo-1", text, NOON)
        line.shown.encode(errors="strict")
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", line.shown), f"a control character: {line.shown!r:.60}"
        ours.read(line)
        foreign.read(line)
        jobs._line({"message": text, "timestamp": 1})


def arguments(data: bytes) -> None:
    """A script's command line as hyperparameters: they are what was given, word for word."""
    words = text_of(data).split("\n")
    found = parse_arguments(words)
    for value in (found or {}).values():
        table = json.loads(encode(value))
        assert table == value or str(table) == value, f"{value!r:.60} has become {table!r:.60}"


def with_remedy(read: Callable[[bytes], object]) -> Callable[[bytes], None]:
    """A reader of users' files: what is wrong is said with a remedy, and ends the command with status 2."""

    def reads(data: bytes) -> None:
        try:
            clearly(read)(data)
        except BadCorpus as error:
            assert error.remedy.strip()
            check(" ".join(error.problem.split()))
        except Problem as problem:
            assert problem.remedy.strip()
            check(" ".join(problem.what.split()))

    return reads


def _file(name: str, data: bytes) -> Path:
    path = _folder() / name
    path.write_bytes(data)
    return path


@cache
def _folder() -> Path:
    """A project of its own, so that nothing above it is read."""
    folder = Path(tempfile.mkdtemp(prefix="rerail-fuzz-"))
    (folder / ".git").mkdir()
    return folder
