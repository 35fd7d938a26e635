"""Decide on failed attempts: diagnose, charge the ledger, apply the rules and open an incident."""

from dataclasses import replace
from datetime import datetime
from typing import Any, assert_never

from rerail.decisions import checkpoint_health, rollback_ladder, warm_pools
from rerail.decisions.budgets import with_charge, with_refund, with_split
from rerail.decisions.decision import (
    Decision,
    choose_resume_step,
    find_proving_step,
    finish_stopped,
    format_instruction,
    format_start,
    has_agent,
    has_pending,
    hold_as_ruled,
    hold_run,
    make_notice,
    may_act,
    stop_now,
    with_attempt,
    with_incident_closed,
    without_pending,
)
from rerail.decisions.failed_gpus import describe_return, format_case, was_refused
from rerail.decisions.fallback_machines import list_alternatives, with_machines
from rerail.decisions.file_copies import with_damaged_files
from rerail.decisions.launch import relaunch_now, with_next_attempt, with_stale_checkpoints_noted
from rerail.decisions.remedies import (
    Failure,
    Hold,
    Relaunch,
    Verdict,
    choose_capacity_verdict,
    choose_remedy,
    find_split,
    format_continue,
)
from rerail.diagnosis.classify import diagnose_job
from rerail.model.actions import CreateJob, Notify, QuarantineCheckpoints, Severity
from rerail.model.causes import Cause
from rerail.model.checkpoint_layouts import Layout
from rerail.model.formatting import format_duration
from rerail.model.machines import format_instance_types
from rerail.model.policy import Mode, Policy
from rerail.model.run import AfterStop, Attempt, Incident, PlannedStop, Run, RunState
from rerail.model.runbooks import Runbook
from rerail.model.signals import NAME_TAKEN, CreateRefused, JobObserved, QuarantineRefused, Refusal

# An incident keeps its newest reasons and actions: one DynamoDB item must hold it after any number of failures.
MAX_REASON_CHARS, MAX_ACTIONS = 4_000, 50
NOT_QUARANTINED = "checkpoints that must not be resumed from cannot be quarantined"


def on_failed(run: Run, seen: JobObserved, policy: Policy) -> Decision:
    """Diagnose the failure, charge the ledger, apply the rules, and open an incident."""
    diagnosis, damaged_step, restored = diagnose_job(seen.job), None, ""
    if diagnosis.cause is Cause.DAMAGED_CHECKPOINT:
        saved = seen.checkpoints or ()
        run, damaged_step = checkpoint_health.with_damage(run, saved, why=diagnosis.evidence, at=seen.at)
        seen = replace(seen, checkpoints=checkpoint_health.with_health(run, saved))
        run, restored = with_damaged_files(run, saved)
    failure = Failure(
        diagnosis=diagnosis,
        last_step=diagnosis.step if diagnosis.step is not None else run.current.last_step,
        resume_step=choose_resume_step(seen.checkpoints),
        at=seen.at,
        checkpoints=tuple(seen.checkpoints or ()),
        damaged_step=damaged_step,
        restored=restored,
    )
    run = with_failure_charged(with_attempt(run, with_diagnosis(run.current, failure)), failure)
    what = f"attempt {run.current.number} failed: {diagnosis.cause} ({diagnosis.evidence or 'no reason given'})"
    rank = "" if diagnosis.rank is None else f"the failing rank is {diagnosis.rank}"
    what += "".join(f"; {text}" for text in (rank, diagnosis.last_loss, diagnosis.limitation) if text)
    what += f"; {returned}" if (returned := describe_return(run)) else ""
    if run.state is RunState.HELD:
        reason = f"{what}; the run stays held"
        key, did, since = f"failed-{run.current.number}", "nothing: the run stays held", run.current.ended_at
        todo = f"When it may go on: rerail release {run.id}"
        notice = make_notice(run, Severity.INFORM, "failed while held", what, key=key, did=did, todo=todo, since=since)
        return Decision(with_incident(run, failure, reason, ()), (notice,), reason, finding="job_failed")
    if run.stop and run.stop.then is AfterStop.END:
        return finish_stopped(run, seen, f"{what}, while it was being stopped ({run.stop.reason})")
    if run.stop and run.stop.is_tainted and (may_act(run, policy) or run.stop.is_rollback):
        # The job ended by itself before it was stopped for the rollback.
        decision = relaunch_now(run, seen, policy, f"{what}, while it was being stopped ({run.stop.reason})")
        return replace(decision, finding="job_failed", inputs=_make_inputs(run, failure, seen))
    verdict = choose_remedy(run, failure, policy)
    if isinstance(verdict, Relaunch) and is_loss_rollback(failure):
        decision = _climb_ladder(run, verdict, failure, seen, policy, what)
    else:
        decision = _apply_verdict(run, verdict, failure, policy, what)
    return replace(decision, finding="job_failed", inputs=_make_inputs(run, failure, seen))


