"""The settings of a job: options, fields of a chain's task, and keys of `[submit]` in `rerail.toml` or `--settings`."""

import difflib
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_origin, get_type_hints

from cli.project import read_toml_file
from cli.submit.images import PYTORCH
from cli.submit.packing import find_project, find_secret_patterns
from cli.submit.problem import Problem
from rerail.model.policy import DURATION, UNIT_SECONDS
from rerail.requests.continuation import FIXED_VARIABLES

FILE = "rerail.toml"
DAY_S = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitSettings:
    """The settings of a job with their defaults, in the groups of SageMaker's ModelTrainer; each field is a key."""

    # The run.
    role: str = ""
    bucket: str = ""
    project: str = ""
    policy: str = "default"
    tags: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, str] = field(default_factory=dict)
    # The image: at most one of the first two, or AWS's of this framework and version.
    image: str = ""
    dockerfile: str = ""
    framework: str = ""
    framework_version: str = ""
    # SourceCode.
    entry: str = ""
    command: str = ""
    dependencies: list[str] = field(default_factory=list)
    exclude: list[str] = field(default_factory=list)
    hyperparameters: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    # The agent's wheel, here or in S3.
    agent: str = ""
    # Compute; the volume in GB of each machine.
    instance_type: str = "ml.m5.xlarge"
    count: int = 1
    volume: int = 30
    volume_key: str = ""
    keep_alive: str = ""
    spot: bool = False
    torchrun: bool = False
    # StoppingCondition and RetryStrategy: SageMaker's own attempts after an internal error.
    max_runtime: str = "24h"
    max_wait: str = ""
    retries: int = 0
    # InputData: paths or S3 folders by channel, the channels of which each machine gets a share, and file systems.
    inputs: dict[str, str] = field(default_factory=dict)
    shard: list[str] = field(default_factory=list)
    fsx: dict[str, str] = field(default_factory=dict)
    efs: dict[str, str] = field(default_factory=dict)
    start_from: str = ""
    # Networking.
    subnets: list[str] = field(default_factory=list)
    security_groups: list[str] = field(default_factory=list)
    encrypt_traffic: bool = False
    # OutputDataConfig and CheckpointConfig.
    output_key: str = ""
    checkpoint_path: str = ""

    @property
    def max_runtime_s(self) -> int:
        return parse_seconds("--max-runtime", self.max_runtime)

    @property
    def max_wait_s(self) -> int:
        """Return how long spot machines wait and run together; a day longer than they may run, if nothing is said."""
        return parse_seconds("max_wait", self.max_wait) if self.max_wait else self.max_runtime_s + DAY_S

    @property
    def keep_alive_s(self) -> int:
        return parse_seconds("keep_alive", self.keep_alive) if self.keep_alive else 0


KINDS: dict[str, type] = {name: get_origin(kind) or kind for name, kind in get_type_hints(SubmitSettings).items()}
WORDS = {str: "text", int: "a whole number", bool: "true or false", list: "a list of texts", dict: "a table of texts"}
# Settings of files that are uploaded, and those of them that may be addresses in S3 instead.
PATHS = ("dependencies", "agent", "inputs", "dockerfile")
ADDRESSES = ("agent", "inputs")
# Settings that a file and the command line add to; tables are merged, and any other replaces the one before.
ADDED_UP = ("dependencies", "exclude")


