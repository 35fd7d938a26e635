"""Which call is broken where and how, and what came of it: the points of the table, without any AWS."""

import json
import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

KILLED = ("killed before", "killed after")
LOST = ("not reached", "answer lost")
HUNG = ("hangs once", "hangs on")
REFUSED = ("ThrottlingException", "InternalServerError", "AccessDeniedException", "ValidationException")
# How each call is broken, besides the errors that its service declares.
WAYS = (*KILLED, *LOST, *HUNG, *REFUSED)
# The one function that decides and acts; the others read, tell, and draw.
ACTS = "supervise"


class Phase(NamedTuple):
    """A part of one of the scenarios."""

    scenario: str
    phase: str


class Call(NamedTuple):
    """One AWS call of a function for the run of a scenario."""

    run: str
    phase: str
    site: str


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """One call site, the phase of a scenario in which its first call is broken, and the way in which it is.

    A site is named as `function service:Operation module.function`, with ` for method` where the adapter was entered
    elsewhere."""

    scenario: str
    phase: str
    site: str
    how: str

    @property
    def function(self) -> str:
        return self.site.split()[0]

    @property
    def service(self) -> str:
        return self.site.split()[1].partition(":")[0]

    def __str__(self) -> str:
        return f"{self.scenario}, {self.phase}: {self.site}, {self.how}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a point: `reached` says that the call was broken, `held` that a person was asked and released it,
    `letters` are the queues of dead letters in which one was left, each with its alarm; `wrong` is "" where the run
    survived. `alone` says that no other call was broken in that scenario."""

    point: Point
    reached: bool
    held: bool = False
    letters: tuple[str, ...] = ()
    wrong: str = ""
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """One scenario with at most one broken call in each of its phases."""

    scenario: str
    faults: tuple[Point, ...]

    def of(self, phase: str) -> Point | None:
        return next((point for point in self.faults if point.phase == phase), None)


def call_of(line: bytes | str) -> Call:
    """What the hook in a worker has noted."""
    return Call(**json.loads(line))


def points(met: Mapping[Phase, Collection[str]], errors: Mapping[str, Sequence[str]]) -> Iterator[Point]:
    """Every site with every way to break it, in every place where it occurs. The errors that a service declares are
    dealt out to these places, each to one of them, and so are refusals of what only looks or tells: what is done about
    them depends on the site alone."""
    for site in sorted({site for sites in met.values() for site in sites}):
        places = [place for place, sites in sorted(met.items()) if site in sites]
        everywhere = WAYS if site.split()[0] == ACTS else (*KILLED, *LOST, *HUNG)
        for place in places:
            for how in everywhere:
                yield Point(*place, site, how)
        dealt = dict.fromkeys(how for how in (*WAYS, *errors.get(site, ())) if how not in everywhere)
        for number, how in enumerate(dealt):
            yield Point(*places[number % len(places)], site, how)


def plans(chosen: Iterable[Point], *, seed: int) -> list[Plan]:
    """Lives in which all these points occur, as few as there can be; drawn so that none comes always with the same."""
    draw = random.Random(seed)
    queues: dict[str, dict[str, list[Point]]] = {}
    for point in sorted(chosen):
        queues.setdefault(point.scenario, {}).setdefault(point.phase, []).append(point)
    found = []
    for scenario, phases in queues.items():
        for queue in phases.values():
            draw.shuffle(queue)
        found += [Plan(scenario, tuple(filter(None, faults))) for faults in zip_longest(*phases.values())]
    draw.shuffle(found)
    return found
