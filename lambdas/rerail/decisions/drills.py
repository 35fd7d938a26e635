"""A restart drill: nothing is wrong, and the run is stopped and relaunched to prove that it can be.

Two wishes, each of them harmless alone: to save now and go on, and later to stop at once and relaunch from that save.
Whoever asks lets the job train some steps in between, has them trained twice, and compares. How many steps those are is
not the supervisor's business: it sees no single step. Nothing is charged, labelled or set aside."""

from dataclasses import replace

from rerail.decisions.decision import (
    Decision,
    choose_resume_step,
    format_start,
    make_command,
    stop_now,
    without_pending,
)
from rerail.decisions.launch_checks import PAUSED
from rerail.decisions.remedies import format_duration
from rerail.model.actions import PostCommand
from rerail.model.checkpoints import Health
from rerail.model.mailbox import CommandKind
from rerail.model.policy import Mode, Policy
from rerail.model.run import AfterStop, JobStatus, PlannedStop, Run, RunState
from rerail.model.signals import OperatorCommand


def on_save(run: Run, command: OperatorCommand, policy: Policy, said: str) -> Decision:
    """Have the agent save; the job goes on."""
    if refusal := _not_training(run):
        return Decision(run, reason=f"{said}, but {refusal}")
    if not run.current.agent:
        return Decision(run, reason=f"{said}, but no agent works in the job: nobody can be asked")
    deadline = command.at + policy.save.deadline
    wish = make_command(run, CommandKind.CHECKPOINT, at=command.at, deadline=deadline, reason=said)
    return Decision(
        without_pending(run, PostCommand), (PostCommand(wish),), f"{said}: asking the agent to save, the job goes on"
    )


def on_drill(run: Run, command: OperatorCommand, policy: Policy, said: str) -> Decision:
    """Stop the job at once and relaunch it: from the step that was named where an agent takes it up, else from the
    newest that the script finds."""
    if refusal := _not_training(run) or _not_possible(run, command, policy):
        return Decision(run, reason=f"{said}, but {refusal}")
    step = command.step if run.current.agent else None
    stop = PlannedStop(
        then=AfterStop.RELAUNCH,
        reason=f"restart drill of {command.who}",
        asked_at=command.at,
        deadline=command.at,
        approved_by=command.who,
        to_step=step,
        drill=True,
    )
    start = format_start(step) if step is not None else "from its newest save"
    return stop_now(replace(run, stop=stop), f"restart drill: {said}: stopping the job, to relaunch it {start}")


def with_drill_done(run: Run) -> Run:
    """The run whose job trains again: a start that was a drill counts towards no restart storm."""
    if not run.current.drill:
        return run
    return replace(run, ledger=replace(run.ledger, starts=run.ledger.starts[:-1]))


def format_drill(run: Run) -> str:
    """That it was one, and how long it took: to be put before a reason."""
    before = run.attempts[-2] if run.current.drill and len(run.attempts) > 1 else None
    if before is None or before.ended_at is None:
        return ""
    at = run.current.training_started_at or before.ended_at
    return f"restart drill, {format_duration(max(at - before.ended_at, at - at))} after its job had ended: "


def _not_training(run: Run) -> str:
    """Why the run is in no state for it, and what to do; "" where it is."""
    if run.state is RunState.HELD:
        return f"the run is held: `rerail release {run.id}` first"
    attempt = run.current
    trains = attempt.status is JobStatus.IN_PROGRESS and attempt.secondary == "Training"
    if run.state is RunState.WATCHING and trains:
        return ""
    return f"the run does not train ({run.state}): say it again when it does"


def _not_possible(run: Run, command: OperatorCommand, policy: Policy) -> str:
    if policy.mode is Mode.PAUSE:
        return f"{PAUSED}: repeat the command after `rerail resume`"
    if run.proposal:
        return f"{run.proposal.id} waits for an answer: `rerail show {run.id}` tells which"
    clean = [each.step for each in command.checkpoints or () if each.is_whole and each.health is Health.CLEAN]
    if run.current.agent and command.step is not None and command.step not in clean:
        return f"no clean checkpoint of step {command.step} is there: `rerail checkpoints {run.id}` lists what there is"
    if choose_resume_step(command.checkpoints) is None:
        return "nothing is saved that it could be relaunched from"
    return ""
