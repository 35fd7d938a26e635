"""Decide on findings about a running job: notify people, and stop the job only for trouble that a restart resolves."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from rerail.decisions import rollback_ladder
from rerail.decisions.approvals import format_unanswered, leave_job_running, propose_again, propose_stop
from rerail.decisions.checkpoint_health import OVER, with_findings, with_rollback_labels
from rerail.decisions.cost_benefit import with_cost_estimate
from rerail.decisions.decision import (
    Decision,
    choose_resume_step,
    format_start,
    hold_as_ruled,
    is_untried_elsewhere,
    make_notice,
    may_act,
    stop_now,
    with_attempt,
    with_warnings,
)
from rerail.decisions.emergency_checkpoint import checkpoint_then_stop
from rerail.decisions.in_place_restart import can_restart, choose_target, find_obstacle, is_from_before_restart, restart
from rerail.decisions.on_failure import with_failure_charged, with_incident
from rerail.decisions.open_pages import clear_pages
from rerail.decisions.remedies import Failure, Hold, Relaunch, Verdict, remedy
from rerail.decisions.rollback_ladder import with_rung_taken
from rerail.diagnosis.classify import Diagnosis
from rerail.model.actions import ClearedBy, Notify, Severity
from rerail.model.causes import Cause
from rerail.model.checkpoints import Checkpoint, newest_usable
from rerail.model.finding import Finding, Kind, Level
from rerail.model.policy import Mode, OnExpiry, Policy
from rerail.model.run import AfterStop, LaunchCheck, PlannedStop, Proposal, ProposedAction, Run, RunState
from rerail.model.runbooks import Runbook
from rerail.model.signals import FindingsObserved, JobObserved

# The findings that stopping the job can resolve, and the cause whose budget is charged. The others go to people.
CAUSES = {
    Kind.NON_FINITE: Cause.DIVERGED,
    Kind.LOSS_SPIKE: Cause.DIVERGED,
    Kind.DIVERGENCE: Cause.DIVERGED,
    Kind.FROZEN_LOSS: Cause.DIVERGED,
    Kind.THROUGHPUT_DROP: Cause.HARDWARE,
    Kind.STALL: Cause.HANG,
    Kind.STARTUP_STALL: Cause.HANG,
    Kind.ALARM: Cause.UNKNOWN,
}
RUNBOOK_BY_KIND = {
    Kind.BLIND: Runbook.BLIND,
    Kind.CHECKPOINT_STALL: Runbook.CHECKPOINT_STALL,
    Kind.PLATEAU: Runbook.PLATEAU,
    Kind.GRAD_NORM: Runbook.GRAD_NORM,
    Kind.RESUME_MISMATCH: Runbook.RESUME_MISMATCH,
    Kind.CAPACITY_WAIT: Runbook.NO_CAPACITY,
}
# A hung job cannot save an emergency checkpoint.
HANGS = (Kind.STALL, Kind.STARTUP_STALL)
# A checkpoint is overdue after this many of the longest recent intervals between two checkpoints.
OVERDUE_INTERVALS = 1.5
# With fewer than two checkpoints the interval is unknown: then after this many times the policy's shortest stall.
OVERDUE_STALL_FLOORS = 6
LIVE_STATES = (RunState.WATCHING, RunState.STARTING)


def on_findings(run: Run, observed: FindingsObserved, policy: Policy) -> Decision:
    """Act on the most severe new finding, or send notices of the warnings.

    Each finding is reported once.
    """
    if observed.job_name != run.current.job_name or not run.current.may_be_live:
        return Decision(run)  # about an attempt that has ended
    run = with_findings(run, [finding for finding in observed.findings if not is_from_before_restart(run, finding)])
    if run.state not in LIVE_STATES:
        return Decision(run)  # it is being handled already
    # While SageMaker restarts the job, missing progress is no hang.
    restarting = run.current.secondary not in ("", "Training")
    findings = tuple(
        finding
        for finding in observed.findings
        if not (restarting and finding.kind in HANGS) and not is_from_before_restart(run, finding)
    )
    findings = (
        findings
        if observed.witnessed
        else tuple(_check_against_checkpoints(finding, observed, policy) for finding in findings)
    )
    findings = tuple(_with_cost_estimate(run, finding, observed, policy) for finding in findings)
    paged = _list_paged_kinds(run)
    new = tuple(
        finding
        for finding in findings
        if _make_key(run, finding) not in run.warnings or (finding.level in OVER and finding.kind in paged)
    )
    interventions = [finding for finding in new if finding.level is Level.INTERVENE]
    if interventions:
        return _on_intervention(_with_notified(run, interventions[:1]), interventions[0], observed, policy)
    warnings = tuple(finding for finding in new if finding.level not in OVER)
    resolved = tuple(finding for finding in new if finding.level in OVER)
    return _on_warning(_without_resolved_proposal(run, resolved), warnings, resolved) if new else Decision(run)


def _without_resolved_proposal(run: Run, resolved: Sequence[Finding]) -> Run:
    """Return the run without a proposal to stop the job for a finding that has recovered."""
    proposed = run.proposal.finding if run.proposal and run.proposal.plan is ProposedAction.STOP else None
    recovered = {finding.kind for finding in resolved if finding.level is Level.MENDED}
    return replace(run, proposal=None) if proposed and proposed.kind in recovered else run


def _with_cost_estimate(run: Run, finding: Finding, observed: FindingsObserved, policy: Policy) -> Finding:
    """Return the finding with its cost estimate.

    If the checkpoints were not listed, it is unchanged: a relaunch might have to start from scratch.
    """
    if observed.checkpoints is None and run.checkpoint_uri:
        return finding
    step = choose_resume_step(observed.checkpoints, before_step=finding.onset_step)
    return with_cost_estimate(run, finding, step, at=observed.at, policy=policy)


def _check_against_checkpoints(finding: Finding, observed: FindingsObserved, policy: Policy) -> Finding:
    """Return the finding as the checkpoints confirm it.

    A stalled job that has saved a checkpoint is training, so only its metrics are missing. A stall is a warning until a
    checkpoint is overdue.
    """
    newest = newest_usable(observed.checkpoints or ())
    if finding.kind is not Kind.STALL or finding.onset_at is None:
        return finding
    if newest is None or newest.saved_at <= finding.onset_at:
        return (
            finding
            if finding.idle or _is_checkpoint_overdue(finding, observed, policy)
            else replace(finding, level=Level.WARN)
        )
    text = f"{finding.evidence}, yet a checkpoint was saved at step {newest.step}: its metrics are missing"
    return replace(finding, kind=Kind.BLIND, evidence=text)


def _is_checkpoint_overdue(finding: Finding, observed: FindingsObserved, policy: Policy) -> bool:
    """Return whether the next checkpoint should exist by now, so that its absence confirms a stall.

    The expected interval is the longest between two recent checkpoints. Before there are two, only a long silence
    counts. Doubtful clocks measure from the time of the doubt.
    """
    times = sorted(checkpoint.saved_at for checkpoint in observed.checkpoints or ())
    longest = max((later - earlier for earlier, later in zip(times, times[1:], strict=False)), default=None)
    since = finding.onset_at if longest is None else times[-1]
    overdue = OVERDUE_STALL_FLOORS * policy.detection.stall_floor if longest is None else OVERDUE_INTERVALS * longest
    return since is None or observed.at - max(since, finding.doubt or since) > overdue


def _on_warning(run: Run, warnings: tuple[Finding, ...], resolved: tuple[Finding, ...] = ()) -> Decision:
    """Send notices of new warnings and of resolved findings, and all-clears for open pages."""
    reasons = [f"warning: {finding.kind}: {finding.evidence}" for finding in warnings]
    reasons += [f"{finding.kind} {finding.level}: {finding.evidence}" for finding in resolved]
    findings = (*warnings, *resolved)
    why = "; ".join(finding.evidence for finding in resolved)
    paged = _list_paged_kinds(run)
    run, clears = clear_pages(run, {finding.kind for finding in resolved}, why)
    notices = tuple(
        make_notice(
            run,
            Severity.INFORM,
            f"{finding.kind} ({state})",
            finding.evidence,
            key=_make_key(run, finding),
            runbook=RUNBOOK_BY_KIND.get(finding.kind, Runbook.INFORMED),
            did="nothing: it may well recover by itself" if state == "warning" else "nothing more",
            since=finding.onset_at or finding.at,
        )
        for findings, state in ((warnings, "warning"), (resolved, "over"))
        for finding in findings
        if not (state == "over" and finding.kind in paged)  # the page's all-clear reports it
    )
    run = _with_notified(run, findings)
    cleared = tuple(f"{kind}-" for kind in paged & {finding.kind for finding in resolved})
    # A warning that recurs after an all-clear is reported again.
    run = replace(run, warnings=tuple(key for key in run.warnings if not cleared or not key.startswith(cleared)))
    return Decision(run, (*notices, *clears), "; ".join(reasons), finding=findings[0].kind)


def _list_paged_kinds(run: Run) -> set[str]:
    """Return the kinds of findings that have an open page."""
    return {page.tell.about for page in run.pages if page.tell.until is ClearedBy.MENDED}


def _on_intervention(run: Run, finding: Finding, observed: FindingsObserved, policy: Policy) -> Decision:
    """Decide on a finding that calls for action: restart in place, relaunch, propose it, hold, or page."""
    cause = CAUSES.get(finding.kind)
    what = f"{finding.kind}: {finding.evidence}"
    if cause is None:
        reason = f"{what}. The job goes on; you have to decide whether it should"
        return Decision(run, (_make_page(run, finding),), reason, finding=finding.kind)
    before_step = finding.onset_step if cause is Cause.DIVERGED else None
    failure = _make_failure(run, finding, cause, observed, before_step)
    charged = with_failure_charged(
        with_attempt(run, replace(run.current, cause=cause, fingerprint=finding.kind)), failure
    )
    verdict = remedy(charged, failure, policy)
    rung = _plan_rung(charged, before_step, verdict, observed, policy)
    elsewhere = False
    if isinstance(rung, Hold) and is_untried_elsewhere(charged):
        elsewhere, rung = True, None
        what = f"{what}; nothing has helped in place, so other machines are tried"
    elif isinstance(rung, Hold):
        verdict, rung = rung, None
    elif rung and isinstance(verdict, Relaunch):
        failure, verdict = replace(failure, resume_step=rung.resume_step), replace(verdict, why=rung.why)
    if not may_act(run, policy):  # nothing is done, so nothing is charged
        did = f"observing only: it would be {_format_plan(verdict, failure)}"
        reason = f"{what}; {did}"
        notice = make_notice(
            run,
            Severity.INFORM,
            f"{finding.kind}: observing only",
            what,
            key=_make_key(run, finding),
            runbook=Runbook.OBSERVING,
            did=did,
            since=finding.onset_at or finding.at,
        )
        return Decision(run, (notice,), reason, finding=finding.kind)
    if isinstance(verdict, Hold):
        advice = f"{verdict.advice}; the job goes on until you stop it"
        reason = f"{what}; {_format_plan(verdict, failure)}. To do: {advice}"
        began = finding.onset_at or finding.at
        recorded = with_incident(charged, failure, reason, ("hold",), kind=finding.kind, began=began)
        return _with_finding(hold_as_ruled(recorded, observed.at, what, replace(verdict, advice=advice)), finding)
    if policy.mode is not Mode.ACT:  # an approval is needed first, or Rerail is paused
        plan = f"stop the job and relaunch it {format_start(failure.resume_step)}"
        return _with_finding(propose_stop(run, finding, what, plan, at=observed.at, policy=policy), finding)
    charged = with_rollback_labels(charged, finding) if before_step is not None else charged
    planned = (
        with_rung_taken(charged, rung, before_step, at=observed.at) if rung and before_step is not None else charged
    )
    aim = choose_target(planned, failure, before_step)
    if not elsewhere and can_restart(run) and not find_obstacle(planned, failure, aim, policy):
        began = finding.onset_at or finding.at
        explained = f"{what}; {rung.why}" if rung else what
        decision = restart(planned, failure, aim, policy, explained, kind=finding.kind, began=began)
        return _with_finding(decision, finding)
    did = _format_plan(verdict, failure)
    return _with_finding(_stop_job(charged, failure, finding, policy, what, did, before_step), finding)


def _make_page(run: Run, finding: Finding) -> Notify:
    """Return the page for trouble that stopping the job cannot resolve; one for each kind and attempt."""
    return make_notice(
        run,
        Severity.PAGE,
        f"{finding.kind}: {finding.evidence}",
        f"{finding.kind}: {finding.evidence}",
        key=f"{finding.kind}-{run.current.number}",
        runbook=RUNBOOK_BY_KIND.get(finding.kind, Runbook.INFORMED),
        did="nothing: the job goes on, stopping it would not resolve this",
        todo=f"Decide whether the job should go on: Rerail cannot\nIf not: rerail stop {run.id}",
        since=finding.onset_at or finding.at,
        until=ClearedBy.MENDED,
        about=finding.kind,
    )


def _plan_rung(
    run: Run, before_step: int | None, verdict: Verdict, observed: FindingsObserved, policy: Policy
) -> rollback_ladder.RollbackPlan | Hold | None:
    """Return the ladder's next rung where the loss diverged at a known step and the rules allow a relaunch."""
    if before_step is None or isinstance(verdict, Hold):
        return None
    return rollback_ladder.plan_rollback(run, before_step, observed.checkpoints or (), policy)


