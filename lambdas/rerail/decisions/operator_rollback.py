"""An operator's rollback: relaunch from a step of their choice and never resume from newer checkpoints.

It works as for a loss that diverged there: newer checkpoints are labelled, and quarantined for a script without an
agent. No budget is charged, and the rollback ladder does not apply.
"""

from dataclasses import replace

from rerail.decisions.checkpoint_health import with_operator_rollback
from rerail.decisions.decision import Decision, choose_resume_step, format_start, has_agent, with_attempt, with_release
from rerail.decisions.emergency_checkpoint import checkpoint_then_stop
from rerail.decisions.file_copies import list_copies_before, with_onsets_dated
from rerail.decisions.launch import with_launch, with_next_attempt
from rerail.decisions.launch_checks import find_spent_limit
from rerail.model.policy import Policy
from rerail.model.run import AfterStop, PlannedStop, Run, RunState
from rerail.model.signals import OperatorCommand

ENDED_STATES = (RunState.COMPLETED, RunState.STOPPED)


def on_rollback(run: Run, command: OperatorCommand, policy: Policy) -> Decision:
    """Stop the job and relaunch it from the step, or relaunch a held run there; or report why not."""
    summary = f"{command.who} said rollback to step {command.step}" + (f" ({command.why})" if command.why else "")
    released = with_release(run, command) if run.state is RunState.HELD else run  # the command implies a release
    spent = find_spent_limit(released, command.at, policy) if run.current.may_be_live else ""
    if refusal := _find_refusal(run, command) or spent:
        return Decision(run, reason=f"{summary}, but {refusal}")
    run, step = released, command.step or 0
    why = f"saved after step {step}, to which {command.who} rolled the run back"
    run = with_operator_rollback(run, step, why=why + (f": {command.why}" if command.why else ""), source=command.id)
    run = with_onsets_dated(run, margin_steps=0)
    if not run.current.may_be_live:
        return _relaunch(run, command, policy, summary)
    return _stop_job(run, command, policy, summary, step)


def _find_refusal(run: Run, command: OperatorCommand) -> str:
    """Return why the rollback cannot be done and what to do instead, or an empty string."""
    if command.step is None:
        return "without a step: name it with --to"
    if run.state in ENDED_STATES:
        return f"the run has ended ({run.state}): start the job again by hand"
    waits = run.current.number > 1 and run.state in (RunState.WAITING, RunState.HELD)
    if not run.current.exists and not waits:
        return "its next job is just being created: repeat the command in a minute"
    if not run.checkpoint_uri:
        return "" if has_agent(run) else "its jobs have no checkpoint folder that Rerail can read: restart it by hand"
    has_checkpoint = choose_resume_step(command.checkpoints, before_step=(command.step or 0) + 1) is not None
    if command.step and not has_checkpoint and not list_copies_before(run, command.step + 1):
        there = f"`rerail checkpoints {run.id}` lists what there is, --to 0 begins again"
        return f"nothing clean was saved at or before it: {there}"
    # A script without an agent would resume from what is newer.
    is_own = all(checkpoint.has_manifest for checkpoint in command.checkpoints or ())
    if command.unmovable and run.state is not RunState.STOPPING and not has_agent(run) and not is_own:
        return f"nothing is done: {command.unmovable}"
    return ""


def _relaunch(run: Run, command: OperatorCommand, policy: Policy, summary: str) -> Decision:
    """Launch the next job at once: no job is live, and the command counts as its approval."""
    step = _choose_start(run, command)
    if run.current.exists:
        run = with_next_attempt(run, step, wake_at=command.at)
    run = with_attempt(run, replace(run.current, resumed_from_step=step, approved_by=command.who, drill=False))
    run = replace(run, state=RunState.WAITING, wake_at=command.at, blocked_by=None)
    run, actions = with_launch(run, command.at, policy)
    return Decision(run, actions, f"{summary}: creating {run.current.job_name} {format_start(run, step)}")


def _choose_start(run: Run, command: OperatorCommand) -> int | None:
    """Return the newest clean step up to the requested one, or that step where Rerail cannot list checkpoints."""
    step = command.step or 0
    return choose_resume_step(command.checkpoints, before_step=step + 1) if run.checkpoint_uri else step


def _stop_job(run: Run, command: OperatorCommand, policy: Policy, summary: str, step: int) -> Decision:
    """Stop the live job, to relaunch it from the step."""
    if run.state is RunState.STOPPING and run.stop:
        stop = replace(run.stop, then=AfterStop.RELAUNCH, reason=summary, approved_by=command.who)
        run = replace(run, stop=replace(stop, before_step=step + 1, to_step=step, drill=False))
        return Decision(run, reason=f"{summary}: the job is being stopped already, to be relaunched from there")
    stop = PlannedStop(AfterStop.RELAUNCH, summary, command.at, command.at + policy.save.deadline, before_step=step + 1)
    return checkpoint_then_stop(run, replace(stop, approved_by=command.who, to_step=step), policy, summary)
