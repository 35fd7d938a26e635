"""What came of it: the facts as JSON, and one page to read."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from cli.demo.handshake import find_handshakes
from cli.demo.scenarios import Name, Scenario
from cli.demo.screen import draw_sparkline
from cli.demo.stage import Stage
from cli.runs import make_attempts_table, make_timeline_table
from cli.saves import StoredCheckpoint
from rerail.incident_report.report import ReportSection
from rerail.model.finding import Kind
from rerail.model.run import Attempt, Incident, InPlaceRestart, Run

ENDED = "the run ended"


def collect_facts(name: Name, stage: Stage) -> dict[str, Any]:
    """Return the demo's JSON; seconds are wall time of this machine."""
    run = _run(stage)
    curve = stage.read_losses()
    final_step = max(curve, default=0)
    return {
        "scenario": name.value,
        "run": run.id,
        "state": run.state.value,
        "clock_scale": stage.scale,
        "attempts": [_attempt(stage, attempt) for attempt in run.attempts],
        "rungs": [attempt.rung for attempt in run.attempts],
        "incidents": [_incident(stage, incident) for incident in run.incidents],
        "handshake": next(find_handshakes(stage.timeline), None),
        "checkpoints": [_save(save) for save in stage.list_checkpoints()],
        "set_aside": stage.list_quarantined_objects(),
        "restarts": [_order(attempt, order) for attempt in run.attempts for order in attempt.in_place_restarts],
        "findings": sorted({entry.finding for entry in stage.timeline if entry.finding in set(Kind)}),
        "approval": _approval(stage),
        "crowd": stage.summarize_other_runs(),
        "cost": stage.sum_cost(),
        "advice": stage.advise(),
        "final_step": final_step,
        "final_loss": curve.get(final_step),
        "reference_max_abs_loss_difference": stage.find_largest_difference(),
    }


def _attempt(stage: Stage, attempt: Attempt) -> dict[str, Any]:
    curve = stage.curves.get(attempt.job_name)
    return {
        "job": attempt.job_name,
        "status": attempt.status,
        "failure_reason": attempt.failure_reason,
        "cause": attempt.cause,
        "resumed_from_step": attempt.resumed_from_step,
        "skip_samples": attempt.skip_samples,
        "rate": attempt.rate,
        "microbatches": attempt.microbatches,
        "self_repairs": attempt.self_repairs,
        "repairs": dict(attempt.repairs),
        **_machines(stage.jobs.get(attempt.job_name, {})),
        "first_step": curve.first_step if curve else None,
        "last_step": curve.last_step if curve else None,
    }


def _approval(stage: Stage) -> dict[str, Any]:
    """What was asked, with which words one would answer, and what the answer came to."""
    actions = [action for entry in stage.timeline for action in entry.actions]
    bodies = ["\n".join(filter(None, (action.get("body", ""), action.get("todo", "")))) for action in actions]
    asked = next((body for body in bodies if "\nYes: rerail approve" in body), "")
    said = next((entry.reason for entry in stage.timeline if " said approve" in entry.reason), "")
    return {"answered": len(stage.answered), "page": asked, "words": "rerail approve" in asked, "said": said}


def _machines(description: dict[str, Any]) -> dict[str, Any]:
    """What the job ran on, how long it took to train, and what became of the machines kept after it."""
    pool = description.get("WarmPoolStatus", {})
    trained = [
        transition["StartTime"]
        for transition in description.get("SecondaryStatusTransitions", [])
        if transition["Status"] == "Training"
    ]
    return {
        "instance_type": description.get("ResourceConfig", {}).get("InstanceType"),
        "start_s": _seconds(description["CreationTime"], trained[0]) if trained else None,
        "pool": pool.get("Status"),
        "pool_reused_by": pool.get("ReusedByJob"),
        "pool_billed_s": pool.get("ResourceRetainedBillableTimeInSeconds"),
    }


def _order(attempt: Attempt, order: InPlaceRestart) -> dict[str, Any]:
    """Seconds count from the decision to when the supervisor heard of it."""
    return {
        "attempt": attempt.number,
        "restart": order.number,
        "reason": order.reason,
        "resume_step": order.resume_step,
        "running_after_s": _seconds(order.asked_at, order.restarted_at),
        "step_after_s": _seconds(order.asked_at, order.stepped_at),
        "failed": order.failed,
    }


def _save(save: StoredCheckpoint) -> dict[str, Any]:
    return {
        "folder": save.folder,
        "step": save.step,
        "attempt": save.checkpoint.attempt if save.checkpoint else None,
        "reason": save.checkpoint.reason if save.checkpoint else "",
        "health": save.checkpoint.health if save.checkpoint else None,
        "whole": save.is_whole,
        "aside": save.is_quarantined,
    }


def _incident(stage: Stage, incident: Incident) -> dict[str, Any]:
    """Times count from when it happened: a job's end, or the first step of what the detectors found."""
    began = incident.happened_at
    launched = _launched_at(stage, attempt=incident.attempt + 1)
    ended = incident.closed_at if incident.recovered else None
    last_step, resumed = _last_step(stage, incident), _resumed_from(stage, incident)
    return {
        "kind": incident.kind,
        "cause": incident.cause,
        "reason": incident.reason,
        "actions": list(incident.actions),
        "detected_after_s": _seconds(began, incident.decided_at),
        "relaunched_after_s": _seconds(incident.decided_at, launched),
        "next_step_after_s": _seconds(incident.decided_at, _next_step_at(stage, incident)),
        "mttr_s": _seconds(began, ended),
        "lost_steps": None if last_step is None else max(0, last_step - (resumed or 0)),
        "onset_step": incident.onset_step,
        "resumed_from_step": resumed,
    }


