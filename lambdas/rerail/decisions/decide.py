"""The one decision function: a run, a signal and a policy in; the new run, its actions and a reason out."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import assert_never

from rerail.decisions import warm_pools as pools
from rerail.decisions.approvals import on_expired
from rerail.decisions.budgets import with_recent_charges
from rerail.decisions.checkpoint_health import with_sagemaker_restart
from rerail.decisions.decision import (
    Decision,
    choose_resume_step_again,
    find_proving_step,
    finish_stopped,
    format_machines,
    format_start,
    has_pending,
    hold_run,
    make_create_job,
    make_notice,
    may_act,
    relaunch_now,
    select_known,
    stop_now,
    with_attempt,
    with_end,
    with_facts,
    with_incident_closed,
    with_launch,
    without_pending,
)
from rerail.decisions.deferrals import is_deferred_stop_due, on_paused, on_rate_limited, with_deferrals
from rerail.decisions.drills import format_drill, with_drill_done
from rerail.decisions.emergency_checkpoint import on_checkpoints, on_save_deadline
from rerail.decisions.in_place_restart import is_saved_since_restart, on_failed_instead, on_restart_due
from rerail.decisions.on_command import on_command
from rerail.decisions.on_failure import on_failed, on_pending, on_quarantine_refused, on_refusal
from rerail.decisions.on_finding import on_findings, on_proposal
from rerail.decisions.on_report import on_invalid_report, on_report
from rerail.decisions.open_pages import with_pages
from rerail.decisions.reconcile import on_outdated_record
from rerail.model.actions import CreateJob, ReleaseWarmPool, Severity, StopJob
from rerail.model.checkpoints import newest_step
from rerail.model.machines import WarmPool
from rerail.model.policy import Mode, OnMaxRuntime, Policy
from rerail.model.run import AfterStop, Attempt, Job, JobStatus, Run, RunState
from rerail.model.runbooks import Runbook
from rerail.model.self_repairs import format_repairs
from rerail.model.signals import (
    ActionsDone,
    AgentReported,
    CreateRefused,
    FindingsObserved,
    JobGone,
    JobObserved,
    OperatorCommand,
    Paused,
    QuarantineRefused,
    RecordOutdated,
    Refusal,
    ReportInvalid,
    Signal,
    Tick,
)

TIME_RAN_OUT = ("MaxRuntimeExceeded", "MaxWaitTimeExceeded")
PENDING_RAN_OUT = "CapacityError: no machines came within the job's MaxPendingTimeInSeconds"
NEW_JOB_GRACE = timedelta(minutes=5)


def decide(run: Run, signal: Signal, policy: Policy) -> Decision:
    """Pure: no clock, no I/O. The new run carries the actions as pending; recording it is what makes them owed."""
    if (
        isinstance(signal, JobObserved | FindingsObserved | AgentReported | OperatorCommand | Tick)
        and signal.checkpoints
    ):
        signal = replace(signal, checkpoints=select_known(run, signal.checkpoints))
    before = run
    run = replace(run, ledger=with_recent_charges(run.ledger, window=policy.retries.window, at=signal.at))
    match signal:
        case JobObserved():
            decision = _on_job(run, signal, policy)
        case JobGone():
            decision = _on_gone(run, signal)
        case Tick():
            decision = _on_tick(run, signal, policy)
        case OperatorCommand():
            decision = on_command(run, signal, policy)
        case FindingsObserved():
            decision = on_findings(run, signal, policy)
        case AgentReported():
            decision = on_report(run, signal, policy)
        case ReportInvalid():
            decision = on_invalid_report(run, signal)
        case ActionsDone():
            decision = Decision(_settled_actions(run, signal))
        case CreateRefused(refusal=Refusal.BRAKE):
            decision = on_rate_limited(run, signal)
        case CreateRefused():
            decision = on_refusal(run, signal, policy)
        case Paused():
            decision = on_paused(run, signal)
        case QuarantineRefused():
            decision = on_quarantine_refused(run, signal)
        case RecordOutdated():
            decision = on_outdated_record(run, signal)
        case _ as unreachable:
            assert_never(unreachable)
    decision = with_deferrals(before, decision, at=signal.at, policy=policy)
    decision = with_pages(decision, at=signal.at, policy=policy, ticks=isinstance(signal, Tick))
    return replace(decision, run=replace(decision.run, pending=(*decision.run.pending, *decision.actions)))


def _on_job(run: Run, seen: JobObserved, policy: Policy) -> Decision:
    attempt, job = run.current, seen.job
    if job.name != attempt.job_name or (attempt.created_at and job.created_at != attempt.created_at):
        return Decision(_with_pool(run, job))  # an older attempt, or another job that took the name: not our concern
    if attempt.exists and not attempt.may_be_live:
        return Decision(run)  # this end was judged already; a repeated or late event changes nothing
    run = without_pending(run, CreateJob)
    noted = with_attempt(run, with_facts(attempt, job, seen.at))
    if noted.current.self_repairs > attempt.self_repairs:
        noted = with_sagemaker_restart(noted, seen.at)
    if attempt.number == 1 and run.cluster != job.cluster:
        noted = replace(noted, cluster=job.cluster)
    if run.defined_metrics != job.defined_metrics:
        noted = replace(noted, defined_metrics=job.defined_metrics)
    match job.status:
        case JobStatus.COMPLETED:
            return _on_completed(noted, seen, policy)
        case JobStatus.FAILED:
            return on_failed_instead(noted, seen, policy) or on_failed(noted, seen, policy)
        case JobStatus.STOPPED:
            return _on_stopped(noted, seen, policy)
        case JobStatus.IN_PROGRESS:
            return _on_progress(noted, attempt, seen, policy)
        case JobStatus.STOPPING | JobStatus.DELETING | JobStatus.UNKNOWN:
            return Decision(noted)
        case _ as unreachable:
            assert_never(unreachable)


def _on_progress(run: Run, before: Attempt, seen: JobObserved, policy: Policy) -> Decision:
    """The job lives: keep still, but for a stop that we are in the middle of."""
    if run.state is RunState.SAVING and run.stop and (saved := on_checkpoints(run, run.stop, seen.checkpoints or ())):
        return saved
    if run.state is RunState.STOPPING and not has_pending(run, StopJob):
        return stop_now(run, "the job still runs although it was asked to stop: asking again")
    if run.state is RunState.STARTING and seen.job.is_training:
        ledger = replace(run.ledger, capacity_since=None, fallbacks=())
        run = with_drill_done(replace(run, state=RunState.WATCHING, ledger=ledger))
        reason = f"{format_drill(run)}attempt {run.current.number} trains: watching it"
        return Decision(run, reason=reason, finding="training")
    if run.state is RunState.WAITING:
        # A launch of ours that we had given up on came to life after all: it is the one live attempt.
        run = replace(run, state=RunState.STARTING, wake_at=None)
        return Decision(run, reason=f"attempt {run.current.number} exists after all: waiting for it to train")
    if run.proposal and (answer := on_proposal(run, run.proposal, seen, policy)):
        return answer
    if run.current.self_repairs > before.self_repairs:
        so_far = format_repairs(run.current.repairs)
        reason = f"SageMaker itself restarts the job ({seen.job.secondary}): keeping still"
        return Decision(run, reason=reason + (f"; so far: {so_far}" if so_far else ""), finding="self_repair")
    if run.state is RunState.STARTING and (called_back := on_pending(run, seen, policy)):
        return called_back
    return _on_recovery(run, seen)


def _on_recovery(run: Run, seen: JobObserved) -> Decision:
    """Close the open incident once a checkpoint newer than the one resumed from is committed."""
    incident, attempt = run.open_incident, run.current
    if incident is None or (attempt.number, attempt.restart) <= (incident.attempt, incident.restart):
        return Decision(run)
    newest = newest_step([c for c in seen.checkpoints or () if is_saved_since_restart(run, incident, c)])
    if newest <= find_proving_step(run, incident):
        return Decision(run)
    reason = f"recovered: attempt {run.current.number} committed a new checkpoint at step {newest}"
    key, did, since = f"recovered-{incident.number}", "watching on", incident.happened_at
    tell = make_notice(run, Severity.INFORM, "recovered", reason, key=key, did=did, since=since)
    return Decision(with_incident_closed(run, reason, seen.at, mended=True), (tell,), reason, finding="recovered")


def _on_completed(run: Run, seen: JobObserved, policy: Policy) -> Decision:
    if run.stop and run.stop.is_rollback:
        # What it has come to is what the operator does not want.
        what = f"attempt {run.current.number} completed while it was to be rolled back ({run.stop.reason})"
        return relaunch_now(run, seen, policy, what)
    run = with_incident_closed(with_end(run, RunState.COMPLETED), "the run completed", seen.at, mended=True)
    reason = f"attempt {run.current.number} completed: the run is done"
    tell = make_notice(run, Severity.INFORM, "completed", reason, key="completed")
    return Decision(run, (tell,), reason, finding="completed")


def _on_stopped(run: Run, seen: JobObserved, policy: Policy) -> Decision:
    """Ours, SageMaker's own clock, or a human: only a stop that we recorded before we called for it is ours."""
    stopped = f"attempt {run.current.number}"
    if run.state is RunState.STOPPING and run.stop:
        stopped += f" has stopped as asked ({run.stop.reason})"
        if run.stop.then is AfterStop.RELAUNCH:
            return relaunch_now(run, seen, policy, stopped)
        return finish_stopped(run, seen, stopped)
    if seen.job.secondary in TIME_RAN_OUT:
        stopped += f" ran out of time ({seen.job.secondary})"
        if policy.on_max_runtime is OnMaxRuntime.RELAUNCH and may_act(run, policy):
            return relaunch_now(run, seen, policy, stopped)
        return finish_stopped(run, seen, f"{stopped}, and the policy ends there")
    if seen.job.pending_ran_out:
        return on_failed(run, replace(seen, job=replace(seen.job, failure_reason=PENDING_RAN_OUT)), policy)
    return finish_stopped(run, seen, f"{stopped} was stopped by somebody else: never relaunched against a human")


