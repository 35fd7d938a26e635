"""What came of it: the facts as JSON, one page to read, and the verdict whether the run ended as it must."""

import io
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table

from cli.demo.scenarios import Name, Scenario
from cli.demo.screen import sparkline
from cli.demo.stage import Stage
from cli.runs import attempts_table, timeline_table
from rerail.detectors.finding import Kind
from rerail.model import Attempt, Incident, Run, RunState


def facts(name: Name, stage: Stage) -> dict[str, Any]:
    """The demo's JSON; seconds are wall time of this machine."""
    run = _run(stage)
    curve = stage.mended_curve()
    final_step = max(curve, default=0)
    return {
        "scenario": name.value,
        "run": run.id,
        "state": run.state.value,
        "clock_scale": stage.scale,
        "attempts": [_attempt(stage, attempt) for attempt in run.attempts],
        "incidents": [_incident(stage, incident) for incident in run.incidents],
        "findings": sorted({entry.finding for entry in stage.timeline if entry.finding in set(Kind)}),
        "final_step": final_step,
        "final_loss": curve.get(final_step),
        "reference_max_abs_loss_difference": stage.largest_difference(),
    }


def _attempt(stage: Stage, attempt: Attempt) -> dict[str, Any]:
    curve = stage.curves.get(attempt.job_name)
    return {
        "job": attempt.job_name,
        "status": attempt.status,
        "failure_reason": attempt.failure_reason,
        "cause": attempt.cause,
        "resumed_from_step": attempt.resumed_from_step,
        "first_step": curve.first_step if curve else None,
        "last_step": curve.last_step if curve else None,
    }


def _incident(stage: Stage, incident: Incident) -> dict[str, Any]:
    """Times count from the fault itself where the demo caused it from outside, else from the job's end."""
    began = stage.struck_at if stage.struck_at and incident.number == 1 else incident.happened_at
    launched = _launched_at(stage, attempt=incident.attempt + 1)
    ended = incident.closed_at if incident.mended else None
    last_step, resumed = _last_step(stage, incident), _resumed_from(stage, incident)
    return {
        "kind": incident.kind,
        "cause": incident.cause,
        "reason": incident.reason,
        "actions": list(incident.actions),
        "detected_after_s": _seconds(began, incident.decided_at),
        "relaunched_after_s": _seconds(incident.decided_at, launched),
        "mttr_s": _seconds(began, ended),
        "lost_steps": None if last_step is None else max(0, last_step - (resumed or 0)),
    }


def _launched_at(stage: Stage, *, attempt: int) -> datetime | None:
    names = [a.job_name for a in _run(stage).attempts if a.number == attempt and a.job_name in stage.jobs]
    return stage.jobs[names[0]]["CreationTime"] if names else None


def _last_step(stage: Stage, incident: Incident) -> int | None:
    job = _run(stage).attempts[incident.attempt - 1].job_name
    return stage.curves[job].last_step if job in stage.curves else incident.step


def _resumed_from(stage: Stage, incident: Incident) -> int | None:
    """Where the successor began: a job that was asked to stop may have saved once more."""
    later = [attempt for attempt in _run(stage).attempts if attempt.number == incident.attempt + 1]
    return later[0].resumed_from_step if later else incident.resume_step


def _seconds(start: datetime, end: datetime | None) -> float | None:
    return None if end is None else round((end - start).total_seconds(), 3)


def _run(stage: Stage) -> Run:
    assert stage.run is not None, "the demo reports on a run that was adopted"
    return stage.run


def shortcomings(scenario: Scenario, report: dict[str, Any]) -> Sequence[str]:
    """Where the run did not end as the scenario must; empty is good."""
    causes = [attempt["cause"] for attempt in report["attempts"] if attempt["cause"]]
    problems = []
    if report["state"] != scenario.ends:
        problems.append(f"the run is {report['state']}, it must end {scenario.ends}")
    if tuple(causes) != scenario.causes:
        problems.append(f"the causes are {', '.join(causes) or 'none'}, they must be {', '.join(scenario.causes)}")
    if (
        scenario.ends is RunState.COMPLETED
        and report["final_step"] != scenario.steps
        and scenario.findings != ("blind",)
    ):
        problems.append(f"the last step is {report['final_step']}, it must be {scenario.steps}")
    if scenario.ends is RunState.COMPLETED and causes and not report["attempts"][-1]["resumed_from_step"]:
        problems.append("the last attempt did not resume from a checkpoint")
    if missing := set(scenario.findings) - set(report["findings"]):
        problems.append(f"the detectors did not say {', '.join(sorted(missing))}")
    if scenario.exact and report["reference_max_abs_loss_difference"] != 0.0:
        problems.append(f"the loss differs from the undisturbed run by {report['reference_max_abs_loss_difference']}")
    return problems


def page(scenario: Scenario, stage: Stage, report: dict[str, Any], problems: Sequence[str]) -> RenderableType:
    """The one-page summary."""
    verdict = "[bold green]as it must[/]" if not problems else "[bold red]NOT as it must:[/] " + "; ".join(problems)
    head = Table.grid(padding=(0, 2))
    head.add_row("fault", scenario.story)
    head.add_row("the run ended", f"[bold]{report['state']}[/], {verdict}")
    head.add_row(
        "clock", f"x{stage.scale:g}: SageMaker's, the sweep's and the policy's durations; seconds below are real"
    )
    for incident in report["incidents"]:
        head.add_row(f"incident: {incident['cause']}", _sentence(incident))
    head.add_row(
        "against its undisturbed twin",
        f"largest difference of the loss at any step: {report['reference_max_abs_loss_difference']}",
    )
    return Group(
        Panel(head, title=f"rerail demo: {report['scenario']}"),
        Panel(sparkline(stage), title="loss by step, one colour an attempt", height=3),
        attempts_table(_run(stage)),
        timeline_table(stage.timeline),
    )


def _sentence(incident: dict[str, Any]) -> str:
    parts = [f"decided {incident['detected_after_s']} s after the fault"]
    if incident["relaunched_after_s"] is not None:
        parts.append(f"new job {incident['relaunched_after_s']} s later")
    if incident["mttr_s"] is not None:
        parts.append(f"progress again after {incident['mttr_s']} s")
    return ", ".join(
        [*parts, f"{incident['lost_steps']} steps trained twice" if incident["mttr_s"] is not None else "asked a human"]
    )


def save_html(path: Path, renderable: RenderableType) -> None:
    """The same page as a file that a browser opens."""
    console = Console(record=True, width=150, file=io.StringIO())
    console.print(renderable)
    path.parent.mkdir(parents=True, exist_ok=True)
    console.save_html(str(path))
