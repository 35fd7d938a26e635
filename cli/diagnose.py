"""`rerail diagnose`: says in plain words what killed a job, from one text or from a JSONL file of texts."""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Optional

import typer
from rich.table import Table
from rich.text import Text

from cli import place
from cli.console import Console
from cli.names import complete_policies
from cli.project import read_policy
from cli.text_files import read_text
from rerail.decisions.remedies import REPEATS, find_advice
from rerail.diagnosis.classify import diagnose as diagnose_text
from rerail.diagnosis.classify import with_named_cause
from rerail.model.causes import RETRY, Cause
from rerail.model.diagnosis import Diagnosis
from rerail.model.flight_recorder import BYTES_LIMIT, RankDump, describe_unfinished, find_culprits, read_dump

# What the public corpus of failures calls our causes; every other class there has our own name.
CORPUS_CLASSES = {"infra_retryable": "infrastructure", "hang_timeout": "hang"}

MAX_PATH = 4_096  # characters
FILE_NAME = re.compile(r"[^\s:]+\.(?:log|txt|out|err|jsonl?|gz)")
DUMP_NAME = re.compile(r"(?<!\d)(\d{1,9})(?:\.(?:json|pkl|pickle))?$")

_WORDS = {
    Cause.INFRASTRUCTURE: "the machines or services around the job failed",
    Cause.HARDWARE: "a device is broken; the relaunch should get other machines",
    Cause.CAPACITY: "AWS had no room, or a quota is used up",
    Cause.USER_CODE: "the training program or its settings are at fault",
    Cause.DATA: "the input data cannot be read or used",
    Cause.DAMAGED_CHECKPOINT: "a checkpoint cannot be read: it is damaged or incomplete",
    Cause.OOM: "memory ran out",
    Cause.HANG: "the ranks waited for each other until a clock ran out",
    Cause.DIVERGED: "the numbers ran away",
    Cause.UNKNOWN: "the text does not say",
}


def diagnose(
    text: Annotated[
        str | None,
        typer.Argument(
            help="A FailureReason, a file with one or with a log (- is stdin), or a folder of flight recorder dumps."
        ),
    ] = None,
    file: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "--file", help="JSON lines with `text` and `id`; - reads stdin. `class` adds an accuracy summary."
        ),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            help="The policy whose [causes] apply: its name, or a TOML file.",
            autocompletion=complete_policies,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")] = False,
) -> None:
    """Say what killed a training job, and whether the same job may get further when relaunched."""
    if (not text) == (file is None):
        problem = "TEXT and --file exclude each other" if text else "there is nothing to diagnose"
        place.fail(problem, "give TEXT, or --file FAILURES.jsonl; - reads stdin")
    causes = {} if policy is None else read_policy(policy).causes
    if file is not None:
        rows = list(_rows(file))
        diagnoses = [with_named_cause(diagnose_text(row["text"]), (row["text"],), causes) for row in rows]
        _print_json(rows, diagnoses) if as_json else _print_tables(rows, diagnoses)
        return
    if dumps := _read_dumps(text or ""):
        culprits = find_culprits(dumps)
        only = next(iter(culprits)) if len(culprits) == 1 else None
        found = Diagnosis(Cause.HANG, _format_culprits(culprits, dumps), "flight-recorder", "", rank=only)
    else:
        content = _read_text(text or "")
        culprits, found = {}, with_named_cause(diagnose_text(content), (content,), causes)
    _print_json([{"id": None}], [found], culprits) if as_json else _print_words(found)


def _read_dumps(text: str) -> dict[int, RankDump]:
    """Return the dump of each rank in the folder that the text names; empty if it names none."""
    dumps: dict[int, RankDump] = {}
    if len(text) > MAX_PATH or "\0" in text or not Path(text).is_dir():
        return dumps
    for path in sorted(Path(text).iterdir()):
        if number := DUMP_NAME.search(path.name):
            try:
                if not path.is_file():
                    raise ValueError("it is not a regular file")
                with path.open("rb") as file:
                    dumps[int(number[1])] = read_dump(file.read(BYTES_LIMIT + 1))
            except (OSError, ValueError) as error:
                place.fail(f"cannot read {path}: {error}", "leave only the dumps of one job in the folder")
    if not dumps:
        remedy = "give a folder with a file for each rank whose name ends with the rank, such as nccl_trace_rank_0"
        place.fail(f"{text} holds no dump of torch's flight recorder", remedy)
    return dumps


def _format_culprits(culprits: dict[int, str], dumps: dict[int, RankDump]) -> str:
    """Return the ranks that the others wait for, each with the reason."""
    named = "; ".join(f"rank {rank}: {why}" for rank, why in culprits.items())
    return named or "; ".join(filter(None, ("no rank stands out from the others", describe_unfinished(dumps))))


