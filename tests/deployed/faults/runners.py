"""Play plans in several local AWSs at once, a process each."""

import multiprocessing
import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import count
from multiprocessing.util import Finalize
from pathlib import Path
from types import TracebackType
from typing import Self

from cli import place
from local.stack import LocalAws
from tests.deployed.faults.environment import SCALE, SWEEPS, Stage
from tests.deployed.faults.lives import LIVES, PLACES, Play, Played, alone, undisturbed
from tests.deployed.faults.points import Outcome, Place, Plan, Point

# How often an undisturbed life is played to learn what is called in it.
LESSONS = 3
TRIES = 3


@dataclass(frozen=True, slots=True)
class Lesson:
    """What an undisturbed life shows: which sites are met in which place, and what people are told; `fresh`: with
    functions that are new in every phase."""

    life: str
    fresh: bool
    met: Mapping[Place, frozenset[str]]
    told: frozenset[str]
    wrong: str


@dataclass(frozen=True, slots=True)
class Learnt:
    """What all lessons have shown; `once` are the sites that only a function comes to that is new in that place."""

    met: Mapping[Place, frozenset[str]]
    once: Mapping[Place, frozenset[str]]
    told: Mapping[str, frozenset[str]]


@dataclass(frozen=True, slots=True)
class Performance:
    """What came of a plan: an outcome a point, every site that was met, and what is wrong only where its faults come
    together, twice."""

    outcomes: tuple[Outcome, ...]
    sites: frozenset[str]
    together: str = ""
    passing: str = ""


def perform(stage: "Numbered", plan: Plan, learnt: Learnt) -> Performance:
    """Play the plan; where the run does not survive it, or a letter is left, play each of its faults alone; what was
    not met is tried again, with fresh workers."""
    played, sites = stage.play(plan, learnt)
    outcomes, found = [], set(sites)
    for point in plan.faults:
        if point.phase in played.fired and not played.wrong and not played.letters:
            outcomes.append(Outcome(point, reached=True, held=point.phase in played.held))
            continue
        outcome, more = _alone(stage, point, learnt)
        outcomes.append(outcome)
        found |= more
    together = passing = ""
    if played.wrong and not any(outcome.wrong for outcome in outcomes):
        again, more = stage.play(plan, learnt)
        found |= more
        together, passing = (again.wrong, "") if again.wrong else ("", played.wrong)
    elif played.letters and not any(outcome.letters for outcome in outcomes):
        passing = f"a letter in {', '.join(played.letters)}, with its alarm"
    return Performance(tuple(outcomes), frozenset(found), together, passing)


def _alone(stage: "Numbered", point: Point, learnt: Learnt) -> tuple[Outcome, set[str]]:
    """One fault in a life of its own, in which the function is new when its phase begins if it has to be."""
    found: set[str] = set()
    at = Place(point.life, point.phase)
    for number in range(TRIES):
        once = learnt.once if number == 0 else {at: frozenset({point.site})}
        played, sites = stage.play(alone(point), Learnt(learnt.met, once, learnt.told))
        found |= sites
        if point.phase in played.fired or played.wrong:
            break
    reached, held = point.phase in played.fired, point.phase in played.held
    return Outcome(point, reached, held, played.letters, played.wrong, alone=True), found


def learn(lessons: Iterable[Lesson]) -> Learnt:
    """Sites that all lessons have met, or that only the fresh ones have; told is what people were told in all. What
    only some have met comes as time will have it: nobody can break it when he wants to."""
    known = list(lessons)
    met: dict[Place, frozenset[str]] = {}
    once: dict[Place, frozenset[str]] = {}
    for at in PLACES:
        again = [lesson.met.get(at, frozenset()) for lesson in known if lesson.life == at.life and not lesson.fresh]
        fresh = [lesson.met.get(at, frozenset()) for lesson in known if lesson.life == at.life and lesson.fresh]
        always = frozenset.intersection(*again) if again else frozenset()
        once[at] = frozenset().union(*fresh) - frozenset().union(*again)
        met[at] = always | once[at]
    told = {life: [lesson.told for lesson in known if lesson.life == life] for life in LIVES}
    return Learnt(met, once, {life: all_of[0].intersection(*all_of) for life, all_of in told.items() if all_of})


class Numbered:
    """A stage, and the number of the next run on it."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self._numbers = count(1)

    def play(self, plan: Plan, learnt: Learnt) -> tuple[Played, set[str]]:
        told: Collection[str] = learnt.told.get(plan.life, ())
        played = Play(self.stage, next(self._numbers), plan, told=told, once=learnt.once).play()
        return played, {call.site for call in played.calls}

    def lesson(self, life: str, *, fresh: bool) -> Lesson:
        played = Play(self.stage, next(self._numbers), undisturbed(life), fresh=fresh).play()
        met: dict[Place, set[str]] = {}
        for call in played.calls:
            met.setdefault(Place(life, call.phase), set()).add(call.site)
        return Lesson(life, fresh, {at: frozenset(sites) for at, sites in met.items()}, played.told, played.wrong)


class Runners:
    """Processes that each have a stage; use it as a context manager."""

    def __init__(self, folder: Path, stages: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(stages, context, _set_stage, (folder,))

    def lessons(self) -> Iterator[Lesson]:
        """Each life some times, first with functions that are new in every phase of it."""
        wanted = [(life, number == 0) for number in range(LESSONS) for life in LIVES]
        for done in as_completed([self._pool.submit(_give_lesson, *each) for each in wanted]):
            yield done.result()

    def performances(self, plans: Iterable[Plan], learnt: Learnt) -> Iterator[tuple[Plan, Performance]]:
        """As they are ready."""
        running: dict[Future[Performance], Plan] = {self._pool.submit(_give, plan, learnt): plan for plan in plans}
        for done in as_completed(running):
            yield running[done], done.result()

    def dismiss(self) -> None:
        """What has not begun is not played any more."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.dismiss()


_stages: list[Numbered] = []


def _set_stage(folder: Path) -> None:
    home = folder / f"stage-{os.getpid()}"
    aws = LocalAws(home / "aws", scale=SCALE, schedule_scale=SWEEPS, assemblies=place.SYNTHESES)
    aws.start()
    Finalize(None, _strike, (aws, home), exitpriority=10)
    stage = Numbered(Stage(aws, home / "faults"))
    stage.lesson(next(iter(LIVES)), fresh=False)  # after it nothing is new any more
    _stages.append(stage)


def _strike(aws: LocalAws, home: Path) -> None:
    aws.stop()
    shutil.rmtree(home, ignore_errors=True)


def _give_lesson(life: str, fresh: bool) -> Lesson:
    return _stages[0].lesson(life, fresh=fresh)


def _give(plan: Plan, learnt: Learnt) -> Performance:
    return perform(_stages[0], plan, learnt)
