"""The one decision function: a run, a signal and a policy in; the new run, its actions and a reason out."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import assert_never

from rerail.actions import CreateJob, Severity, StopJob
from rerail.checkpoints import newest_step
from rerail.commands import on_command
from rerail.decision import (
    Decision,
    closed,
    creation,
    ended,
    finish_stopped,
    held,
    launched,
    may_act,
    notice,
    owes,
    relaunch_now,
    spoken_start,
    stop_now,
    suspected,
    with_attempt,
    without,
)
from rerail.failures import on_failed, on_refusal
from rerail.interventions import on_found
from rerail.model import Attempt, Job, JobStatus, Run, RunState, Then
from rerail.policy import OnMaxRuntime, Policy
from rerail.reports import on_bad_mail, on_report
from rerail.saving import on_checkpoints, on_time
from rerail.signals import (
    Commanded,
    CreateRefused,
    Done,
    Found,
    JobGone,
    JobSeen,
    MailRefused,
    Reported,
    Signal,
    Tick,
)

TIME_RAN_OUT = ("MaxRuntimeExceeded", "MaxWaitTimeExceeded")
NEW_JOB_GRACE = timedelta(minutes=5)
SPOT_OR_REPAIR = ("Interrupted", "Restarting", "Starting", "LaunchingMLInstances", "PreparingTrainingStack", "Pending")


def decide(run: Run, signal: Signal, policy: Policy) -> Decision:
    """Pure: no clock, no I/O. The new run carries the actions as pending; recording it is what makes them owed."""
    if isinstance(signal, JobSeen | Found | Reported | Commanded) and signal.checkpoints:
        signal = replace(signal, checkpoints=suspected(run, signal.checkpoints))
    match signal:
        case JobSeen():
            decision = _on_job(run, signal, policy)
        case JobGone():
            decision = _on_gone(run, signal)
        case Tick():
            decision = _on_tick(run, signal, policy)
        case Commanded():
            decision = on_command(run, signal, policy)
        case Found():
            decision = on_found(run, signal, policy)
        case Reported():
            decision = on_report(run, signal, policy)
        case MailRefused():
            decision = on_bad_mail(run, signal)
        case Done():
            decision = Decision(_settled_actions(run, signal))
        case CreateRefused():
            decision = on_refusal(run, signal, policy)
        case _ as unreachable:
            assert_never(unreachable)
    return replace(decision, run=replace(decision.run, pending=(*decision.run.pending, *decision.actions)))


def _on_job(run: Run, seen: JobSeen, policy: Policy) -> Decision:
    attempt, job = run.current, seen.job
    if job.name != attempt.job_name or (attempt.created_at and job.created_at != attempt.created_at):
        return Decision(run)  # an older attempt, or another job that took the name: not the one that we watch
    if attempt.exists and not attempt.may_be_live:
        return Decision(run)  # this end was judged already; a repeated or late event changes nothing
    run = without(run, CreateJob)
    noted = with_attempt(run, _noted(attempt, job, seen.at))
    match job.status:
        case JobStatus.COMPLETED:
            return _on_completed(noted, seen)
        case JobStatus.FAILED:
            return on_failed(noted, seen, policy)
        case JobStatus.STOPPED:
            return _on_stopped(noted, seen, policy)
        case JobStatus.IN_PROGRESS:
            return _on_progress(noted, attempt, seen)
        case JobStatus.STOPPING | JobStatus.DELETING | JobStatus.UNKNOWN:
            return Decision(noted)
        case _ as unreachable:
            assert_never(unreachable)


def _noted(attempt: Attempt, job: Job, at: datetime) -> Attempt:
    """The attempt with the facts of the description; what SageMaker no longer says is kept."""
    repaired = attempt.secondary == "Training" and job.secondary in SPOT_OR_REPAIR
    step = job.metrics.get("step")
    return replace(
        attempt,
        status=job.status,
        secondary=job.secondary,
        created_at=job.created_at,
        training_started_at=job.training_started_at or attempt.training_started_at or (at if job.is_training else None),
        ended_at=(job.ended_at or at) if job.status.is_terminal else None,
        failure_reason=job.failure_reason,
        # Only a job that has ended: a note of each minute's step would be a write a minute, read by nobody.
        last_step=int(step) if step is not None and job.status.is_terminal else attempt.last_step,
        self_repairs=attempt.self_repairs + repaired,
        keep_alive_seconds=job.keep_alive_seconds,
    )


def _on_progress(run: Run, before: Attempt, seen: JobSeen) -> Decision:
    """The job lives: keep still, but for a stop that we are in the middle of."""
    if run.state is RunState.SAVING and run.stop and (saved := on_checkpoints(run, run.stop, seen.checkpoints or ())):
        return saved
    if run.state is RunState.STOPPING and not owes(run, StopJob):
        return stop_now(run, "the job still runs although it was asked to stop: asking again")
    if run.state is RunState.STARTING and seen.job.is_training:
        run = replace(run, state=RunState.WATCHING, ledger=replace(run.ledger, capacity_since=None))
        return Decision(run, reason=f"attempt {run.current.number} trains: watching it", finding="training")
    if run.state is RunState.WAITING:
        # A launch of ours that we had given up on came to life after all: it is the one live attempt.
        run = replace(run, state=RunState.STARTING, wake_at=None)
        return Decision(run, reason=f"attempt {run.current.number} exists after all: waiting for it to train")
    if run.current.self_repairs > before.self_repairs:
        reason = f"SageMaker itself restarts the job ({seen.job.secondary}): keeping still"
        return Decision(run, reason=reason, finding="self_repair")
    return _on_recovery(run, seen)


def _on_recovery(run: Run, seen: JobSeen) -> Decision:
    """Close the open incident once a checkpoint newer than the one resumed from is committed."""
    incident, newest = run.open_incident, newest_step(seen.checkpoints)
    if incident is None or incident.attempt == run.current.number or newest <= (incident.resume_step or 0):
        return Decision(run)
    reason = f"recovered: attempt {run.current.number} committed a new checkpoint at step {newest}"
    tell = notice(run, Severity.INFORM, "recovered", reason, key=f"recovered-{incident.number}")
    return Decision(closed(run, reason, seen.at, mended=True), (tell,), reason, finding="recovered")


def _on_completed(run: Run, seen: JobSeen) -> Decision:
    run = closed(ended(run, RunState.COMPLETED), "the run completed", seen.at, mended=True)
    reason = f"attempt {run.current.number} completed: the run is done"
    tell = notice(run, Severity.INFORM, "completed", reason, key="completed")
    return Decision(run, (tell,), reason, finding="completed")


def _on_stopped(run: Run, seen: JobSeen, policy: Policy) -> Decision:
    """Ours, SageMaker's own clock, or a human: only a stop that we recorded before we called for it is ours."""
    stopped = f"attempt {run.current.number}"
    if run.state is RunState.STOPPING and run.stop:
        stopped += f" has stopped as asked ({run.stop.reason})"
        if run.stop.then is Then.RELAUNCH:
            return relaunch_now(run, seen, policy, stopped)
        return finish_stopped(run, seen, stopped)
    if seen.job.secondary in TIME_RAN_OUT:
        stopped += f" ran out of time ({seen.job.secondary})"
        if policy.on_max_runtime is OnMaxRuntime.RELAUNCH and may_act(run, policy):
            return relaunch_now(run, seen, policy, stopped)
        return finish_stopped(run, seen, f"{stopped}, and the policy ends there")
    return finish_stopped(run, seen, f"{stopped} was stopped by somebody else: never relaunched against a human")


