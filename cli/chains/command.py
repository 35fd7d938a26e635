"""`rerail chain`: run several tasks, each a supervised run, and resume where an earlier call was ended."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from cli import place
from cli.chains.definition import Chain, find_file, read_chain
from cli.chains.fingerprints import explain_changes
from cli.chains.graph import sort_tasks
from cli.chains.plan import TaskPlan, TaskRun, TaskState, TaskStep, identify_runs
from cli.chains.records import ChainRecord, ChainRecords
from cli.chains.runner import ChainRunner
from cli.chains.state_machine import MachineTask, make_state_machine
from cli.chains.submission import Submitter
from cli.chains.task_runs import CompletedRun, TaskRuns, find_places, make_record_key
from cli.console import Console
from cli.place import AsJson, Local, Place
from cli.submit import options
from cli.submit.account import SubmissionAccount
from cli.submit.problem import Problem
from cli.submit.settings import read_defaults
from cli.wait import LOCAL_PAUSE_S, PAUSE_S

INTERRUPTED, INCOMPLETE = 130, 1
STYLES = {
    TaskStep.SKIP: "green",
    TaskStep.START: "bold cyan",
    TaskStep.FOLLOW: "cyan",
    TaskStep.HELD: "yellow",
    TaskStep.FAILED: "red",
    TaskStep.BLOCKED: "red",
}


def chain(
    name: Annotated[str, typer.Argument(help="The chain; not needed if the file has one.")] = "",
    file: Annotated[Path | None, typer.Option(help="The file of the chain, or its folder (rerail.toml).")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would run and why; start nothing.")] = False,
    again: Annotated[
        list[str] | None, typer.Option("--again", metavar="TASK", help="Run a task again though nothing has changed.")
    ] = None,
    continue_task: Annotated[
        str, typer.Option("--continue", metavar="TASK", help="Let its held or stopped run go on with what has changed.")
    ] = "",
    at_once: Annotated[
        int | None, typer.Option("--at-once", min=1, help="So many tasks at a time (all that are ready).")
    ] = None,
    wait_for_held: Annotated[
        bool, typer.Option("--wait-for-held", help="Wait until a held run is released, rather than end.")
    ] = False,
    state_machine: Annotated[
        bool, typer.Option("--state-machine", help="Upload the tasks; print a definition for Step Functions.")
    ] = False,
    local: Local = False,
    as_json: AsJson = False,
) -> None:
    """Run the tasks of a chain in order; skip what is complete and unchanged.

    Each task is a supervised run. Called again, it resumes: a run that goes on is followed, none is started twice.
    Exit status 0 if all are complete, 1 if a run is held, stopped or refused.
    """
    place.LOCAL_STATE = place.LOCAL_STATE.absolute()  # a task is submitted from the folder of its file
    where = place.find(local=local)
    screen = ChainScreen(as_json or state_machine)
    try:
        found = read_chain(find_file(file, Path.cwd()), name)
        submitter = Submitter(found, local=local)
        records, world = find_records(found, where), TaskRuns(where, submitter, format_command(where, found, file))
        runs = identify(found, submitter, records, again or (), world)
        runner = ChainRunner(
            chain=found,
            runs=runs,
            records=records,
            world=world,
            show=screen.show,
            pause_s=LOCAL_PAUSE_S if local else PAUSE_S,
            most_at_once=at_once,
            waits_for_held=wait_for_held,
        )
        if continue_task:
            runner = continue_run(runner, submitter, continue_task, dry_run=dry_run)
        if dry_run:
            plan = runner.make_plan()
            screen.show_plan(found, plan)
            return
        for task in again or ():
            number = runs[task].facts.repetition
            records.change(partial(ChainRecord.with_repetition, fingerprint=runs[task].first, number=number))
        if state_machine:
            machine = upload_state_machine(runner, submitter)
            typer.echo(json.dumps(machine, indent=2))
            screen.say(f"a role that may run it is that of {where.outputs['TrainSupervisedArn']}")
            return
        plan = runner.run()
    except Problem as problem:
        place.fail(problem.what, problem.remedy)
    except KeyboardInterrupt:
        screen.say(f"the runs go on; `{world.command}` follows them again, `rerail stop RUN` ends one")
        raise typer.Exit(INTERRUPTED) from None
    screen.end(found, plan, runner)


def find_records(chain: Chain, where: Place) -> ChainRecords:
    """Return the chain's record in S3, in the bucket of its tasks."""
    usual = read_defaults(chain.file.parent, Path.home())
    account = SubmissionAccount(is_local=where.is_local)
    bucket = options.find_bucket(account, usual.get("bucket", ""))
    account.check_bucket(bucket)
    return ChainRecords(where.client("s3"), bucket, make_record_key(chain))


