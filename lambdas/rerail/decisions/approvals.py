"""Proposals: costly actions that wait for an operator's approval, with their reason, cost and expiry.

An answer names the proposal's id, so that a late answer never approves a newer proposal.
"""

from dataclasses import replace
from datetime import datetime

from rerail.accounting.costs import estimate_relaunch_dollars, estimate_start_up
from rerail.decisions.decision import (
    THE_POLICY,
    Decision,
    format_start,
    format_stop,
    hold_run,
    make_notice,
    may_act,
    with_attempt,
)
from rerail.decisions.launch import with_launch
from rerail.decisions.launch_checks import PAUSED_TEXT
from rerail.model.actions import ClearedBy, Notify, Severity
from rerail.model.finding import Finding
from rerail.model.formatting import format_dollars, format_duration
from rerail.model.policy import Mode, OnExpiry, Policy
from rerail.model.run import LaunchCheck, Proposal, ProposedAction, Run, RunState
from rerail.model.runbooks import Runbook


def propose_stop(run: Run, finding: Finding, why: str, plan: str, *, at: datetime, policy: Policy) -> Decision:
    """Propose to stop a running job; a newer proposal replaces the one before it."""
    awaits = LaunchCheck.PAUSE if policy.mode is Mode.PAUSE else LaunchCheck.APPROVAL
    finding = replace(finding, at=finding.at or at)
    run, notice = _with_proposal(
        run, ProposedAction.STOP, plan, why, at=at, policy=policy, awaits=awaits, finding=finding
    )
    return Decision(run, (notice,), f"{why}; {_format_proposal(run)}", finding=finding.kind)


def propose_launch(run: Run, why: str, happened: str, *, at: datetime, policy: Policy) -> Decision:
    """Propose to create the next job; `why` is for the timeline, `happened` for the page."""
    what = f"create {run.current.job_name} {format_start(run, run.current.resumed_from_step)}"
    run, notice = _with_proposal(
        replace(run, blocked_by=LaunchCheck.APPROVAL),
        ProposedAction.LAUNCH,
        what,
        happened,
        at=at,
        policy=policy,
        awaits=LaunchCheck.APPROVAL,
    )
    return Decision(run, (notice,), f"{why}; {_format_proposal(run)}" if why else _format_proposal(run))


def needs_a_proposal(run: Run, policy: Policy) -> bool:
    """Return whether the next job needs an approval that was not requested yet."""
    if policy.mode is not Mode.APPROVE or run.state is not RunState.WAITING or run.current.approved_by:
        return False
    return not run.current.exists and run.proposal is None and not run.observe_only


def is_still_valid(run: Run) -> bool:
    """Return whether the proposal is about the current attempt and can still be carried out."""
    proposal = run.proposal
    if proposal is None or proposal.attempt != run.current.number:
        return False
    if proposal.plan is ProposedAction.LAUNCH:
        return run.state is RunState.WAITING and not run.current.exists
    return run.state in (RunState.WATCHING, RunState.STARTING)


def on_launch_approved(run: Run, who: str, summary: str, *, at: datetime, policy: Policy) -> Decision:
    """Create the approved job at once, without the rest of its delay."""
    run = replace(with_attempt(run, replace(run.current, approved_by=who)), proposal=None, blocked_by=None)
    run, actions = with_launch(run, at, policy)
    start = format_start(run, run.current.resumed_from_step)
    return Decision(run, actions, f"{summary}: creating {run.current.job_name} {start}")


def on_denied(run: Run, summary: str, *, at: datetime) -> Decision:
    """Hold a run that has no job; let a running job go on."""
    assert run.proposal is not None
    if run.proposal.plan is ProposedAction.LAUNCH:
        what = f"{summary}: not done: {run.proposal.what}"
        return hold_run(run, at, what, because="denied", runbook=Runbook.APPROVAL, severity=Severity.INFORM)
    what, run = run.proposal.what, replace(run, proposal=None)
    return Decision(run, reason=f"{summary}: the job goes on (not done: {what})")


def on_expired(run: Run, *, at: datetime, policy: Policy) -> Decision | None:
    """Do what the policy says for an expired proposal to launch a job; None while it is open."""
    proposal = run.proposal
    if (
        proposal is None
        or policy.mode is Mode.PAUSE
        or not may_act(run, policy)
        or at < proposal.expires_at
        or proposal.plan is not ProposedAction.LAUNCH
    ):
        return None
    expiry = format_unanswered(proposal)
    if policy.approval.on_expiry_dead is OnExpiry.ACT:
        return on_launch_approved(run, THE_POLICY, f"{expiry}, and the policy acts then", at=at, policy=policy)
    todo = f"see whether to {proposal.what}"
    return hold_run(run, at, f"{expiry}: held", because="no answer", todo=todo, runbook=Runbook.APPROVAL)


