"""Decide on operators' commands: hold, release, stop, restart, roll back, save, drill, continue, approve and deny."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import assert_never

from rerail.decisions.approvals import on_denied, on_launch_approved
from rerail.decisions.checkpoint_health import with_rollback_withdrawn
from rerail.decisions.decision import (
    Decision,
    choose_resume_step,
    format_start,
    has_pending,
    stop_now,
    with_attempt,
    with_end,
    with_hold,
    with_release,
    without_hold,
    without_pending,
)
from rerail.decisions.drills import find_state_refusal, on_drill, on_save
from rerail.decisions.emergency_checkpoint import checkpoint_then_stop
from rerail.decisions.in_place_restart import find_newest_restart, make_withdrawal
from rerail.decisions.launch import format_machines, with_launch, with_next_attempt
from rerail.decisions.launch_checks import REPEAT_LATER, find_spent_limit
from rerail.decisions.on_finding import on_stop_approved
from rerail.decisions.operator_rollback import on_rollback
from rerail.model.actions import CreateJob, PostCommand, QuarantineCheckpoints, StopJob
from rerail.model.policy import Mode, Policy
from rerail.model.run import AfterStop, JobStatus, PlannedStop, ProposedAction, Run, RunState
from rerail.model.runbooks import Runbook
from rerail.model.signals import OperatorCommand, OperatorVerb

# More than are given in an hour, after which a command expires: a repeated one must still be known.
MAX_COMMANDS = 100
# A command that arrives later, from the queue of what could not be handled for one, may be about another situation.
EXPIRES_AFTER = timedelta(hours=1)
# EventBridge's times have no fractions.
SECOND = timedelta(seconds=1)
# Runs that an earlier version held have no runbook; their reason begins with this.
FORMER_NOT_QUARANTINED = "what must not be resumed from cannot be set aside"
# Of these the command that was issued last counts, whatever the order of arrival.
ORDERED_VERBS = (
    OperatorVerb.HOLD,
    OperatorVerb.RELEASE,
    OperatorVerb.STOP,
    OperatorVerb.RESTART,
    OperatorVerb.ROLLBACK,
    OperatorVerb.CONTINUE,
)


def _find_why_outdated(run: Run, command: OperatorCommand, asked_at: datetime) -> str:
    """Return why the command may be about another situation; "" where it is not."""
    began_at, age = run.attempts[0].created_at or run.created_at, command.at - asked_at
    if asked_at + SECOND < began_at or age > EXPIRES_AFTER:
        return f" at {asked_at:%Y-%m-%d %H:%M:%S} UTC, which is too long ago: nothing is done; say it again"
    if command.verb in ORDERED_VERBS and run.commanded_at and asked_at < run.commanded_at:
        return ", but something else was said after that: nothing is done"
    return ""


def on_command(run: Run, command: OperatorCommand, policy: Policy) -> Decision:
    """Carry out the command, or report why it cannot be; a repeated command changes nothing."""
    if command.id in run.commands:
        return Decision(run)
    run = replace(run, commands=(*run.commands, command.id)[-MAX_COMMANDS:])
    summary = f"{command.who} said {command.verb}" + (f" ({command.why})" if command.why else "")
    # The sender sets this time: never let it be in the future.
    asked_at = min(command.asked_at, command.at) if command.asked_at else None
    if asked_at and (outdated := _find_why_outdated(run, command, asked_at)):
        return Decision(run, reason=f"{summary}{outdated}")
    if command.verb in ORDERED_VERBS:
        run = replace(run, commanded_at=asked_at or run.commanded_at)
    if command.observe_only and _stops_or_launches(run, command.verb):
        why = f"this deployment only observes: {command.observe_only}"
        return Decision(run, reason=f"{summary}, but {why}; set it in cdk.json and deploy, then repeat the command")
    match command.verb:
        case OperatorVerb.HOLD:
            return _on_hold(run, command, policy, summary)
        case OperatorVerb.RELEASE:
            return _on_release(run, command, policy, summary)
        case OperatorVerb.CONTINUE:
            return _on_continue(run, command, policy, summary)
        case OperatorVerb.STOP | OperatorVerb.RESTART:
            return _on_stop(run, command, policy, summary)
        case OperatorVerb.APPROVE | OperatorVerb.DENY:
            return _on_answer(run, command, policy, summary)
        case OperatorVerb.ROLLBACK:
            return on_rollback(run, command, policy)
        case OperatorVerb.SAVE:
            return on_save(run, command, policy, summary)
        case OperatorVerb.DRILL:
            return on_drill(run, command, policy, summary)
        case _ as unreachable:
            assert_never(unreachable)


def _stops_or_launches(run: Run, verb: OperatorVerb) -> bool:
    """Return whether the command would stop or create a job of the run."""
    if verb is OperatorVerb.RELEASE:
        return not run.current.may_be_live
    if verb is OperatorVerb.STOP:
        return run.current.may_be_live
    return verb not in (OperatorVerb.HOLD, OperatorVerb.DENY, OperatorVerb.SAVE)


def find_refusal(run: Run, verb: OperatorVerb, at: datetime, policy: Policy) -> str:
    """Return why the command would change nothing by the run's record; "" if it may."""
    match verb:
        case OperatorVerb.HOLD if run.state is RunState.HELD:
            return "the run is held already: nothing to hold"
        case OperatorVerb.HOLD if run.state.is_end:
            return f"the run has ended ({run.state}): nothing to hold"
        case OperatorVerb.RELEASE if run.state is not RunState.HELD:
            return f"the run is not held ({run.state}): nothing to release"
        case OperatorVerb.APPROVE | OperatorVerb.DENY if run.proposal is None:
            return f"nothing waits for approval ({run.state}): nothing to answer"
        case OperatorVerb.RESTART if not run.current.may_be_live:
            return f"no job of this run is live ({run.state}): nothing to stop"
        case OperatorVerb.RESTART:
            return find_spent_limit(run, at, policy)
        case OperatorVerb.STOP if not run.current.may_be_live and run.state in (RunState.COMPLETED, RunState.STOPPED):
            return f"no job of this run is live ({run.state}): nothing to stop"
        case OperatorVerb.SAVE:
            return find_state_refusal(run)
    return ""


