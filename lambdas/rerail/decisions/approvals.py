"""Proposals: a costly action that waits for a human's word, with what, why, what it costs and until when.

A word names the proposal that it answers, so that one which comes late never grants a newer one."""

from dataclasses import replace
from datetime import datetime

from rerail.decisions.cost_benefit import relaunch_dollars
from rerail.decisions.decision import Decision, format_start, hold_run, make_notice, with_attempt, with_launch
from rerail.decisions.launch_checks import APPROVAL, PAUSE, PAUSED, format_dollars
from rerail.decisions.remedies import format_duration
from rerail.model.actions import ClearedBy, Notify, Severity
from rerail.model.finding import Finding
from rerail.model.policy import Mode, OnExpiry, Policy
from rerail.model.run import Proposal, ProposedAction, Run, RunState
from rerail.model.runbooks import Runbook


def propose_stop(run: Run, finding: Finding, why: str, plan: str, *, at: datetime, policy: Policy) -> Decision:
    """Ask before a running job is stopped; a newer finding takes the place of the one before it."""
    awaits = PAUSE if policy.mode is Mode.PAUSE else APPROVAL
    run, tell = _proposed(run, ProposedAction.STOP, plan, why, at=at, policy=policy, awaits=awaits, finding=finding)
    return Decision(run, (tell,), f"{why}; {_spoken(run)}", finding=finding.kind)


def propose_launch(run: Run, why: str, happened: str, *, at: datetime, policy: Policy) -> Decision:
    """Ask before the next job is created; `why` is for the timeline, `happened` for whoever is asked."""
    what = f"create {run.current.job_name} {format_start(run.current.resumed_from_step)}"
    run, tell = _proposed(
        replace(run, kept_back=APPROVAL), ProposedAction.LAUNCH, what, happened, at=at, policy=policy, awaits=APPROVAL
    )
    return Decision(run, (tell,), f"{why}; {_spoken(run)}" if why else _spoken(run))


def needs_a_proposal(run: Run, policy: Policy) -> bool:
    """The next job waits for nobody's word yet, and needs it."""
    if policy.mode is not Mode.APPROVE or run.state is not RunState.WAITING or run.current.approved_by:
        return False
    return not run.current.exists and run.proposal is None and not run.observe_only


def is_still_valid(run: Run) -> bool:
    """The proposal speaks of the run as it is: its attempt is the current one, and what it would do can be done."""
    proposal = run.proposal
    if proposal is None or proposal.attempt != run.current.number:
        return False
    if proposal.plan is ProposedAction.LAUNCH:
        return run.state is RunState.WAITING and not run.current.exists
    return run.state in (RunState.WATCHING, RunState.STARTING)


def on_launch_approved(run: Run, who: str, said: str, *, at: datetime, policy: Policy) -> Decision:
    """Create the job that was proposed, at once: whoever says yes has waited long enough."""
    run = replace(with_attempt(run, replace(run.current, approved_by=who)), proposal=None, kept_back="")
    run, actions = with_launch(run, at, policy)
    return Decision(run, actions, f"{said}: creating {run.current.job_name} {_start(run)}")


def on_denied(run: Run, said: str, *, at: datetime) -> Decision:
    """No: a dead run is held, a job that runs goes on."""
    assert run.proposal is not None
    if run.proposal.plan is ProposedAction.LAUNCH:
        what = f"{said}: {run.proposal.what} is not to be"
        return hold_run(run, at, what, because="denied", runbook=Runbook.APPROVAL, severity=Severity.INFORM)
    what, run = run.proposal.what, replace(run, proposal=None)
    return Decision(run, reason=f"{said}: the job goes on ({what} is not to be)")


def on_expired(run: Run, *, at: datetime, policy: Policy) -> Decision | None:
    """Nobody has answered in time: what the policy says for a run whose job is dead. None while there is time."""
    proposal = run.proposal
    if (
        proposal is None
        or policy.mode is Mode.PAUSE
        or at < proposal.expires_at
        or proposal.plan is not ProposedAction.LAUNCH
    ):
        return None
    silence = format_unanswered(proposal)
    if policy.approval.on_expiry_dead is OnExpiry.ACT:
        return on_launch_approved(run, "the policy", f"{silence}, and the policy acts then", at=at, policy=policy)
    todo = f"see whether to {proposal.what}"
    return hold_run(run, at, f"{silence}: held", because="nobody has answered", todo=todo, runbook=Runbook.APPROVAL)


