"""The report of a chain: one page about all of its tasks, with the pages of their runs beside it."""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from cli.chains.definition import Chain
from cli.chains.graph import list_generations
from cli.chains.plan import TaskPlan, TaskStep
from cli.chains.task_runs import TaskProgress, TaskRuns
from cli.place import now
from cli.report import gather_facts, save, write_page
from rerail.incident_report.facts import Facts
from rerail.incident_report.report import make_report
from rerail.incident_report.summary import Urgency
from rerail.model.formatting import format_dollars, format_duration
from rerail.model.run import Run
from rerail.notices.notice import find_cost

if TYPE_CHECKING:
    from report_page.chain_page import ChainReport, ChainTaskRow

# What a task's step is called on the page.
STATES = {
    TaskStep.SKIP: "complete",
    TaskStep.START: "ready",
    TaskStep.FOLLOW: "running",
    TaskStep.WAIT: "waiting",
    TaskStep.HELD: "held",
    TaskStep.FAILED: "failed",
    TaskStep.BLOCKED: "does not run",
}


def write_report(
    page: Path, chain: Chain, plan: Mapping[str, TaskPlan], progress: Mapping[str, TaskProgress], world: TaskRuns
) -> list[Path]:
    """Write the chain's page and a page for each run that Rerail has a record of; return them, the chain's first."""
    where = world.where
    region = "" if where.is_local else where.client("sagemaker").meta.region_name
    folder = page.with_suffix("")
    pages = {}
    known: dict[str, Facts] = {}
    for one in plan.values():
        if (facts := gather_facts(where, one.run.run)) is not None:
            known[one.task] = facts
            pages[one.task] = folder / f"{one.run.run}.html"
            save(pages[one.task], make_report(facts), region=region)

    def render() -> str:
        from report_page.chain_page import render_chain_page

        return render_chain_page(make_chain_report(chain, plan, progress, known, world.command, folder.name))

    write_page(page, render, option="--report")
    return [page, *pages.values()]


def make_chain_report(
    chain: Chain,
    plan: Mapping[str, TaskPlan],
    progress: Mapping[str, TaskProgress],
    known: Mapping[str, Facts],
    command: str,
    folder: str,
) -> "ChainReport":
    """Return the content of the page; `folder` has the pages of the runs in `known`."""
    from report_page.chain_page import ChainReport

    missing = [name for name, one in plan.items() if one.step is not TaskStep.SKIP]
    needed = [name for name, one in plan.items() if one.step in (TaskStep.HELD, TaskStep.FAILED)]
    headline = f"All {len(plan)} tasks are complete."
    if missing:
        headline = f"{len(plan) - len(missing)} of {len(plan)} tasks are complete."
    if needed:
        headline = f"{headline[:-1]}; {', '.join(needed)} {'needs' if len(needed) == 1 else 'need'} you."
    tone = Urgency.NEEDED if needed else Urgency.RECOVERING if missing else Urgency.NONE
    todo = [f"{name}: {progress[name].advice}" for name in plan if name in progress and progress[name].advice]
    return ChainReport(
        chain=chain.name,
        headline=headline,
        tone=tone,
        at=now(),
        tasks=tuple(_make_rows(chain, plan, progress, known, folder)),
        generations=tuple(map(tuple, list_generations(chain.tasks))),
        facts=tuple(_list_facts(plan, known)),
        todo=tuple(todo),
        command=f"{command} --dry-run",
    )


def _make_rows(
    chain: Chain,
    plan: Mapping[str, TaskPlan],
    progress: Mapping[str, TaskProgress],
    known: Mapping[str, Facts],
    folder: str,
) -> "Iterator[ChainTaskRow]":
    from report_page.chain_page import ChainTaskRow

    for name, one in plan.items():
        task, run = chain.tasks[name], known[name].run if name in known else None
        reads = [f"{source.channel} = {source.text}" for source in task.inputs]
        is_waiting = one.step in (TaskStep.START, TaskStep.WAIT, TaskStep.BLOCKED)
        yield ChainTaskRow(
            name=name,
            run=one.run.run,
            state=STATES[one.step],
            reason="" if one.step is TaskStep.SKIP else one.reason if is_waiting else progress[name].text,
            reads=(*reads, *(f"after {other}" for other in task.after)),
            after=task.dependencies,
            attempts=len(run.attempts) if run else 0,
            cost=_format_cost(known[name]) if name in known else "",
            page=f"{folder}/{one.run.run}.html" if name in known else "",
            is_waiting=is_waiting,
        )


def _list_facts(plan: Mapping[str, TaskPlan], known: Mapping[str, Facts]) -> Iterator[tuple[str, str]]:
    yield "tasks", str(len(plan))
    yield "complete", str(sum(one.step is TaskStep.SKIP for one in plan.values()))
    yield "attempts", str(sum(len(facts.run.attempts) for facts in known.values()))
    costs = [_find_cost(facts) for facts in known.values()]
    yield "cost", format_dollars(sum(cost for cost in costs if cost is not None)) if None not in costs else "not known"


def _format_cost(facts: Facts) -> str:
    cost = _find_cost(facts)
    spent = "" if cost is None else f", {format_dollars(cost)}"
    return f"{format_duration(_find_length(facts.run))}{spent}"


def _find_cost(facts: Facts) -> float | None:
    return find_cost(facts.run, facts.at, facts.policy)


def _find_length(run: Run) -> timedelta:
    """Return how long the run has taken so far."""
    ended = run.current.ended_at if run.state.is_end else None
    return (ended or now()) - run.created_at
