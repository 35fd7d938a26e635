"""Everything that is wrong in a policy's file, not the first thing alone, and what is odd about it."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from cli.policies.odd import find_oddities
from cli.project import read_toml_file
from rerail.model.errors import PolicyError
from rerail.model.policy import RETIRED_FIELDS, Policy, parse_policy, to_toml

# What an SSM parameter of the standard tier holds; the stack refuses more.
LIMIT_BYTES = 4096
MOST = 50
FIELD = re.compile(r"field '([\w.]+)")


@dataclass(frozen=True, slots=True)
class Checked:
    """A file, what must be corrected in it before it can be deployed, and what is only odd."""

    file: str
    name: str
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    # How many values it gives; all others are the default's.
    given: int = 0


def check_file(file: Path) -> Checked:
    """The whole truth about a file; nothing is raised."""
    if file.suffix != ".toml" and file.is_file():
        return Checked(
            str(file), file.stem, (f"must be named *.toml to be deployed: write it in TOML as {file.stem}.toml",)
        )
    try:
        text = read_toml_file(file)
    except OSError as error:
        return Checked(str(file), file.stem, (f"cannot be read: {error}; give a readable TOML file in UTF-8",))
    problems = tuple(_problems(text, file.stem))
    if problems:
        return Checked(str(file), file.stem, problems)
    table, odd = tomllib.loads(text), find_oddities(parse_policy(text, name=file.stem))
    given = sum(len(value) if isinstance(value, dict) else 1 for value in table.values())
    if not given:
        return Checked(str(file), file.stem, ('has no field of a policy: give at least one, such as mode = "observe"',))
    return Checked(str(file), file.stem, warnings=(*_list_retired(table), *odd), given=given)


def _list_retired(table: Mapping[str, Any]) -> Iterator[str]:
    """Yield a warning for each field that earlier versions had."""
    for name in sorted(RETIRED_FIELDS):
        section, _, field = name.rpartition(".")
        if field in (table.get(section, {}) if section else table):
            yield f"{name} has no effect in this version: the built-in value applies; remove it"


def _problems(text: str, name: str) -> Iterator[str]:
    """One after the other: what is wrong is told, taken out, and the rest read again."""
    for _ in range(MOST):
        try:
            policy = parse_policy(text, name=name)
        except PolicyError as error:
            yield str(error).removeprefix(f"policy {name!r}: ")
            shorter = _without(text, str(error))
            if shorter is None or shorter == text:
                return
            text = shorter
        else:
            yield from _too_long(policy)
            return


def _too_long(policy: Policy) -> Iterator[str]:
    if (size := len(to_toml(policy).encode())) > LIMIT_BYTES:
        yield f"it is {size} bytes with all its values, at most {LIMIT_BYTES} fit: shorten [prices], [causes]"


def _without(text: str, problem: str) -> str | None:
    """The file without the field that the problem names; None where it names none, or the text is not TOML."""
    named = FIELD.search(problem)
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError):
        return None
    if not named:
        return None
    *folders, key = named[1].split(".")
    inner: Any = table
    for folder in folders:
        inner = inner.get(folder, {}) if isinstance(inner, dict) else {}
    if not isinstance(inner, dict) or key not in inner:
        return None
    del inner[key]
    return tomli_w.dumps(table)
