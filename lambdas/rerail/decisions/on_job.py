"""Decide on the current attempt's job as SageMaker describes it."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import assert_never

from rerail.decisions.checkpoint_health import find_open_label, with_sagemaker_restart
from rerail.decisions.decision import (
    Decision,
    find_proving_step,
    finish_stopped,
    format_instruction,
    has_pending,
    hold_run,
    make_notice,
    may_act,
    stop_now,
    with_attempt,
    with_end,
    with_facts,
    with_incident_closed,
    with_warnings,
    without_hold,
    without_pending,
)
from rerail.decisions.drills import format_drill, with_drill_done
from rerail.decisions.emergency_checkpoint import on_checkpoints
from rerail.decisions.in_place_restart import is_saved_since_restart, on_failed_instead
from rerail.decisions.launch import relaunch_now
from rerail.decisions.monitoring_gaps import NO_ROW, format_no_row, has_no_row
from rerail.decisions.on_failure import on_failed, on_pending
from rerail.decisions.on_finding import on_proposal
from rerail.decisions.open_pages import clear_pages
from rerail.decisions.start_check import SUBJECT, with_start_confirmed
from rerail.model.actions import CreateJob, PostCommand, QuarantineCheckpoints, Severity, StopJob
from rerail.model.checkpoint_layouts import Layout
from rerail.model.checkpoints import Checkpoint, find_newest_step
from rerail.model.policy import OnMaxRuntime, Policy
from rerail.model.run import AfterStop, Attempt, Incident, Job, JobStatus, PlannedStop, Run, RunState
from rerail.model.runbooks import Runbook
from rerail.model.sample import parse_step
from rerail.model.self_repairs import format_repairs
from rerail.model.signals import CheckpointsRefused, JobGone, JobObserved

TIMEOUT_STATUSES = ("MaxRuntimeExceeded", "MaxWaitTimeExceeded")
PENDING_TIMEOUT_REASON = "CapacityError: no machines came within the job's MaxPendingTimeInSeconds"
# The pending actions that are withdrawn when a run is held.
WITHDRAWN = (CreateJob, StopJob, PostCommand, QuarantineCheckpoints)
UNLISTED, DEFECT = "its checkpoints cannot be listed", "unlisted"
NEW_JOB_GRACE = timedelta(minutes=5)
ERROR_AT_END, LOSS_AT_END, FEW_STEPS = "error-at-end", "loss-at-end", "few-steps"
# A job that has logged this share of its steps may have done the others too.
DONE_SHARE = 0.95
# What is to be checked of a completed run, by the warning that the run has.
DOUBTFUL_ENDS = {
    ERROR_AT_END: "with an error at the end: check its result",
    LOSS_AT_END: "with a loss in trouble: check its result",
    FEW_STEPS: "long before its last step: check its log",
    NO_ROW: "without a metric row: check its log",
}


def on_job(run: Run, seen: JobObserved, policy: Policy) -> Decision:
    """Decide on the current attempt's job as SageMaker describes it."""
    attempt, job = run.current, seen.job
    if job.name != attempt.job_name or (attempt.created_at and job.created_at != attempt.created_at):
        return Decision(_with_pool_status(run, job))  # an older attempt, or another job that reused the name
    if attempt.exists and not attempt.may_be_live:
        return Decision(run)  # its end was handled already: ignore repeated and late events
    updated = _with_observation(run, seen)
    if job.status is JobStatus.IN_PROGRESS and _is_unexpected(run):
        return on_late_job(updated, seen.at)
    if job.capacity_ended_at and job.status.is_terminal and _is_to_go_on(run):
        return _on_capacity_end(updated, seen, job.capacity_ended_at)
    match job.status:
        case JobStatus.COMPLETED:
            return _on_completed(updated, seen, policy)
        case JobStatus.FAILED:
            return on_failed_instead(updated, seen, policy) or on_failed(updated, seen, policy)
        case JobStatus.STOPPED:
            return _on_stopped(updated, seen, policy)
        case JobStatus.IN_PROGRESS:
            return with_start_confirmed(_on_progress(updated, attempt, seen, policy), seen.checkpoints or ())
        case JobStatus.STOPPING | JobStatus.DELETING | JobStatus.UNKNOWN:
            return Decision(updated)
        case _ as unreachable:
            assert_never(unreachable)


