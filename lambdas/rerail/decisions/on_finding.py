"""A finding about a job that runs: people are told at once, the job is stopped only for what will not mend."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from rerail.decisions import rollback_ladder as ladder
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
from rerail.decisions.launch_checks import PAUSE
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
from rerail.model.run import AfterStop, PlannedStop, Proposal, ProposedAction, Run, RunState
from rerail.model.runbooks import Runbook
from rerail.model.signals import FindingsObserved, JobObserved

# What stopping the job can mend, and the cause that its budget is charged to. Anything else is for people.
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
RUNBOOKS = {
    Kind.BLIND: Runbook.BLIND,
    Kind.CHECKPOINT_STALL: Runbook.CHECKPOINT_STALL,
    Kind.PLATEAU: Runbook.PLATEAU,
    Kind.GRAD_NORM: Runbook.GRAD_NORM,
    Kind.RESUME_MISMATCH: Runbook.RESUME_MISMATCH,
    Kind.CAPACITY_WAIT: Runbook.NO_CAPACITY,
}
# It will not save any more, whoever asks.
HANGS = (Kind.STALL, Kind.STARTUP_STALL)
# Of so many usual intervals without a save one is overdue; where nobody knows what is usual, after so many times the
# shortest silence that is a stall.
LATE, UNKNOWN = 1.5, 6
LIVE = (RunState.WATCHING, RunState.STARTING)


def on_findings(run: Run, found: FindingsObserved, policy: Policy) -> Decision:
    """The gravest finding decides; each is told once."""
    if found.job_name != run.current.job_name or not run.current.may_be_live:
        return Decision(run)  # it speaks of an attempt that is over
    run = with_findings(run, [finding for finding in found.findings if not is_from_before_restart(run, finding)])
    if run.state not in LIVE:
        return Decision(run)  # it is being dealt with already
    away = run.current.secondary not in ("", "Training")  # SageMaker restarts it: nothing moves, and nothing is wrong
    findings = tuple(f for f in found.findings if not (away and f.kind in HANGS) and not is_from_before_restart(run, f))
    findings = findings if found.witnessed else tuple(_borne_out(f, found, policy) for f in findings)
    findings = tuple(_weighed(run, finding, found, policy) for finding in findings)
    paged = _paged(run)
    fresh = tuple(f for f in findings if _key(run, f) not in run.warnings or (f.level in OVER and f.kind in paged))
    grave = [finding for finding in fresh if finding.level is Level.INTERVENE]
    if grave:
        return _on_grave(_told(run, grave[:1]), grave[0], found, policy)
    warnings = tuple(finding for finding in fresh if finding.level not in OVER)
    over = tuple(finding for finding in fresh if finding.level in OVER)
    return _on_warning(_withdrawn(run, over), warnings, over) if fresh else Decision(run)


def _withdrawn(run: Run, over: Sequence[Finding]) -> Run:
    """Nobody is asked any more whether to stop a job for what has mended."""
    asked = run.proposal.finding if run.proposal and run.proposal.plan is ProposedAction.STOP else None
    mended = {finding.kind for finding in over if finding.level is Level.MENDED}
    return replace(run, proposal=None) if asked and asked.kind in mended else run


def _weighed(run: Run, finding: Finding, found: FindingsObserved, policy: Policy) -> Finding:
    """Where nobody has looked at the checkpoints, nothing is weighed: a relaunch might begin from nothing."""
    if found.checkpoints is None and run.checkpoint_uri:
        return finding
    step = choose_resume_step(found.checkpoints, before_step=finding.onset_step)
    return with_cost_estimate(run, finding, step, at=found.at, policy=policy)


def _borne_out(finding: Finding, found: FindingsObserved, policy: Policy) -> Finding:
    """A job that saves does not stand still: then it is we who are blind, and that stops no job."""
    newest = newest_usable(found.checkpoints or ())
    if finding.kind is not Kind.STALL or finding.onset_at is None:
        return finding
    if newest is None or newest.saved_at <= finding.onset_at:
        return finding if finding.idle or _is_due(finding, found, policy) else replace(finding, level=Level.WARN)
    text = f"{finding.evidence}, yet a checkpoint was saved at step {newest.step}: its metrics are missing"
    return replace(finding, kind=Kind.BLIND, evidence=text)


def _is_due(finding: Finding, found: FindingsObserved, policy: Policy) -> bool:
    """By the longest time between two saves of late the next one should be there by now: only then does an empty folder
    tell of a job that stands still. Before two saves nobody knows, and it takes a long silence. A clock in doubt
    measures from then on."""
    times = sorted(checkpoint.saved_at for checkpoint in found.checkpoints or ())
    longest = max((later - earlier for earlier, later in zip(times, times[1:], strict=False)), default=None)
    since = finding.onset_at if longest is None else times[-1]
    late = UNKNOWN * policy.detection.stall_floor if longest is None else LATE * longest
    return since is None or found.at - max(since, finding.doubt or since) > late


def _on_warning(run: Run, warnings: tuple[Finding, ...], over: tuple[Finding, ...] = ()) -> Decision:
    said = [f"warning: {finding.kind}: {finding.evidence}" for finding in warnings]
    said += [f"{finding.kind} {finding.level}: {finding.evidence}" for finding in over]
    findings = (*warnings, *over)
    why = "; ".join(finding.evidence for finding in over)
    paged = _paged(run)
    run, clears = clear_pages(run, {finding.kind for finding in over}, why)
    tells = tuple(
        make_notice(
            run,
            Severity.INFORM,
            f"{f.kind} ({word})",
            f.evidence,
            key=_key(run, f),
            runbook=RUNBOOKS.get(f.kind, Runbook.INFORMED),
            did="nothing: it may well mend by itself" if word == "warning" else "nothing more",
            since=f.onset_at or f.at,
        )
        for findings, word in ((warnings, "warning"), (over, "over"))
        for f in findings
        if not (word == "over" and f.kind in paged)  # they have an all-clear of their own
    )
    run = _told(run, findings)
    cleared = tuple(f"{kind}-" for kind in paged & {finding.kind for finding in over})
    # What comes again after an all-clear is news.
    run = replace(run, warnings=tuple(key for key in run.warnings if not cleared or not key.startswith(cleared)))
    return Decision(run, (*tells, *clears), "; ".join(said), finding=findings[0].kind)


def _paged(run: Run) -> set[str]:
    """The kinds of findings about which a page stands."""
    return {page.tell.about for page in run.pages if page.tell.until is ClearedBy.MENDED}


def _on_grave(run: Run, finding: Finding, found: FindingsObserved, policy: Policy) -> Decision:
    cause = CAUSES.get(finding.kind)
    what = f"{finding.kind}: {finding.evidence}"
    if cause is None:
        reason = f"{what}. The job goes on; nobody but you can tell whether it should"
        return Decision(run, (_page(run, finding),), reason, finding=finding.kind)
    before_step = finding.onset_step if cause is Cause.DIVERGED else None
    failure = _failure(run, finding, cause, found, before_step)
    charged = with_failure_charged(
        with_attempt(run, replace(run.current, cause=cause, fingerprint=finding.kind)), failure
    )
    verdict = remedy(charged, failure, policy)
    rung = _rung(charged, before_step, verdict, found, policy)
    elsewhere = False
    if isinstance(rung, Hold) and is_untried_elsewhere(charged):
        elsewhere, rung = True, None
        what = f"{what}; nothing has helped in place, so other machines are tried"
    elif isinstance(rung, Hold):
        verdict, rung = rung, None
    elif rung and isinstance(verdict, Relaunch):
        failure, verdict = replace(failure, resume_step=rung.resume_step), replace(verdict, why=rung.why)
    if not may_act(run, policy):  # nothing is done, so nothing is charged, and the job has not failed
        did = f"observing only: it would be {_plan(verdict, failure)}"
        reason = f"{what}; {did}"
        tell = make_notice(
            run,
            Severity.INFORM,
            f"{finding.kind}: observing only",
            what,
            key=_key(run, finding),
            runbook=Runbook.OBSERVING,
            did=did,
            since=finding.onset_at or finding.at,
        )
        return Decision(run, (tell,), reason, finding=finding.kind)
    if isinstance(verdict, Hold):
        advice = f"{verdict.advice}; the job goes on until you stop it"
        reason = f"{what}; {_plan(verdict, failure)}. To do: {advice}"
        began = finding.onset_at or finding.at
        kept = with_incident(charged, failure, reason, ("hold",), kind=finding.kind, began=began)
        return _named(hold_as_ruled(kept, found.at, what, replace(verdict, advice=advice)), finding)
    if policy.mode is not Mode.ACT:  # somebody is asked first, or Rerail is paused
        plan = f"stop the job and relaunch it {format_start(failure.resume_step)}"
        return _named(propose_stop(run, finding, what, plan, at=found.at, policy=policy), finding)
    charged = with_rollback_labels(charged, finding) if before_step is not None else charged
    lifted = with_rung_taken(charged, rung, before_step, at=found.at) if rung and before_step is not None else charged
    aim = choose_target(lifted, failure, before_step)
    if not elsewhere and can_restart(run) and not find_obstacle(lifted, failure, aim, policy):
        began = finding.onset_at or finding.at
        said = f"{what}; {rung.why}" if rung else what
        decision = restart(lifted, failure, aim, policy, said, kind=finding.kind, began=began)
        return _named(decision, finding)
    did = _plan(verdict, failure)
    return _named(_stopping(charged, failure, finding, policy, what, did, before_step), finding)


def _page(run: Run, finding: Finding) -> Notify:
    """What stopping the job cannot mend; one page for each kind of trouble, however often it is found anew."""
    return make_notice(
        run,
        Severity.PAGE,
        f"{finding.kind}: {finding.evidence}",
        f"{finding.kind}: {finding.evidence}",
        key=f"{finding.kind}-{run.current.number}",
        runbook=RUNBOOKS.get(finding.kind, Runbook.INFORMED),
        did="nothing: the job goes on, stopping it would not mend this",
        todo=f"See whether the job should go on: nobody but you can tell\nIf not: rerail stop {run.id}",
        since=finding.onset_at or finding.at,
        until=ClearedBy.MENDED,
        about=finding.kind,
    )


def _rung(
    run: Run, before_step: int | None, verdict: Verdict, found: FindingsObserved, policy: Policy
) -> ladder.RollbackPlan | Hold | None:
    """What the ladder says where the loss went wrong at a known step and the rules let the run go on."""
    if before_step is None or isinstance(verdict, Hold):
        return None
    return ladder.plan_rollback(run, before_step, found.checkpoints or (), policy)


def on_stop_approved(
    run: Run, proposal: Proposal, checkpoints: Sequence[Checkpoint] | None, *, at: datetime, policy: Policy, who: str
) -> Decision:
    """Do what was proposed, on the world as it is now; `who` has agreed to it, "" where nobody had to."""
    assert proposal.finding is not None
    found = FindingsObserved(at, run.current.job_name, (proposal.finding,), checkpoints, witnessed=True)
    decision = _on_grave(replace(run, proposal=None), proposal.finding, found, replace(policy, mode=Mode.ACT))
    stop = decision.run.stop
    return replace(decision, run=replace(decision.run, stop=stop and replace(stop, approved_by=who)))


def on_proposal(run: Run, proposal: Proposal, seen: JobObserved, policy: Policy) -> Decision | None:
    """The job that would be stopped still runs: act where the time has come, or the pause was lifted."""
    if (
        proposal.plan is not ProposedAction.STOP
        or policy.mode is Mode.PAUSE
        or run.state not in LIVE
        or not seen.job.is_training
    ):
        return None
    if proposal.awaits == PAUSE:
        return _on_resumed(run, proposal, seen, policy)
    if seen.at < proposal.expires_at:
        return None
    if policy.approval.on_expiry is OnExpiry.HOLD:
        return leave_job_running(run, proposal)
    decision = on_stop_approved(run, proposal, seen.checkpoints, at=seen.at, policy=policy, who="the policy")
    return replace(decision, reason=f"{format_unanswered(proposal)}, and the policy acts then: {decision.reason}")


def _on_resumed(run: Run, proposal: Proposal, seen: JobObserved, policy: Policy) -> Decision:
    """What was found during a pause; what is old by now may have mended, and a human has to say so."""
    assert proposal.finding is not None
    heard = FindingsObserved(seen.at, run.current.job_name, (proposal.finding,), seen.checkpoints)
    if _borne_out(proposal.finding, heard, policy).kind is not proposal.finding.kind:
        return Decision(replace(run, proposal=None), reason=f"{proposal.why}: no longer so, the job saves")
    if policy.mode is Mode.APPROVE or seen.at >= proposal.expires_at:
        return propose_again(run, proposal, "the pause was lifted", at=seen.at, policy=policy)
    decision = on_stop_approved(run, proposal, seen.checkpoints, at=seen.at, policy=policy, who="")
    return replace(decision, reason=f"the pause was lifted: {decision.reason}")


def _plan(verdict: Verdict, failure: Failure) -> str:
    if isinstance(verdict, Hold):
        return f"held: {verdict.why}"
    return f"stopping the job, to relaunch {format_start(failure.resume_step)} ({verdict.why})"


def _stopping(
    run: Run, failure: Failure, finding: Finding, policy: Policy, what: str, did: str, before_step: int | None
) -> Decision:
    """Stop at once where no checkpoint would ever come; else have one saved first."""
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
    title, key = f"{finding.kind}: relaunching", _key(run, finding)
    tell = make_notice(run, Severity.INFORM, title, what, key=key, did=did, since=began)
    if finding.kind not in HANGS:
        return checkpoint_then_stop(run, stop, policy, reason, tell)
    decision = stop_now(replace(run, stop=stop), reason)
    return replace(decision, actions=(*decision.actions, tell))


def _failure(run: Run, finding: Finding, cause: Cause, found: FindingsObserved, before_step: int | None) -> Failure:
    return Failure(
        diagnosis=Diagnosis(cause, finding.evidence, finding.kind, finding.kind, step=finding.onset_step),
        last_step=finding.step if finding.step is not None else run.current.last_step,
        resume_step=choose_resume_step(found.checkpoints, before_step=before_step),
        at=found.at,
    )


def _named(decision: Decision, finding: Finding) -> Decision:
    return replace(decision, finding=finding.kind, inputs={"level": finding.level, "onset_step": finding.onset_step})


def _told(run: Run, findings: tuple[Finding, ...] | list[Finding]) -> Run:
    return with_warnings(run, *(_key(run, finding) for finding in findings))


def _key(run: Run, finding: Finding) -> str:
    """One notice for each level of each trouble since each start, however often the detectors repeat it."""
    attempt, restart = run.current.number, run.current.restart
    where = f"{attempt}.{restart}" if restart else str(attempt)
    return f"{finding.kind}-{finding.level}-{where}-{finding.onset_step}"
