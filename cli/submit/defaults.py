"""What a project always asks for: the table `[submit]` of `rerail.toml`, at or above the script, or in ~/.config."""

import difflib
import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cli.submit.packing import find_project, find_secret_patterns
from cli.submit.problem import Problem

FILE = "rerail.toml"
# The fields of `[submit]` or of a chain's task whose files are uploaded; a task may spell them in other ways.
PATH_FIELDS = ("dependencies", "dependency", "agent", "model_uri", "dockerfile")
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
    "volume_key": str,
    "output_key": str,
    "encrypt_traffic": bool,
    "dependencies": list,
    "exclude": list,
    "tags": dict,
    "env": dict,
    "metrics": dict,
}
WORDS = {str: "text", int: "a whole number", bool: "true or false", list: "a list of texts", dict: "a table of texts"}


def read_protection(usual: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a JobRequest for network and encryption, which an account may demand of every job."""
    names = ("subnets", "security_groups", "volume_key", "output_key", "encrypt_traffic")
    return {name: usual[name] for name in names if name in usual}


def read_defaults(folder: Path, home: Path) -> dict[str, Any]:
    """Return the defaults of a script in this folder; the nearest file wins over ~/.config, field by field."""
    found: dict[str, Any] = {}
    for path in _places(folder, home):
        if path.is_file():
            _check_owner(path, folder)
            table = _read(path)
            if path.parent not in (home, home / ".config"):
                check_project_paths(path, table, folder=Path.cwd())
            found = {**table, **found}
    return found


def _places(folder: Path, home: Path) -> Iterator[Path]:
    for parent in list_project_folders(folder, home):
        if (parent / FILE).is_file():
            yield parent / FILE
            break
    yield home / ".config" / FILE


def list_project_folders(folder: Path, home: Path) -> list[Path]:
    """Return the folder and those above it in which a file may be the project's, the nearest first.

    They end with the repository, the home folder or the current one. What lies above may be anybody's, as in /tmp.
    """
    parents = (folder, *folder.parents)
    repository = next((parent for parent in parents if (parent / ".git").exists()), None)
    top = repository or next((place for place in (home, Path.cwd()) if place in parents), folder)
    return list(parents[: parents.index(top) + 1])


def _check_owner(path: Path, folder: Path) -> None:
    """Raise Problem for the file of another user in a folder above: it would choose the bucket and the role."""
    owner, me = path.stat().st_uid, os.getuid()
    if path.parent != folder and me != 0 and owner not in (0, me):
        raise Problem(f"{path} belongs to another user", f"copy it into {folder}, or work outside of {path.parent}")


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


def check_project_paths(file: Path, table: Mapping[str, Any], *, folder: Path) -> None:
    """Raise Problem for a path in a project's file that leads out of the project, or to what looks like a secret.

    Whoever wrote the project would choose what of this machine is sent, and the bucket that it is sent to. Relative
    paths begin at `folder`.
    """
    for name, given in table.items():
        spelling = name.replace("-", "_")
        if not {spelling, spelling.removesuffix("s")} & set(PATH_FIELDS):
            continue
        for text in given if isinstance(given, list) else [given]:
            if isinstance(text, str) and not text.startswith("s3://"):
                check_project_path(file, name, text, folder=folder)


def check_project_path(file: Path, name: str, given: str, *, folder: Path) -> Path:
    """Return the absolute path; raise Problem as `check_project_paths` does."""
    top = find_project(file.parent)
    try:
        path = (folder / Path(given).expanduser()).resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise Problem(f"{file}: {name} = {given!r:.200}: {error}", "give a path below the file") from error
    if not path.is_relative_to(top):
        raise Problem(
            f"{file}: {name} = {given!r:.200}: it is outside of {top}",
            "put it there, or name it on the command line, which the project cannot do",
        )
    if find_secret_patterns().leave_out_below(path.relative_to(top)):
        raise Problem(
            f"{file}: {name} = {given!r:.200}: it looks like a secret",
            "leave it out, or name it on the command line, which the project cannot do",
        )
    return path


def _fits(value: Any, kind: type) -> bool:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        return False
    texts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return all(isinstance(text, str) for text in texts)