def _is_unexpected(run: Run) -> bool:
    """Return whether no job of the run should be live: it has ended, or was held for want of this job."""
    is_news = not run.current.exists or run.current.is_unconfirmed
    return run.state.is_end and (is_news or run.state is not RunState.HELD)


def _is_to_go_on(run: Run) -> bool:
    """Return whether a job would follow an end of the current one: not where it is held, ends or is rolled back."""
    goes_on = run.stop is None or (run.stop.then is AfterStop.RELAUNCH and not run.stop.is_rollback)
    return goes_on and run.state is not RunState.HELD


def _with_observation(run: Run, seen: JobObserved) -> Run:
    """Return the run with the facts of its current attempt's job, whose creation is no longer pending."""
    job, repairs = seen.job, run.current.self_repairs
    run = without_pending(run, CreateJob)
    attempt = with_facts(run.current, job, seen.at)
    kept = _find_kept_step(seen.checkpoints) if job.status.is_terminal else None
    run = with_attempt(run, replace(attempt, kept_step=kept))
    run = with_sagemaker_restart(run, seen.at) if run.current.self_repairs > repairs else run
    cluster = job.cluster if run.current.number == 1 else run.cluster
    return replace(run, cluster=cluster, defined_metrics=job.defined_metrics, script=job.script)


def _find_kept_step(checkpoints: Sequence[Checkpoint] | None) -> int | None:
    """Return the newest step that is saved completely.

    Return None if that is not known: without any, the script may save elsewhere, in a layout that is not recognized, or
    where Rerail may not read.
    """
    if checkpoints is None or any(checkpoint.layout == Layout.FILE for checkpoint in checkpoints):
        return None
    return max((checkpoint.step for checkpoint in checkpoints if checkpoint.is_whole), default=None)


def on_checkpoints_refused(run: Run, refused: CheckpointsRefused, policy: Policy) -> Decision:
    """Hold a run that cannot go on without its checkpoints, which are more than Rerail reads; notify of others once.

    Without knowing them, the next job would start from the beginning.
    """
    is_ended = refused.job is not None and refused.job.name == run.current.job_name
    if refused.is_needed and (is_ended or run.state is RunState.WATCHING) and may_act(run, policy):
        if refused.job and is_ended:
            run = with_attempt(run, with_facts(run.current, refused.job, refused.at))
        run = without_pending(replace(run, stop=None, wake_at=None), *WITHDRAWN)
        decision = hold_run(
            run, refused.at, refused.message, because=UNLISTED, todo=refused.advice, runbook=Runbook.NO_CHECKPOINTS
        )
        return replace(decision, finding="checkpoints_unlisted")
    is_asked = refused.is_needed and run.state.is_end
    if DEFECT in run.defects and not is_asked:
        return Decision(run)
    run = replace(run, defects=tuple(dict.fromkeys((*run.defects, DEFECT))))
    did = (
        "nothing was launched, the run stays as it is" if is_asked else "the job goes on; if it fails, the run is held"
    )
    key, runbook = f"unlisted-{run.version if is_asked else run.current.number}", Runbook.NO_CHECKPOINTS
    what, todo = refused.message, format_instruction(refused.advice)
    notice = make_notice(run, Severity.INFORM, UNLISTED, what, key=key, runbook=runbook, did=did, todo=todo)
    return Decision(run, (notice,), f"{refused.message}: {did}", finding="checkpoints_unlisted")


