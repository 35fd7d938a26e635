"""Which faults a soak causes, in which runs and at which steps: a function of its seed."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from bench.soaking.faults import FAULTS, HOMES, STEADY, Home

SPREAD = 40  # steps within which a fault's own step is drawn
EVEN = 200  # runs are so many steps long, or a multiple: those of a kind share a twin
TAIL = 100


@dataclass(frozen=True, slots=True)
class Due:
    """One fault of a run: `number` counts them over the whole soak, `step` is where it strikes, or soon after."""

    number: int
    name: str
    step: int


@dataclass(frozen=True, slots=True)
class Course:
    """One run of the soak, with its faults in their order."""

    name: str
    home: Home
    steps: int
    faults: tuple[Due, ...]


def chosen(seed: int, count: int) -> list[str]:
    """So many faults, every scenario among them where there is room for all; the rest are those that any run meets."""
    draw = Random(seed)
    names = sorted(FAULTS)
    if count <= len(names):
        return draw.sample(names, count)
    any_run = [name for name in names if FAULTS[name].home is STEADY]
    return names + [draw.choice(any_run) for _ in range(count - len(names))]


def courses(seed: int, names: Sequence[str]) -> list[Course]:
    """The runs that meet these faults, those that take longest first; the seed draws their order and their steps."""
    draw = Random(seed)
    found: list[Course] = []
    number = 0
    for home in HOMES:
        here = [name for name in names if FAULTS[name].home is home]
        draw.shuffle(here)
        for start in range(0, len(here), home.most):
            part = here[start : start + home.most]
            found.append(_course(home, part, number, draw, len(found)))
            number += len(part)
    return found


def _course(home: Home, names: Sequence[str], number: int, draw: Random, index: int) -> Course:
    step = home.first
    due: list[Due] = []
    for name in names:
        # A Hugging Face script's own machine breaks where its demo has it.
        drawn = 0 if home.script is not STEADY.script else draw.randrange(SPREAD)
        due.append(Due(number + len(due), name, step + drawn))
        step += SPREAD + FAULTS[name].room
    steps = -(-(step + TAIL) // EVEN) * EVEN
    return Course(f"soak-{index + 1}-{home.name}", home, steps, tuple(due))