def on_stop_approved(
    run: Run, proposal: Proposal, checkpoints: Sequence[Checkpoint] | None, *, at: datetime, policy: Policy, who: str
) -> Decision:
    """Carry out the proposed stop, by the state of the run now.

    `who` approved it; "" where no approval was needed.
    """
    assert proposal.finding is not None
    observed = FindingsObserved(at, run.current.job_name, (proposal.finding,), checkpoints, witnessed=True)
    decision = _on_intervention(replace(run, proposal=None), proposal.finding, observed, replace(policy, mode=Mode.ACT))
    stop = decision.run.stop
    return replace(decision, run=replace(decision.run, stop=stop and replace(stop, approved_by=who)))


def on_proposal(run: Run, proposal: Proposal, seen: JobObserved, policy: Policy) -> Decision | None:
    """Act on a proposal to stop a running job once it has expired or the pause was lifted.

    None if it is not due yet.
    """
    if (
        proposal.plan is not ProposedAction.STOP
        or policy.mode is Mode.PAUSE
        or run.state not in LIVE_STATES
        or not seen.job.is_training
    ):
        return None
    if proposal.awaits is LaunchCheck.PAUSE:
        return _on_resumed(run, proposal, seen, policy)
    if seen.at < proposal.expires_at:
        return None
    if policy.approval.on_expiry is OnExpiry.HOLD:
        return leave_job_running(run, proposal)
    decision = on_stop_approved(run, proposal, seen.checkpoints, at=seen.at, policy=policy, who="the policy")
    return replace(decision, reason=f"{format_unanswered(proposal)}, and the policy acts then: {decision.reason}")


