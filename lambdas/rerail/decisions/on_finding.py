"""Decide on findings about a running job: notify people, and stop the job only for trouble that a restart resolves."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from rerail.decisions import rollback_ladder
from rerail.decisions.approvals import format_unanswered, leave_job_running, propose_again, propose_stop
from rerail.decisions.checkpoint_health import (
    RESOLVED_LEVELS,
    with_findings,
    with_onset_estimated,
    with_rollback_labels,
)
from rerail.decisions.decision import (
    THE_POLICY,
    Decision,
    choose_resume_step,
    format_start,
    format_stop,
    hold_as_ruled,
    make_notice,
    may_act,
    stop_now,
    with_attempt,
    with_undecided,
    with_warnings,
)
from rerail.decisions.emergency_checkpoint import checkpoint_then_stop
from rerail.decisions.file_copies import with_onset_dated
from rerail.decisions.in_place_restart import (
    can_restart,
    choose_target,
    find_obstacle,
    is_from_before_restart,
    restart,
    with_approval,
)
from rerail.decisions.launch import is_untried_elsewhere
from rerail.decisions.launch_checks import format_spent_limit
from rerail.decisions.on_failure import with_failure_charged, with_incident
from rerail.decisions.open_pages import clear_pages
from rerail.decisions.remedies import Failure, Hold, Relaunch, Verdict, choose_remedy
from rerail.decisions.rollback_ladder import with_rung_taken
from rerail.decisions.start_check import with_seen_step
from rerail.detection.onsets import OF_THE_LOSS
from rerail.model.actions import ClearedBy, Notify, Severity
from rerail.model.causes import Cause
from rerail.model.checkpoint_layouts import Layout, list_save_times
from rerail.model.checkpoints import Checkpoint, find_newest_usable
from rerail.model.diagnosis import Diagnosis
from rerail.model.finding import UNDECIDED, Finding, Kind, Level
from rerail.model.policy import Mode, OnAlarm, OnExpiry, Policy
from rerail.model.run import AfterStop, JobStatus, LaunchCheck, PlannedStop, Proposal, ProposedAction, Run, RunState
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
# The answer to a warning, and what has become of a resolved finding, in notices.
LEFT_ALONE = "nothing: it may well recover by itself"
RESOLVED = {Level.RECOVERED: "over", Level.ACCEPTED: "accepted as normal"}
# SageMaker's own namespace of training jobs.
ALARM_NAMESPACE = "/aws/sagemaker/TrainingJobs"


def on_findings(run: Run, observed: FindingsObserved, policy: Policy) -> Decision:
    """Act on the most severe new finding, or send notices of the warnings.

    Each finding is reported once.
    """
    if observed.job_name != run.current.job_name or not run.current.may_be_live:
        return Decision(run)  # about an attempt that has ended
    run = _with_first_step(run, observed.first_step)
    estimated = (with_onset_estimated(run, finding, observed.checkpoints or ()) for finding in observed.findings)
    observed = replace(observed, findings=tuple(estimated))
    observed = _without_past(run, observed)
    run = with_findings(run, [finding for finding in observed.findings if not is_from_before_restart(run, finding)])
    # After an outage, one message may contain a problem and its end.
    run = _with_recoveries(run, observed)
    observed = _without_past(run, observed)
    if run.state not in LIVE_STATES or run.current.status is JobStatus.STOPPING:
        return Decision(run)  # it is being handled already, or is being stopped, and not by Rerail
    new = _select_new(run, observed, policy)
    interventions = [finding for finding in new if finding.level is Level.INTERVENE]
    if interventions:
        return _on_intervention(_with_notified(run, interventions[:1]), interventions[0], observed, policy)
    warnings = tuple(finding for finding in new if finding.level not in RESOLVED_LEVELS)
    resolved = tuple(finding for finding in new if finding.level in RESOLVED_LEVELS)
    return _on_warning(_with_recovered(run, resolved, observed.at), warnings, resolved) if new else Decision(run)


def _with_recoveries(run: Run, observed: FindingsObserved) -> Run:
    """Return the run with the recoveries among the findings recorded; of each kind the newest is kept."""
    newest = {finding.kind: finding for finding in run.current.recoveries}
    for finding in observed.findings:
        if finding.level is not Level.RECOVERED or finding.at is None:
            continue
        # A time in the future would hide later problems.
        at, known = min(finding.at, observed.at), newest.get(finding.kind)
        if known is None or known.at is None or known.at < at:
            newest[finding.kind] = replace(finding, evidence="", at=at)
    return with_attempt(run, replace(run.current, recoveries=tuple(newest.values())))


def _without_past(run: Run, observed: FindingsObserved) -> FindingsObserved:
    """Return the findings without the problems that have recovered: a healthy job is not stopped for one."""
    left = (finding for finding in observed.findings if finding.level in RESOLVED_LEVELS or not _is_past(run, finding))
    return replace(observed, findings=tuple(left))


def _is_past(run: Run, finding: Finding) -> bool:
    """Return whether the problem of that kind recovered after this finding, by time and step.

    The sweep sees by its own time, and without a step, that a hang is over: an agent may have found another since.
    """
    for end in run.current.recoveries:
        if end.kind is finding.kind and end.at and finding.at and finding.at < end.at:
            if finding.step is None or end.step is None:
                return finding.kind in OF_THE_LOSS and finding.step is end.step
            return finding.step < end.step
    return False


def _with_first_step(run: Run, step: int | None) -> Run:
    """Return the run with the first step of an attempt that resumed by itself, and the lost steps of its incidents."""
    if run.current.resumed_from_step is not None:
        return with_seen_step(run, step)
    if step is None or run.find_start(run.current) is not None:
        return run
    run = with_attempt(run, replace(run.current, first_step=step))
    start = run.find_start(run.current)
    incidents = (
        replace(incident, resume_step=start)
        if incident.resume_step is None and incident.attempt < run.current.number
        else incident
        for incident in run.incidents
    )
    return replace(run, incidents=tuple(incidents))


def make_alarm_finding(
    alarm: str, namespace: str, reason: str, policy: Policy, *, at: datetime, is_late: bool
) -> Finding:
    """Return the finding of a CloudWatch alarm on a job.

    Anyone who may set alarms may name any job in any namespace. So it calls for a restart only if the policy says so,
    and if its metric is SageMaker's own or the policy names the alarm. One that comes late may be over.
    """
    may_restart = policy.on_alarm is OnAlarm.RESTART and (namespace == ALARM_NAMESPACE or alarm in policy.alarms)
    level = Level.INTERVENE if may_restart and not is_late else Level.WARN
    return Finding(Kind.ALARM, level, None, None, f"alarm {alarm} went off: {reason}", at)


def _select_new(run: Run, observed: FindingsObserved, policy: Policy) -> tuple[Finding, ...]:
    """Return the findings that were not reported yet, as the checkpoints confirm them."""
    # While SageMaker restarts the job, missing progress is not a hang.
    ignored = () if run.current.secondary in ("", "Training") else HANGS
    findings = [
        finding
        for finding in observed.findings
        if finding.kind not in ignored and not is_from_before_restart(run, finding)
    ]
    if not observed.witnessed:
        findings = [_check_against_checkpoints(finding, observed, policy) for finding in findings]
    paged = _list_paged_kinds(run)
    reported = {*run.open_warnings, *paged}
    # The page of a stall whose metrics are missing says the same as the warning that they are.
    known = {Kind.BLIND} & paged
    # A finding that was only observed is new once Rerail may act.
    levels = ("",) if may_act(run, policy) else ("", UNDECIDED)
    return tuple(
        finding
        for finding in findings
        if (finding.level in RESOLVED_LEVELS and finding.kind in reported)
        or (finding.kind not in known and all(run.make_warning_key(finding, at) not in run.warnings for at in levels))
    )


def _with_recovered(run: Run, resolved: Sequence[Finding], at: datetime) -> Run:
    """Return the run without a proposal to stop the job for a recovered finding, and with a past stall counted."""
    proposed = run.proposal.finding if run.proposal and run.proposal.plan is ProposedAction.STOP else None
    recovered = {finding.kind for finding in resolved if finding.level is Level.RECOVERED}
    run = replace(run, proposal=None) if proposed and proposed.kind in recovered else run
    attempt = run.current
    if attempt.stalled_at is None or recovered.isdisjoint(HANGS):
        return run
    seconds = attempt.stalled_seconds + max(0.0, (at - attempt.stalled_at).total_seconds())
    return with_attempt(run, replace(attempt, stalled_at=None, stalled_seconds=seconds))


def _check_against_checkpoints(finding: Finding, observed: FindingsObserved, policy: Policy) -> Finding:
    """Return the finding as the checkpoints confirm it.

    A stalled job that has saved a checkpoint is training, so only its metrics are missing. A stall is a warning until a
    checkpoint is overdue.
    """
    newest = find_newest_usable(observed.checkpoints or ())
    if finding.kind is not Kind.STALL or finding.level in RESOLVED_LEVELS or finding.onset_at is None:
        return finding
    changed = [c for c in observed.checkpoints or () if c.layout == Layout.FILE and c.saved_at > finding.onset_at]
    if changed:
        text = f"{finding.evidence}, yet {changed[0].uri.rpartition('/')[2]} was saved: its metrics are missing"
        return replace(finding, kind=Kind.BLIND, evidence=text)
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
    times = list_save_times(observed.checkpoints or ())
    longest = max((later - earlier for earlier, later in zip(times, times[1:], strict=False)), default=None)
    since = finding.onset_at if longest is None else times[-1]
    overdue = OVERDUE_STALL_FLOORS * policy.detection.stall_floor if longest is None else OVERDUE_INTERVALS * longest
    return since is None or observed.at - max(since, finding.doubt or since) > overdue


def _on_warning(run: Run, warnings: tuple[Finding, ...], resolved: tuple[Finding, ...] = ()) -> Decision:
    """Send notices of new warnings and of resolved findings, and all-clears for open pages."""
    reasons = [f"warning: {finding.kind}: {finding.evidence}" for finding in warnings]
    reasons += [f"{finding.kind} {finding.level}: {finding.evidence}" for finding in resolved]
    findings = (*warnings, *resolved)
    paged = _list_paged_kinds(run)
    clears: list[Notify] = []
    for finding in resolved:
        run, cleared_pages = clear_pages(run, [finding.kind], finding.evidence, end=f"is {RESOLVED[finding.level]}")
        clears += cleared_pages
    notices = tuple(
        make_notice(
            run,
            Severity.INFORM,
            f"{finding.kind} ({state})",
            finding.evidence,
            key=run.make_warning_key(finding),
            runbook=RUNBOOK_BY_KIND.get(finding.kind, Runbook.INFORMED),
            did=LEFT_ALONE if state == "warning" else "nothing more",
            since=finding.onset_at or finding.at,
        )
        for finding in findings
        for state in [RESOLVED.get(finding.level, "warning")]
        if not (finding in resolved and finding.kind in paged)  # the page's all-clear reports it
    )
    run = _with_notified(run, findings)
    # A warning that recurs after an all-clear is reported again, as is one whose key names no step.
    cleared = tuple(f"{found.kind}-" for found in resolved if found.kind in paged or found.onset_step is None)
    run = replace(run, warnings=tuple(key for key in run.warnings if not cleared or not key.startswith(cleared)))
    return Decision(run, (*notices, *clears), "; ".join(reasons), finding=findings[0].kind)


def _list_paged_kinds(run: Run) -> set[str]:
    """Return the kinds of findings that have an open page."""
    return {page.notice.about for page in run.pages if page.notice.until is ClearedBy.RECOVERED}


@dataclass(frozen=True, slots=True)
class Intervention:
    """A finding that calls for action, and what is planned for it."""

    # The run before and after the failure is charged to its budgets.
    run: Run
    charged: Run
    finding: Finding
    failure: Failure
    verdict: Verdict
    # The next rung of the rollback ladder, if the loss diverged at a known step.
    rung: rollback_ladder.RollbackPlan | None
    # The finding and what was tried, in words.
    what: str
    # In-place restarts have not helped: a new job is tried on other machines.
    is_elsewhere: bool
    # Why no job would follow a stopped one, in words; "" if one would.
    spent: str

    @property
    def onset_step(self) -> int | None:
        """Return the step to roll back to before; None where the loss is not in question."""
        return _find_onset_step(self.finding)

    @property
    def began(self) -> datetime:
        """Return when the trouble began."""
        return self.finding.onset_at or self.finding.at or self.failure.at

    @property
    def plan_text(self) -> str:
        """Return what is to be done, in words."""
        if isinstance(self.verdict, Hold):
            return f"held: {self.verdict.why}"
        if self.spent:
            return f"stopping the job, without a relaunch: {self.spent}"
        return f"stopping the job, to relaunch {format_start(self.run, self.failure.resume_step)} ({self.verdict.why})"


def _on_intervention(run: Run, finding: Finding, observed: FindingsObserved, policy: Policy) -> Decision:
    """Decide on a finding that calls for action: the first response that applies is taken."""
    if finding.kind not in CAUSES:
        reason = f"{finding.kind}: {finding.evidence}. The job goes on; you have to decide whether it should"
        return Decision(run, (_make_page(run, finding),), reason, finding=finding.kind)
    intervention = _plan_intervention(run, finding, observed, policy)
    for respond in RESPONSES:
        if decision := respond(intervention, policy):
            inputs = {"level": finding.level, "onset_step": finding.onset_step}
            return replace(decision, finding=finding.kind, inputs=inputs)
    raise AssertionError("the last response answers every finding")


def _find_onset_step(finding: Finding) -> int | None:
    return finding.onset_step if CAUSES.get(finding.kind) is Cause.DIVERGED else None


def _plan_intervention(run: Run, finding: Finding, observed: FindingsObserved, policy: Policy) -> Intervention:
    """Charge the failure, and choose the remedy and the rung of the rollback ladder."""
    cause, before_step, what = CAUSES[finding.kind], _find_onset_step(finding), f"{finding.kind}: {finding.evidence}"
    failure = _make_failure(run, finding, cause, observed, before_step)
    attempt = replace(run.current, cause=cause, fingerprint=finding.kind)
    charged = with_failure_charged(with_attempt(run, attempt), failure)
    verdict = choose_remedy(charged, failure, policy)
    rung = _plan_rung(charged, before_step, verdict, observed, policy)
    is_elsewhere = isinstance(rung, Hold) and is_untried_elsewhere(charged)
    if is_elsewhere:
        what, rung = f"{what}; nothing has helped in place, so other machines are tried", None
    elif isinstance(rung, Hold):
        verdict, rung = rung, None
    elif rung and isinstance(verdict, Relaunch):
        failure, verdict = replace(failure, resume_step=rung.resume_step), replace(verdict, why=rung.why)
    assert not isinstance(rung, Hold)
    spent = format_spent_limit(run, observed.at, policy)
    return Intervention(run, charged, finding, failure, verdict, rung, what, is_elsewhere, spent)


def _inform_of_alarm(intervention: Intervention, policy: Policy) -> Decision | None:
    """Only send a notice of an alarm once the restarts for alarms are spent, or where the run would be held.

    Progress refunds nothing here, and an alarm never ends the supervision of a run: others may have set it.
    """
    run, finding, window = intervention.run, intervention.finding, policy.retries.window
    if finding.kind is not Kind.ALARM:
        return None
    at, limit = intervention.failure.at, policy.limits.alarm_restarts
    earlier = [attempt for attempt in run.attempts[:-1] if attempt.fingerprint == Kind.ALARM]
    recent = [attempt for attempt in earlier if not window or at - (attempt.ended_at or at) < window]
    if len(recent) >= limit:
        why = f"{len(recent)} restarts for alarms of at most {limit} are spent"
    elif not (why := intervention.verdict.why if isinstance(intervention.verdict, Hold) else intervention.spent):
        return None
    warning = replace(finding, level=Level.WARN, evidence=f"{finding.evidence}; no restart: {why}")
    # A later alarm of this attempt is decided on again.
    run = replace(run, warnings=tuple(key for key in run.warnings if key != run.make_warning_key(finding)))
    return Decision(run) if run.make_warning_key(warning) in run.warnings else _on_warning(run, (warning,))


def _observe_only(intervention: Intervention, policy: Policy) -> Decision | None:
    """Only send a notice of what would be done, where Rerail may not act; nothing is charged."""
    if may_act(intervention.run, policy):
        return None
    run, finding, what = _with_stall_left(intervention), intervention.finding, intervention.what
    did = f"observing only: it would be {intervention.plan_text}"
    notice = make_notice(
        run,
        Severity.INFORM,
        f"{finding.kind}: observing only",
        what,
        key=run.make_warning_key(finding, UNDECIDED),
        runbook=Runbook.OBSERVING,
        did=did,
        todo=format_stop(run),
        since=finding.onset_at or finding.at,
    )
    return Decision(with_undecided(run, finding.kind), (notice,), f"{what}; {did}")


def _with_stall_left(intervention: Intervention) -> Run:
    """Return the run with the time since when its job stalls, where it is not stopped for that."""
    run = intervention.run
    if intervention.finding.kind not in HANGS or run.current.stalled_at:
        return run
    return with_attempt(run, replace(run.current, stalled_at=intervention.began))


def _hold(intervention: Intervention, policy: Policy) -> Decision | None:
    """Hold the run where the rules find no remedy; the job goes on."""
    verdict, failure = intervention.verdict, intervention.failure
    if not isinstance(verdict, Hold):
        return None
    advice = f"{verdict.advice}; the job goes on until you stop it"
    reason = f"{intervention.what}; {intervention.plan_text}. To do: {advice}"
    kind, began = intervention.finding.kind, intervention.began
    recorded = with_incident(intervention.charged, failure, reason, ("hold",), kind=kind, began=began)
    return hold_as_ruled(recorded, failure.at, intervention.what, replace(verdict, advice=advice))


def _propose(intervention: Intervention, policy: Policy) -> Decision | None:
    """Propose the stop where an approval is needed first, or while Rerail is paused."""
    if policy.mode is Mode.ACT:
        return None
    run, finding, failure = _with_stall_left(intervention), intervention.finding, intervention.failure
    plan = f"stop the job and relaunch it {format_start(run, failure.resume_step)}"
    if intervention.spent and (intervention.is_elsewhere or not can_restart(intervention.run)):
        plan = f"stop the job, without a relaunch: {intervention.spent}"
    return propose_stop(run, finding, intervention.what, plan, at=failure.at, policy=policy)


def _restart_in_place(intervention: Intervention, policy: Policy) -> Decision | None:
    """Restart the training processes within the job, where that can help."""
    run, failure, rung = _with_labels(intervention), intervention.failure, intervention.rung
    if rung and intervention.onset_step is not None:
        run = with_rung_taken(run, rung, intervention.onset_step, at=failure.at)
    target = choose_target(run, failure, intervention.onset_step)
    if intervention.is_elsewhere or not can_restart(intervention.run) or find_obstacle(run, failure, target, policy):
        return None
    what = f"{intervention.what}; {rung.why}" if rung else intervention.what
    return restart(run, failure, target, policy, what, kind=intervention.finding.kind, began=intervention.began)


def _stop_and_relaunch(intervention: Intervention, policy: Policy) -> Decision | None:
    """Stop the job to relaunch it: at once after a hang, otherwise after an emergency checkpoint."""
    finding, failure, onset_step = intervention.finding, intervention.failure, intervention.onset_step
    actions = ("stop",) if intervention.spent else ("stop", "relaunch")
    reason = f"{intervention.what}; {intervention.plan_text}"
    run = with_incident(
        _with_labels(intervention),
        failure,
        reason,
        actions,
        kind=finding.kind,
        onset_step=onset_step,
        began=intervention.began,
    )
    onset_at = finding.onset_at if failure.diagnosis.cause is Cause.DIVERGED else None
    attempt = replace(run.current, onset_step=onset_step, onset_at=onset_at)
    run = with_attempt(run, with_onset_dated(run, attempt, margin_steps=policy.ladder.margin_steps))
    stop = PlannedStop(
        then=AfterStop.RELAUNCH,
        reason=finding.kind,
        asked_at=failure.at,
        deadline=failure.at + policy.save.deadline,
        before_step=onset_step,
        fresh_machines=failure.diagnosis.cause is Cause.HARDWARE,
    )
    title, key = f"{finding.kind}: {'stopping' if intervention.spent else 'relaunching'}", run.make_warning_key(finding)
    notice = make_notice(
        run, Severity.INFORM, title, intervention.what, key=key, did=intervention.plan_text, since=intervention.began
    )
    if finding.kind not in HANGS:
        return checkpoint_then_stop(run, stop, policy, reason, notice)
    decision = stop_now(replace(run, stop=stop), reason)
    return replace(decision, actions=(*decision.actions, notice))


def _with_labels(intervention: Intervention) -> Run:
    """Return the charged run, with the checkpoints since the onset labelled for a rollback."""
    if intervention.onset_step is None:
        return intervention.charged
    return with_rollback_labels(intervention.charged, intervention.finding)


# The responses to a finding that calls for action, in order; the first that applies is taken.
RESPONSES: tuple[Callable[[Intervention, Policy], Decision | None], ...] = (
    _inform_of_alarm,
    _observe_only,
    _hold,
    _propose,
    _restart_in_place,
    _stop_and_relaunch,
)


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
        todo="Decide whether the job should go on\n"
        f"To see what it prints: rerail logs {run.id} --since 30m\n{format_stop(run)}",
        since=finding.onset_at or finding.at,
        until=ClearedBy.RECOVERED,
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
    run = with_attempt(replace(run, proposal=None), replace(run.current, stalled_at=None))
    decision = _on_intervention(run, proposal.finding, observed, replace(policy, mode=Mode.ACT))
    run = replace(decision.run, stop=decision.run.stop and replace(decision.run.stop, approved_by=who))
    return replace(decision, run=with_approval(run, who))


def on_proposal(run: Run, proposal: Proposal, seen: JobObserved, policy: Policy) -> Decision | None:
    """Act on a proposal to stop a running job once it has expired or needs no answer; None if it is not due yet.

    One that expires after the policy has changed decides nothing: its finding may still hold.
    """
    if (
        proposal.plan is not ProposedAction.STOP
        or policy.mode is Mode.PAUSE
        or run.state not in LIVE_STATES
        or not seen.job.is_training
    ):
        return None
    if proposal.awaits is LaunchCheck.PAUSE:
        return _on_resumed(run, proposal, seen, policy, "the pause was lifted")
    if seen.at < proposal.expires_at:
        found_at = proposal.finding.at if proposal.finding else None
        # What was found before a long pause is proposed in every mode.
        is_recent = found_at is not None and seen.at - found_at < policy.approval.wait
        may_act_now = is_recent and policy.mode is Mode.ACT and may_act(run, policy)
        return _on_resumed(run, proposal, seen, policy, "no approval is needed now") if may_act_now else None
    if policy.approval.on_expiry is OnExpiry.HOLD or not may_act(run, policy):
        assert proposal.finding is not None
        left = run if policy.mode is Mode.APPROVE else with_undecided(run, proposal.finding.kind)
        return leave_job_running(left, proposal)
    decision = on_stop_approved(run, proposal, seen.checkpoints, at=seen.at, policy=policy, who=THE_POLICY)
    return replace(decision, reason=f"{format_unanswered(proposal)}, and the policy acts then: {decision.reason}")


def _on_resumed(run: Run, proposal: Proposal, seen: JobObserved, policy: Policy, now: str) -> Decision:
    """Decide on a proposal's finding, after the pause was lifted or the policy changed to `act`.

    One that has expired may have recovered, so an operator has to approve it.
    """
    assert proposal.finding is not None
    observed = FindingsObserved(seen.at, run.current.job_name, (proposal.finding,), seen.checkpoints)
    if _check_against_checkpoints(proposal.finding, observed, policy).kind is not proposal.finding.kind:
        return Decision(replace(run, proposal=None), reason=f"{proposal.why}: no longer so, the job saves checkpoints")
    if not may_act(run, policy):
        return _on_intervention(replace(run, proposal=None), proposal.finding, observed, policy)
    if policy.mode is Mode.APPROVE or seen.at >= proposal.expires_at:
        return propose_again(run, proposal, now, at=seen.at, policy=policy)
    decision = on_stop_approved(run, proposal, seen.checkpoints, at=seen.at, policy=policy, who="")
    return replace(decision, reason=f"{now}: {decision.reason}")


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


def _with_notified(run: Run, findings: tuple[Finding, ...] | list[Finding]) -> Run:
    """Return the run with these findings recorded as reported."""
    return with_warnings(run, *(run.make_warning_key(finding) for finding in findings))