def _on_tick(run: Run, tick: Tick, policy: Policy) -> Decision:
    if run.state is RunState.WAITING and run.wake_at and tick.at >= run.wake_at:
        run, actions = launched(run, tick.at, policy)
        attempt = run.current
        start = spoken_start(attempt.resumed_from_step)
        return Decision(run, actions, f"the wait is over: creating {attempt.job_name} {start}")
    if run.state is RunState.SAVING and run.stop:
        return on_time(run, run.stop, tick.at)
    return Decision(run)


def _on_gone(run: Run, gone: JobGone) -> Decision:
    attempt = run.current
    if gone.job_name != attempt.job_name or not attempt.may_be_live or run.state.is_end:
        return Decision(run)
    if run.ledger.starts and gone.at - run.ledger.starts[-1] < NEW_JOB_GRACE:
        return Decision(run)  # a job just created may not be visible everywhere yet
    run = with_attempt(run, replace(attempt, status=JobStatus.STOPPED, ended_at=gone.at))
    what = f"SageMaker no longer knows {attempt.job_name}"
    return held(run, gone.at, f"{what}. To do: find out who deleted it, then release the run")


def _settled_actions(run: Run, done: Done) -> Run:
    """What was carried out is owed no more; a job that was created exists from now on."""
    run = replace(run, pending=tuple(action for action in run.pending if action not in done.actions))
    if creation(run) in done.actions and not run.current.exists:
        run = with_attempt(run, replace(run.current, status=JobStatus.IN_PROGRESS, secondary="Starting"))
    return run
