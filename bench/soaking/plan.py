"""Which faults a soak causes, in which runs and at which steps: a function of its seed."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from bench.soaking.faults import FAULTS, SETUPS, STEADY, Setup

SPREAD = 40  # steps within which a fault's own step is drawn
EVEN = 200  # runs are so many steps long, or a multiple: those of a setup share a reference run
TAIL = 100


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """A fault of a run."""

    # Counts the faults of the whole soak.
    number: int
    name: str
    # It is injected at this step, or soon after.
    step: int


@dataclass(frozen=True, slots=True)
class RunPlan:
    """One run of the soak, with its faults in their order."""

    name: str
    setup: Setup
    steps: int
    faults: tuple[PlannedFault, ...]


def choose_faults(seed: int, count: int) -> list[str]:
    """Choose faults, with every scenario if there is room for all; the rest are those that any run meets."""
    draw = Random(seed)
    names = sorted(FAULTS)
    if count <= len(names):
        return draw.sample(names, count)
    any_run = [name for name in names if FAULTS[name].setup is STEADY]
    return names + [draw.choice(any_run) for _ in range(count - len(names))]


def make_plans(seed: int, names: Sequence[str]) -> list[RunPlan]:
    """Return the runs that meet these faults, the longest first; the seed draws their order and their steps."""
    draw = Random(seed)
    found: list[RunPlan] = []
    number = 0
    for setup in SETUPS:
        here = [name for name in names if FAULTS[name].setup is setup]
        draw.shuffle(here)
        for start in range(0, len(here), setup.most):
            part = here[start : start + setup.most]
            found.append(_make_plan(setup, part, number, draw, len(found)))
            number += len(part)
    return found


def _make_plan(setup: Setup, names: Sequence[str], number: int, draw: Random, index: int) -> RunPlan:
    step = setup.first
    planned: list[PlannedFault] = []
    for name in names:
        planned.append(PlannedFault(number + len(planned), name, step + draw.randrange(SPREAD)))
        step += SPREAD + FAULTS[name].room
    steps = -(-(step + TAIL) // EVEN) * EVEN
    return RunPlan(f"soak-{index + 1}-{setup.name}", setup, steps, tuple(planned))
