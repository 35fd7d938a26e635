"""Describe all runs at a moment: each one's state, step, cost and goodput, and what a person has to do."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from rerail.accounting.goodput import make_account
from rerail.decisions.checkpoint_health import find_open_onset, find_open_warning
from rerail.decisions.decision import format_next_command, format_stop
from rerail.decisions.emergency_checkpoint import format_deadline
from rerail.decisions.in_place_restart import find_newest_restart
from rerail.decisions.shared_errors import find_shareable_error
from rerail.detection.evaluate import RunDetection
from rerail.model.errors import RerailError
from rerail.model.policy import Mode, Policy
from rerail.model.run import Incident, LaunchCheck, Run, RunState
from rerail.ports import PausedPolicies, policy_of

ENDS = (RunState.COMPLETED, RunState.STOPPED)
# Advice often ends so; the command names it.
RELEASE = ", then release the run"

# A step, and when it was done, if that is known.
SeenStep = tuple[int, datetime | None]


@dataclass(frozen=True, slots=True)
class FleetRow:
    """One run as people look at it."""

    run: Run
    since: datetime | None  # when its state began
    step: int | None
    step_at: datetime | None  # when its newest step was done
    share: float | None  # goodput
    dollars: float | None
    todo: str = ""  # what a person has to do
    command: str = ""  # the command that follows

    @property
    def is_open(self) -> bool:
        """Return whether the run goes on, or a person has to look."""
        return self.run.state not in ENDS


@dataclass(frozen=True, slots=True)
class FleetStatus:
    """All runs at a moment."""

    at: datetime
    name: str
    rows: tuple[FleetRow, ...]
    paused: bool | None  # None if unknown
    alarms: tuple[str, ...] | None  # of the supervisor itself; None if they could not be read
    unread: tuple[str, ...] = ()  # runs whose records another version has written

    @property
    def counts(self) -> Mapping[str, int]:
        """Return the number of runs in each state, in the order of a run's life."""
        counted = Counter(row.run.state for row in self.rows)
        return {state.value: counted[state] for state in RunState if counted[state]}

    @property
    def shared_errors(self) -> Mapping[str, list[str]]:
        """Return the runs that are held or wait after the same error, by that error; for two runs or more."""
        found: dict[str, tuple[str, list[str]]] = {}
        for run in (row.run for row in self.rows if row.run.state in (RunState.HELD, RunState.WAITING)):
            failed = run.current if run.state is RunState.HELD else run.attempts[-2:][0]
            if error := find_shareable_error(run, failed):
                found.setdefault(failed.fingerprint, (error, []))[1].append(run.id)
        return {error: sorted(ids) for error, ids in found.values() if len(ids) > 1}


def find_policy(run: Run, policies: PausedPolicies) -> Policy:
    """Return the run's policy; the defaults if it cannot be read, so that one bad policy hides no run."""
    try:
        return policy_of(run, policies)
    except RerailError:
        return Policy(name=run.policy)


def make_row(run: Run, policy: Policy, at: datetime, seen: SeenStep | None, *, paused: bool | None = None) -> FleetRow:
    """Return the run's row; `seen` is the newest step of its job in progress, None if unknown."""
    account = make_account(run, at, policy)
    step, step_at = seen or _find_last_step(run)
    todo, command = find_todo(run, policy, paused=paused)
    return FleetRow(run, find_state_start(run), step, step_at, account.share, account.dollars, todo, command)


def find_sort_key(row: FleetRow) -> tuple[bool, bool, float]:
    """Return the key that lists runs that wait for a person first, then open ones, ended ones last; newest first."""
    newest = (row.run.current.ended_at or row.run.created_at) if not row.is_open else row.run.created_at
    return (not row.is_open, not row.todo, -newest.timestamp())


def describe_state(run: Run) -> str:
    """Return the run's state with what it waits for, or that a warning is open."""
    if find_open_warning(run):
        return f"{run.state} (warning)"
    waits = run.proposal.awaits if run.proposal else run.blocked_by
    if run.state is RunState.SAVING and run.stop:
        return f"{run.state} {format_deadline(run.stop)}"
    if waits is LaunchCheck.PAUSE:
        return f"{run.state} (paused)"
    return f"{run.state} for {waits}" if waits else run.state.value


