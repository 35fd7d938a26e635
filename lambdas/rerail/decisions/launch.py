"""Launch the next attempt of a run: from the need for a job to the actions that create it.

The steps are: the next attempt is named and its resume step chosen (`relaunch_now`, or `with_next_attempt` after a
delay); the launch checks decide whether it may start now (launch_checks.py); the actions are returned
(`with_launch`). The supervisor performs them: it makes the request from that of the run's first job
(requests/relaunch.py), applies the account's rate limit, and calls CreateTrainingJob.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from rerail.decisions import warm_pools
from rerail.decisions.budgets import with_start
from rerail.decisions.checkpoint_health import find_newest_resumable, is_resumable
from rerail.decisions.decision import (
    Decision,
    choose_resume_step,
    find_first_start,
    format_start,
    has_agent,
    hold_as_ruled,
    make_command,
    with_attempt,
    without_pending,
)
from rerail.decisions.failed_gpus import list_refused
from rerail.decisions.fallback_machines import with_machines
from rerail.decisions.file_copies import format_copies, list_copies_before, list_restored, with_onsets_dated
from rerail.decisions.launch_checks import find_obstacle, with_launch_blocked, with_runtime_left
from rerail.decisions.quarantine import CLOCK_MARGIN
from rerail.decisions.remedies import Hold
from rerail.decisions.rollback_ladder import RollbackPlan, plan_rollback, with_rung_taken
from rerail.model.actions import Action, CreateJob, PostCommand, QuarantineCheckpoints
from rerail.model.causes import Cause
from rerail.model.checkpoint_layouts import UNLOADABLE
from rerail.model.checkpoints import Checkpoint, Health
from rerail.model.machines import format_instance_types
from rerail.model.mailbox import CommandKind
from rerail.model.policy import Policy
from rerail.model.run import Attempt, Run, RunState, make_job_name
from rerail.model.runbooks import Runbook
from rerail.model.signals import JobObserved


def with_next_attempt(run: Run, resume_step: int | None, *, wake_at: datetime, microbatches: int | None = None) -> Run:
    """Return the run with its next attempt named; the current attempt must have ended.

    `microbatches` is None where their number stays.
    """
    assert not run.current.may_be_live
    number = run.current.number + 1
    previous = run.current
    attempt = Attempt(
        number=number,
        job_name=make_job_name(run.id, number),
        resumed_from_step=resume_step,
        skip_samples=previous.skip_samples,
        rate=previous.rate,
        microbatches=microbatches or previous.microbatches,
        machines=previous.machines,
        max_runtime_s=previous.max_runtime_s,
        approved_by=run.stop.approved_by if run.stop else "",
    )
    run = without_pending(run, PostCommand)
    return replace(run, state=RunState.WAITING, attempts=(*run.attempts, attempt), wake_at=wake_at, stop=None)


def with_launch(run: Run, at: datetime, policy: Policy) -> tuple[Run, tuple[Action, ...]]:
    """Return the run with its current attempt being created, and the actions that create it.

    The first action tells the agents of older attempts, should one still be alive, that they no longer own the run.
    Where a launch check fails, return the run with its launch deferred, and no action.
    """
    if obstacle := find_obstacle(run, at, policy):
        return with_launch_blocked(run, obstacle, at), ()
    ledger = with_start(run.ledger, at=at, limits=policy.limits)
    run = replace(run, state=RunState.STARTING, wake_at=None, ledger=ledger, blocked_by=None, proposal=None)
    run = with_runtime_left(with_attempt(run, replace(run.current, requested_at=at)), at, policy)
    run = with_onsets_dated(run, margin_steps=policy.ladder.margin_steps)
    attempt = run.current
    create = make_create_job(run)
    if attempt.number == 1:
        return run, (create,)
    first = (PostCommand(make_command(run, CommandKind.TRAIN, at=at)), *make_quarantine_actions(run, at))
    return without_pending(run, PostCommand, QuarantineCheckpoints), (*first, create)


def make_quarantine_actions(run: Run, at: datetime) -> tuple[Action, ...]:
    """Return the quarantine to carry out before the current attempt is created, if any.

    It is needed after a rollback or a damaged checkpoint, or where unloadable checkpoints are left, in jobs without an
    agent to skip them.
    """
    # A script would load a damaged checkpoint again, like one of a loss that went wrong.
    failed = run.attempts[-2]
    has_onset = failed.onset_step is not None or failed.onset_at is not None
    rolled_back = has_onset or failed.cause is Cause.DAMAGED_CHECKPOINT
    if not (rolled_back or run.current.has_stale_checkpoints) or not run.checkpoint_uri or has_agent(run):
        return ()
    # The job's last upload may have finished shortly after its end was observed.
    saved_before = at + CLOCK_MARGIN
    uri, step, number = run.checkpoint_uri, run.current.resumed_from_step, failed.number
    action = QuarantineCheckpoints(
        run.id,
        number,
        uri,
        step,
        saved_before,
        strict=rolled_back,
        is_vital=rolled_back,
        saved_after=find_first_start(run),
        replaced_since=failed.onset_at,
        restored=list_restored(run, number),
    )
    return (action,)


def with_stale_checkpoints_noted(run: Run, checkpoints: Sequence[Checkpoint] | None) -> Run:
    """Return the run whose next attempt records whether a newer checkpoint must not be loaded.

    A script that takes the newest checkpoint would load a suspect one, or one that lacks required files.
    """
    newer = [c for c in checkpoints or () if not c.has_manifest and c.step > (run.current.resumed_from_step or 0)]
    bad = any(c.health is not Health.CLEAN or UNLOADABLE & set(c.missing) for c in newer)
    return with_attempt(run, replace(run.current, has_stale_checkpoints=bad))


def make_create_job(run: Run) -> CreateJob:
    """Return the action that creates the current attempt's job."""
    attempt = run.current
    previous = run.attempts[-2].cause if len(run.attempts) > 1 else None
    return CreateJob(
        attempt.job_name,
        attempt.number,
        attempt.resumed_from_step,
        skip_samples=attempt.skip_samples,
        rate=attempt.rate,
        microbatches=attempt.microbatches,
        machines=attempt.machines,
        max_runtime_s=attempt.max_runtime_s,
        drill=attempt.drill,
        previous_cause=previous.value if previous else "",
        failed_gpus=list_refused(run),
    )


