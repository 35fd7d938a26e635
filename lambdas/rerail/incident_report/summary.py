"""Summarize a run: what happened, what Rerail did, what to do, and by when."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any

from rerail.decisions.checkpoint_health import find_open_onset, find_open_warning
from rerail.decisions.decision import format_instruction, format_next_command, format_start
from rerail.decisions.monitoring_gaps import NO_ROW, format_no_row
from rerail.decisions.on_finding import LEFT_ALONE
from rerail.decisions.on_job import DOUBTFUL_ENDS
from rerail.decisions.start_check import format_ordered, list_gaps
from rerail.incident_report.facts import Facts
from rerail.incident_report.marks import find_onset_time
from rerail.model.actions import Notify
from rerail.model.former_names import RUNBOOKS
from rerail.model.run import AfterStop, Incident, LaunchCheck, Run, RunState, TimelineEntry
from rerail.model.runbooks import Runbook
from rerail.model.signals import OperatorCommand, OperatorVerb

TEXT_LIMIT = 4_000  # in characters
# With more relaunches than this, they are listed in the table of attempts only.
LISTED_RELAUNCHES = 10


class Urgency(StrEnum):
    """The party that has to act."""

    NEEDED = "needed"  # the operator
    RECOVERING = "recovering"  # Rerail, which is recovering the run
    NONE = "none"  # no one


def make_summary(known: Facts) -> dict[str, Any]:
    """Return the summary fields of the report, from the newest unresolved page or else from the last incident."""
    run = known.run
    page = run.pages[-1].notice if run.pages else None
    if page:
        commands = tuple(_commands(run))
        # A command is listed once, with the others.
        todo = tuple(line for line in _split_lines(page.todo) if not line.endswith(commands))
        return {
            "tone": Urgency.NEEDED,
            "headline": _headline(run, Urgency.NEEDED),
            "happened": page.body[:TEXT_LIMIT],
            "did": page.did,
            "todo": todo or _list_todos(run),
            "commands": commands,
            "by": page.by or (run.proposal.expires_at if run.proposal else None),
            "since": page.since or run.pages[-1].notified_at,
            "runbook": page.runbook,
        }
    tone, warning = _urgency(run), find_open_warning(run)
    incident = run.incidents[-1] if run.incidents else None
    notice = _find_notice(known.timeline, incident) if incident else {}
    # "No job is launched" ends with the hold, "nothing yet" with the proposal.
    key, asked = str(notice.get("key", "")), run.proposal.id if run.proposal else ""
    is_over = ("/held-" in key and run.state is not RunState.HELD) or "/proposal-" in key.removesuffix(f"-{asked}")
    did = "" if is_over else str(notice.get("did", ""))
    resolution = incident.resolution if incident and incident.closed_at else ""
    end = _find_doubtful_end(known)
    if end or (warning and not run.open_incident):  # not what was done about an earlier incident
        incident, notice, did, resolution = None, end, "" if end else _find_denial(known), ""
    answers, last = list(_list_answers(known, incident, is_over=is_over)), ""
    if incident and incident.recovered:
        last = resolution
    elif incident and incident.closed_at:
        answers = sorted([(incident.closed_at, resolution), *answers], key=lambda answer: answer[0])
    done = did, *(text for _, text in answers), _format_relaunches(run, incident)
    return {
        "tone": tone,
        "headline": _headline(run, tone),
        "happened": (warning or str(notice.get("body", "")) or _happened(run, incident))[:TEXT_LIMIT],
        "did": "\n".join(filter(None, (*done, *_list_gaps(run), last))),
        "todo": _split_lines(str(end.get("todo", ""))) or _list_todos(run),
        "commands": tuple(_commands(run)),
        "by": run.proposal.expires_at if run.proposal else None,
        "since": find_onset_time(known, incident) if incident else None,
        "runbook": _read_runbook(notice) if incident else None,
    }


def _urgency(run: Run) -> Urgency:
    if run.state is RunState.HELD or (run.proposal and run.proposal.awaits is LaunchCheck.APPROVAL):
        return Urgency.NEEDED
    is_troubled = run.open_incident or find_open_warning(run)
    return Urgency.RECOVERING if is_troubled and not run.state.is_end else Urgency.NONE


def _headline(run: Run, tone: Urgency) -> str:
    count = len(run.incidents)
    after = f" after {count} {'incident' if count == 1 else 'incidents'}" if count else ""
    number = run.current.number
    match run.state:
        case RunState.HELD:
            return "Held: waiting for an operator"
        case RunState.COMPLETED:
            doubt = next((doubt for key, doubt in DOUBTFUL_ENDS.items() if key in run.warnings), "")
            return f"Completed{after} {doubt}" if doubt else f"Completed{after}: nothing to do"
        case RunState.STOPPED:
            return "Stopped: the run is over"
        case _ if run.proposal and run.proposal.awaits is LaunchCheck.APPROVAL:
            return "Waiting for your approval"
        case RunState.WATCHING if tone is Urgency.NEEDED:
            return "Training, but needs your attention"
        case RunState.WATCHING if find_open_warning(run):
            is_of_loss = find_open_onset(run) is not None
            return f"Training, but its {'loss may have gone wrong' if is_of_loss else 'progress is in doubt'}"
        case RunState.WATCHING if tone is Urgency.RECOVERING:
            return f"Training again: attempt {number} has saved nothing beyond the problem yet"
        case RunState.WATCHING:
            return f"Training{after}: nothing to do"
        case RunState.WAITING:
            return f"Waiting to launch attempt {number}" + (f" ({run.blocked_by})" if run.blocked_by else "")
        case RunState.STARTING:
            return f"Attempt {number} is starting"
        case RunState.SAVING | RunState.STOPPING if run.stop and run.stop.approved_by:
            does = "stopped" if run.stop.then is AfterStop.END else "moved to another job"
            return f"Being {does} by {run.stop.approved_by}"
        case _:
            return f"Recovering: {run.state}"


def _happened(run: Run, incident: Incident | None) -> str:
    if run.state is RunState.HELD and run.hold_text:
        return run.hold_text
    if NO_ROW in run.warnings:
        return format_instruction(format_no_row(run))
    return incident.reason if incident else "No incident so far."


def _list_todos(run: Run) -> tuple[str, ...]:
    if run.state is RunState.HELD:
        if run.hold_advice:
            return (f"{format_instruction(run.hold_advice)}.",)
        if run.held_by:  # there need not be a problem
            return (f"Release the run when Rerail is to supervise it again: {run.held_by} holds it.",)
        return ("Fix the problem named above, then release the run.",)
    if run.proposal and run.proposal.awaits is LaunchCheck.APPROVAL:
        return (f"Approve or deny this: {run.proposal.what}.",)
    if find_open_warning(run):
        return ("Nothing yet: it may recover by itself. You will be paged if you are needed.",)
    return ("Nothing. You will be paged if you are needed.",) if not run.state.is_end else ("Nothing.",)


def _split_lines(text: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in text.splitlines() if line.strip())


def _commands(run: Run) -> Iterator[str]:
    if run.proposal and run.proposal.awaits is LaunchCheck.APPROVAL:
        yield f"rerail approve {run.id} --proposal {run.proposal.id}"
        yield f"rerail deny {run.id} --proposal {run.proposal.id}"
    if run.state is RunState.HELD:
        yield format_next_command(run)
    yield f"rerail show {run.id}"


def _list_answers(known: Facts, incident: Incident | None, *, is_over: bool) -> Iterator[tuple[datetime, str]]:
    """Yield the operators' commands about an incident, and what came of a proposal or a hold for it, with its time."""
    later = [e for e in known.timeline if incident and e.at > incident.decided_at and e.before is not e.after]
    for index, entry in enumerate(later[-LISTED_RELAUNCHES:]):
        if (is_over and index == 0) or entry.signal.get("type") == OperatorCommand.__name__:
            yield entry.at, entry.reason