def identify(
    chain: Chain, submitter: Submitter, records: ChainRecords, again: Sequence[str], world: TaskRuns
) -> dict[str, TaskRun]:
    """Return each task's run, as its code, arguments, options and inputs are now, those of `again` anew."""
    for task in again:
        if task not in chain.tasks:
            raise Problem(f"--again {task}: the chain has no such task", f"known: {', '.join(chain.tasks)}")
    sort_tasks(chain.tasks)  # a circle is named before anything is read
    facts = {name: submitter.find_facts(task) for name, task in chain.tasks.items()}
    record = records.read()
    runs = identify_runs(chain.name, chain.tasks, facts, record.repetitions, record.continued)
    for task in again:
        run = runs[task].run
        if world.find_progress(run).state is TaskState.RUNNING:
            raise Problem(f"--again {task}: its run {run} goes on", f"wait for it, or end it with `rerail stop {run}`")
    return identify_runs(chain.name, chain.tasks, facts, record.repetitions, record.continued, again) if again else runs


def continue_run(runner: ChainRunner, submitter: Submitter, task: str, *, dry_run: bool) -> ChainRunner:
    """Let the task's held or stopped run go on with the task as it is now; return a runner that follows it."""
    if task not in runner.chain.tasks:
        raise Problem(f"--continue {task}: the chain has no such task", f"known: {', '.join(runner.chain.tasks)}")
    record, now = runner.records.record, runner.runs[task]
    earlier, before = runner.find_earlier_run(task), record.facts.get(task)
    if not earlier or before is None or earlier == now.run:
        raise Problem(
            f"--continue {task}: nothing has changed since its run {earlier or now.run} began",
            f"change its code, arguments or options first; `rerail release {earlier or now.run}` repeats them",
        )
    if before.arguments and not now.facts.arguments:
        raise Problem(f"--continue {task}: a run cannot lose all of its arguments", "keep one, or let it begin anew")
    progress = runner.world.find_progress(earlier)
    if progress.state not in (TaskState.HELD, TaskState.STOPPED):
        raise Problem(
            f"--continue {task}: its run {earlier} is {progress.state.value}", "only a held or stopped run is continued"
        )
    runner.make_plan()  # looks at the sources
    results = runner.results
    sources = {source: runner.runs[source].run for source in runner.chain.tasks[task].sources}
    if missing := [source for source, run in sources.items() if run not in results]:
        raise Problem(f"--continue {task}: {', '.join(missing)} is not complete", "run the chain without it first")
    runner = replace(runner, runs={**runner.runs, task: replace(now, run=earlier)})
    if dry_run:
        return runner
    places = find_places(runner.chain.tasks[task], {source: results[run] for source, run in sources.items()})
    # Recorded first: a chain that is killed now must not start another run.
    runner.records.change(lambda record: record.with_continued(now.run, earlier).with_run(task, earlier, now.facts))
    runner.show(task, f"continues {earlier}: {explain_changes(before, now.facts)}")
    for line in submitter.continue_run(runner.chain.tasks[task], earlier, places=places):
        runner.show(task, line)
    return runner