def leave_job_running(run: Run, proposal: Proposal) -> Decision:
    """Leave a running job as it is after its proposal has expired, and page."""
    expiry, kind = format_unanswered(proposal), proposal.finding.kind if proposal.finding else "finding"
    reason = f"{expiry}: the job is left as it is. To do: look at it; `rerail restart {run.id}` moves it"
    notice = make_notice(
        run,
        Severity.PAGE,
        f"{kind}: no answer, the job goes on",
        f"{expiry}: {proposal.what}, because of {proposal.why}",
        key=f"unanswered-{run.current.number}-{kind}",
        runbook=Runbook.APPROVAL,
        did="nothing: the job is left as it is",
        todo=f"Look at the job\nTo move it: rerail restart {run.id}\n{format_stop(run)}",
        since=proposal.asked_at,
        until=ClearedBy.RECOVERED,
        about=kind,
    )
    return Decision(replace(run, proposal=None), (notice,), reason)


def propose_again(run: Run, proposal: Proposal, why: str, *, at: datetime, policy: Policy) -> Decision:
    """Propose to an operator what waited for the end of a pause."""
    assert proposal.finding is not None
    return propose_stop(run, proposal.finding, f"{why}: {proposal.why}", proposal.what, at=at, policy=policy)


def format_unanswered(proposal: Proposal) -> str:
    """Return in words that the proposal expired without an answer."""
    return f"no answer to {proposal.id} within {format_duration(proposal.expires_at - proposal.asked_at)}"


def _format_start_up(run: Run, policy: Policy) -> str:
    """Return what the estimated cost assumes, in words."""
    start_up = estimate_start_up(run, policy)
    return f"a start of {format_duration(start_up.duration)}, {start_up.source}"


def _with_proposal(
    run: Run,
    plan: ProposedAction,
    what: str,
    why: str,
    *,
    at: datetime,
    policy: Policy,
    awaits: LaunchCheck,
    finding: Finding | None = None,
) -> tuple[Run, Notify]:
    """Return the run with a proposal, numbered by the run's version, and the notice that says how to answer."""
    proposal = Proposal(
        id=f"p{run.version + 1}",
        plan=plan,
        attempt=run.current.number,
        what=what,
        why=why,
        asked_at=at,
        expires_at=at + policy.approval.wait,
        awaits=awaits,
        dollars=estimate_relaunch_dollars(run, policy),
        dollars_source=_format_start_up(run, policy),
        finding=finding,
    )
    run = replace(run, proposal=proposal)
    body, key, since = why or what, f"proposal-{proposal.id}", _find_start(run, finding, at)
    did = f"nothing yet: {_format_proposal(run)}"
    if awaits is not LaunchCheck.APPROVAL:
        todo = "To lift the pause: rerail resume"
        title, runbook = "waits until the pause is lifted", Runbook.OBSERVING
        return run, make_notice(
            run, Severity.INFORM, title, body, key=key, runbook=runbook, did=did, todo=todo, since=since
        )  # fmt: skip
    todo = (
        f"Yes: rerail approve {run.id} --proposal {proposal.id}\nNo: rerail deny {run.id} --proposal {proposal.id}\n"
        f"Otherwise: {_format_expiry(plan, policy)} after {format_duration(policy.approval.wait)}\n{format_stop(run)}"
    ).rstrip()
    return run, make_notice(
        run,
        Severity.PAGE,
        f"your approval is needed: {what}",
        body,
        key=key,
        runbook=Runbook.APPROVAL,
        did=did,
        todo=todo,
        since=since,
        by=proposal.expires_at,
        until=ClearedBy.ANSWERED,
        about=proposal.id,
    )


def _find_start(run: Run, finding: Finding | None, at: datetime) -> datetime:
    """Return when the trouble began that the proposal answers."""
    if finding:
        return finding.onset_at or finding.at or at
    return run.open_incident.happened_at if run.open_incident else at


def _format_expiry(plan: ProposedAction, policy: Policy) -> str:
    """Return what happens when the proposal expires, in words."""
    on_expiry = policy.approval.on_expiry_dead if plan is ProposedAction.LAUNCH else policy.approval.on_expiry
    if on_expiry is OnExpiry.ACT:
        return "it is done"
    return "the run is held" if plan is ProposedAction.LAUNCH else "the job is left as it is"


def _format_proposal(run: Run) -> str:
    """Return the run's proposal with its cost and what it waits for, in words."""
    proposal = run.proposal
    assert proposal is not None
    cost = "" if proposal.dollars is None else f", for about {format_dollars(proposal.dollars)}"
    source = f"{proposal.dollars_source}; " if cost and proposal.dollars_source else ""
    awaited = "waiting for approval" if proposal.awaits is LaunchCheck.APPROVAL else PAUSED_TEXT
    return f"proposal {proposal.id}: {proposal.what}{cost} ({source}{awaited})"