def _on_answer(run: Run, command: OperatorCommand, policy: Policy, summary: str) -> Decision:
    """Approve or deny the open proposal; an answer to another proposal changes nothing."""
    proposal = run.proposal
    if proposal is None:
        return Decision(run, reason=f"{summary}, but {find_refusal(run, command.verb, command.at, policy)}")
    if command.proposal != proposal.id:
        named = f"of {command.proposal}" if command.proposal else "without the id of a proposal"
        return Decision(run, reason=f"{summary} {named}, but what stands is {proposal.id}: nothing is done")
    if command.verb is OperatorVerb.DENY:
        return on_denied(run, summary, at=command.at)
    if proposal.plan is ProposedAction.LAUNCH:
        return on_launch_approved(run, command.who, summary, at=command.at, policy=policy)
    if policy.mode is Mode.PAUSE:
        return Decision(run, reason=f"{summary}, but {REPEAT_LATER}")
    decision = on_stop_approved(run, proposal, command.checkpoints, at=command.at, policy=policy, who=command.who)
    return replace(decision, reason=f"{summary}: {decision.reason}")


def _on_hold(run: Run, command: OperatorCommand, policy: Policy, summary: str) -> Decision:
    """Hold the run and withdraw what is pending; a running job goes on unsupervised."""
    if refusal := find_refusal(run, command.verb, command.at, policy):
        return Decision(run, reason=f"{summary}, but {refusal}")
    withdrawn = tuple(make_withdrawal(run, command.at))
    planned = run.stop or find_newest_restart(run)
    is_open = run.state in (RunState.SAVING, RunState.RESTARTING) or has_pending(run, StopJob)
    is_operators = run.stop is not None and run.stop.is_rollback
    if planned and is_open and (is_operators or planned.reason == run.current.fingerprint):
        run = with_rollback_withdrawn(run)
    run = without_pending(_with_launch_withdrawn(run), StopJob, PostCommand, QuarantineCheckpoints)
    run = replace(run, state=RunState.HELD, wake_at=None, stop=None)
    run = with_hold(run, summary, by=command.who)
    return Decision(run, withdrawn, f"{summary}: held, a job that runs goes on unsupervised")


def _with_launch_withdrawn(run: Run) -> Run:
    """Return the run without its pending launch, whose job may exist all the same: a function may be creating it."""
    if not has_pending(run, CreateJob):
        return run
    run = without_pending(run, CreateJob)
    attempt = run.current
    return run if attempt.exists else with_attempt(run, replace(attempt, status=JobStatus.IN_PROGRESS, secondary=""))


def _on_release(run: Run, command: OperatorCommand, policy: Policy, summary: str) -> Decision:
    """Release a held run: watch its running job again, or launch the next one."""
    if refusal := find_refusal(run, command.verb, command.at, policy):
        return Decision(run, reason=f"{summary}, but {refusal}")
    was_unquarantined = _is_unquarantined(run)
    run = with_release(run, command)
    if run.current.is_unconfirmed:  # launched again under its name: a job that exists is taken for it
        run = with_attempt(run, replace(run.current, status=None))
    if run.current.may_be_live:
        run = replace(run, state=RunState.WATCHING)
        return Decision(run, reason=f"{summary}: watching attempt {run.current.number} again")
    return _launch(_with_attempt_to_launch(run, command), command, policy, summary, strict=not was_unquarantined)


