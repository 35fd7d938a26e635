"""What waits although it was decided: launches that the gate keeps back, stops that a pause puts off."""

from dataclasses import replace
from datetime import datetime

from rerail.accounting.costs import find_unpriced_type
from rerail.decisions import warm_pools as pools
from rerail.decisions.approvals import is_still_valid, needs_a_proposal, propose_launch
from rerail.decisions.decision import (
    Decision,
    format_instruction,
    has_pending,
    hold_run,
    make_notice,
    with_end,
    with_incident_closed,
    with_warnings,
    without_pending,
)
from rerail.decisions.launch_checks import APPROVAL, BRAKE, PAUSED, Consequence, Obstacle, find_obstacle
from rerail.decisions.remedies import format_duration
from rerail.model.actions import ClearedBy, CreateJob, Notify, Severity, StopJob
from rerail.model.policy import Mode, Policy
from rerail.model.run import Run, RunState
from rerail.model.runbooks import Runbook
from rerail.model.signals import CreateRefused, Paused


def with_deferrals(before: Run, decision: Decision, *, at: datetime, policy: Policy) -> Decision:
    """The decision as it may be carried out now, and what keeps the rest of it waiting, said once."""
    decision = _stops_put_off(before, decision, at=at, policy=policy)
    decision = _launch_kept_back(before, decision, at=at, policy=policy)
    decision = replace(decision, run=_without_stale_waits(decision.run))
    if needs_a_proposal(decision.run, policy):
        decided, happened = _happened(decision)
        asked = propose_launch(decision.run, decision.reason, happened, at=at, policy=policy)
        return replace(decided, run=asked.run, actions=(*decided.actions, *asked.actions), reason=asked.reason)
    return _priced(decision, policy)


def _happened(decision: Decision) -> tuple[Decision, str]:
    """The decision without what it tells of a launch that does not go ahead, and what has happened: one message says
    that, and what is asked instead."""
    said = [a for a in decision.actions if isinstance(a, Notify) and a.severity is Severity.INFORM]
    actions = tuple(action for action in decision.actions if action not in said)
    return replace(decision, actions=actions), said[0].body if said else decision.reason


def on_paused(run: Run, paused: Paused) -> Decision:
    """Take back a stop that was recorded and not called: until it is, a stop of this job is somebody else's."""
    if not has_pending(run, StopJob) or run.stop is None:
        return Decision(run)
    what = "is called off" if run.stop.drill else "waits"
    reason = f"{PAUSED}: the stop ({run.stop.reason}) {what}, the job goes on"
    return Decision(_put_off(without_pending(run, StopJob), paused.at), reason=reason)


def on_rate_limited(run: Run, refused: CreateRefused) -> Decision:
    """Too many relaunches of the account in a short time: this one waits, and on-call is paged once."""
    if run.state is not RunState.STARTING or refused.action.job_name != run.current.job_name or run.current.exists:
        return Decision(run)
    run = without_pending(run, CreateJob)
    ledger = replace(run.ledger, starts=run.ledger.starts[:-1])  # what never began is no start
    again = refused.until or refused.at
    run = replace(run, state=RunState.WAITING, wake_at=again, kept_back=BRAKE, ledger=ledger)
    reason = f"{run.current.job_name} waits {format_duration(again - refused.at)}: {refused.message}"
    if refused.paged_at is None:
        return Decision(run, reason=reason, finding="brake")
    key = f"rerail/brake-{refused.paged_at:%Y%m%dT%H%M%S}"
    if key in run.warnings:
        return Decision(run, reason=reason, finding="brake")
    run = with_warnings(run, key)
    tell = Notify(
        severity=Severity.PAGE,
        title="relaunches are held back: something bigger is wrong than one run",
        body=reason,
        key=key,
        runbook=Runbook.RELAUNCH_BRAKE,
        did=f"{run.current.job_name} and those after it wait; each tries again by itself",
        todo="See what all of them have in common: a release, a quota, a file system\nTo list the runs: rerail status",
        since=refused.at,
        until=ClearedBy.LAUNCHED,
    )
    return Decision(run, (tell,), reason, finding="brake")


def is_deferred_stop_due(run: Run) -> bool:
    """A stop that a pause had put off can be called now."""
    return run.state is RunState.SAVING and run.stop is not None and run.stop.put_off


