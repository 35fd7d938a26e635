"""The worst accepted value of each measure of Rerail's own row, kept in a file."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Measures = Mapping[str, float]
# What is measured, and whether more of it is better.
MORE_IS_BETTER = {
    "loss recall, macro": True,
    "loss recall, micro": True,
    "non_finite recall": True,
    "plateau recall": True,
    "throughput recall, macro": True,
    "lasting loss events acted on": True,
    "false alarms per 100k rows": False,
    "wrong interventions per 100k rows": False,
    "lasting rises acted on": True,
    "slowdowns acted on": True,
    "NaN acted on": True,
    "healthy runs stopped": False,
}


class BadFloor(Exception):
    """The file of floors cannot be used; the message names the field and the remedy."""


def shortfalls(measured: Mapping[str, Measures], floors: Mapping[str, Measures]) -> list[str]:
    """A sentence for every measure that is worse than its floor, by contender."""
    found = []
    for contender, floor in floors.items():
        for name, worst in floor.items():
            value = measured[contender][name]
            if value < worst - 1e-9 if MORE_IS_BETTER[name] else value > worst + 1e-9:
                limit = "at least" if MORE_IS_BETTER[name] else "at most"
                found.append(f"{contender}: {name} is {value:.3f}, it must be {limit} {worst:.3f}")
    return found


def read_floors(file: Path, *, contenders: tuple[str, ...]) -> dict[str, dict[str, float]]:
    """The floors by contender; raises BadFloor."""
    try:
        floors: Any = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadFloor(f"{file} cannot be read: {error}; write one with --write-floor") from error
    if not isinstance(floors, dict) or not all(isinstance(floor, dict) for floor in floors.values()):
        raise BadFloor(f"{file} must be an object of objects of numbers; write one with --write-floor")
    for contender, floor in floors.items():
        if contender not in contenders:
            raise BadFloor(f"{file}: there is no contender {contender!r}; write one of {', '.join(contenders)}")
        for name, worst in floor.items():
            if name not in MORE_IS_BETTER:
                raise BadFloor(f"{file}: there is no measure {name!r}; write one of {'; '.join(MORE_IS_BETTER)}")
            if not isinstance(worst, int | float) or isinstance(worst, bool):
                raise BadFloor(f"{file}: {name!r} is {worst!r}; write a number")
    return floors


def write_floors(file: Path, measured: Mapping[str, Measures]) -> None:
    """Set the floors to what is measured now, to three digits in its favour."""
    floors = {
        contender: {name: _rounded(value, down=MORE_IS_BETTER[name]) for name, value in values.items()}
        for contender, values in measured.items()
    }
    file.write_text(json.dumps(floors, indent=2) + "\n", encoding="utf-8")


def _rounded(value: float, *, down: bool) -> float:
    return (math.floor(value * 1000) if down else math.ceil(value * 1000)) / 1000
