"""What a person needs first: what happened, what was done, what to do, and by when."""

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

from rerail.decisions.decision import format_start
from rerail.incident_report.facts import Facts
from rerail.incident_report.marks import find_onset_time
from rerail.model.run import Incident, Run, RunState, TimelineEntry
from rerail.model.runbooks import Runbook

TEXT = 4_000
# Of an incident with more relaunches than this each is in the table of attempts.
# "Tell" is the type's name in entries of earlier versions.
NOTICE_TYPES = ("Notify", "Tell")
TOLD_RELAUNCHES = 10


class Urgency(StrEnum):
    """Who has to do something."""

    NEEDED = "needed"  # a human
    MENDING = "mending"  # Rerail, and it does
    WELL = "well"  # nobody


def make_summary(known: Facts) -> dict[str, Any]:
    """What a person needs first: the newest page that stands, or else what happened last."""
    run = known.run
    standing = run.pages[-1].tell if run.pages else None
    if standing:
        return {
            "tone": Urgency.NEEDED,
            "headline": _headline(run, Urgency.NEEDED),
            "happened": standing.body[:TEXT],
            "did": standing.did,
            "todo": _sentences(standing.todo) or _asks(run),
            "commands": tuple(_commands(run)),
            "by": standing.by or (run.proposal.expires_at if run.proposal else None),
            "since": standing.since or run.pages[-1].told_at,
            "runbook": standing.runbook,
        }
    tone = _tone(run)
    incident = run.incidents[-1] if run.incidents else None
    said = _said_of(known.timeline, incident) if incident else {}
    did = str(said.get("did", ""))
    ended = incident.resolution if incident and incident.closed_at else ""
    return {
        "tone": tone,
        "headline": _headline(run, tone),
        "happened": (str(said.get("body", "")) or _happened(run, incident))[:TEXT],
        "did": "\n".join(part for part in (did, _relaunches(run, incident), ended) if part),
        "todo": _asks(run),
        "commands": tuple(_commands(run)),
        "by": run.proposal.expires_at if run.proposal else None,
        "since": find_onset_time(known, incident) if incident else None,
        "runbook": _runbook(said) if incident else None,
    }


def _tone(run: Run) -> Urgency:
    if run.state is RunState.HELD or (run.proposal and run.proposal.awaits == "approval"):
        return Urgency.NEEDED
    return Urgency.MENDING if run.open_incident and not run.state.is_end else Urgency.WELL


def _headline(run: Run, tone: Urgency) -> str:
    mended = sum(incident.mended for incident in run.incidents)
    after = f" after {mended} {'incident' if mended == 1 else 'incidents'}" if mended else ""
    number = run.current.number
    match run.state:
        case RunState.HELD:
            return "Held: it waits for you"
        case RunState.COMPLETED:
            return f"Completed{after}: nothing to do"
        case RunState.STOPPED:
            return "Stopped: the run is over"
        case _ if run.proposal and run.proposal.awaits == "approval":
            return "Asks for your word"
        case RunState.WATCHING if tone is Urgency.NEEDED:
            return "Trains, and needs a look"
        case RunState.WATCHING if tone is Urgency.MENDING:
            return f"Trains again: attempt {number} has yet to get beyond the trouble"
        case RunState.WATCHING:
            return f"Trains{after}: nothing to do"
        case RunState.WAITING:
            return f"Waits to launch attempt {number}" + (f" ({run.kept_back})" if run.kept_back else "")
        case RunState.STARTING:
            return f"Attempt {number} starts"
        case _:
            return f"Is being mended: {run.state}"


def _happened(run: Run, incident: Incident | None) -> str:
    if run.state is RunState.HELD and run.hold_reason:
        return run.hold_reason
    return incident.reason if incident else "No incident so far."


def _asks(run: Run) -> tuple[str, ...]:
    if run.state is RunState.HELD:
        return ("Mend what is named above, then release the run.",)
    if run.proposal and run.proposal.awaits == "approval":
        return (f"Say yes or no to this: {run.proposal.what}.",)
    return ("Nothing. You will be paged if a human is needed.",) if not run.state.is_end else ("Nothing.",)


def _sentences(text: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in text.splitlines() if line.strip())


def _commands(run: Run) -> Iterator[str]:
    if run.proposal and run.proposal.awaits == "approval":
        yield f"rerail approve {run.id} --proposal {run.proposal.id}"
        yield f"rerail deny {run.id} --proposal {run.proposal.id}"
    if run.state is RunState.HELD:
        yield f"rerail release {run.id}"
    yield f"rerail show {run.id}"


def _relaunches(run: Run, incident: Incident | None) -> str:
    """Of an incident that more than one relaunch was tried for."""
    if incident is None:
        return ""
    tried = [a for a in run.attempts[incident.attempt :] if a.exists]
    starts = (f"{a.number} {format_start(a.resumed_from_step)}" + (f" ({a.rung})" if a.rung else "") for a in tried)
    return (
        f"relaunched {len(tried)} times: attempt {', then '.join(starts)}" if 1 < len(tried) <= TOLD_RELAUNCHES else ""
    )


def _said_of(timeline: Sequence[TimelineEntry], incident: Incident) -> Mapping[str, Any]:
    """The notice of the decision that opened the incident."""
    told = (action for entry in timeline if entry.at == incident.decided_at for action in entry.actions)
    return next((action for action in told if action.get("type") in NOTICE_TYPES), {})


def _runbook(said: Mapping[str, Any]) -> Runbook | None:
    named = said.get("runbook", "")
    return Runbook(named) if named in set(Runbook) and named != Runbook.INFORMED else None