def describe_incident(incident: Incident) -> tuple[str, str]:
    """Return the incident's cause, and how it ended."""
    end = "recovered" if incident.recovered else (incident.resolution or "not recovered yet")
    return str(incident.cause).replace("_", " "), end


def find_state_start(run: Run) -> datetime | None:
    """Return when the run's state began, as far as its record tells."""
    attempt, incident = run.current, run.incidents[-1] if run.incidents else None
    match run.state:
        case RunState.SAVING | RunState.STOPPING:
            return run.stop.asked_at if run.stop else None
        case RunState.RESTARTING:
            return attempt.in_place_restarts[-1].asked_at if attempt.in_place_restarts else None
        case RunState.WATCHING:
            restarted = [order.restarted_at for order in attempt.in_place_restarts if order.restarted_at]
            return restarted[-1] if restarted else attempt.training_started_at
        case RunState.HELD if run.held_by:
            return run.commanded_at
        case RunState.HELD if incident and incident.closed_at and not incident.recovered:
            return incident.closed_at
        case RunState.WAITING:
            return run.attempts[-2].ended_at if len(run.attempts) > 1 else run.created_at
        case RunState.STARTING:
            return attempt.created_at or (run.ledger.starts[-1] if run.ledger.starts else run.created_at)
        case RunState.STOPPED:
            return attempt.ended_at or run.commanded_at
    return attempt.ended_at


def find_todo(run: Run, policy: Policy, *, paused: bool | None) -> tuple[str, str]:
    """Return what a person has to do, if anything, and the command that follows; `paused` is None if unknown."""
    if run.proposal and run.proposal.awaits is LaunchCheck.APPROVAL:
        asked = run.proposal
        answer = f"{run.id} --proposal {asked.id}"
        question = f"{asked.what}? ({asked.why}) If not: `rerail deny {answer}`. {format_stop(run)}"
        return question.rstrip(), f"rerail approve {answer}"
    if run.state is RunState.HELD:
        todo = (run.hold_advice.removesuffix(RELEASE) or run.hold_reason, format_stop(run))
        return ". ".join(filter(None, todo)), format_next_command(run)
    if run.blocked_by is LaunchCheck.PAUSE or (run.stop and run.stop.is_deferred):
        if policy.mode is Mode.PAUSE:
            return f"it waits until its policy {policy.name} has another mode than pause", f"rerail show {run.id}"
        # A lifted pause is noticed within two minutes.
        return ("", "") if paused is False else ("it waits until the pause is lifted", "rerail resume")
    is_asked = run.observe_only or (run.last_policy and run.last_policy.mode is not Mode.ACT)
    if is_asked and find_open_onset(run) is not None and (warning := find_open_warning(run)):
        return f"{warning}. {format_stop(run)}", f"rerail show {run.id}"
    return "", ""


def find_noted_step(run: Run, memory: RunDetection) -> SeenStep | None:
    """Return the newest step that the sweep has noted of the job in progress; None for none."""
    if memory.cursor.job != run.current.job_name:
        return None
    liveness, cursor = memory.detectors.liveness, memory.cursor
    # The detectors' last row may be an earlier attempt's.
    step = max((s for s in (liveness.step, cursor.seen_step) if s is not None), default=None)
    return None if step is None else (step, liveness.moved_at or cursor.seen_at)


def _find_last_step(run: Run) -> tuple[int | None, datetime | None]:
    """Return the last step of a job that has ended, or the first since a restart in place, and its time."""
    attempt = run.current
    if attempt.ended_at is None:
        order = find_newest_restart(run)
        return (order.first_step, order.stepped_at) if order else (None, None)
    if attempt.last_step is not None:
        return attempt.last_step, attempt.ended_at
    before = run.attempts[-2].ended_at if len(run.attempts) > 1 else None
    return attempt.resumed_from_step, before if attempt.resumed_from_step is not None else None
