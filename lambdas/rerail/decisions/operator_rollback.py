"""An operator's rollback: back to a step of their choice; what was saved after it is not resumed from any more.

It is answered as a loss that went wrong there: what the job saves on its way out is evidence, what is newer is
labelled, and moved out of the way of a script without an agent. But no budget is charged, and the ladder has no say."""

from dataclasses import replace

from rerail.decisions.checkpoint_health import with_operator_rollback
from rerail.decisions.decision import (
    Decision,
    choose_resume_step,
    format_start,
    has_agent,
    with_attempt,
    with_launch,
    with_next_attempt,
    with_release,
)
from rerail.decisions.emergency_checkpoint import checkpoint_then_stop
from rerail.model.policy import Policy
from rerail.model.run import AfterStop, PlannedStop, Run, RunState
from rerail.model.signals import OperatorCommand

OVER = (RunState.COMPLETED, RunState.STOPPED)


def on_rollback(run: Run, command: OperatorCommand, policy: Policy) -> Decision:
    """Stop the job and relaunch it from there, or take a held run up again there; or say why not."""
    said = f"{command.who} said rollback to step {command.step}" + (f" ({command.why})" if command.why else "")
    if refusal := _refusal(run, command):
        return Decision(run, reason=f"{said}, but {refusal}")
    step = command.step or 0
    why = f"saved after step {step}, to which {command.who} rolled the run back"
    run = with_operator_rollback(run, step, why=why + (f": {command.why}" if command.why else ""), source=command.id)
    if run.state is RunState.HELD:  # they have looked
        run = with_release(run, who=command.who, at=command.at)
    if not run.current.may_be_live:
        return _relaunched(run, command, policy, said)
    return _stopped(run, command, policy, said, step)


def _refusal(run: Run, command: OperatorCommand) -> str:
    """Why there is nothing that can be done, and what can; "" where it can be done."""
    if command.step is None:
        return "without a step: name it with --to"
    if run.state in OVER:
        return f"the run has ended ({run.state}): start the job again by hand"
    waits = run.current.number > 1 and run.state in (RunState.WAITING, RunState.HELD)
    if not run.current.exists and not waits:
        return "its next job is just being created: say it again in a minute"
    if not run.checkpoint_uri:
        return "" if has_agent(run) else "its jobs save nowhere that Rerail knows of: restart it by hand"
    if command.step and choose_resume_step(command.checkpoints, before_step=command.step + 1) is None:
        there = f"`rerail checkpoints {run.id}` lists what there is, --to 0 begins again"
        return f"nothing clean was saved at or before it: {there}"
    return ""


def _relaunched(run: Run, command: OperatorCommand, policy: Policy, said: str) -> Decision:
    """No job is live: the next one is launched at once, for whoever says so has waited long enough."""
    step = _start(run, command)
    if run.current.exists:
        run = with_next_attempt(run, step, wake_at=command.at)
    run = with_attempt(run, replace(run.current, resumed_from_step=step, approved_by=command.who, drill=False))
    run = replace(run, state=RunState.WAITING, wake_at=command.at, kept_back="")
    run, actions = with_launch(run, command.at, policy)
    return Decision(run, actions, f"{said}: creating {run.current.job_name} {format_start(step)}")


def _start(run: Run, command: OperatorCommand) -> int | None:
    """The newest clean checkpoint at or before the step; where Rerail cannot look, what the job finds there."""
    step = command.step or 0
    return choose_resume_step(command.checkpoints, before_step=step + 1) if run.checkpoint_uri else step


def _stopped(run: Run, command: OperatorCommand, policy: Policy, said: str, step: int) -> Decision:
    if run.state is RunState.STOPPING and run.stop:
        stop = replace(run.stop, then=AfterStop.RELAUNCH, reason=said, approved_by=command.who)
        run = replace(run, stop=replace(stop, before_step=step + 1, to_step=step, drill=False))
        return Decision(run, reason=f"{said}: the job is being stopped already, to be relaunched from there")
    stop = PlannedStop(
        then=AfterStop.RELAUNCH,
        reason=said,
        asked_at=command.at,
        deadline=command.at + policy.save.deadline,
        before_step=step + 1,
        approved_by=command.who,
        to_step=step,
    )
    return checkpoint_then_stop(run, stop, policy, said)
