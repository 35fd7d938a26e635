"""Defer what was decided but may not be done yet: launches that fail a check, and stops during a pause."""

from dataclasses import replace
from datetime import datetime

from rerail.decisions import warm_pools
from rerail.decisions.approvals import is_still_valid, needs_a_proposal, propose_launch
from rerail.decisions.budgets import without_charge
from rerail.decisions.checkpoint_health import with_rollback_withdrawn
from rerail.decisions.cost_cap import find_missing_price
from rerail.decisions.decision import (
    Decision,
    format_instruction,
    format_stop,
    has_pending,
    hold_run,
    make_notice,
    may_carry_out,
    with_end,
    with_incident_closed,
    with_undecided,
    with_warnings,
    without_pending,
)
from rerail.decisions.launch_checks import PAUSED_TEXT, Consequence, Obstacle, find_obstacle, with_launch_blocked
from rerail.model.actions import ClearedBy, CreateJob, Notify, PostCommand, Severity, StopJob
from rerail.model.formatting import format_duration
from rerail.model.policy import Mode, Policy
from rerail.model.run import LaunchCheck, PlannedStop, Run, RunState
from rerail.model.runbooks import Runbook
from rerail.model.signals import CreateRefused, Paused, Signal

# The finding of decisions that defer a launch.
RATE_LIMITED = "rate_limited"
ITS_WAIT = "\nits relaunch waits: "


def with_deferrals(before: Run, decision: Decision, signal: Signal, policy: Policy) -> Decision:
    """Return the part of the decision that may be carried out now; what defers the rest is reported once."""
    at = signal.at
    decision = _defer_stops(before, decision, at=at, policy=policy)
    decision = _defer_launch(before, decision, at=at, policy=policy)
    run = _without_stale_deferrals(decision.run)
    decision = decision if run is decision.run else replace(decision, run=run)
    if needs_a_proposal(decision.run, policy):
        shortened, happened = _split_event(decision)
        proposed = propose_launch(decision.run, decision.reason, happened, at=at, policy=policy)
        return replace(
            shortened, run=proposed.run, actions=(*shortened.actions, *proposed.actions), reason=proposed.reason
        )
    return _with_price_check(decision, policy)


def _split_event(decision: Decision) -> tuple[Decision, str]:
    """Return the decision without its informing notices, and what happened.

    One message then reports both the event and what becomes of the launch.
    """
    notices = [item for item in decision.actions if isinstance(item, Notify) and item.severity is Severity.INFORM]
    actions = tuple(action for action in decision.actions if action not in notices)
    return replace(decision, actions=actions), notices[0].body if notices else decision.reason


def on_paused(run: Run, paused: Paused, policy: Policy) -> Decision:
    """Withdraw a stop that was recorded but not called yet.

    Until Rerail calls it, a stop of this job is not Rerail's.
    """
    if not has_pending(run, StopJob) or run.stop is None:
        return Decision(run)
    what = "is cancelled" if run.stop.drill else "waits"
    reason = f"{PAUSED_TEXT}: the stop ({run.stop.reason}) {what}, the job goes on"
    return Decision(_with_stop_deferred(without_pending(run, StopJob), paused.at), reason=reason)