def is_loss_rollback(failure: Failure) -> bool:
    """Return whether the loss diverged at a known step, so that the rollback ladder limits the tries."""
    return failure.diagnosis.cause is Cause.DIVERGED and failure.last_step is not None


def _climb_ladder(
    run: Run, verdict: Relaunch, failure: Failure, seen: JobObserved, policy: Policy, what: str
) -> Decision:
    """Apply the ladder's next rung after the script itself gave up on its loss.

    The onset is the one that was reported, else the attempt's last step.
    """
    onset = checkpoint_health.find_open_onset(run)
    onset = (failure.last_step or 0) if onset is None else onset
    rung = rollback_ladder.plan_rollback(run, onset, seen.checkpoints or (), policy)
    if isinstance(rung, Hold):
        return _apply_verdict(run, rung, failure, policy, what)
    run = with_attempt(run, replace(run.current, onset_step=onset)) if may_act(run, policy) else run
    failure, verdict = replace(failure, resume_step=rung.resume_step), replace(verdict, why=rung.why)
    decision = _apply_verdict(run, verdict, failure, policy, what, onset_step=onset)
    if decision.run.state is not RunState.WAITING:
        return decision
    return replace(decision, run=rollback_ladder.with_rung_taken(decision.run, rung, onset, at=failure.at))


def with_diagnosis(attempt: Attempt, failure: Failure) -> Attempt:
    """Return the attempt with the diagnosis of its failure."""
    return replace(
        attempt,
        cause=failure.diagnosis.cause,
        fingerprint=failure.diagnosis.fingerprint,
        last_step=failure.last_step,
        gpu=failure.diagnosis.gpu,
    )


def with_failure_charged(run: Run, failure: Failure) -> Run:
    """Return the run with this failure charged to its ledger.

    A script without manifests proves progress by getting farther than any attempt before it. A failure that is
    answered by smaller microbatches is not charged: their number is limited by itself.
    """
    previous = run.ledger
    ledger = with_refund(previous, newest_step=_find_sound_step(run, failure), at=failure.at)
    if find_split(run, failure) is not None:
        return replace(run, ledger=with_split(ledger, at=failure.at))
    return replace(
        run,
        ledger=with_charge(
            ledger,
            failure.diagnosis.cause,
            # Rollbacks repeat steps on purpose, and the ladder has limits of its own. What could not load its file, or
            # was not started on a GPU that had failed, has not trained.
            trained=run.current.training_started_at is not None
            and not is_loss_rollback(failure)
            and not failure.restored
            and not (was_refused(run) and failure.last_step is None),
            progressed=ledger.progress_step != previous.progress_step,
            at=failure.at,
        ),
    )


def _find_sound_step(run: Run, failure: Failure) -> int:
    """Return the farthest step that is proven; one that was trained with a loss in trouble proves nothing."""
    proven, onset = _find_proven_step(run, failure) or 0, checkpoint_health.find_open_onset(run)
    return proven if onset is None or proven < onset else 0


def _find_proven_step(run: Run, failure: Failure) -> int | None:
    """Return the farthest step that the failed attempt proves, or None.

    An unsigned manifest proves no step beyond those that the run reported, if it reported any: others may write one.
    A file that is overwritten in place changes in each attempt, even if that repeats the same work. It only proves the
    step that the attempt resumed from, and so does an attempt with an agent that has saved nothing.
    """
    if failure.resume_step is not None:
        chosen = (checkpoint for checkpoint in failure.checkpoints if checkpoint.step == failure.resume_step)
        if any(checkpoint.is_signed or not checkpoint.has_manifest for checkpoint in chosen):
            return failure.resume_step
        reported = [attempt.last_step for attempt in run.attempts if attempt.last_step is not None]
        return min(failure.resume_step, max(reported, default=failure.resume_step))
    is_single_file = any(checkpoint.layout == Layout.FILE for checkpoint in failure.checkpoints)
    return run.find_start(run.current) if is_single_file or has_agent(run) else failure.last_step