def join(usual: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the usual settings with the given ones, which win."""
    joined = {key: value for key, value in usual.items() if key not in _find_replaced(usual, given)}
    for key, value in given.items():
        if KINDS[key] is dict:
            joined[key] = {**joined.get(key, {}), **value}
        else:
            joined[key] = [*joined.get(key, ()), *value] if key in ADDED_UP else value
    return joined


def _find_replaced(usual: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the settings of an image that a given one replaces."""
    if given.keys() & {"image", "dockerfile"}:
        return ("image", "dockerfile", "framework", "framework_version")
    if not given.keys() & {"framework", "framework_version"}:
        return ()
    before = usual.get("framework", PYTORCH)
    is_other = given.get("framework", before) != before
    return ("image", "dockerfile", *(["framework_version"] if is_other else []))


def parse_seconds(option: str, text: str) -> int:
    """Return `90s`, `15m`, `12h` or `5d` in seconds."""
    match = DURATION.fullmatch(text.strip())
    if not match or len(match[1]) > 12:
        raise Problem(f"{option} {text}: not a duration", "write it like 90s, 15m, 12h or 5d")
    return round(float(match[1]) * UNIT_SECONDS[match[2]])


def read_protection(usual: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of network and encryption, which an account may demand of every job."""
    names = ("subnets", "security_groups", "volume_key", "output_key", "encrypt_traffic")
    return {name: usual[name] for name in names if name in usual}


def read_file(path: Path) -> dict[str, Any]:
    """Return the settings of a file that the command line names, checked as the project's are."""
    if not path.is_file():
        raise Problem(f"--settings {path}: it does not exist", "name a TOML file with a table [submit]")
    path = path.absolute()
    table = _read(path)
    check_project(path, table, folder=Path.cwd(), may_build=True)
    return table


def read_defaults(folder: Path, home: Path) -> dict[str, Any]:
    """Return the defaults of a script in this folder; the nearest file wins over ~/.config, field by field."""
    found: dict[str, Any] = {}
    for path in _places(folder, home):
        if path.is_file():
            _check_owner(path, folder)
            table = _read(path)
            if path.parent not in (home, home / ".config"):
                check_project(path, table, folder=Path.cwd())
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


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a file that others may have written; raise Problem if it cannot be read."""
    try:
        table = tomllib.loads(read_toml_file(path))
        repr(table)  # a number of more digits than Python writes could not be quoted in an error either
    except (OSError, RecursionError) as error:
        raise Problem(f"{path} cannot be read: {error}", "make it a TOML file in UTF-8") from error
    except ValueError as error:
        raise Problem(f"{path} is not valid TOML: {error}", "correct the file") from error
    return table


def _read(path: Path) -> dict[str, Any]:
    table = read_toml(path).get("submit", {})
    if not isinstance(table, dict):
        raise Problem(f"{path}: submit must be a table", "begin it with [submit]")
    check_table(str(path), table)
    return table


def check_table(where: str, table: Mapping[str, Any], *, more: tuple[str, ...] = ()) -> None:
    """Raise Problem for an unknown key, and for a value of another type; `more` are the caller's own keys."""
    for key, value in table.items():
        if key not in KINDS:
            known = list(dict.fromkeys((*more, *KINDS)))
            near = difflib.get_close_matches(key, known, n=1)
            raise Problem(
                f"{where}: unknown field {key!r:.100}",
                f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}",
            )
        if not _fits(value, KINDS[key]):
            raise Problem(f"{where}: field {key!r} is {value!r:.200}", f"it must be {WORDS[KINDS[key]]}")


def check_project(file: Path, table: Mapping[str, Any], *, folder: Path, may_build: bool = False) -> None:
    """Raise Problem for a path in a project's file that leads out of it or to a secret, or a variable that Rerail sets.

    Its author could otherwise choose which files are sent, and to which bucket. Relative paths begin at `folder`.
    Unless it `may_build` an image, one is refused too: its author would run programs on this machine.
    """
    if wrong := sorted(table.get("env", {}).keys() & FIXED_VARIABLES):
        raise Problem(f"{file}: env sets {wrong[0]}, which a project may not", "leave it out, or use --env")
    for name, given in ((name, table[name]) for name in PATHS if name in table):
        texts = given.values() if isinstance(given, dict) else given if isinstance(given, list) else [given]
        for text in texts:
            if name not in ADDRESSES or not text.startswith("s3://"):
                check_project_path(file, name, text, folder=folder)
    if "dockerfile" in table and not may_build:
        raise Problem(f"{file}: a project's defaults build no image", "name it in a --settings file of rerail submit")


def check_project_path(file: Path, name: str, given: str, *, folder: Path) -> Path:
    """Return the absolute path; raise Problem as `check_project` does."""
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