def _on_resumed(run: Run, proposal: Proposal, seen: JobObserved, policy: Policy) -> Decision:
    """Decide on a finding from a pause, after the pause was lifted.

    One that has expired may have recovered, so an operator has to approve it.
    """
    assert proposal.finding is not None
    observed = FindingsObserved(seen.at, run.current.job_name, (proposal.finding,), seen.checkpoints)
    if _check_against_checkpoints(proposal.finding, observed, policy).kind is not proposal.finding.kind:
        return Decision(replace(run, proposal=None), reason=f"{proposal.why}: no longer so, the job saves checkpoints")
    if policy.mode is Mode.APPROVE or seen.at >= proposal.expires_at:
        return propose_again(run, proposal, "the pause was lifted", at=seen.at, policy=policy)
    decision = on_stop_approved(run, proposal, seen.checkpoints, at=seen.at, policy=policy, who="")
    return replace(decision, reason=f"the pause was lifted: {decision.reason}")


def _format_plan(verdict: Verdict, failure: Failure) -> str:
    """Return what is to be done, in words."""
    if isinstance(verdict, Hold):
        return f"held: {verdict.why}"
    return f"stopping the job, to relaunch {format_start(failure.resume_step)} ({verdict.why})"


def _stop_job(
    run: Run, failure: Failure, finding: Finding, policy: Policy, what: str, did: str, before_step: int | None
) -> Decision:
    """Stop the job to relaunch it: at once after a hang, otherwise after an emergency checkpoint."""
    began = finding.onset_at or finding.at or failure.at
    actions, reason = ("stop", "relaunch"), f"{what}; {did}"
    run = with_incident(run, failure, reason, actions, kind=finding.kind, onset_step=before_step, began=began)
    run = with_attempt(run, replace(run.current, onset_step=before_step))
    stop = PlannedStop(
        then=AfterStop.RELAUNCH,
        reason=finding.kind,
        asked_at=failure.at,
        deadline=failure.at + policy.save.deadline,
        before_step=before_step,
        fresh_machines=failure.diagnosis.cause is Cause.HARDWARE,
    )
    title, key = f"{finding.kind}: relaunching", _make_key(run, finding)
    notice = make_notice(run, Severity.INFORM, title, what, key=key, did=did, since=began)
    if finding.kind not in HANGS:
        return checkpoint_then_stop(run, stop, policy, reason, notice)
    decision = stop_now(replace(run, stop=stop), reason)
    return replace(decision, actions=(*decision.actions, notice))