def _apply_verdict(
    run: Run, verdict: Verdict, failure: Failure, policy: Policy, what: str, *, onset_step: int | None = None
) -> Decision:
    """Return the decision that carries out a verdict: a new state, its actions and one notice."""
    match verdict:
        case Hold():
            reason = f"{what}; held: {verdict.why}. To do: {verdict.advice}"
            run = with_incident(run, failure, reason, ("hold",))
            return hold_as_ruled(run, failure.at, what, verdict, gives_back=may_act(run, policy))
        case Relaunch() if not may_act(run, policy):
            plan = f"{format_start(run, failure.resume_step)} in {format_duration(verdict.delay)} ({verdict.why})"
            reason = f"{what}; observing only: would relaunch {plan}"
            run = with_incident(run, failure, reason, ())
            return hold_run(
                run,
                failure.at,
                reason,
                because="observing only",
                runbook=Runbook.OBSERVING,
                severity=Severity.INFORM,
                gives_back=False,
            )
        case Relaunch():
            changes_machines = verdict.fresh_machines or (
                verdict.changes_machines and verdict.machines != run.current.machines
            )
            release = warm_pools.make_release(run) if changes_machines else ()
            start = format_start(run, failure.resume_step)
            did = f"relaunching {start} in {format_duration(verdict.delay)} ({verdict.why})"
            did += "; the warm pool is given back first" if release else ""
            reason = f"{what}; {did}"
            title, key = f"{failure.diagnosis.cause}: relaunching", f"failed-{run.current.number}"
            todo, since = format_case(run, run.current), run.current.ended_at
            notice = make_notice(run, Severity.INFORM, title, what, key=key, did=did, todo=todo, since=since)
            actions = (*("release_warm_pool" for _ in release), "relaunch")
            run = with_incident(run, failure, reason, actions, onset_step=onset_step)
            due = failure.at + verdict.delay
            run = with_next_attempt(run, failure.resume_step, wake_at=due, microbatches=verdict.microbatches)
            run = with_stale_checkpoints_noted(run, failure.checkpoints)
            run = with_machines(run, verdict.machines) if verdict.changes_machines else run
            return Decision(run, (*release, notice), reason)
        case _ as unreachable:
            assert_never(unreachable)


def _make_inputs(run: Run, failure: Failure, seen: JobObserved) -> dict[str, Any]:
    """Return the facts that the decision rests on, for the timeline."""
    return {
        "failure_reason": seen.job.failure_reason,
        "rule": failure.diagnosis.rule,
        "last_step": failure.last_step,
        "resume_step": failure.resume_step,
        "checkpoints": [checkpoint.step for checkpoint in (seen.checkpoints or ())][:10],
        "charges": dict(run.ledger.charges),
        "without_progress": run.ledger.without_progress,
    }


def with_incident(
    run: Run,
    failure: Failure,
    reason: str,
    actions: tuple[str, ...],
    *,
    kind: str = "job_failed",
    onset_step: int | None = None,
    began: datetime | None = None,
) -> Run:
    """Return the run with this failure in its open incident, or in a new one if there was progress since."""
    previous = run.open_incident
    if previous and (failure.resume_step or 0) > find_proving_step(run, previous):
        run = with_incident_closed(
            run, f"recovered: a new checkpoint at step {failure.resume_step}", failure.at, is_recovered=True
        )
    elif previous:
        quoted = f"{previous.reason}\n{reason}"[-MAX_REASON_CHARS:]
        actions = (*previous.actions, *actions)[-MAX_ACTIONS:]
        extended = replace(previous, reason=quoted, actions=actions, passed_at=None)
        return replace(run, incidents=(*run.incidents[:-1], extended))
    incident = Incident(
        number=len(run.incidents) + 1,
        kind=kind,
        attempt=run.current.number,
        cause=failure.diagnosis.cause,
        reason=reason,
        evidence=failure.diagnosis.evidence,
        # By the clock of the job, which may be ahead of ours.
        happened_at=min(began or run.current.ended_at or failure.at, failure.at),
        decided_at=failure.at,
        step=failure.last_step,
        # A script that resumes by itself may start anywhere.
        resume_step=0 if failure.resume_step is None and has_agent(run) else failure.resume_step,
        onset_step=onset_step,
        actions=actions,
        restart=run.current.restart,
    )
    return replace(run, incidents=(*run.incidents, incident))


def on_refusal(run: Run, refused: CreateRefused, policy: Policy) -> Decision:
    """Wait for capacity after SageMaker refused to create the job, or hold where it never will."""
    if run.state is not RunState.STARTING or refused.action.job_name != run.current.job_name or run.current.exists:
        return Decision(run)
    run = without_pending(run, CreateJob)
    what = f"SageMaker has no capacity for {run.current.job_name} ({refused.message})"
    if refused.refusal is Refusal.INVALID:
        what = f"SageMaker refuses to create {run.current.job_name}: {refused.message}"
        if run.current.machines is None:
            return hold_run(
                run,
                refused.at,
                what,
                because="SageMaker refuses the request",
                todo=_advise_on_refusal(run, refused),
                runbook=Runbook.REQUEST_REFUSED,
            )
        # SageMaker may have refused the fall-back machines rather than the owner's request.
    run = replace(run, ledger=with_charge(run.ledger, Cause.CAPACITY, trained=False, progressed=False, at=refused.at))
    verdict = choose_capacity_verdict(run, policy, at=refused.at, refusal=refused.message)
    if isinstance(verdict, Hold):
        return hold_as_ruled(run, refused.at, what, verdict)
    return _wait_for_capacity(run, verdict, refused.at, what)


