"""The results of a benchmark: tables, goals and failures, for the terminal and as JSON."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
Cell = str | int | float


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table of text columns, aligned to the left, then figures, aligned to the right."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    # The number of text columns.
    words: int = 1

    def table(self) -> Table:
        """Return it as a table of Rich."""
        table = Table(title=self.title)
        for number, name in enumerate(self.columns):
            table.add_column(name, justify="left" if number < self.words else "right")
        for row in self.rows:
            table.add_row(*(Text(_format(cell)) for cell in row))  # without markup
        return table


@dataclass(frozen=True, slots=True)
class GoalResult:
    """A goal beside the measured value, both formatted: "at most 60 s", "12.4 s"."""

    what: str
    asked: str
    measured: str
    met: bool


@dataclass(frozen=True, slots=True)
class BenchFailed:
    """Something that did not hold, and its cause where it is known."""

    what: str
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The result of one benchmark. A missed goal is reported; only a failure makes the exit status 1."""

    claim: str
    sheets: tuple[Sheet, ...] = ()
    goals: tuple[GoalResult, ...] = ()
    notes: tuple[str, ...] = ()
    failures: tuple[BenchFailed, ...] = ()

    @property
    def holds(self) -> bool:
        """Return whether nothing failed."""
        return not self.failures


def finish(evidence: Evidence, file: Path | None, console: Console) -> int:
    """Print the evidence, write it to the file where one is given, and return the exit status."""
    for sheet in evidence.sheets:
        console.print(sheet.table())
    for goal in evidence.goals:
        verdict = "met" if goal.met else "missed"
        console.print(f"{verdict}: {goal.what}: {goal.measured} (asked: {goal.asked})", markup=False)
    for note in evidence.notes:
        console.print(note, markup=False, highlight=False)
    for failure in evidence.failures:
        console.print(f"failed: {failure.what}: {failure.cause or 'not understood yet'}", markup=False)
    if file:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(asdict(evidence), indent=1) + "\n", encoding="utf-8")
    return 0 if evidence.holds else 1


def _format(cell: Cell) -> str:
    if isinstance(cell, str):
        return cell
    if isinstance(cell, int):
        return f"{cell:,}"
    return f"{cell:,.0f}" if cell >= 1000 else f"{cell:.4g}"