def _on_continue(run: Run, command: OperatorCommand, policy: Policy, summary: str) -> Decision:
    """Launch the next attempt of a held or stopped run with the changed request, which later attempts copy."""
    change = command.change
    if obstacle := find_obstacle_to_continue(run):
        return Decision(run, reason=f"{summary}, but {obstacle}: nothing is done")
    if change is None or change.problem:
        return Decision(run, reason=f"{summary}, but {change.problem if change else 'no change came with it'}")
    was_unquarantined = _is_unquarantined(run)
    run = _with_attempt_to_launch(with_release(run, command), command)
    run = with_attempt(run, replace(run.current, microbatches=1))  # other code may need less memory
    if change.cluster:
        run = with_attempt(replace(run, cluster=change.cluster), replace(run.current, machines=None))
    if change.policy:
        run = replace(run, policy=change.policy.name, last_policy=change.policy, observe_only=False)
    summary = f"{summary}, changing {change.what}"
    return replace(_launch(run, command, policy, summary, strict=not was_unquarantined), replaces_request=True)


def find_obstacle_to_continue(run: Run) -> str:
    """Return why the run's next attempt cannot be started by an operator, and the remedy; "" if it can."""
    if run.current.may_be_live:
        return f"its job {run.current.job_name} is live: `rerail stop {run.id}` first"
    if run.state is RunState.COMPLETED:
        return "the run has completed: submit a new one"
    if run.state not in (RunState.HELD, RunState.STOPPED):
        return f"Rerail is about to launch its next job ({run.state}): `rerail hold {run.id}` first"
    return ""


def _is_unquarantined(run: Run) -> bool:
    """Return whether the run is held because checkpoints could not be quarantined."""
    return run.hold_runbook is Runbook.NOT_QUARANTINED or run.hold_reason.startswith(FORMER_NOT_QUARANTINED)


def _with_attempt_to_launch(run: Run, command: OperatorCommand) -> Run:
    """Return the run with the attempt to launch: the next one, or the same one if its job was never created."""
    attempt, step = run.current, choose_resume_step(command.checkpoints)
    if attempt.exists:
        run = with_next_attempt(run, step, wake_at=command.at)
    else:  # its creation was refused or withdrawn: launch the same attempt again
        run = with_attempt(run, replace(attempt, resumed_from_step=step))
    return with_attempt(run, replace(run.current, approved_by=command.who))


def _launch(run: Run, command: OperatorCommand, policy: Policy, summary: str, *, strict: bool) -> Decision:
    """Launch the current attempt; without `strict` an operator has cleared the checkpoint folder by hand."""
    pool = format_machines(run, command.at)
    run, actions = with_launch(run, command.at, policy)
    if not strict:
        actions = tuple(
            replace(action, strict=False) if isinstance(action, QuarantineCheckpoints) else action for action in actions
        )
    return Decision(
        run,
        actions,
        f"{summary}: creating {run.current.job_name} {format_start(run, run.current.resumed_from_step)}{pool}",
    )


def _on_stop(run: Run, command: OperatorCommand, policy: Policy, summary: str) -> Decision:
    """Stop the job after an emergency checkpoint, to end the run or to relaunch it."""
    then = AfterStop.END if command.verb is OperatorVerb.STOP else AfterStop.RELAUNCH
    if refusal := find_refusal(run, command.verb, command.at, policy):
        return Decision(run, reason=f"{summary}, but {refusal}")
    if has_pending(run, CreateJob):
        # A job that is created after the end of its run would train on unwatched.
        stop = PlannedStop(then, summary, asked_at=command.at, deadline=command.at, approved_by=command.who)
        run = replace(_with_launch_withdrawn(run), stop=stop)
        return stop_now(run, f"{summary}: stopping {run.current.job_name}, which is being created, if it exists")
    if not run.current.may_be_live:
        run = with_end(run, RunState.STOPPED)
        return Decision(run, reason=f"{summary}: no job is live, the run ends here")
    if run.state is RunState.STOPPING and run.stop:
        # Waiting again would attribute the stop that Rerail called to an operator.
        run = replace(run, stop=replace(run.stop, then=then, reason=summary, approved_by=command.who))
        return Decision(run, reason=f"{summary}: the job is being stopped already")
    if run.state is RunState.HELD:
        run = without_hold(run)
    deadline = command.at if command.at_once else command.at + policy.save.deadline
    stop = PlannedStop(then=then, reason=summary, asked_at=command.at, deadline=deadline, approved_by=command.who)
    if command.at_once:
        run = without_pending(replace(run, stop=stop), StopJob)
        return stop_now(run, f"{summary}: stopping the job now, without waiting for a checkpoint")
    return checkpoint_then_stop(run, stop, policy, summary)
