"""Run plans in several local AWSs at once, a process each."""

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
from local.pace import measure_pace
from local.stack import LocalAws
from tests.deployed.faults.faulty_aws import SCALE, SWEEPS, FaultyAws
from tests.deployed.faults.points import Outcome, Phase, Plan, Point
from tests.deployed.faults.scenarios import PHASES, SCENARIOS, ScenarioResult, ScenarioRun, alone, undisturbed
from tests.deployed.jobs import patient

# How often a scenario runs without any fault, to learn what is called in it.
LESSONS = 3
TRIES = 3


@dataclass(frozen=True, slots=True)
class Lesson:
    """What an undisturbed scenario shows: which sites are met in which place, and what people are told; `fresh`: with
    functions that are new in every phase."""

    scenario: str
    fresh: bool
    met: Mapping[Phase, frozenset[str]]
    notices: frozenset[str]
    wrong: str


@dataclass(frozen=True, slots=True)
class Learnt:
    """What all lessons have shown; `once` are the sites that only a function comes to that is new in that place."""

    met: Mapping[Phase, frozenset[str]]
    once: Mapping[Phase, frozenset[str]]
    notices: Mapping[str, frozenset[str]]


@dataclass(frozen=True, slots=True)
class PlanResult:
    """What came of a plan: an outcome a point, every site that was met, and what is wrong only where its faults come
    together, twice."""

    outcomes: tuple[Outcome, ...]
    sites: frozenset[str]
    together: str = ""
    passing: str = ""


def run_plan(faulty: "ScenarioRunner", plan: Plan, learnt: Learnt) -> PlanResult:
    """Run the plan. Run each of its faults alone where the run does not survive, or where a dead letter is left. Try a
    call that was not met again, with new workers."""
    result, sites = faulty.execute(plan, learnt)
    outcomes, found = [], set(sites)
    for point in plan.faults:
        if point.phase in result.fired and not result.wrong and not result.letters:
            outcomes.append(Outcome(point, reached=True, held=point.phase in result.held))
            continue
        outcome, more = _alone(faulty, point, learnt)
        outcomes.append(outcome)
        found |= more
    together = passing = ""
    if result.wrong and not any(outcome.wrong for outcome in outcomes):
        again, more = faulty.execute(plan, learnt)
        found |= more
        together, passing = (again.wrong, "") if again.wrong else ("", result.wrong)
    elif result.letters and not any(outcome.letters for outcome in outcomes):
        passing = f"a letter in {', '.join(result.letters)}, with its alarm"
    return PlanResult(tuple(outcomes), frozenset(found), together, passing)


def _alone(faulty: "ScenarioRunner", point: Point, learnt: Learnt) -> tuple[Outcome, set[str]]:
    """Run one fault in a scenario of its own, with a new worker for its phase where the call needs one."""
    found: set[str] = set()
    at = Phase(point.scenario, point.phase)
    for number in range(TRIES):
        once = learnt.once if number == 0 else {at: frozenset({point.site})}
        result, sites = faulty.execute(alone(point), Learnt(learnt.met, once, learnt.notices))
        found |= sites
        if point.phase in result.fired or result.wrong:
            break
    reached, held = point.phase in result.fired, point.phase in result.held
    return Outcome(point, reached, held, result.letters, result.wrong, alone=True), found


def learn(lessons: Iterable[Lesson]) -> Learnt:
    """Return the sites that all lessons have met, or only those with new workers, and the notices of all lessons.

    A site that only some have met depends on timing, and cannot be broken on purpose."""
    known = list(lessons)
    met: dict[Phase, frozenset[str]] = {}
    once: dict[Phase, frozenset[str]] = {}
    for at in PHASES:
        again = [
            lesson.met.get(at, frozenset()) for lesson in known if lesson.scenario == at.scenario and not lesson.fresh
        ]
        fresh = [lesson.met.get(at, frozenset()) for lesson in known if lesson.scenario == at.scenario and lesson.fresh]
        always = frozenset.intersection(*again) if again else frozenset()
        once[at] = frozenset().union(*fresh) - frozenset().union(*again)
        met[at] = always | once[at]
    expected = {scenario: [lesson.notices for lesson in known if lesson.scenario == scenario] for scenario in SCENARIOS}
    return Learnt(
        met, once, {scenario: all_of[0].intersection(*all_of) for scenario, all_of in expected.items() if all_of}
    )


class ScenarioRunner:
    """A local AWS with faults, and the number of the next run in it."""

    def __init__(self, faulty: FaultyAws) -> None:
        self.faulty = faulty
        self._numbers = count(1)

    def execute(self, plan: Plan, learnt: Learnt) -> tuple[ScenarioResult, set[str]]:
        expected: Collection[str] = learnt.notices.get(plan.scenario, ())
        result = ScenarioRun(self.faulty, next(self._numbers), plan, expected=expected, once=learnt.once).execute()
        return result, {call.site for call in result.calls}

    def lesson(self, scenario: str, *, fresh: bool) -> Lesson:
        result = ScenarioRun(self.faulty, next(self._numbers), undisturbed(scenario), fresh=fresh).execute()
        met: dict[Phase, set[str]] = {}
        for call in result.calls:
            met.setdefault(Phase(scenario, call.phase), set()).add(call.site)
        return Lesson(
            scenario, fresh, {at: frozenset(sites) for at, sites in met.items()}, result.notices, result.wrong
        )


class Runners:
    """Processes that each have a local AWS; use it as a context manager."""

    def __init__(self, folder: Path, environments: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(environments, context, _start_aws, (folder,))

    def lessons(self) -> Iterator[Lesson]:
        """Yield what each scenario shows without faults, first with new workers in every phase."""
        wanted = [(scenario, number == 0) for number in range(LESSONS) for scenario in SCENARIOS]
        for done in as_completed([self._pool.submit(_learn_from, *lesson) for lesson in wanted]):
            yield done.result()

    def run_plans(self, plans: Iterable[Plan], learnt: Learnt) -> Iterator[tuple[Plan, PlanResult]]:
        """As they are ready."""
        running: dict[Future[PlanResult], Plan] = {self._pool.submit(_run_plan, plan, learnt): plan for plan in plans}
        for done in as_completed(running):
            yield running[done], done.result()

    def shut_down(self) -> None:
        """Cancel the plans that have not begun."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shut_down()


_runners: list[ScenarioRunner] = []


def _start_aws(folder: Path) -> None:
    home, pace = folder / f"faulty-{os.getpid()}", measure_pace()
    scale, sweeps = SCALE / pace.slowdown, SWEEPS / pace.slowdown
    aws = LocalAws(home / "aws", scale=scale, schedule_scale=sweeps, assemblies=place.SYNTHESES)
    aws.start()
    Finalize(None, _stop_aws, (aws, home), exitpriority=10)
    faulty = ScenarioRunner(FaultyAws(aws, home / "faults", pace, lambda policy: patient(policy, pace)))
    faulty.lesson(next(iter(SCENARIOS)), fresh=False)  # after it nothing is new any more
    _runners.append(faulty)


def _stop_aws(aws: LocalAws, home: Path) -> None:
    aws.stop()
    shutil.rmtree(home, ignore_errors=True)


def _learn_from(scenario: str, fresh: bool) -> Lesson:
    return _runners[0].lesson(scenario, fresh=fresh)


def _run_plan(plan: Plan, learnt: Learnt) -> PlanResult:
    return run_plan(_runners[0], plan, learnt)
