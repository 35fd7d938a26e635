"""Find the commands in the documentation: in shell blocks, indented blocks and the text."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import typer
from typer.core import TyperCommand, TyperGroup

from cli.main import app

ROOT = Path(__file__).parents[2]
SHELLS = ("sh", "bash", "console", "shell")
FENCE = re.compile(r"^\s*```\s*([a-z]*)")
IN_TEXT = re.compile(r"`(?:\.venv/bin/)?(rerail [^`\n]+)`")
INDENTED = re.compile(r"^    (?=(make|rerail|\.venv/bin/rerail|git|cd|export|python|pip|aws) )")
COMMENT = re.compile(r"\s{1,}#\s.*$")


@dataclass(frozen=True, slots=True)
class Shown:
    """A command in a page; `line` counts from 1."""

    page: str
    line: int
    text: str

    @property
    def words(self) -> list[str]:
        return shlex.split(self.text)

    def __str__(self) -> str:
        return f"{self.page}:{self.line} {self.text}"


def pages() -> list[Path]:
    """Return every page of the documentation."""
    readmes = [ROOT / "README.md", ROOT / "container" / "README.md", ROOT / "local" / "README.md"]
    return [*readmes, *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> Iterator[Shown]:
    """Yield the shell commands of a page; a line that ends in a backslash continues in the next."""
    name, begun, shell = page.relative_to(ROOT).as_posix(), "", False
    start, fenced, prompts = 0, False, False
    lines = page.read_text().splitlines()
    for number, line in enumerate(lines, start=1):
        if fence := FENCE.match(line):
            fenced, shell = not fenced, not fenced and fence[1] in SHELLS
            prompts = shell and _has_prompts(lines, number)
            continue
        pasted = line if shell else INDENTED.sub("", line) if not fenced and INDENTED.match(line) else ""
        if prompts and not begun and not pasted.lstrip().startswith("$ "):
            continue  # what the command prints
        pasted = COMMENT.sub("", pasted.strip().removeprefix("$ "))
        if not pasted or pasted.startswith("#"):
            continue
        start = start if begun else number
        begun = f"{begun} {pasted.removesuffix(chr(92)).strip()}".strip()
        if not pasted.endswith("\\"):
            yield Shown(name, start, begun)
            begun = ""


def _has_prompts(lines: list[str], first: int) -> bool:
    body = lines[first:]
    end = next((n for n, line in enumerate(body) if FENCE.match(line)), len(body))
    return any(line.lstrip().startswith("$ ") for line in body[:end])


def in_text(page: Path) -> Iterator[Shown]:
    """Yield the commands in the text, such as `rerail show RUN`."""
    name = page.relative_to(ROOT).as_posix()
    for number, line in enumerate(page.read_text().splitlines(), start=1):
        for match in IN_TEXT.finditer(line):
            yield Shown(name, number, match[1].rstrip("."))


class UnknownCommand(Exception):
    """The command line has no such command."""


def leaf(words: list[str]) -> tuple[TyperCommand | TyperGroup, list[str], list[str]]:
    """Return the command that these words (without `rerail`) name, its path, and the remaining words.

    Raise UnknownCommand if there is none.
    """
    command, path = typer.main.get_command(app), []
    while isinstance(command, TyperGroup) and words and not words[0].startswith("-"):
        name, words = words[0], words[1:]
        if name not in command.commands:
            raise UnknownCommand(" ".join(["rerail", *path, name]))
        command, path = command.commands[name], [*path, name]
    return command, path, words


def options(command: TyperCommand | TyperGroup) -> set[str]:
    """Return all spellings of its options."""
    spelt = [(*parameter.opts, *parameter.secondary_opts) for parameter in command.params]
    return {name for names in spelt for name in names if name.startswith("-")} | {"--help"}