def on_rate_limited(run: Run, refused: CreateRefused) -> Decision:
    """Defer the launch while the account's rate limit on relaunches is reached; page on-call once."""
    if run.state is not RunState.STARTING or refused.action.job_name != run.current.job_name or run.current.exists:
        return Decision(run)
    run = without_pending(run, CreateJob)
    ledger = replace(run.ledger, starts=run.ledger.starts[:-1])  # the launch did not happen
    retry_at = refused.until or refused.at
    run = replace(run, state=RunState.WAITING, wake_at=retry_at, blocked_by=LaunchCheck.RATE_LIMIT, ledger=ledger)
    reason = f"{run.current.job_name} waits {format_duration(retry_at - refused.at)}: {refused.message}"
    if refused.shared_by and (incident := run.open_incident):
        happened = incident.reason.partition(ITS_WAIT)[0]  # without the wait for other runs
        extended = replace(incident, reason=f"{happened}{ITS_WAIT}{refused.message}")
        run = replace(run, incidents=(*run.incidents[:-1], extended))
    if refused.paged_at is None:
        return Decision(run, reason=reason, finding=RATE_LIMITED)
    key = f"rerail/brake-{refused.paged_at:%Y%m%dT%H%M%S}"
    if key in run.warnings or any(page.notice.until is ClearedBy.LAUNCHED for page in run.pages):
        return Decision(run, reason=reason, finding=RATE_LIMITED)  # an open page is repeated by itself
    run = with_warnings(run, key)
    title = "relaunches are rate-limited: many runs fail at once"
    todo = "See what all of them have in common: a release, a quota, a file system"
    if refused.shared_by:
        title = "relaunches wait: many runs fail with one error"
        todo = "Fix what they have in common, such as the image; then release a held one of them, and the others follow"
    notice = Notify(
        severity=Severity.PAGE,
        title=title,
        body=reason,
        key=key,
        runbook=Runbook.RELAUNCH_RATE_LIMIT,
        did=f"{run.current.job_name} and those after it wait; each tries again by itself",
        todo=f"{todo}\nTo list the runs: rerail status",
        since=refused.at,
        until=ClearedBy.LAUNCHED,
    )
    return Decision(run, (notice,), reason, finding=RATE_LIMITED)


def is_deferred_stop_due(run: Run) -> bool:
    """Return whether a stop that was deferred by a pause is still to be called."""
    return run.state is RunState.SAVING and run.stop is not None and run.stop.is_deferred


def _defer_stops(before: Run, decision: Decision, *, at: datetime, policy: Policy) -> Decision:
    """Remove new stops from the decision while Rerail is paused; a stop that was called stays Rerail's."""
    stop = decision.run.stop
    if stop and not may_carry_out(decision.run, policy, stop.approved_by):
        return _cancel_stop(decision, stop, "asks first" if policy.mode is Mode.APPROVE else "may only observe", at)
    if policy.mode is not Mode.PAUSE or not any(isinstance(action, StopJob) for action in decision.actions):
        return decision
    actions = tuple(action for action in decision.actions if not isinstance(action, StopJob))
    if before.state is RunState.STOPPING and not has_pending(before, StopJob):
        return Decision(replace(decision.run, state=RunState.STOPPING), actions)
    run = _with_stop_deferred(decision.run, at)
    if run == before:
        return Decision(run, actions)
    return replace(decision, run=run, actions=actions, reason=f"{decision.reason}; not yet: {PAUSED_TEXT}")


def _cancel_stop(decision: Decision, stop: PlannedStop, now: str, at: datetime) -> Decision:
    """Withdraw a stop that was decided on before the policy changed and not called; its finding counts as undecided."""
    run = decision.run
    is_uncalled = run.state is RunState.SAVING or any(isinstance(a, StopJob) for a in (*run.pending, *decision.actions))
    if run.state not in (RunState.SAVING, RunState.STOPPING) or not is_uncalled:
        return decision
    run = replace(without_pending(run, StopJob, PostCommand), state=RunState.WATCHING, stop=None)
    reason = f"Rerail {now} now: the stop ({stop.reason}) is withdrawn, the job goes on"
    run = with_undecided(with_incident_closed(run, reason, at), stop.reason)
    if run.current.cause and run.current.fingerprint == stop.reason:
        ledger = without_charge(run.ledger, run.current.cause, at=at)
        run = with_rollback_withdrawn(replace(run, ledger=ledger))
    notice = make_notice(
        run,
        Severity.INFORM,
        "the stop is withdrawn",
        reason,
        key=f"withdrawn-{stop.asked_at:%Y%m%dT%H%M%S}",
        did=f"withdrew the stop before it was called, because Rerail {now} by its new policy; the job goes on",
        todo=format_stop(run),
    )
    actions = tuple(action for action in decision.actions if not isinstance(action, StopJob | PostCommand))
    return replace(decision, run=run, actions=(*actions, notice), reason=reason)


