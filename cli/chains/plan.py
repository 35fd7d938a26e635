"""Plan the next step of each task of a chain, with the reason. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from cli.chains.definition import ChainTask
from cli.chains.fingerprints import TaskFacts, explain_changes, is_run_name, make_fingerprint, make_run_name
from cli.chains.graph import sort_tasks


class TaskState(StrEnum):
    """The state of a task's run."""

    NEW = "new"  # there is no such run and no such job
    RUNNING = "running"
    COMPLETED = "completed"
    HELD = "held"
    STOPPED = "stopped"  # by a person, or its one job has failed unsupervised
    REFUSED = "refused"  # its job could not be started


class TaskStep(StrEnum):
    """The next step for a task."""

    SKIP = "skip"  # it is complete and nothing has changed
    START = "start"
    FOLLOW = "follow"  # its run goes on
    WAIT = "wait"  # for the tasks that it depends on
    HELD = "held"  # its run waits for an operator
    FAILED = "failed"  # its run has ended without a result
    BLOCKED = "blocked"  # a task that it depends on has failed


# What a task cannot start after, the worst first.
OBSTACLES = ((TaskStep.FAILED, "has failed"), (TaskStep.BLOCKED, "does not run"))


@dataclass(frozen=True, slots=True)
class TaskRun:
    """The run that a task stands for now: facts, and the name that follows from them."""

    task: str
    facts: TaskFacts
    # The fingerprint of the first run with these facts, before the task was asked for again.
    first: str
    run: str


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """The next step for one task, and its reason."""

    run: TaskRun
    step: TaskStep
    reason: str

    @property
    def task(self) -> str:
        return self.run.task


def identify_runs(
    chain: str,
    tasks: Mapping[str, ChainTask],
    facts: Mapping[str, TaskFacts],
    repetitions: Mapping[str, int],
    continued: Mapping[str, str],
    again: Collection[str] = (),
) -> dict[str, TaskRun]:
    """Return each task's run, in an order in which the tasks can run.

    `facts` have no artifacts among their inputs yet: each is the run that it comes from. `repetitions` are those of the
    first fingerprints; the tasks of `again` get one more. `continued` has the runs that go on with other facts, by the
    name of the run that these would have.
    """
    found: dict[str, TaskRun] = {}
    for name in sort_tasks(tasks):
        artifacts = {
            one.channel: f"run {found[one.task].run} {one.task}.{one.artifact}"
            for one in tasks[name].inputs
            if one.task
        }
        whole = replace(facts[name], inputs={**facts[name].inputs, **artifacts}, repetition=0)
        first = make_fingerprint(chain, name, whole)
        whole = replace(whole, repetition=repetitions.get(first, 0) + (name in again))
        run = make_run_name(chain, name, make_fingerprint(chain, name, whole))
        earlier = continued.get(run, "")  # others may write the record
        found[name] = TaskRun(name, whole, first, earlier if is_run_name(chain, name, earlier) else run)
    return found


def make_plan(
    tasks: Mapping[str, ChainTask],
    runs: Mapping[str, TaskRun],
    states: Mapping[str, TaskState],
    newest: Mapping[str, TaskFacts],
) -> dict[str, TaskPlan]:
    """Return what is done about each task: `states` are those of `runs`, `newest` the facts of the runs before."""
    plan: dict[str, TaskPlan] = {}
    for name, run in runs.items():
        step, reason = _choose(tasks[name], run, states[name], plan, newest.get(name))
        plan[name] = TaskPlan(run, step, reason)
    return plan


def _choose(
    task: ChainTask, run: TaskRun, state: TaskState, plan: Mapping[str, TaskPlan], before: TaskFacts | None
) -> tuple[TaskStep, str]:
    if state is TaskState.COMPLETED:
        return TaskStep.SKIP, "complete, and nothing has changed"
    if state is TaskState.RUNNING:
        return TaskStep.FOLLOW, "its run goes on"
    if state is TaskState.HELD:
        return TaskStep.HELD, "its run is held"
    if state in (TaskState.STOPPED, TaskState.REFUSED):
        return TaskStep.FAILED, "its run was stopped" if state is TaskState.STOPPED else "its job could not be started"
    reason = explain_start(run.facts, before)
    steps = {name: plan[name].step for name in task.dependencies}
    for wanted, found in OBSTACLES:
        if named := [name for name, step in steps.items() if step is wanted]:
            return TaskStep.BLOCKED, f"{', '.join(named)} {found}"
    if named := [name for name, step in steps.items() if step is TaskStep.HELD]:
        return TaskStep.WAIT, f"for {', '.join(named)}, which is held"
    if missing := [name for name, step in steps.items() if step is not TaskStep.SKIP]:
        return TaskStep.WAIT, f"for {', '.join(missing)}: {reason}"
    return TaskStep.START, reason


def explain_start(now: TaskFacts, before: TaskFacts | None) -> str:
    """Return why a task runs."""
    if before is None:
        return "first run"
    return explain_changes(before, now) or "its run was not started, or is gone"