def relaunch_now(run: Run, seen: JobObserved, policy: Policy, what: str) -> Decision:
    """Launch the next attempt without delay.

    It resumes from the newest usable checkpoint that the planned stop allows, or as the next rung of the rollback
    ladder says.
    """
    rung = _plan_rung(run, seen, policy)
    if isinstance(rung, Hold):
        return hold_as_ruled(run, seen.at, what, rung)
    step = rung.resume_step if rung else _choose_stop_step(run, seen)
    to_step = run.stop.to_step if run.stop and run.stop.is_rollback else None
    if step is None and to_step and not list_copies_before(run, to_step + 1):
        return hold_as_ruled(run, seen.at, what, _make_rollback_hold(run, to_step))
    stop, what = run.stop, f"{what}; {rung.why}" if rung else what
    run = _with_relaunch(run, seen, step, rung)
    needs_release = (stop and stop.fresh_machines) or warm_pools.is_unmatched(run)
    release = warm_pools.make_release(run) if needs_release else ()
    pool = format_machines(replace(run, pending=(*run.pending, *release)), seen.at)
    run, actions = with_launch(run, seen.at, policy)
    quarantined = next((action for action in actions if isinstance(action, QuarantineCheckpoints)), None)
    note = f", once {_format_quarantine(quarantined)}" if quarantined else ""
    return Decision(run, (*release, *actions), f"{what}: relaunching {format_start(run, step)}{note}{pool}")


def _format_quarantine(action: QuarantineCheckpoints) -> str:
    """Return what precedes the launch, in words."""
    if not action.restored or action.replaced_since is None:
        return "newer checkpoints are quarantined"
    since = f"{action.replaced_since:%Y-%m-%d %H:%M:%S} UTC"
    return f"files saved since {since} are replaced by earlier copies ({format_copies(action.restored)})"