def _launched_at(stage: Stage, *, attempt: int) -> datetime | None:
    names = [a.job_name for a in _run(stage).attempts if a.number == attempt and a.job_name in stage.jobs]
    return stage.jobs[names[0]]["CreationTime"] if names else None


def _next_step_at(stage: Stage, incident: Incident) -> datetime | None:
    """When the first step after the decision was printed by processes that were started since, in whichever job."""
    starts = [at for attempt in _run(stage).attempts[incident.attempt - 1 :] for at in _starts(stage, attempt)]
    return min((at for at in starts if at > incident.decided_at), default=None)


def _starts(stage: Stage, attempt: Attempt) -> list[datetime]:
    curve = stage.curves.get(attempt.job_name)
    return curve.starts if curve else []


def _last_step(stage: Stage, incident: Incident) -> int | None:
    attempt = _run(stage).attempts[incident.attempt - 1]
    job = attempt.job_name
    if attempt.restart > incident.restart:  # it has trained on since
        return incident.step
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


def make_page(scenario: Scenario, stage: Stage, report: dict[str, Any], problems: Sequence[str]) -> RenderableType:
    """Return the summary for the terminal."""
    head = Table.grid(padding=(0, 2))
    for name, text in _rows(scenario, stage, report, problems):
        style = ("bold red" if problems else "bold green") if name == ENDED else ""
        head.add_row(name, Text(text, style=style))
    return Group(
        Panel(head, title=f"rerail demo: {report['scenario']}"),
        Panel(draw_sparkline(stage), title="loss by step, one colour an attempt", height=3),
        make_attempts_table(_run(stage)),
        make_timeline_table(stage.timeline),
    )


def make_section(scenario: Scenario, stage: Stage, report: dict[str, Any], problems: Sequence[str]) -> ReportSection:
    """Return the section of the run's report page with the facts that only the demo knows."""
    return ReportSection("The demo's verdict", tuple(_rows(scenario, stage, report, problems)))


def _rows(
    scenario: Scenario, stage: Stage, report: dict[str, Any], problems: Sequence[str]
) -> Iterator[tuple[str, str]]:
    judged = "NOT as expected: " + "; ".join(problems) if problems else "as expected"
    yield "fault", scenario.summary
    yield ENDED, f"{report['state']}, {judged}"
    yield "clock", f"x{stage.scale:g}: SageMaker's, the sweep's and the policy's durations; seconds here are real"
    for incident in report["incidents"]:
        yield f"incident: {incident['cause']}", _sentence(incident)
    yield from _more(scenario, report)
    difference = report["reference_max_abs_loss_difference"]
    yield "against the reference run", f"largest difference of the loss at any step: {difference}"


def _more(scenario: Scenario, report: dict[str, Any]) -> Iterator[tuple[str, str]]:
    asked, quarantined = report["handshake"], [save["folder"] for save in report["checkpoints"] if save["aside"]]
    if asked:
        received, committed = asked["heard_after_s"], asked["committed_after_s"]
        yield (
            "emergency checkpoint",
            f"acknowledged {received} s after the request, step {asked['step']} committed after {committed} s, "
            f"stop called after {asked['stop_called_after_s']} s",
        )
    if report["approval"]["answered"]:
        yield "asked on the page", report["approval"]["page"].replace("\n", "; ")
        yield "answered", report["approval"]["said"]
    if others := report["crowd"]:
        times = ", ".join(f"{at} s" for at in others["relaunched_at_s"])
        allowed = f"at most {others['limit']} relaunches in {others['window_s']:g} s"
        yield "the relaunch limit", f"{others['runs']} runs, {allowed}: at {times}"
        yield "paged", f"{others['pages']} time(s): {others['page']}"
    if cost := report["cost"]:
        yield "its cost", f"${cost['dollars']:.4f}; the cap is ${cost['cap']:g}, with a save ${cost['most']:.4f}"
    if report["advice"]:
        yield "how often to save", report["advice"]
    if any(report["rungs"]):
        yield "rungs of the ladder", " -> ".join(rung or "as it was" for rung in report["rungs"])
    if quarantined:
        yield "in quarantine, not deleted", ", ".join(quarantined)
    if moved := sorted({key.rpartition("/")[0] for key in report["set_aside"]}):
        yield "moved to quarantine by the supervisor", ", ".join(moved)
    if scenario.saves and report["checkpoints"]:
        newest = report["checkpoints"][0]
        yield "saved within the grace", f"step {newest['step']} ({newest['reason']})"
    if scenario.pool:
        first, second = report["attempts"][0], report["attempts"][-1]
        yield "its warm pool", f"{first['pool']}; started in {first['start_s']} s, the next in {second['start_s']} s"
    yield from _list_restarts(scenario, report)


def _list_restarts(scenario: Scenario, report: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the restarts within the job, and the machines of the others."""
    for restart in report["restarts"]:
        yield (
            f"restart {restart['restart']} in place",
            f"the processes ran again after {restart['running_after_s']} s, their first step was done after "
            f"{restart['step_after_s']} s, counted from the decision",
        )
    if scenario.fallbacks:
        yield "machines", ", then ".join(str(attempt["instance_type"]) for attempt in report["attempts"])
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