def _stops_put_off(before: Run, decision: Decision, *, at: datetime, policy: Policy) -> Decision:
    """While Rerail is paused no stop is called for; one that was called already stays ours."""
    if policy.mode is not Mode.PAUSE or not any(isinstance(action, StopJob) for action in decision.actions):
        return decision
    actions = tuple(action for action in decision.actions if not isinstance(action, StopJob))
    if before.state is RunState.STOPPING and not has_pending(before, StopJob):
        return Decision(replace(decision.run, state=RunState.STOPPING), actions)
    run = _put_off(decision.run, at)
    if run == before:
        return Decision(run, actions)
    return replace(decision, run=run, actions=actions, reason=f"{decision.reason}; not yet: {PAUSED}")


def _put_off(run: Run, at: datetime) -> Run:
    """As if it were still being saved: a stop seen in this state is not ours."""
    assert run.stop is not None
    if run.stop.drill:  # nothing is wrong, and whoever asked for it waits no longer
        return replace(run, state=RunState.WATCHING, stop=None)
    deadline = min(run.stop.deadline, at)
    return replace(run, state=RunState.SAVING, stop=replace(run.stop, put_off=True, deadline=deadline, answer_by=None))


def _launch_kept_back(before: Run, decision: Decision, *, at: datetime, policy: Policy) -> Decision:
    run = decision.run
    if run.state is not RunState.WAITING or not run.kept_back or run.kept_back == BRAKE:
        return decision
    if run == before:
        return Decision(run)  # said already
    if run.kept_back == before.kept_back and run.current.job_name == before.current.job_name:
        return decision
    found = find_obstacle(run, at, policy)
    return decision if found is None else _told(decision, found, at=at)


def _told(decision: Decision, found: Obstacle, *, at: datetime) -> Decision:
    run, reason = decision.run, f"{decision.reason}; not yet: {found.why}" if decision.reason else found.why
    if found.means is Consequence.HOLD:
        decided, happened = _happened(decision)
        stopped = hold_run(
            run,
            at,
            f"{reason}; held",
            because=found.why,
            happened=f"{happened}; held: {found.why}" if happened else found.why,
            todo=found.advice,
            runbook=found.runbook,
        )
        return replace(stopped, actions=(*decided.actions, *stopped.actions), finding=decision.finding)
    number = run.current.number
    if found.means is Consequence.END:
        run = with_incident_closed(with_end(run, RunState.STOPPED), "the run was stopped", at)
        tell = make_notice(
            run,
            Severity.INFORM,
            "stopped",
            found.why,
            key=f"spent-{number}",
            runbook=found.runbook,
            did="the run ends here",
            todo=format_instruction(found.advice),
        )
        reason = f"{reason}: the run ends here. To do: {found.advice}"
        return replace(decision, run=run, actions=(*decision.actions, *pools.make_release(run), tell), reason=reason)
    if found.check == APPROVAL:
        return replace(decision, reason=reason)  # the proposal says it
    tell = make_notice(
        run,
        Severity.INFORM,
        "waits",
        found.why,
        key=f"waits-{number}",
        runbook=found.runbook,
        did="nothing yet: it is launched when that is over",
        todo=format_instruction(found.advice),
    )
    return replace(decision, actions=(*decision.actions, tell), reason=reason)


def _without_stale_waits(run: Run) -> Run:
    """Nothing is kept back, or proposed, that is not waited for any more."""
    if run.kept_back and run.state is not RunState.WAITING:
        run = replace(run, kept_back="")
    return run if run.proposal is None or is_still_valid(run) else replace(run, proposal=None)


def _priced(decision: Decision, policy: Policy) -> Decision:
    """Say once that a cap on money cannot be kept, where nobody has said what the machines cost."""
    run = decision.run
    capped = policy.limits.run_dollars or policy.limits.incident_dollars
    if not capped or not any(isinstance(action, CreateJob) for action in decision.actions):
        return decision
    kind = find_unpriced_type(run, policy.prices)
    key = f"unpriced-{kind}"
    if not kind or key in run.warnings:
        return decision
    why = f"the price of a machine {kind} is not known: the caps on money cannot be kept"
    todo = "Name it in the policy's [prices]"
    tell = make_notice(run, Severity.INFORM, "no cap on money", why, key=key, runbook=Runbook.MONEY_SPENT, todo=todo)
    run = with_warnings(run, key)
    return replace(decision, run=run, actions=(*decision.actions, tell), reason=f"{decision.reason}; {why}")
