"""What came of it: the facts as JSON, and one page to read."""

import io
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table

from cli.demo.handshake import handshakes
from cli.demo.scenarios import Name, Scenario
from cli.demo.screen import sparkline
from cli.demo.stage import Stage
from cli.runs import attempts_table, timeline_table
from cli.saves import Save
from rerail.detectors.finding import Kind
from rerail.model import Attempt, Incident, Run


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
        "handshake": next(handshakes(stage.timeline), None),
        "checkpoints": [_save(save) for save in stage.saves()],
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
        "self_repairs": attempt.self_repairs,
        "first_step": curve.first_step if curve else None,
        "last_step": curve.last_step if curve else None,
    }


def _save(save: Save) -> dict[str, Any]:
    return {
        "folder": save.folder,
        "step": save.step,
        "attempt": save.checkpoint.attempt if save.checkpoint else None,
        "reason": save.checkpoint.reason if save.checkpoint else "",
        "health": save.checkpoint.health if save.checkpoint else None,
        "whole": save.is_whole,
        "aside": save.is_aside,
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
        "onset_step": incident.onset_step,
        "resumed_from_step": resumed,
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
    for name, text in _more(scenario, report):
        head.add_row(name, text)
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


def _more(scenario: Scenario, report: dict[str, Any]) -> Iterator[tuple[str, str]]:
    asked, aside = report["handshake"], [save["folder"] for save in report["checkpoints"] if save["aside"]]
    if asked:
        heard, committed = asked["heard_after_s"], asked["committed_after_s"]
        yield (
            "emergency checkpoint",
            f"heard {heard} s after the wish, step {asked['step']} committed after {committed} s, "
            f"stop called after {asked['stop_called_after_s']} s",
        )
    if aside:
        yield "put aside, not deleted", ", ".join(aside)
    if scenario.saves and report["checkpoints"]:
        newest = report["checkpoints"][0]
        yield "saved within the grace", f"step {newest['step']} ({newest['reason']})"
    if repairs := sum(attempt["self_repairs"] for attempt in report["attempts"]):
        yield "restarted by SageMaker itself", f"{repairs} time(s), in the same job"


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