def _make_failure(
    run: Run, finding: Finding, cause: Cause, observed: FindingsObserved, before_step: int | None
) -> Failure:
    """Return the finding as a failure for the rules."""
    return Failure(
        diagnosis=Diagnosis(cause, finding.evidence, finding.kind, finding.kind, step=finding.onset_step),
        last_step=finding.step if finding.step is not None else run.current.last_step,
        resume_step=choose_resume_step(observed.checkpoints, before_step=before_step),
        at=observed.at,
    )


def _with_finding(decision: Decision, finding: Finding) -> Decision:
    """Return the decision with the finding that it answers."""
    return replace(decision, finding=finding.kind, inputs={"level": finding.level, "onset_step": finding.onset_step})


def _with_notified(run: Run, findings: tuple[Finding, ...] | list[Finding]) -> Run:
    """Return the run with these findings recorded as reported."""
    return with_warnings(run, *(_make_key(run, finding) for finding in findings))


def _make_key(run: Run, finding: Finding) -> str:
    """Return the key of a finding's notice: one per kind, level, onset and start of the processes."""
    attempt, restart = run.current.number, run.current.restart
    where = f"{attempt}.{restart}" if restart else str(attempt)
    return f"{finding.kind}-{finding.level}-{where}-{finding.onset_step}"