def _on_tick(run: Run, tick: Tick, policy: Policy) -> Decision:
    if answer := on_expired(run, at=tick.at, policy=policy):
        return answer
    if is_deferred_stop_due(run) and policy.mode is not Mode.PAUSE and run.current.status is not JobStatus.STOPPING:
        return stop_now(run, "the pause was lifted: stopping the job")
    run = _without_ended_pools(run, tick.at)
    if run.state is RunState.WAITING and run.wake_at and tick.at >= run.wake_at:
        pool = format_machines(run, tick.at)
        run, gone = choose_resume_step_again(run, tick.checkpoints)
        run, actions = with_launch(run, tick.at, policy)
        attempt = run.current
        start = f"{format_start(attempt.resumed_from_step)}{gone}"
        return Decision(run, actions, f"the wait is over: creating {attempt.job_name} {start}{pool}")
    if run.state is RunState.SAVING and run.stop:
        return on_save_deadline(run, run.stop, tick.at)
    return on_restart_due(run, tick.at, policy) if run.state is RunState.RESTARTING else Decision(run)


def _without_ended_pools(run: Run, at: datetime) -> Run:
    """What has ended by itself need not be given back, and holds no launch back."""
    past = [a for a in run.pending if isinstance(a, ReleaseWarmPool) and pools.has_ended(run, a, at)]
    return replace(run, pending=tuple(a for a in run.pending if a not in past)) if past else run