def _with_stop_deferred(run: Run, at: datetime) -> Run:
    """Return the run in the state SAVING: a stop that is seen in this state is not Rerail's."""
    assert run.stop is not None
    if run.stop.drill:  # nothing is wrong, so a drill is dropped rather than deferred
        return replace(run, state=RunState.WATCHING, stop=None)
    deadline = min(run.stop.deadline, at)
    stop = replace(run.stop, is_deferred=True, deadline=deadline, answer_by=None)
    return replace(run, state=RunState.SAVING, stop=stop)


def _defer_launch(before: Run, decision: Decision, *, at: datetime, policy: Policy) -> Decision:
    """Report why the launch is deferred, once for each obstacle; one that was recorded before waits too if need be."""
    run = decision.run
    is_pending = has_pending(run, CreateJob) and not run.current.exists
    is_forbidden = is_pending and not may_carry_out(run, policy, run.current.approved_by)
    if is_forbidden and (obstacle := find_obstacle(run, at, policy)):
        run = with_launch_blocked(without_pending(run, CreateJob), obstacle, at)
        decision = replace(decision, run=run)
    if run.state is not RunState.WAITING or not run.blocked_by or run.blocked_by is LaunchCheck.RATE_LIMIT:
        return decision
    if run == before:
        return Decision(run)  # reported already
    if run.blocked_by == before.blocked_by and run.current.job_name == before.current.job_name:
        return decision
    obstacle = find_obstacle(run, at, policy)
    return decision if obstacle is None else _with_obstacle(decision, obstacle, at=at)


def _with_obstacle(decision: Decision, obstacle: Obstacle, *, at: datetime) -> Decision:
    """Return the decision after a failed launch check: hold the run, end it, or report that it waits."""
    run, reason = decision.run, f"{decision.reason}; not yet: {obstacle.why}" if decision.reason else obstacle.why
    if obstacle.means is Consequence.HOLD:
        shortened, happened = _split_event(decision)
        why, what = obstacle.why, f"{happened}; held: {obstacle.why}" if happened else obstacle.why
        advice, runbook = obstacle.advice, obstacle.runbook
        stopped = hold_run(run, at, f"{reason}; held", because=why, happened=what, todo=advice, runbook=runbook)
        return replace(stopped, actions=(*shortened.actions, *stopped.actions), finding=decision.finding)
    number, todo = run.current.number, format_instruction(obstacle.advice)
    if obstacle.means is Consequence.END:
        run = with_incident_closed(with_end(run, RunState.STOPPED), "the run was stopped", at)
        key, did, runbook = f"spent-{number}", "the run ends here", obstacle.runbook
        notice = make_notice(
            run, Severity.INFORM, "stopped", obstacle.why, key=key, runbook=runbook, did=did, todo=todo
        )
        reason = f"{reason}: the run ends here. To do: {obstacle.advice}"
        return replace(
            decision, run=run, actions=(*decision.actions, *warm_pools.make_release(run), notice), reason=reason
        )
    if obstacle.check is LaunchCheck.APPROVAL:
        return replace(decision, reason=reason)  # the proposal reports it
    key, did, runbook = f"waits-{number}", "nothing yet: it is launched when that is over", obstacle.runbook
    notice = make_notice(run, Severity.INFORM, "waits", obstacle.why, key=key, runbook=runbook, did=did, todo=todo)
    return replace(decision, actions=(*decision.actions, notice), reason=reason)


def _without_stale_deferrals(run: Run) -> Run:
    """Return the run without a deferral or proposal that no longer applies."""
    if run.blocked_by and run.state is not RunState.WAITING:
        run = replace(run, blocked_by=None)
    return run if run.proposal is None or is_still_valid(run) else replace(run, proposal=None)


def _with_price_check(decision: Decision, policy: Policy) -> Decision:
    """Report once that a cost cap cannot be enforced because the machines' price is unknown."""
    is_launching = any(isinstance(action, CreateJob) for action in decision.actions)
    unpriced = find_missing_price(decision.run, policy) if is_launching else None
    if unpriced is None:
        return decision
    actions, reason = (*decision.actions, *unpriced.actions), f"{decision.reason}; {unpriced.reason}"
    return replace(decision, run=unpriced.run, actions=actions, reason=reason)