def _advise_on_refusal(run: Run, refused: CreateRefused) -> str:
    """Return what to do before a release, which uses the same job name again."""
    if refused.message == NAME_TAKEN:
        free = f"aws sagemaker delete-training-job --training-job-name {run.current.job_name}"
        return f"when that job has ended, free its name with `{free}`, then release the run"
    return f"allow it, then release the run; with other options: `{format_continue(run)}`"


def _wait_for_capacity(run: Run, verdict: Relaunch, at: datetime, what: str) -> Decision:
    """Schedule another launch on the verdict's machines; send a notice where those change."""
    did = f"trying again in {format_duration(verdict.delay)} ({verdict.why})"
    reason = f"{what}; {did}"
    run = replace(run, state=RunState.WAITING, wake_at=at + verdict.delay)
    if not verdict.changes_machines:
        return Decision(run, reason=reason, finding="capacity_wait")
    run = with_machines(run, verdict.machines)
    release = warm_pools.make_release(run) if warm_pools.is_unmatched(run) else ()
    destination = format_instance_types(verdict.machines) if verdict.machines else "its own machines"
    key = f"moved-{run.current.number}-{len(run.ledger.fallbacks)}-{verdict.machines is None}"
    notice = _make_move_notice(run, destination, what, key=key, did=did)
    return Decision(run, (*release, notice), reason, finding="capacity_wait")


def _make_move_notice(run: Run, destination: str, what: str, *, key: str, did: str) -> Notify:
    title, since = f"no capacity: going to {destination}", run.ledger.capacity_since
    return make_notice(run, Severity.INFORM, title, what, key=key, did=did, since=since)


def on_pending(run: Run, seen: JobObserved, policy: Policy) -> Decision | None:
    """Stop a job that has waited too long for machines, to relaunch it on the next fall-back; None otherwise.

    The job has never trained, so nothing is lost. Without a fall-back it keeps its place in the queue.
    """
    since, others = seen.job.created_at, list_alternatives(run, policy)
    if not seen.job.lacks_machines or run.current.training_started_at or run.cluster.spot or not others:
        return None
    if seen.at - since < policy.capacity.fallback_after or not may_act(run, policy) or policy.mode is not Mode.ACT:
        return None  # the job keeps its place while an approval is needed
    ledger = replace(run.ledger, capacity_since=run.ledger.capacity_since or since)
    ledger = with_charge(ledger, Cause.CAPACITY, trained=False, progressed=False, at=seen.at)
    run = with_attempt(replace(run, ledger=ledger), replace(run.current, cause=Cause.CAPACITY))
    destination, waited = format_instance_types(others[0]), format_duration(seen.at - since)
    what, did = f"{run.current.job_name} has waited {waited} for machines", f"calling it back, to go to {destination}"
    reason = f"{what}: {did}"
    stop = PlannedStop(
        AfterStop.RELAUNCH, f"no capacity for {waited}", seen.at, seen.at, changes_machines=True, machines=others[0]
    )
    decision = stop_now(replace(run, stop=stop), reason)
    notice = _make_move_notice(run, destination, what, key=f"moved-{run.current.number}", did=did)
    return replace(decision, actions=(*decision.actions, notice), finding="capacity_wait")


def on_quarantine_refused(run: Run, refused: QuarantineRefused, policy: Policy) -> Decision:
    """Hold the run where checkpoints could not be quarantined and a job without an agent would resume from them.

    Where the quarantine was only a precaution, launch anyway and send a notice.
    """
    if not has_pending(run, QuarantineCheckpoints):
        return Decision(run)
    if not refused.action.is_vital:
        what = f"{run.current.job_name} may fail on an unfinished checkpoint: {refused.message}"
        key, did, runbook = f"not-aside-{run.current.number}", "launched all the same", Runbook.NOT_QUARANTINED
        todo = format_instruction(refused.advice)
        notice = make_notice(run, Severity.INFORM, "not set aside", what, key=key, runbook=runbook, did=did, todo=todo)
        reason = f"{did}: {what}. To do: {refused.advice}"
        return Decision(without_pending(run, QuarantineCheckpoints), (notice,), reason, finding="not_set_aside")
    run = without_pending(run, QuarantineCheckpoints, CreateJob)
    what = f"{NOT_QUARANTINED}, and {run.current.job_name} would resume from it: {refused.message}"
    decision = hold_run(
        run, refused.at, what, because=NOT_QUARANTINED, todo=refused.advice, runbook=Runbook.NOT_QUARANTINED
    )
    return replace(decision, finding="not_set_aside")
