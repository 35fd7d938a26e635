"""What a project always asks for: the table `[submit]` of `rerail.toml`, at or above the script, or in ~/.config."""

import difflib
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cli.submit.problem import Problem

FILE = "rerail.toml"
KINDS: dict[str, type] = {
    "role": str,
    "bucket": str,
    "image": str,
    "framework": str,
    "framework_version": str,
    "project": str,
    "instance_type": str,
    "count": int,
    "retries": int,
    "volume": int,
    "max_runtime": str,
    "max_wait": str,
    "keep_alive": str,
    "checkpoint_path": str,
    "agent": str,
    "policy": str,
    "spot": bool,
    "torchrun": bool,
    "subnets": list,
    "security_groups": list,
    "dependencies": list,
    "exclude": list,
    "tags": dict,
    "env": dict,
    "metrics": dict,
}
WORDS = {str: "text", int: "a whole number", bool: "true or false", list: "a list of texts", dict: "a table of texts"}


def read_defaults(folder: Path, home: Path) -> dict[str, Any]:
    """Return the defaults of a script in this folder; the nearest file wins over ~/.config, field by field."""
    found: dict[str, Any] = {}
    for path in _places(folder, home):
        if path.is_file():
            found = {**_read(path), **found}
    return found


def _places(folder: Path, home: Path) -> Iterator[Path]:
    for parent in (folder, *folder.parents):
        if (parent / FILE).is_file() or (parent / ".git").exists() or parent == home:
            yield parent / FILE
            break
    yield home / ".config" / FILE


def _read(path: Path) -> dict[str, Any]:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8")).get("submit", {})
    except tomllib.TOMLDecodeError as error:
        raise Problem(f"{path} is not valid TOML: {error}", "correct the file") from error
    except (OSError, UnicodeDecodeError, RecursionError) as error:
        raise Problem(f"{path} cannot be read: {error}", "make it a TOML file in UTF-8") from error
    if not isinstance(table, dict):
        raise Problem(f"{path}: submit must be a table", "begin it with [submit]")
    for key, value in table.items():
        if key not in KINDS:
            near = difflib.get_close_matches(key, KINDS, n=1)
            raise Problem(
                f"{path}: unknown field {key!r:.100}",
                f"did you mean {near[0]!r}?" if near else f"known: {', '.join(KINDS)}",
            )
        if not _fits(value, KINDS[key]):
            raise Problem(f"{path}: field {key!r} is {value!r:.200}", f"it must be {WORDS[KINDS[key]]}")
    return table


def _fits(value: Any, kind: type) -> bool:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        return False
    texts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return all(isinstance(text, str) for text in texts)