def _on_progress(run: Run, before: Attempt, seen: JobObserved, policy: Policy) -> Decision:
    """Decide on a job that has not ended: act only to finish a stop that is under way."""
    if run.state is RunState.SAVING and run.stop and (saved := on_checkpoints(run, run.stop, seen.checkpoints or ())):
        return saved
    if run.state is RunState.STOPPING and not has_pending(run, StopJob):
        return stop_now(run, "the job still runs after the request to stop: requesting it again")
    if run.state is RunState.STARTING and seen.job.is_training:
        ledger = replace(run.ledger, capacity_since=None, fallbacks=())
        run = with_drill_done(replace(run, state=RunState.WATCHING, ledger=ledger))
        reason = f"{format_drill(run)}attempt {run.current.number} trains: watching it"
        return Decision(run, reason=reason, finding="training")
    if run.state is RunState.WAITING:
        # A launch that Rerail had given up on was created after all: it is the one live attempt.
        run = replace(run, state=RunState.STARTING, wake_at=None)
        return Decision(run, reason=f"attempt {run.current.number} exists after all: waiting for it to train")
    if run.proposal and (answer := on_proposal(run, run.proposal, seen, policy)):
        return answer
    if run.current.self_repairs > before.self_repairs:
        repairs = format_repairs(run.current.repairs)
        reason = f"SageMaker itself restarts the job ({seen.job.secondary}): keeping still"
        return Decision(run, reason=reason + (f"; so far: {repairs}" if repairs else ""), finding="self_repair")
    if run.state is RunState.STARTING and (called_back := on_pending(run, seen, policy)):
        return called_back
    return _on_recovery(run, seen)


def on_late_job(run: Run, at: datetime) -> Decision:
    """Decide on a live job of an ended run: its creation was believed to have failed, or came after the end.

    A stopped run's job is stopped. A hold by Rerail ends, since its reason was that this job did not exist; a hold by
    an operator stays.
    """
    what = f"{run.current.job_name} exists after all: its creation was under way, or the answer to it was lost"
    if run.state is not RunState.HELD:
        # Approved with the end of the run, so that a policy that only observes does not withdraw it.
        stop = PlannedStop(AfterStop.END, "the run was stopped", asked_at=at, deadline=at, approved_by="an operator")
        return stop_now(replace(run, stop=stop), f"{what}, and the run has ended: stopping it")
    if not run.held_by:
        run = replace(without_hold(run), state=RunState.STARTING)
        return Decision(run, reason=f"{what}; no longer held: waiting for it to train")
    todo = f"If it is to be watched: rerail release {run.id}\nIf not: rerail stop {run.id}"
    reason = f"{what}; {run.held_by} holds the run, so it goes on unsupervised"
    title, key = "its job runs, and it is held", f"lost-{run.current.number}"
    return Decision(run, (make_notice(run, Severity.PAGE, title, reason, key=key, todo=todo),), reason)


def _on_recovery(run: Run, seen: JobObserved) -> Decision:
    """Close the open incident once a checkpoint newer than the one resumed from is committed.

    A file that is overwritten in place must have been saved after a step beyond the incident's last one was reported;
    where no step is known, after as much training as can have been lost.
    """
    incident, attempt = run.open_incident, run.current
    if incident is None or (attempt.number, attempt.restart) <= (incident.attempt, incident.restart):
        return Decision(run)
    newest = find_newest_step([c for c in seen.checkpoints or () if is_saved_since_restart(run, incident, c)])
    if newest > find_proving_step(run, incident):
        return _recover(run, incident, seen, f"committed a new checkpoint at step {newest}")
    file = next((c for c in seen.checkpoints or () if c.layout == Layout.FILE), None)
    step, before = parse_step(seen.job.metrics), incident.step
    if file and before is None and _has_regained(run, incident, file.saved_at):
        return _recover(
            run, incident, seen, f"saved {file.uri.rpartition('/')[2]} after training for longer than was lost"
        )
    if file is None or step is None or before is None or step <= max(before, find_proving_step(run, incident)):
        return Decision(run)
    if incident.passed_at is None:
        return Decision(replace(run, incidents=(*run.incidents[:-1], replace(incident, passed_at=seen.at))))
    if file.saved_at <= incident.passed_at:
        return Decision(run)
    return _recover(run, incident, seen, f"saved {file.uri.rpartition('/')[2]} beyond step {before}")