def _choose_stop_step(run: Run, seen: JobObserved) -> int | None:
    """Return the step to resume from after the planned stop, if any."""
    stop = run.stop
    step = choose_resume_step(seen.checkpoints, before_step=stop.before_step if stop else None)
    if stop and stop.drill:
        saved = seen.checkpoints or ()
        return choose_resume_step([c for c in saved if stop.to_step is None or c.step <= stop.to_step]) or step
    if step is None and stop and not run.checkpoint_uri:
        # A file system that only the jobs can read: the step that the agent reported, or an upper bound for a rollback.
        return stop.committed_step if stop.before_step is None else max(0, stop.before_step - 1)
    return step


def _make_rollback_hold(run: Run, to_step: int) -> Hold:
    """Return the verdict where the checkpoint that an operator chose no longer exists."""
    why = f"no clean checkpoint is left at or before step {to_step}"
    advice = f"list the checkpoints with `rerail checkpoints {run.id}`, and roll back to a step that exists"
    return Hold(why, advice, Runbook.DIVERGED)


def _with_relaunch(run: Run, seen: JobObserved, step: int | None, rung: RollbackPlan | None) -> Run:
    """Return the run with its next attempt prepared as the planned stop and the rung say."""
    stop, previous = run.stop, run.current
    run = _with_resume_step(run, step) if stop else run
    run = with_stale_checkpoints_noted(with_next_attempt(run, step, wake_at=seen.at), seen.checkpoints)
    if stop is None:
        return run
    run = with_attempt(run, replace(run.current, drill=stop.drill))
    if rung and stop.before_step is not None:
        run = with_rung_taken(run, rung, stop.before_step, at=seen.at)
    elif stop.is_tainted and not stop.is_rollback:  # an in-place restart that failed is repeated by a new job
        run = with_attempt(run, replace(run.current, rung=previous.rung))
    return with_machines(run, stop.machines) if stop.changes_machines else run


def _plan_rung(run: Run, seen: JobObserved, policy: Policy) -> RollbackPlan | Hold | None:
    """Return the ladder's next rung for a stop that rolls the run back, by the checkpoints as they are now.

    None where the stop is not a rollback, an operator chose the step, or an in-place restart failed: its rung is kept.
    """
    order = run.current.in_place_restarts[-1] if run.current.in_place_restarts else None
    if run.stop is None or run.stop.before_step is None or (order and (order.failed or not order.restarted_at)):
        return None
    if run.stop.is_rollback:
        return None  # an operator has chosen the step
    rung = plan_rollback(run, run.stop.before_step, seen.checkpoints or (), policy)
    return None if isinstance(rung, Hold) and is_untried_elsewhere(run) else rung


def is_untried_elsewhere(run: Run) -> bool:
    """Return whether the open incident was answered by in-place restarts only, never on other machines."""
    orders, incident = run.current.in_place_restarts, run.open_incident
    if not orders or incident is None or incident.attempt != run.current.number:
        return False
    return orders[-1].asked_at >= incident.decided_at


def _with_resume_step(run: Run, step: int | None) -> Run:
    """Return the run whose open incident has the step that is resumed from now.

    A checkpoint may have been committed since the incident was opened.
    """
    incident = run.open_incident
    if incident is None or incident.attempt != run.current.number:
        return run
    return replace(run, incidents=(*run.incidents[:-1], replace(incident, resume_step=step)))


def format_machines(run: Run, at: datetime) -> str:
    """Return a suffix for a reason: the next attempt's machines, and whether it gets the warm pool.

    The machines are named only where they differ from those of the request.
    """
    machines, forecast = run.current.machines, warm_pools.format_forecast(run, at)
    return (f" on {format_instance_types(machines)}" if machines else "") + (f"; {forecast}" if forecast else "")


def choose_resume_step_again(run: Run, checkpoints: Sequence[Checkpoint] | None) -> tuple[Run, str]:
    """Return the run resuming from what still exists, never newer than first chosen, and a note for the reason.

    The note is empty where nothing changed.
    """
    wanted = run.current.resumed_from_step
    candidates = [c for c in checkpoints or () if wanted is not None and c.step <= wanted]
    if checkpoints is None or wanted is None or any(c.step == wanted and is_resumable(c) for c in candidates):
        return run, ""
    newest = find_newest_resumable(candidates)
    step = newest.step if newest else None
    run = with_attempt(run, replace(run.current, resumed_from_step=step))
    return run, f" (the checkpoint of step {wanted} cannot be resumed from any more)"