def _find_denial(known: Facts) -> str:
    """Return what came of an operator's newest denial in this attempt; without one, that nothing was done."""
    since = known.run.current.created_at or known.run.created_at
    denials = (entry for entry in reversed(known.timeline) if entry.signal.get("verb") == OperatorVerb.DENY)
    return next((entry.reason for entry in denials if entry.at >= since), LEFT_ALONE)


def _find_doubtful_end(known: Facts) -> Mapping[str, Any]:
    """Return the notice of the end of a run whose result is in doubt, empty if there is none."""
    is_doubtful = known.run.state is RunState.COMPLETED and not DOUBTFUL_ENDS.keys().isdisjoint(known.run.warnings)
    actions = (action for entry in known.timeline if is_doubtful for action in entry.actions)
    return next((action for action in actions if str(action.get("key", "")).endswith("/completed")), {})


def _format_relaunches(run: Run, incident: Incident | None) -> str:
    """Return the list of relaunches for an incident; "" for fewer than two or too many."""
    if incident is None:
        return ""
    attempts = [a for a in run.attempts[incident.attempt :] if a.exists]
    starts = (
        f"{a.number} {format_start(run, run.find_start(a))}{format_ordered(a)}" + (f" ({a.rung})" if a.rung else "")
        for a in attempts
    )
    listed = 1 < len(attempts) <= LISTED_RELAUNCHES
    return f"relaunched {len(attempts)} times: attempt {', then '.join(starts)}" if listed else ""


def _list_gaps(run: Run) -> Iterator[str]:
    """Yield what the last incident has lost by starts below the step that was ordered."""
    if gaps := list(list_gaps(run)):
        lost = run.incidents[-1].lost_steps if run.incidents else None
        yield "; ".join(gaps[-LISTED_RELAUNCHES:]) + (f": {lost:,} step{'s' * (lost > 1)} lost" if lost else "")


def _find_notice(timeline: Sequence[TimelineEntry], incident: Incident) -> Mapping[str, Any]:
    """Return the notice of the decision that opened the incident, empty if there is none."""
    actions = (action for entry in timeline if entry.at == incident.decided_at for action in entry.actions)
    return next((action for action in actions if action.get("type") == Notify.__name__), {})


def _read_runbook(notice: Mapping[str, Any]) -> Runbook | None:
    name = notice.get("runbook", "")
    runbook = Runbook(name) if name in {*Runbook, *RUNBOOKS} else None
    return None if runbook is Runbook.INFORMED else runbook