def _has_regained(run: Run, incident: Incident, saved_at: datetime) -> bool:
    """Return whether the attempt had trained longer by then than the failed one since its last known save."""
    failed = next(attempt for attempt in run.attempts if attempt.number == incident.attempt)
    began, again = failed.training_started_at, run.current.training_started_at
    if incident.restart or run.current.restart or began is None or again is None or failed.ended_at is None:
        return False
    saves = (copy.saved_at for copy in run.copies if copy.attempt == failed.number)
    return saved_at - again > failed.ended_at - max(saves, default=began)


def _recover(run: Run, incident: Incident, seen: JobObserved, progress: str) -> Decision:
    """Close the incident, which the progress of the current attempt has proven to be over."""
    reason = f"recovered: attempt {run.current.number} {progress}"
    key, action_text, since = f"recovered-{incident.number}", "watching on", incident.happened_at
    notice = make_notice(run, Severity.INFORM, "recovered", reason, key=key, did=action_text, since=since)
    run, clears = clear_pages(run, [SUBJECT], reason)
    run = with_incident_closed(run, reason, seen.at, is_recovered=True)
    return Decision(run, (notice, *clears), reason, finding="recovered")


def _on_completed(run: Run, seen: JobObserved, policy: Policy) -> Decision:
    """End the run, unless an operator's rollback is under way: then relaunch."""
    if run.stop and run.stop.is_rollback:
        # The operator rejected the result of these steps.
        what = f"attempt {run.current.number} completed while it was to be rolled back ({run.stop.reason})"
        return relaunch_now(run, seen, policy, what)
    run = with_incident_closed(with_end(run, RunState.COMPLETED), "the run completed", seen.at, is_recovered=True)
    title, reason, todo, doubt = "completed", f"attempt {run.current.number} completed: the run is done", "", ""
    if error := seen.job.error_at_end:
        doubt, reason = ERROR_AT_END, f"{reason}; but its log ends with an error: {error}"
        todo = "Check the result before you use it; have the script end with its exit code"
    elif (label := find_open_label(run)) or seen.job.loss_at_end:
        trouble = f"its last steps were {label.why}" if label else seen.job.loss_at_end
        doubt, reason = LOSS_AT_END, f"{reason}; but {trouble}"
        todo = "Check the result before you use it"
    elif few := describe_few_steps(run, seen.job):
        doubt, reason = FEW_STEPS, f"{reason}; but {few}"
        todo = f"Unless it was to stop early: `rerail logs {run.id}` shows why it ended"
    elif has_no_row(run, seen.job, policy):
        doubt, todo = NO_ROW, format_instruction(format_no_row(run))
    elif seen.job.unread_end:
        reason = f"{reason}; its log could not be read for an error at its end: {seen.job.unread_end}"
    if doubt:
        run, title = with_warnings(run, doubt), f"completed {DOUBTFUL_ENDS[doubt].partition(':')[0]}"
    notice = make_notice(run, Severity.INFORM, title, reason, key="completed", todo=todo)
    return Decision(run, (notice,), reason, finding="completed")


def describe_few_steps(run: Run, job: Job) -> str:
    """Return how far a completed job is from the steps that its arguments ask for; "" from the half of them on.

    A logger may leave out many steps before the last one.
    """
    last, planned = run.current.last_step, job.planned_steps
    if last is None or planned is None or 2 * last >= planned:
        return ""
    return f"its last known step is {last:,}, and its hyperparameters ask for {planned:,}"


def has_done_steps(run: Run, job: Job) -> bool:
    """Return whether a job has done the steps that its arguments ask for, up to the last ones, which may not be logged.

    An error at the end of its log is then one of what comes after the training.
    """
    last, planned = run.current.last_step, job.planned_steps
    return last is not None and planned is not None and last >= DONE_SHARE * planned


