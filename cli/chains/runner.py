"""Run a chain to its end: start what is ready, follow what runs, and report each change.

Everything follows from the fingerprints and the state of the runs now, so that a chain which was killed is resumed by
running it again.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from botocore.exceptions import BotoCoreError, ClientError

from cli.chains.definition import Chain
from cli.chains.fingerprints import is_run_name
from cli.chains.plan import TaskPlan, TaskRun, TaskState, TaskStep, make_plan
from cli.chains.records import ChainRecord, ChainRecords
from cli.chains.task_runs import CompletedRun, TaskProgress, TaskRuns, find_places
from cli.submit.problem import Problem
from cli.trouble import is_passing
from cli.wait import SILENCE_S
from rerail.model.errors import StateUnknown

ENDS = (TaskState.COMPLETED, TaskState.STOPPED, TaskState.REFUSED)


@dataclass
class ChainRunner:
    """One call of `rerail chain`."""

    chain: Chain
    runs: Mapping[str, TaskRun]
    records: ChainRecords
    world: TaskRuns
    # Prints a line about a task.
    show: Callable[[str, str], None]
    pause_s: float
    # How many runs of the chain may go on at once; None: as many as are ready.
    most_at_once: int | None = None
    # A held run is waited for, until it is released or stopped.
    waits_for_held: bool = False
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    progress: dict[str, TaskProgress] = field(default_factory=dict)
    # What completed runs have left, by the run's name.
    results: dict[str, CompletedRun] = field(default_factory=dict)
    # The runs that are known to be the tasks' own.
    _own: set[str] = field(default_factory=set)
    _shown: dict[str, str] = field(default_factory=dict)

    def make_plan(self) -> dict[str, TaskPlan]:
        """Return what is done about each task now."""
        self._look()
        return self._plan()

    def run(self) -> dict[str, TaskPlan]:
        """Start and follow the tasks until none runs or can be started; return how it stands then."""
        answered = self.clock()
        while True:
            try:
                self._look()
                self._record_ends()
                plan = self._plan()
                for one in plan.values():
                    self._show_change(one)
                has_started = self._start_ready(plan)
                answered = self.clock()
            except (ClientError, BotoCoreError, StateUnknown) as error:
                # Whatever was started before the error is found by its name.
                cause = error.__cause__ if isinstance(error, StateUnknown) else error
                if not isinstance(cause, Exception) or not is_passing(cause) or self.clock() - answered > SILENCE_S:
                    raise
                self.sleep(self.pause_s)
                continue
            going = {TaskStep.FOLLOW, TaskStep.START, *([TaskStep.HELD] if self.waits_for_held else [])}
            if not has_started and not any(one.step in going for one in plan.values()):
                return plan
            if not has_started:
                self.sleep(self.pause_s)

    def find_earlier_run(self, task: str) -> str:
        """Return the last recorded run of the task; "" for none, or for a name that a run of the task cannot have.

        Others may write the record, and name any run there.
        """
        run = self.records.record.runs.get(task, "")
        return run if is_run_name(self.chain.name, task, run) else ""

    def _plan(self) -> dict[str, TaskPlan]:
        states = {name: found.state for name, found in self.progress.items()}
        return make_plan(self.chain.tasks, self.runs, states, self.records.record.facts)

    def _look(self) -> None:
        """Look at each run that has not ended."""
        for name, run in self.runs.items():
            if name in self.progress and self.progress[name].state in ENDS:
                continue
            found = self._find_own_progress(name, run.run)
            if found.state is TaskState.COMPLETED:
                self.results[run.run] = self.world.find_result(run.run)
            self.progress[name] = replace(found, advice=found.advice.replace("TASK", name))

    def _find_own_progress(self, name: str, run: str) -> TaskProgress:
        """Return the run's progress; a job that this chain has not started counts as refused."""
        found = self.world.find_progress(run)
        if found.state is TaskState.NEW or run in self._own:
            return found
        task = self.chain.tasks[name]
        results = {source: self.results.get(self.runs[source].run) for source in task.sources}
        places = {
            one.channel: result.artifacts[one.artifact]
            for one in task.inputs
            if (result := results.get(one.task)) is not None
        }
        try:
            self.world.check_own(task, run, places)
        except Problem as problem:
            return TaskProgress(TaskState.REFUSED, problem.what, problem.remedy)
        self._own.add(run)
        return found

    def _record_ends(self) -> None:
        """Record which run each complete task stands for."""
        for name, run in self.runs.items():
            if self.progress[name].state is not TaskState.COMPLETED:
                continue
            if self.records.record.runs.get(name) != run.run:
                self.records.change(partial(ChainRecord.with_run, task=name, run=run.run, facts=run.facts))

    def _start_ready(self, plan: Mapping[str, TaskPlan]) -> bool:
        """Start the tasks that are ready, as many as may run; return whether one was."""
        running = sum(one.step is TaskStep.FOLLOW for one in plan.values())
        started = False
        for one in plan.values():
            if one.step is not TaskStep.START or (self.most_at_once is not None and running >= self.most_at_once):
                continue
            started = True
            running += self._start(one)
        return started

    def _start(self, one: TaskPlan) -> bool:
        """Start a task's run; return whether it goes on."""
        task, run = self.chain.tasks[one.task], one.run
        try:
            places = find_places(task, {source: self.results[self.runs[source].run] for source in task.sources})
            for source in task.inputs:
                if source.task:
                    self.world.check_artifact(task, source, places[source.channel])
            self._warn_of_earlier_run(task.name)
            self.records.change(partial(ChainRecord.with_run, task=task.name, run=run.run, facts=run.facts))
            self.show(task.name, f"starts: {one.reason}")
            for line in self.world.start(task, run.run, places):
                self.show(task.name, line)
        except Problem as problem:
            # Somebody else may have started the same run since.
            if (found := self._find_own_progress(one.task, run.run)).state is not TaskState.NEW:
                self.progress[task.name] = found
                return True
            self.progress[task.name] = TaskProgress(TaskState.REFUSED, problem.what, problem.remedy)
            return False
        self._own.add(run.run)
        self.progress[task.name] = TaskProgress(TaskState.RUNNING, "started")
        return True

    def _warn_of_earlier_run(self, task: str) -> None:
        earlier = self.find_earlier_run(task)
        if earlier and self.world.find_progress(earlier).state is TaskState.RUNNING:
            stop = self.world.where.complete_text(f"rerail stop {earlier}")
            self.show(task, f"warning: its earlier run {earlier} goes on; `{stop}` ends it")

    def _show_change(self, one: TaskPlan) -> None:
        found = self.progress[one.task]
        text = {
            TaskStep.SKIP: "complete",
            TaskStep.WAIT: f"waits {one.reason}",
            TaskStep.BLOCKED: f"does not run: {one.reason}",
        }.get(one.step, found.text or one.reason)
        if one.step is TaskStep.SKIP and not self._shown.get(one.task):
            text = f"skipped: {one.reason} ({one.run.run})"
        if one.step is not TaskStep.START and text != self._shown.get(one.task):
            self._shown[one.task] = text
            self.show(one.task, text)
            if found.advice:
                self.show(one.task, f"to do: {found.advice}")