def leave_job_running(run: Run, proposal: Proposal) -> Decision:
    """Nobody has answered in time, and the policy leaves a job that runs as it is."""
    silence, kind = format_unanswered(proposal), proposal.finding.kind if proposal.finding else "finding"
    reason = f"{silence}: the job is left as it is. To do: look at it; `rerail restart {run.id}` moves it"
    tell = make_notice(
        run,
        Severity.PAGE,
        f"{kind}: nobody has answered, the job goes on",
        f"{silence}: {proposal.what}, because of {proposal.why}",
        key=f"unanswered-{run.current.number}-{kind}",
        runbook=Runbook.APPROVAL,
        did="nothing: the job is left as it is",
        todo=f"Look at the job\nTo move it: rerail restart {run.id}",
        since=proposal.asked_at,
        until=ClearedBy.MENDED,
        about=kind,
    )
    return Decision(replace(run, proposal=None), (tell,), reason)


def propose_again(run: Run, proposal: Proposal, why: str, *, at: datetime, policy: Policy) -> Decision:
    """What waited for the end of a pause waits for a human from now on."""
    assert proposal.finding is not None
    return propose_stop(run, proposal.finding, f"{why}: {proposal.why}", proposal.what, at=at, policy=policy)


def format_unanswered(proposal: Proposal) -> str:
    """That its time is up, in words."""
    return f"nobody has answered {proposal.id} within {format_duration(proposal.expires_at - proposal.asked_at)}"


def _start(run: Run) -> str:
    return format_start(run.current.resumed_from_step)


def _proposed(
    run: Run,
    plan: ProposedAction,
    what: str,
    why: str,
    *,
    at: datetime,
    policy: Policy,
    awaits: str,
    finding: Finding | None = None,
) -> tuple[Run, Notify]:
    """The run with its proposal, numbered by the decision that makes it, and the page that says how to answer."""
    proposal = Proposal(
        id=f"p{run.version + 1}",
        plan=plan,
        attempt=run.current.number,
        what=what,
        why=why,
        asked_at=at,
        expires_at=at + policy.approval.wait,
        awaits=awaits,
        dollars=relaunch_dollars(run, policy.prices),
        finding=finding,
    )
    run = replace(run, proposal=proposal)
    body, key, since = why or what, f"proposal-{proposal.id}", _began(run, finding, at)
    if awaits != APPROVAL:
        todo = "To lift the pause: rerail resume"
        title, runbook, did = "waits until the pause is lifted", Runbook.OBSERVING, f"nothing yet: {_spoken(run)}"
        return run, make_notice(
            run, Severity.INFORM, title, body, key=key, runbook=runbook, did=did, todo=todo, since=since
        )  # fmt: skip
    todo = (
        f"Yes: rerail approve {run.id} --proposal {proposal.id}\nNo: rerail deny {run.id} --proposal {proposal.id}\n"
        f"Otherwise: {_otherwise(plan, policy)} after {format_duration(policy.approval.wait)}"
    )
    return run, make_notice(
        run,
        Severity.PAGE,
        f"your word is needed: {what}",
        body,
        key=key,
        runbook=Runbook.APPROVAL,
        did=f"nothing yet: {_spoken(run)}",
        todo=todo,
        since=since,
        by=proposal.expires_at,
        until=ClearedBy.ANSWERED,
        about=proposal.id,
    )


def _began(run: Run, finding: Finding | None, at: datetime) -> datetime:
    """When the trouble began that the proposal is to mend."""
    if finding:
        return finding.onset_at or finding.at or at
    return run.open_incident.happened_at if run.open_incident else at


def _otherwise(plan: ProposedAction, policy: Policy) -> str:
    chosen = policy.approval.on_expiry_dead if plan is ProposedAction.LAUNCH else policy.approval.on_expiry
    if chosen is OnExpiry.ACT:
        return "it is done"
    return "the run is held" if plan is ProposedAction.LAUNCH else "the job is left as it is"


def _spoken(run: Run) -> str:
    proposal = run.proposal
    assert proposal is not None
    cost = "" if proposal.dollars is None else f", for about {format_dollars(proposal.dollars)}"
    whom = "waiting for approval" if proposal.awaits == APPROVAL else PAUSED
    return f"proposal {proposal.id}: {proposal.what}{cost} ({whom})"
