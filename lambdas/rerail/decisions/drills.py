"""Restart drills: stop and relaunch a healthy run to prove that it can be resumed.

The two commands are harmless alone: one saves a checkpoint and goes on, the other stops at once and relaunches from it.
The caller lets the job train some steps in between, has them trained twice, and compares. The supervisor does not see
single steps, so it does not know their number. Nothing is charged, labelled or quarantined.
"""

from dataclasses import replace

from rerail.decisions.decision import (
    Decision,
    choose_resume_step,
    format_start,
    make_command,
    stop_now,
    without_pending,
)
from rerail.decisions.launch_checks import REPEAT_LATER, find_spent_limit
from rerail.model.actions import PostCommand
from rerail.model.checkpoint_layouts import Layout
from rerail.model.checkpoints import Health
from rerail.model.formatting import format_duration
from rerail.model.mailbox import CommandKind
from rerail.model.policy import Mode, Policy
from rerail.model.run import AfterStop, JobStatus, PlannedStop, Run, RunState
from rerail.model.signals import OperatorCommand


def on_save(run: Run, command: OperatorCommand, policy: Policy, summary: str) -> Decision:
    """Have the agent save a checkpoint; the job goes on."""
    if refusal := find_state_refusal(run):
        return Decision(run, reason=f"{summary}, but {refusal}")
    if not run.current.agent:
        return Decision(run, reason=f"{summary}, but the job has no agent that could save a checkpoint")
    deadline = command.at + policy.save.deadline
    checkpoint_command = make_command(run, CommandKind.CHECKPOINT, at=command.at, deadline=deadline, reason=summary)
    return Decision(
        without_pending(run, PostCommand),
        (PostCommand(checkpoint_command),),
        f"{summary}: having the agent save a checkpoint until {deadline:%H:%M} UTC, the job goes on",
    )


def on_drill(run: Run, command: OperatorCommand, policy: Policy, summary: str) -> Decision:
    """Stop the job at once and relaunch it.

    It resumes from the named step if it has an agent, else from the newest checkpoint that the script finds.
    """
    if refusal := find_state_refusal(run) or _find_drill_refusal(run, command, policy):
        return Decision(run, reason=f"{summary}, but {refusal}")
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
    start = format_start(run, step) if step is not None else "from its newest checkpoint"
    return stop_now(replace(run, stop=stop), f"restart drill: {summary}: stopping the job, to relaunch it {start}")


def with_drill_done(run: Run) -> Run:
    """Return the run whose job trains again: the start of a drill does not count towards a restart storm."""
    if not run.current.drill:
        return run
    return replace(run, ledger=replace(run.ledger, starts=run.ledger.starts[:-1]))


def format_drill(run: Run) -> str:
    """Return that the launch was a drill and how long it took, as a prefix for a reason; else an empty string."""
    previous = run.attempts[-2] if run.current.drill and len(run.attempts) > 1 else None
    if previous is None or previous.ended_at is None:
        return ""
    at = run.current.training_started_at or previous.ended_at
    return f"restart drill, {format_duration(max(at - previous.ended_at, at - at))} after its job had ended: "


def find_state_refusal(run: Run) -> str:
    """Return why the run is not in a state for it and what to do, or an empty string."""
    if run.state is RunState.HELD:
        return f"the run is held: `rerail release {run.id}` first"
    attempt = run.current
    trains = attempt.status is JobStatus.IN_PROGRESS and attempt.secondary == "Training"
    if run.state is RunState.WATCHING and trains:
        return ""
    if run.state in (RunState.COMPLETED, RunState.STOPPED):
        return f"the run has ended ({run.state}): nothing trains"
    return f"the run does not train ({run.state}): repeat the command when it does"


def _find_drill_refusal(run: Run, command: OperatorCommand, policy: Policy) -> str:
    """Return why a drill is not possible and what to do, or an empty string."""
    if policy.mode is Mode.PAUSE:
        return REPEAT_LATER
    if spent := find_spent_limit(run, command.at, policy):
        return spent
    if run.proposal:
        return f"{run.proposal.id} waits for an answer: `rerail show {run.id}` tells which"
    clean_steps = [
        checkpoint.step
        for checkpoint in command.checkpoints or ()
        if checkpoint.is_whole and checkpoint.health is Health.CLEAN
    ]
    if run.current.agent and command.step is not None and command.step not in clean_steps:
        return f"no clean checkpoint of step {command.step} is there: `rerail checkpoints {run.id}` lists what there is"
    # A file that the script overwrites has no step, and the script resumes from it by itself.
    has_file = not run.current.agent and any(saved.layout == Layout.FILE for saved in command.checkpoints or ())
    if choose_resume_step(command.checkpoints) is None and not has_file:
        return "nothing is saved that it could be relaunched from"
    return ""
