"""What a proof has found: the same figures for the terminal, for a file, and for docs/proof.md."""

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cli.simulate.pages import markdown

ROOT = Path(__file__).resolve().parent.parent
Cell = str | int | float


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table: figures stand to the right, `words` columns of text before them to the left."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    words: int = 1

    def table(self) -> Table:
        """It as Rich draws it."""
        table = Table(title=self.title)
        for number, name in enumerate(self.columns):
            table.add_column(name, justify="left" if number < self.words else "right")
        for row in self.rows:
            table.add_row(*(Text(_shown(cell)) for cell in row))  # whatever it says is no markup
        return table


@dataclass(frozen=True, slots=True)
class Goal:
    """What was asked for beside what was measured, both as people read them: "at most 60 s", "12.4 s"."""

    what: str
    asked: str
    measured: str
    met: bool


@dataclass(frozen=True, slots=True)
class Failure:
    """Something that did not hold: what, and why. What is not understood has no cause, and is not mended either."""

    what: str
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What one proof shows: `claim` is the sentence that it holds to the light, `notes` are sentences of Markdown."""

    claim: str
    sheets: tuple[Sheet, ...] = ()
    goals: tuple[Goal, ...] = ()
    notes: tuple[str, ...] = ()
    failures: tuple[Failure, ...] = ()

    @property
    def holds(self) -> bool:
        """Nothing failed; a goal that is missed is no failure, but is said."""
        return not self.failures

    def show(self, console: Console) -> None:
        """Tables, goals, notes and failures, for who sits before the terminal."""
        for sheet in self.sheets:
            console.print(sheet.table())
        for goal in self.goals:
            console.print(f"{_verdict(goal)}: {goal.what}: {goal.measured} (asked: {goal.asked})", markup=False)
        for note in self.notes:
            console.print(note, markup=False, highlight=False)
        for failure in self.failures:
            console.print(f"failed: {failure.what}: {failure.cause or 'not understood yet'}", markup=False)

    def write(self, file: Path) -> None:
        """Into a file of JSON, with the machine and the version that it was measured on."""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({**asdict(self), "measured": _circumstances()}, indent=1) + "\n", encoding="utf-8")


def read(file: Path) -> tuple[Evidence, dict[str, Any]]:
    """The evidence that `write` left, and what it was measured on."""
    stored = json.loads(file.read_text(encoding="utf-8"))
    sheets = (
        Sheet(each["title"], tuple(each["columns"]), tuple(tuple(row) for row in each["rows"]), each["words"])
        for each in stored["sheets"]
    )
    return Evidence(
        claim=stored["claim"],
        sheets=tuple(sheets),
        goals=tuple(Goal(**each) for each in stored["goals"]),
        notes=tuple(stored["notes"]),
        failures=tuple(Failure(**each) for each in stored["failures"]),
    ), stored["measured"]


def section(title: str, evidence: Evidence, measured: dict[str, Any], command: str) -> str:
    """The evidence as a section of a page of Markdown."""
    parts = [f"## {title}", evidence.claim]
    for sheet in evidence.sheets:
        parts += [f"**{sheet.title}**", sheet_as_markdown(sheet)]
    if evidence.goals:
        rows = tuple((_verdict(goal), goal.what, goal.asked, goal.measured) for goal in evidence.goals)
        parts.append(sheet_as_markdown(Sheet("", ("", "goal", "asked", "measured"), rows, words=2)))
    parts += evidence.notes
    if evidence.failures:
        parts.append("**What did not hold**")
        parts.append("\n".join(f"- {each.what}: {each.cause or 'not understood yet'}" for each in evidence.failures))
    parts.append(f"Measured {measured['at']} at {measured['commit']} on {measured['machine']}, by `{command}`.")
    return "\n\n".join(parts)


def finish(evidence: Evidence, file: Path | None, console: Console) -> int:
    """Show it, write it where that was asked for; the exit status of its program: 0 if it holds."""
    evidence.show(console)
    if file:
        evidence.write(file)
    return 0 if evidence.holds else 1


def sheet_as_markdown(sheet: Sheet) -> str:
    """The sheet as a table of Markdown, without its title."""
    rows = tuple(tuple(_shown(cell).replace("|", "\\|") for cell in row) for row in sheet.rows)
    return markdown(replace(sheet, rows=rows).table())


def _verdict(goal: Goal) -> str:
    return "met" if goal.met else "missed"


def _shown(cell: Cell) -> str:
    if isinstance(cell, str):
        return cell
    return f"{cell:,}" if isinstance(cell, int) or cell >= 1000 else f"{cell:.4g}"


def _circumstances() -> dict[str, str]:
    return {
        "at": datetime.now(UTC).date().isoformat(),
        "commit": _commit(),
        "machine": f"{os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}",
    }


def _commit() -> str:
    """The version of this tree; where it has changes that are not committed, or is no clone, that is said."""
    try:
        told = _git("rev-parse", "--short=7", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", *PROGRAMS)
    except (OSError, subprocess.CalledProcessError):
        return "a version that git does not know"
    return f"{told} with changes" if changed else told


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


# What a measurement depends on; a change of a page is none.
PROGRAMS: Sequence[str] = (
    "lambdas",
    "stacks",
    "agent",
    "container",
    "cli",
    "local",
    "bench",
    "policies",
    "pyproject.toml",
)
