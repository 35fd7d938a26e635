"""Count how often the diagnosis names the rank that failed first: `python -m bench.culprits`.

The texts are those of bench/corpus/culprits.jsonl. A text that shows no single culprit asks for no name.
"""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from bench.evidence import Evidence, Sheet, finish
from rerail.diagnosis.classify import diagnose
from rerail.model.diagnosis import Diagnosis

CORPUS = Path(__file__).parent / "corpus" / "culprits.jsonl"
SPLITS = ("tune", "apart")
# By whether the text has a culprit and whether the diagnosis is right.
RIGHT, UNKNOWN, WRONG, NONE = "named right", "not known", "named wrong", "rightly not named"


def read_cases() -> list[dict[str, Any]]:
    """Return the rows of the corpus."""
    return [json.loads(line) for line in CORPUS.read_text(encoding="utf-8").splitlines()]


def judge(culprit: int | None, named: int | None) -> str:
    """Return what the name is worth beside the culprit of the text, None where it shows no single one."""
    if named == culprit:
        return RIGHT if culprit is not None else NONE
    return WRONG if named is not None else UNKNOWN


def count_verdicts(cases: list[dict[str, Any]], split: str) -> dict[str, int]:
    """Return the number of the split's texts by verdict."""
    verdicts = [judge(case["culprit"], _diagnose(case).rank) for case in cases if case["split"] == split]
    return {verdict: verdicts.count(verdict) for verdict in (RIGHT, UNKNOWN, NONE, WRONG)}


def _diagnose(case: dict[str, Any]) -> Diagnosis:
    """Diagnose the text; the number of hosts is known only where its thread says that there is one."""
    return diagnose(case["text"], hosts=case.get("hosts", 0))


def measure(
    misses: Annotated[bool, typer.Option(help="List the texts of `tune` whose culprit is not named right.")] = False,
    file: Annotated[Path | None, typer.Option(help="Write the figures as JSON into this file.")] = None,
) -> None:
    """Print, for the texts in sight and for those set aside, how many culprits are named right, wrong or not."""
    cases = read_cases()
    rows: list[tuple[str | int, ...]] = []
    for split in SPLITS:
        counts = count_verdicts(cases, split)
        rows.append((split, sum(counts.values()), *counts.values()))
    columns = ("split", "cases", RIGHT, UNKNOWN, NONE, WRONG)
    sheet = Sheet("The rank that failed first", columns, tuple(rows))
    notes = []
    for case in cases if misses else ():
        found = _diagnose(case)
        if case["split"] == "tune" and found.rank != case["culprit"]:
            notes.append(f"{case['id']}: {case['culprit']} named {found.rank} by {found.rule}: {case['note']}")
    evidence = Evidence("The rank that failed first is named", (sheet,), notes=tuple(notes))
    raise typer.Exit(finish(evidence, file, Console()))


if __name__ == "__main__":
    typer.run(measure)