def format_command(where: Place, chain: Chain, file: Path | None) -> str:
    """Return the command that runs the chain."""
    words = ["rerail", "chain", chain.name, *(["--file", str(file)] if file else [])]
    return where.complete_text(shlex.join(words))


def upload_state_machine(runner: ChainRunner, submitter: Submitter) -> dict[str, Any]:
    """Upload what the jobs need, and return the state machine of the tasks that are not complete."""
    where = runner.world.where
    if not where.outputs.get("OrchestrateFunctionName"):
        raise Problem(
            f"{where.name} has no function that answers state machines",
            'set "orchestration": true in cdk.json, and deploy it again',
        )
    plan = runner.make_plan()
    missing = {name for name, one in plan.items() if one.step is not TaskStep.SKIP}
    results = {name: runner.results[one.run.run] for name, one in plan.items() if name not in missing}
    tasks = {}
    for name, one in plan.items():
        if name in missing:
            task = runner.chain.tasks[name]
            places = find_places(task, results)
            tasks[name] = MachineTask(task, one.run.run, submitter.upload(task, name=one.run.run, places=places))
    function, partition = where.outputs["OrchestrateFunctionName"], where.client("stepfunctions").meta.partition
    return make_state_machine(runner.chain.name, tasks, function=function, partition=partition)


class ChainScreen:
    """The terminal output of a chain; with JSON on stdout it goes to stderr."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._console = Console(stderr=as_json, markup=False, soft_wrap=True)

    def say(self, text: str) -> None:
        """Print a line about the chain."""
        self._console.print(text, style="cyan")

    def show(self, task: str, text: str) -> None:
        """Print one line about a task; names that others chose may contain line ends."""
        self._console.print(f"{task}: {' '.join(text.split())}")

    def show_plan(self, chain: Chain, plan: Mapping[str, TaskPlan]) -> None:
        """Print what would be done about each task, in an order in which they can run."""
        if self._as_json:
            typer.echo(json.dumps(describe(chain, plan, {}), indent=2))
            return
        table = Table(
            "Task", "Reads", "Does", "Why", "Run", title=f"chain {chain.name}", title_justify="left", box=None
        )
        for one in plan.values():
            task = chain.tasks[one.task]
            reads = [f"{source.channel} = {source.text}" for source in task.inputs]
            reads += [f"after {', '.join(task.after)}"] if task.after else []
            step = Text(one.step.value, style=STYLES.get(one.step, ""))
            table.add_row(one.task, "\n".join(reads), step, one.reason, one.run.run)
        self._console.print(table)

    def end(self, chain: Chain, plan: Mapping[str, TaskPlan], runner: ChainRunner) -> None:
        """Print how the chain stands, and exit with status 1 unless all of its tasks are complete."""
        if self._as_json:
            typer.echo(json.dumps(describe(chain, plan, runner.results), indent=2))
        missing = [one.task for one in plan.values() if one.step is not TaskStep.SKIP]
        if not missing:
            self.say(f"chain {chain.name}: all {len(plan)} tasks are complete")
            return
        resume = runner.world.command
        self.say(f"chain {chain.name}: not complete: {', '.join(missing)}; then `{resume}` resumes it")
        raise typer.Exit(INCOMPLETE)


def describe(chain: Chain, plan: Mapping[str, TaskPlan], completed: Mapping[str, CompletedRun]) -> dict[str, Any]:
    """Return what `--json` prints."""
    tasks = [
        {
            "task": one.task,
            "run": one.run.run,
            "does": one.step.value,
            "why": one.reason,
            "after": list(chain.tasks[one.task].dependencies),
            "artifacts": dict(completed[one.run.run].artifacts) if one.run.run in completed else None,
        }
        for one in plan.values()
    ]
    return {"chain": chain.name, "complete": all(one.step is TaskStep.SKIP for one in plan.values()), "tasks": tasks}