def _read_text(text: str) -> str:
    """Return the text itself, what stdin has, or the content of the file that the text names."""
    if text == "-":
        return sys.stdin.read()
    try:
        path = Path(text)
        if len(text) <= MAX_PATH and FILE_NAME.fullmatch(text) and not path.exists():
            place.fail(f"{text} does not exist", "give the path of a log, or the text of a failure")
        if len(text) > MAX_PATH or "\n" in text or not path.is_file():
            return text
        return read_text(path)
    except (OSError, ValueError) as error:
        place.fail(f"cannot read {text}: {error}", "give a readable file, or the text itself")


def _rows(file: Path) -> Iterator[dict[str, Any]]:
    """The file's rows, each with a `text`; the first bad line ends the command with its number."""
    try:
        content = sys.stdin.read() if str(file) == "-" else read_text(file)
    except (OSError, ValueError) as error:
        place.fail(f"cannot read {file}: {error}", "give a readable file of JSON lines")
    for number, line in enumerate(content.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            place.fail(f"{file}, line {number}: not JSON ({error})", "write one JSON object a line")
        if not isinstance(row, dict) or not isinstance(row.get("text"), str):
            place.fail(f"{file}, line {number}: no `text`", 'write {"id": ..., "text": "..."} on each line')
        yield row


def _print_json(rows: Iterable[dict[str, Any]], diagnoses: Iterable[Diagnosis], culprits: Iterable[int] = ()) -> None:
    for row, diagnosis in zip(rows, diagnoses, strict=True):
        line = {
            "id": row.get("id"),
            "cause": diagnosis.cause,
            "retry": RETRY[diagnosis.cause],
            "evidence": diagnosis.evidence,
            "rank": diagnosis.rank,
            "ranks": list(culprits) or [rank for rank in (diagnosis.rank,) if rank is not None],
        }
        typer.echo(json.dumps(line))


def _print_words(found: Diagnosis) -> None:
    console = Console()
    advice = find_advice(found).removesuffix(", then release the run")
    advice = advice.partition(": ")[2] if advice.startswith(REPEATS) else advice
    retry = "may help" if RETRY[found.cause] else f"will not help: first {advice}"
    lacks_reason = found.cause is Cause.UNKNOWN and found.rule not in ("no-rule", "empty")
    meaning = "the text says how it ended, and not why" if lacks_reason else _WORDS[found.cause]
    console.print(Text.assemble("Cause     ", (found.cause.replace("_", " "), "bold"), f": {meaning}"))
    console.print(Text(f"Relaunch  unchanged, it {retry}"))
    console.print(Text(f"Evidence  {found.evidence or 'none, the text is empty'}"))
    where = [f"{name} {value}" for name, value in (("step", found.step), ("rank", found.rank)) if value is not None]
    console.print(Text(", ".join([f"Rule      {found.rule}", *where])))


def _print_tables(rows: list[dict[str, Any]], diagnoses: list[Diagnosis]) -> None:
    console = Console()
    table = Table("Id", "Cause", "Retry", "Evidence")
    for row, diagnosis in zip(rows, diagnoses, strict=True):
        retry = "may help" if RETRY[diagnosis.cause] else "no"
        evidence = Text(diagnosis.evidence, overflow="ellipsis", no_wrap=True)
        table.add_row(Text(str(row.get("id", ""))), diagnosis.cause, retry, evidence)
    console.print(table)
    pairs = zip(rows, diagnoses, strict=True)
    clear = [pair for pair in pairs if isinstance(pair[0].get("class"), str) and pair[0].get("confidence") == "clear"]
    if judged := [(CORPUS_CLASSES.get(row["class"], row["class"]), diagnosis.cause) for row, diagnosis in clear]:
        console.print(_accuracy(judged))


def _accuracy(judged: list[tuple[str, Cause]]) -> Table:
    """Right answers by class, over the rows whose label is sure."""
    table = Table("Class", "Rows", "Right", "Taken for", title="Accuracy where the label is clear")
    for label in sorted({label for label, _ in judged}):
        answers = Counter(str(cause) for given, cause in judged if given == label)
        wrong = ", ".join(f"{cause} {count}" for cause, count in answers.most_common() if cause != label)
        table.add_row(Text(label), str(answers.total()), str(answers[label]), wrong)
    right = sum(label == cause for label, cause in judged)
    table.add_section()
    table.add_row("all", str(len(judged)), str(right), f"{right / len(judged):.1%}")
    return table
