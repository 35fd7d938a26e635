"""The invariants of a chain over any graph, any order of events, and a kill at any point."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cli.chains.command import continue_run
from cli.chains.definition import Artifact, Chain, ChainTask, TaskInput
from cli.chains.fingerprints import TaskFacts
from cli.chains.plan import TaskState, TaskStep, identify_runs, make_plan
from cli.chains.records import ChainRecords, format_record
from cli.chains.runner import ChainRunner
from cli.chains.task_runs import CompletedRun, TaskProgress
from cli.submit.problem import Problem
from tests.cli.chains.graphs import chains, find_dependents
from tests.cli.cloud import refused


class Killed(BaseException):
    """The process has ended, between any two calls."""


class OneObject:
    """S3 with conditional writes, for one object."""

    def __init__(self) -> None:
        self.body, self.etag = b"", ""

    def get_object(self, **_: str) -> dict:
        if not self.etag:
            raise refused("NoSuchKey")
        return {"ETag": self.etag, "Body": SimpleNamespace(read=lambda most: self.body[:most])}

    def put_object(self, *, Body: bytes, IfMatch: str = "", IfNoneMatch: str = "", **_: str) -> dict:
        if self.etag != IfMatch or (IfNoneMatch and self.etag):
            raise refused("PreconditionFailed")
        self.body, self.etag = Body, f"{int(self.etag or 0) + 1}"
        return {"ETag": self.etag}


@dataclass
class World:
    """SageMaker and Rerail as a chain sees them: names are unique, and each look takes a run further."""

    ends: Mapping[str, TaskState] = field(default_factory=dict)
    looks: int = 2
    s3: OneObject = field(default_factory=OneObject)
    started: list[str] = field(default_factory=list)
    # Calls until the process is killed; None: it is not.
    left: int | None = None
    # Jobs that others have started under the names of tasks.
    strangers: set[str] = field(default_factory=set)
    _states: dict[str, TaskState] = field(default_factory=dict)
    _looked: dict[str, int] = field(default_factory=dict)
    where = SimpleNamespace(complete_text=lambda command: command)

    def _count(self) -> None:
        if self.left is not None:
            if not self.left:
                raise Killed
            self.left -= 1

    def find_progress(self, run: str) -> TaskProgress:
        self._count()
        if run in self._states and self._states[run] is TaskState.RUNNING:
            self._looked[run] = self._looked.get(run, 0) + 1
            if self._looked[run] > self.looks:
                self._states[run] = self.ends.get(run.split("-")[1], TaskState.COMPLETED)
        return TaskProgress(self._states.get(run, TaskState.NEW), f"{run} looked at")

    def find_result(self, run: str) -> CompletedRun:
        self._count()
        assert self._states[run] is TaskState.COMPLETED
        return CompletedRun(run, {kind.value: f"s3://b/{run}/{kind}" for kind in Artifact})

    def check_own(self, task: ChainTask, run: str, places: Mapping[str, str]) -> None:
        self._count()
        if run in self.strangers:
            raise Problem(f"the job {run} is not the task's", "find out who started it")
        assert set(places) <= {one.channel for one in task.inputs}

    def check_artifact(self, task: ChainTask, one: TaskInput, uri: str) -> None:
        self._count()
        assert self._states[uri.split("/")[3]] is TaskState.COMPLETED

    def start(self, task: ChainTask, run: str, places: Mapping[str, str]) -> tuple[str, ...]:
        self._count()
        assert run not in self._states, "a second job of one name"
        for dependency in task.dependencies:
            states = [state for name, state in self._states.items() if name.split("-")[1] == dependency]
            assert TaskState.COMPLETED in states, f"{task.name} before {dependency}"
        self._states[run] = TaskState.RUNNING
        self.started.append(run)
        self._count()
        return ()


def make_runner(
    chain: Chain, world: World, facts: Mapping[str, TaskFacts], lines: list[str] | None = None
) -> ChainRunner:
    """Return what one call of the command has."""
    records = ChainRecords(world.s3, "b", "k")
    runs = identify_runs(chain.name, chain.tasks, facts, records.read().repetitions, records.record.continued)
    shown = [] if lines is None else lines
    return ChainRunner(
        chain, runs, records, world, lambda task, line: shown.append(f"{task}: {line}"), 0.0, sleep=lambda _: None
    )  # type: ignore[arg-type]


def facts_of(chain: Chain, **changed: str) -> dict[str, TaskFacts]:
    return {name: TaskFacts(code=changed.get(name, "1")) for name in chain.tasks}


@given(chains(), st.lists(st.integers(0, 40), max_size=4), st.data())
@settings(max_examples=150, deadline=None)
def test_killed_anywhere_and_resumed_each_task_starts_once_and_a_change_repeats_what_reads_from_it(chain, kills, data):
    world = World()
    for left in kills:
        world.left = left
        try:
            make_runner(chain, world, facts_of(chain)).run()
        except Killed:
            continue
    world.left = None
    plan = make_runner(chain, world, facts_of(chain)).run()
    assert {one.step for one in plan.values()} == {TaskStep.SKIP}
    assert sorted(run.split("-")[1] for run in world.started) == sorted(chain.tasks)

    make_runner(chain, world, facts_of(chain)).run()
    assert len(world.started) == len(chain.tasks), "nothing has changed"

    changed, before = data.draw(st.sampled_from(sorted(chain.tasks))), len(world.started)
    planned = make_runner(chain, world, facts_of(chain, **{changed: "2"})).make_plan()
    repeated = {changed, *find_dependents(chain.tasks, changed, by_data=True)}
    assert {name for name, one in planned.items() if one.step is not TaskStep.SKIP} == repeated
    assert len(world.started) == before, "a plan starts nothing"
    make_runner(chain, world, facts_of(chain, **{changed: "2"})).run()
    assert sorted(run.split("-")[1] for run in world.started[before:]) == sorted(repeated)


@given(chains(), st.data())
@settings(max_examples=100, deadline=None)
def test_what_depends_on_a_run_without_result_does_not_start_and_all_else_completes(chain, data):
    bad = data.draw(st.sampled_from(sorted(chain.tasks)))
    end = data.draw(st.sampled_from([TaskState.HELD, TaskState.STOPPED]))
    world = World(ends={bad: end})
    plan = make_runner(chain, world, facts_of(chain)).run()
    dependents = find_dependents(chain.tasks, bad)
    assert {name for name, one in plan.items() if one.step is TaskStep.SKIP} == set(chain.tasks) - dependents - {bad}
    assert plan[bad].step is (TaskStep.HELD if end is TaskState.HELD else TaskStep.FAILED)
    steps = {plan[name].step for name in dependents}
    assert steps <= ({TaskStep.WAIT} if end is TaskState.HELD else {TaskStep.BLOCKED})


DIAMOND = Chain(
    "c",
    Path("rerail.toml"),
    {
        "a": ChainTask("a", Path("x")),
        "b": ChainTask("b", Path("x"), inputs=(TaskInput("i", task="a"),)),
        "d": ChainTask("d", Path("x"), inputs=(TaskInput("i", task="a"),)),
        "e": ChainTask("e", Path("x"), inputs=(TaskInput("i", task="b"), TaskInput("j", task="d")), after=("a",)),
    },
)


def test_independent_tasks_run_in_parallel_as_many_as_may():
    parallel, single = World(), World()
    most = []
    for world, limit in ((parallel, None), (single, 1)):
        runner = make_runner(DIAMOND, world, facts_of(DIAMOND))
        runner.most_at_once, going = limit, []
        runner.sleep = lambda _, runner=runner, going=going: going.append(
            sum(found.state is TaskState.RUNNING for found in runner.progress.values())
        )
        runner.run()
        most.append(max(going))
    assert most == [2, 1] and len(parallel.started) == len(single.started) == 4


def test_a_held_run_that_is_released_is_waited_for_on_request():
    world = World(ends={"b": TaskState.HELD})
    lines: list[str] = []
    runner = make_runner(DIAMOND, world, facts_of(DIAMOND), lines)
    runner.waits_for_held = True
    held = next(run.run for name, run in runner.runs.items() if name == "b")

    def release(_: float) -> None:
        if world._states.get(held) is TaskState.HELD:
            world._states[held], world.ends = TaskState.RUNNING, {}

    runner.sleep = release
    assert {one.step for one in runner.run().values()} == {TaskStep.SKIP}


def test_a_job_that_somebody_else_has_started_meanwhile_is_followed():
    world = World()
    runner = make_runner(DIAMOND, world, facts_of(DIAMOND))

    def start(task: ChainTask, run: str, places: Mapping[str, str]) -> tuple[str, ...]:
        if run not in world._states:
            world._states[run] = TaskState.RUNNING
        raise Problem(f"--name {run}: a job of that name exists", "give another --name")

    world.start = start  # type: ignore[method-assign]
    assert {one.step for one in runner.run().values()} == {TaskStep.SKIP}


def test_a_refused_job_ends_its_branch_with_the_remedy():
    world, lines = World(), []
    runner = make_runner(DIAMOND, world, facts_of(DIAMOND), lines)
    start = world.start

    def refuse_b(task: ChainTask, run: str, places: Mapping[str, str]) -> tuple[str, ...]:
        if task.name == "b":
            raise Problem("task b: the account's quota does not allow it", "ask for more")
        return start(task, run, places)

    world.start = refuse_b  # type: ignore[method-assign]
    plan = runner.run()
    assert {name: one.step for name, one in plan.items()} == {
        "a": TaskStep.SKIP, "b": TaskStep.FAILED, "d": TaskStep.SKIP, "e": TaskStep.BLOCKED,
    }  # fmt: skip
    assert "b: task b: the account's quota does not allow it" in lines and "b: to do: ask for more" in lines


@pytest.mark.parametrize("call", ["find_progress", "find_result", "check_artifact", "start"])
def test_a_network_that_is_down_for_a_moment_ends_no_chain(monkeypatch, call):
    """After the call that AWS has carried out, its answer is lost."""
    world = World()
    answer, calls = getattr(world, call), []

    def lose_two(*given, **named):
        answered = answer(*given, **named)
        calls.append(call)
        if len(calls) in (1, 3):
            raise refused("ThrottlingException")
        return answered

    monkeypatch.setattr(world, call, lose_two)
    assert {one.step for one in make_runner(DIAMOND, world, facts_of(DIAMOND)).run().values()} == {TaskStep.SKIP}
    assert len(world.started) == 4 and calls


def test_the_record_keeps_the_changes_of_two_at_once():
    s3 = OneObject()
    first, second = ChainRecords(s3, "b", "k"), ChainRecords(s3, "b", "k")
    first.read(), second.read()
    facts = TaskFacts(code="1")
    first.change(lambda record: record.with_run("a", "run-a", facts))
    second.change(lambda record: record.with_run("b", "run-b", facts))
    first.change(lambda record: record.with_repetition("f", 2))
    read = ChainRecords(s3, "b", "k").read()
    assert read == first.record and read.runs == {"a": "run-a", "b": "run-b"} and read.repetitions == {"f": 2}
    assert read.facts["a"] == facts


EMPTY = {"version": 1, "runs": {}, "facts": {}, "repetitions": {}, "continued": {}}
FORGED = [
    {"runs": {"b": 7}},
    {"repetitions": {"f": "x"}},
    {"continued": {"c-b-0": None}},
    *({"facts": {"b": {"code": "1", **facts}}} for facts in ({"options": 5}, {"arguments": [5]}, {"files": {"a": 1}})),
]


@pytest.mark.parametrize(
    "body",
    [
        b"not JSON",
        b"{}",
        b'{"version": 99}',
        b"[]",
        *(json.dumps(EMPTY | part).encode() for part in FORGED),
        pytest.param(b" " * 70_000_000, id="large"),
    ],
)
def test_a_record_that_cannot_be_read_comes_with_its_remedy(body):
    s3 = OneObject()
    s3.put_object(Body=body, IfNoneMatch="*")
    with pytest.raises(Problem) as raised:
        ChainRecords(s3, "b", "k").read()
    assert "s3://b/k" in raised.value.what and raised.value.remedy


def test_a_lost_record_starts_nothing_twice():
    world = World()
    make_runner(DIAMOND, world, facts_of(DIAMOND)).run()
    world.s3 = OneObject()
    plan = make_runner(DIAMOND, world, facts_of(DIAMOND)).run()
    assert {one.step for one in plan.values()} == {TaskStep.SKIP} and len(world.started) == 4


def test_asked_for_again_a_task_and_what_reads_from_it_run_again():
    facts = facts_of(DIAMOND)
    before = identify_runs("c", DIAMOND.tasks, facts, {}, {})
    after = identify_runs("c", DIAMOND.tasks, facts, {}, {}, ["b"])
    assert {name for name in before if before[name].run != after[name].run} == {"b", "e"}
    kept = identify_runs("c", DIAMOND.tasks, facts, {before["b"].first: 1}, {})
    assert kept == after
    states = {name: TaskState.NEW if name in "be" else TaskState.COMPLETED for name in after}
    newest = {name: run.facts for name, run in before.items()}
    plan = make_plan(DIAMOND.tasks, after, states, newest)
    assert plan["b"].reason == "asked for again" and plan["e"].reason.startswith("for b: input i changed: another b.")


def test_what_changes_back_is_complete_still_and_is_the_task_from_then_on():
    world = World()
    make_runner(DIAMOND, world, facts_of(DIAMOND)).run()
    make_runner(DIAMOND, world, facts_of(DIAMOND, e="2")).run()
    back = make_runner(DIAMOND, world, facts_of(DIAMOND))
    assert {one.step for one in back.run().values()} == {TaskStep.SKIP} and len(world.started) == 5
    assert back.records.record.runs["e"] == back.runs["e"].run


def test_a_held_task_is_continued_with_what_its_sources_have_left():
    world = World(ends={"b": TaskState.HELD})
    before = make_runner(DIAMOND, world, facts_of(DIAMOND))
    before.run()
    given = {}

    class Submitter:
        def continue_run(self, task, run, *, places):
            given[run] = places
            return ()

    runner = make_runner(DIAMOND, world, facts_of(DIAMOND, b="2"))
    continue_run(runner, Submitter(), "b", dry_run=False)
    assert given == {before.runs["b"].run: {"i": before.results[before.runs["a"].run].artifacts["output"]}}


@pytest.mark.threat("T35")
def test_a_job_that_others_named_first_is_not_the_tasks_run():
    """Nothing reads what it has left, and no other is started under the name."""
    world = World()
    before = make_runner(DIAMOND, world, facts_of(DIAMOND))
    forged = before.runs["a"].run
    world._states[forged] = TaskState.COMPLETED
    world.strangers.add(forged)
    lines: list[str] = []
    plan = make_runner(DIAMOND, world, facts_of(DIAMOND), lines).run()
    assert plan["a"].step is TaskStep.FAILED and plan["b"].step is TaskStep.BLOCKED
    assert not any(run.startswith("c-e-") for run in world.started)
    assert any("is not the task's" in line for line in lines)


@pytest.mark.threat("T35")
def test_a_record_that_others_wrote_gives_no_task_its_data():
    """An entry of an earlier version named what a run has left; it is not read any more."""
    world = World()
    runner = make_runner(DIAMOND, world, facts_of(DIAMOND))
    poison = {"job": "x", "artifacts": dict.fromkeys(("model", "output", "checkpoints"), "s3://mallory/poison/")}
    plain = {**json.loads(format_record(runner.records.record)), "completed": {runner.runs["a"].run: poison}}
    world.s3.put_object(Body=json.dumps(plain).encode(), IfNoneMatch="*")
    runner = make_runner(DIAMOND, world, facts_of(DIAMOND))
    assert {one.step for one in runner.run().values()} == {TaskStep.SKIP} and len(world.started) == 4
    assert "mallory" not in repr(runner.results)


@pytest.mark.threat("T35")
@pytest.mark.parametrize("state", [TaskState.HELD, TaskState.RUNNING])
def test_a_record_that_others_wrote_names_no_run_of_others(state):
    """Neither is that run continued with the task's code, nor is a person told to stop it."""
    world = World(ends={"b": TaskState.STOPPED})
    runner = make_runner(DIAMOND, world, facts_of(DIAMOND))
    runner.run()
    runner.records.change(lambda record: record.with_run("b", "victim-b-0", TaskFacts(code="0")))
    changed = make_runner(DIAMOND, world, facts_of(DIAMOND, b="2")).runs["b"].run
    runner.records.change(lambda record: record.with_continued(changed, "victim-b-0"))
    world._states["victim-b-0"] = state
    lines: list[str] = []
    runner = make_runner(DIAMOND, world, facts_of(DIAMOND, b="2"), lines)
    with pytest.raises(Problem, match="nothing has changed"):
        continue_run(runner, None, "b", dry_run=False)
    assert runner.run()["b"].run.run == changed
    assert not any("victim" in line for line in lines)
