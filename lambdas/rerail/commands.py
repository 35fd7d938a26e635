"""Operators' wishes: hold, release, stop, restart."""

from dataclasses import replace
from typing import assert_never

from rerail.actions import CreateJob, PostCommand, StopJob
from rerail.decision import (
    Decision,
    ended,
    launched,
    next_attempt,
    resume_step,
    spoken_start,
    with_attempt,
    without,
)
from rerail.ledger import pardoned
from rerail.model import Run, RunState, Stop, Then
from rerail.policy import Policy
from rerail.saving import save_first
from rerail.signals import Commanded, Verb

KEPT_COMMANDS = 10


def on_command(run: Run, command: Commanded, policy: Policy) -> Decision:
    """Grant the wish, or say why there is nothing to grant; one that arrives twice is granted once."""
    if command.id in run.commands:
        return Decision(run)
    run = replace(run, commands=(*run.commands, command.id)[-KEPT_COMMANDS:])
    said = f"{command.who} said {command.verb}" + (f" ({command.why})" if command.why else "")
    match command.verb:
        case Verb.HOLD:
            return _on_hold(run, command, said)
        case Verb.RELEASE:
            return _on_release(run, command, policy, said)
        case Verb.STOP | Verb.RESTART:
            return _on_stop(run, command, policy, said)
        case _ as unreachable:
            assert_never(unreachable)


def _on_hold(run: Run, command: Commanded, said: str) -> Decision:
    if run.state.is_end:
        return Decision(run, reason=f"{said}, but the run has ended ({run.state}): nothing to hold")
    run = without(run, CreateJob, StopJob, PostCommand)
    run = replace(run, state=RunState.HELD, hold_reason=said, wake_at=None, stop=None)
    return Decision(run, reason=f"{said}: held, a job that runs goes on unsupervised")


def _on_release(run: Run, command: Commanded, policy: Policy, said: str) -> Decision:
    if run.state is not RunState.HELD:
        return Decision(run, reason=f"{said}, but the run is not held ({run.state}): nothing to release")
    run = replace(run, hold_reason="", ledger=pardoned(run.ledger, who=command.who, at=command.at))
    attempt, step = run.current, resume_step(command.checkpoints)
    if attempt.may_be_live:
        run = replace(run, state=RunState.WATCHING)
        return Decision(run, reason=f"{said}: watching attempt {attempt.number} again")
    if attempt.exists:
        run = next_attempt(run, step, wake_at=command.at)
    else:  # its creation was refused or called off: the same attempt, once more
        run = with_attempt(run, replace(attempt, resumed_from_step=step))
    run, actions = launched(run, command.at, policy)
    return Decision(run, actions, f"{said}: creating {run.current.job_name} {spoken_start(step)}")


def _on_stop(run: Run, command: Commanded, policy: Policy, said: str) -> Decision:
    then = Then.END if command.verb is Verb.STOP else Then.RELAUNCH
    if not run.current.may_be_live:
        return _on_stop_without_job(run, then, said)
    if run.state is RunState.STOPPING and run.stop:
        # To wait again would take the end of the job, which we have caused, for somebody else's doing.
        run = replace(run, stop=replace(run.stop, then=then, reason=said))
        return Decision(run, reason=f"{said}: the job is being stopped already")
    stop = Stop(then=then, reason=said, asked_at=command.at, deadline=command.at + policy.save.deadline)
    return save_first(run, stop, policy, said)


def _on_stop_without_job(run: Run, then: Then, said: str) -> Decision:
    if then is Then.RELAUNCH or run.state in (RunState.COMPLETED, RunState.STOPPED):
        return Decision(run, reason=f"{said}, but no job of this run is live ({run.state}): nothing to stop")
    run = ended(without(run, CreateJob), RunState.STOPPED)
    return Decision(run, reason=f"{said}: no job is live, the run ends here")