def _with_pool(run: Run, job: Job) -> Run:
    """The run with what the job of an earlier attempt tells of the machines kept after it."""
    attempts = tuple(replace(each, pool=job.pool) if _is_news(each, job) else each for each in run.attempts)
    return replace(run, attempts=attempts)


def _is_news(attempt: Attempt, job: Job) -> bool:
    """The seconds that are billed for a pool change all the time; what becomes of it is worth a record."""
    before, now = attempt.pool, job.pool
    if (attempt.job_name, attempt.created_at) != (job.name, job.created_at):
        return False
    return now is not None and (before is None or (before.status, before.reused_by) != (now.status, now.reused_by))


def _on_gone(run: Run, gone: JobGone) -> Decision:
    attempt = run.current
    if gone.job_name != attempt.job_name or not attempt.may_be_live or run.state.is_end:
        return Decision(run)
    if run.ledger.starts and gone.at - run.ledger.starts[-1] < NEW_JOB_GRACE:
        return Decision(run)  # a job just created may not be visible everywhere yet
    run = with_attempt(run, replace(attempt, status=JobStatus.STOPPED, ended_at=gone.at))
    what = f"SageMaker no longer knows {attempt.job_name}"
    todo = "find out who deleted it, then release the run"
    return hold_run(run, gone.at, what, because="its job is gone", todo=todo, runbook=Runbook.JOB_GONE)


def _settled_actions(run: Run, done: ActionsDone) -> Run:
    """What was carried out is owed no more; a job that was created exists from now on, a pool given back does not."""
    run = replace(run, pending=tuple(action for action in run.pending if action not in done.actions))
    released = {action.job_name for action in done.actions if isinstance(action, ReleaseWarmPool)}
    run = replace(run, attempts=tuple(_given_back(a) if a.job_name in released else a for a in run.attempts))
    if make_create_job(run) in done.actions and not run.current.exists:
        run = with_attempt(run, replace(run.current, status=JobStatus.IN_PROGRESS, secondary="Starting"))
    return run


def _given_back(attempt: Attempt) -> Attempt:
    """The attempt without the machines that were kept after it."""
    billed = attempt.pool.billed_s if attempt.pool else 0
    return replace(attempt, pool=WarmPool(pools.GIVEN_BACK, billed))
