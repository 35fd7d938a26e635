"""The policies of this checkout beside those that are deployed."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from cli.place import Place
from cli.policies.words import list_rows
from cli.project import find_policies, read_toml_file
from rerail.model.errors import PolicyError
from rerail.model.policy import Policy, parse_policy


class Stands(StrEnum):
    """How a policy's file and what is deployed of it go together."""

    SAME = "same"
    DIFFERS = "differs"
    NOT_DEPLOYED = "not deployed"
    NOT_IN_FILES = "not in the files"


@dataclass(frozen=True, slots=True)
class Compared:
    """One policy, here and there; `fields` are those that differ, and `problem` says why one cannot be read."""

    name: str
    stands: Stands
    fields: tuple[str, ...] = ()
    problem: str = ""
    mode: str = ""


def compare_policies(where: Place, folder: Path | None = None) -> list[Compared]:
    """Every policy that is deployed, or has a file."""
    folder = folder or find_policies()
    there, here = read_deployed_texts(where), {file.stem: file for file in folder.glob("*.toml")}
    return [_compared(name, there.get(name), here.get(name)) for name in sorted(there.keys() | here.keys())]


def read_deployed_texts(where: Place) -> Mapping[str, str]:
    """Name to text of the deployed policies."""
    prefix = where.outputs["PolicyPrefix"].rstrip("/")
    pages = where.client("ssm").get_paginator("get_parameters_by_path").paginate(Path=prefix)
    found = [parameter for page in pages for parameter in page["Parameters"]]
    return {parameter["Name"].removeprefix(f"{prefix}/"): str(parameter["Value"]) for parameter in found}


def flatten(policy: Policy) -> dict[str, object]:
    """Every field by its dotted name, as it is written in TOML: `limits.attempts`."""
    return dict(list_rows(policy))


def _compared(name: str, there: str | None, here: Path | None) -> Compared:
    deployed, problem = _read(there, name)
    try:
        filed, file_problem = _read(read_toml_file(here) if here else None, name)
    except OSError as error:
        filed, file_problem = None, str(error)
    mode = str((deployed or filed or Policy()).mode)
    if there is None:
        return Compared(name, Stands.NOT_DEPLOYED, problem=file_problem, mode=mode)
    if here is None:
        return Compared(name, Stands.NOT_IN_FILES, problem=problem, mode=mode)
    if deployed is None or filed is None:
        return Compared(name, Stands.DIFFERS, problem=problem or file_problem, mode=mode)
    one, other = flatten(deployed), flatten(filed)
    fields = tuple(key for key in one.keys() | other.keys() if one.get(key) != other.get(key))
    return Compared(name, Stands.DIFFERS if fields else Stands.SAME, fields=tuple(sorted(fields)), mode=mode)


def _read(text: str | None, name: str) -> tuple[Policy | None, str]:
    if text is None:
        return None, ""
    try:
        return parse_policy(text, name=name), ""
    except PolicyError as error:
        return None, str(error)