def _on_stopped(run: Run, seen: JobObserved, policy: Policy) -> Decision:
    """Decide on a stopped job.

    Rerail's own stops are recorded before the call, so any other stop is SageMaker's time limit or an operator's.
    """
    what = f"attempt {run.current.number}"
    is_accepted = not (run.stop and run.stop.is_throttled and has_pending(run, StopJob))
    run = without_pending(run, StopJob)
    if run.state is RunState.STOPPING and run.stop and is_accepted:
        what += f" has stopped as asked ({run.stop.reason})"
        if run.stop.then is AfterStop.RELAUNCH:
            return relaunch_now(run, seen, policy, what)
        return finish_stopped(run, seen, what)
    if seen.job.secondary in TIMEOUT_STATUSES:
        what += f" ran out of time ({seen.job.secondary})"
        if policy.on_max_runtime is OnMaxRuntime.RELAUNCH and may_act(run, policy):
            return relaunch_now(run, seen, policy, what)
        return finish_stopped(run, seen, f"{what}, and the policy ends there")
    if seen.job.pending_ran_out:
        job = replace(seen.job, failure_reason=PENDING_TIMEOUT_REASON, diagnosis=None)
        return on_failed(run, replace(seen, job=job), policy)
    what += " was stopped, but not by Rerail: it is not relaunched, because an operator may have stopped it"
    return finish_stopped(run, seen, what)


def _on_capacity_end(run: Run, seen: JobObserved, ended_at: datetime) -> Decision:
    """Hold a run whose job ended with the capacity of its training plan: a successor would wait for days.

    Its status does not tell it from a person's stop or from a failure, so it is neither ended nor relaunched.
    """
    reason = f" ({seen.job.failure_reason[:200]})" if seen.job.failure_reason else ""
    what = (
        f"attempt {run.current.number} is {seen.job.status}{reason}: its training plan's capacity ended at"
        f" {ended_at:%Y-%m-%d %H:%M} UTC"
    )
    todo = "if the plan has more capacity, release the run; otherwise continue it with a request of its own"
    return hold_run(run, seen.at, what, because="its training plan has ended", todo=todo, runbook=Runbook.NO_CAPACITY)


def on_gone(run: Run, gone: JobGone, policy: Policy) -> Decision:
    """Hold the run if the current attempt's job no longer exists in SageMaker."""
    attempt = run.current
    is_over = run.state.is_end and not attempt.is_unconfirmed
    if gone.job_name != attempt.job_name or not attempt.may_be_live or is_over:
        return Decision(run)
    # A launch that an older version recorded has its time in the budgets alone.
    since = attempt.requested_at or attempt.created_at or max(run.ledger.starts, default=None)
    if since and gone.at - since < NEW_JOB_GRACE:
        return Decision(run)  # describe calls are eventually consistent after a creation
    if attempt.is_unconfirmed and (run.state.is_end or (run.stop and run.stop.then is AfterStop.END)):
        run = with_attempt(run, replace(attempt, status=None))
        what = f"{attempt.job_name} was never created"
        return Decision(run if run.state.is_end else with_end(run, RunState.STOPPED), reason=what)
    run = with_attempt(run, replace(attempt, status=JobStatus.STOPPED, ended_at=gone.at))
    what = f"SageMaker no longer has {attempt.job_name}"
    todo = "find out who deleted it, then release the run"
    return hold_run(run, gone.at, what, because="its job is gone", todo=todo, runbook=Runbook.JOB_GONE)


def _with_pool_status(run: Run, job: Job) -> Run:
    """Return the run with the warm pool's status that an earlier attempt's job reports."""
    attempts = tuple(
        replace(attempt, pool=job.pool) if _is_pool_change(attempt, job) else attempt for attempt in run.attempts
    )
    return replace(run, attempts=attempts)


def _is_pool_change(attempt: Attempt, job: Job) -> bool:
    """Return whether the job reports a change of its warm pool that is worth a record.

    The billed seconds change all the time and do not count.
    """
    before, now = attempt.pool, job.pool
    if (attempt.job_name, attempt.created_at) != (job.name, job.created_at):
        return False
    return now is not None and (before is None or (before.status, before.reused_by) != (now.status, now.reused_by))
