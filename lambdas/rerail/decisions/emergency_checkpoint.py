"""Emergency checkpoints: before a planned stop, have the agent save a checkpoint and wait for it up to a deadline.

Without an agent, wait for the script's next checkpoint where that is worth it.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from rerail.decisions.decision import Decision, make_command, stop_now, without_pending
from rerail.model.actions import Action, Notify, PostCommand, StopJob
from rerail.model.checkpoint_layouts import Layout
from rerail.model.checkpoints import EMERGENCY, Checkpoint, find_newest_usable
from rerail.model.formatting import format_duration
from rerail.model.mailbox import CommandKind, Durability, ReportKind
from rerail.model.policy import Policy
from rerail.model.run import JobStatus, PlannedStop, Run, RunState
from rerail.model.signals import AgentReported


def checkpoint_then_stop(run: Run, stop: PlannedStop, policy: Policy, reason: str, *notices: Notify) -> Decision:
    """Stop the job once its state is saved, or at once where there is nothing to wait for."""
    run = replace(without_pending(run, StopJob, PostCommand), state=RunState.SAVING, stop=stop)
    if run.current.agent:
        return _request_checkpoint(run, stop, policy, reason, notices)
    trained = stop.asked_at - (run.current.training_started_at or stop.asked_at)
    if stop.is_tainted or not run.checkpoint_uri or trained <= timedelta():
        nowhere = "" if run.checkpoint_uri else ": the job has no checkpoints to wait for, stopping it"
        decision = stop_now(run, f"{reason}{nowhere}")
        return replace(decision, actions=(*decision.actions, *notices))
    # A checkpoint saves at most the time that the job has trained: do not wait for longer.
    stop = replace(stop, deadline=min(stop.deadline, stop.asked_at + trained))
    wait = f"{format_duration(stop.deadline - stop.asked_at)} ({format_deadline(stop)})"
    reason = f"{reason}: waiting up to {wait} for a newer checkpoint, then stopping the job"
    return Decision(replace(run, stop=stop), notices, reason)


def _request_checkpoint(
    run: Run, stop: PlannedStop, policy: Policy, reason: str, notices: tuple[Notify, ...]
) -> Decision:
    """Send the agent the command to save, and wait for its answer."""
    at = stop.asked_at
    command = make_command(run, CommandKind.CHECKPOINT, at=at, deadline=stop.deadline, reason=stop.reason)
    requested = replace(stop, command_id=command.id, answer_by=min(at + policy.save.answer, stop.deadline))
    actions: tuple[Action | Notify, ...] = (PostCommand(command), *notices)
    wait = f"{format_duration(stop.deadline - at)} ({format_deadline(stop)})"
    reason = f"{reason}: having the agent save a checkpoint first, then stopping the job, after {wait} at the latest"
    return Decision(replace(run, stop=requested), actions, reason)


def on_checkpoints(run: Run, stop: PlannedStop, checkpoints: Sequence[Checkpoint]) -> Decision | None:
    """Stop the job if the awaited checkpoint is in S3 now.

    While an answer of the agent is expected, only its own checkpoint counts: the script's own may be some steps older.
    """
    requested = next((c for c in checkpoints if c.is_whole and _is_requested(stop, c)), None)
    if requested:
        return stop_now(run, f"{_format_checkpoint(requested.step)} is committed: stopping the job")
    # A file that the script overwrites in place.
    changed = next((c for c in checkpoints if c.layout == Layout.FILE and c.saved_at > stop.asked_at), None)
    if changed and not _awaits_agent(stop):
        name = changed.uri.rpartition("/")[2]
        return stop_now(run, f"{name} was saved after the request to stop: stopping the job")
    newest = find_newest_usable(checkpoints)
    if _awaits_agent(stop) or newest is None or newest.saved_at <= stop.asked_at:
        return None
    return stop_now(run, f"the checkpoint of step {newest.step} is newer than the request to stop: stopping the job")


def _is_requested(stop: PlannedStop, checkpoint: Checkpoint) -> bool:
    """Return whether the checkpoint is the one that was requested.

    The agent's report may be lost, so an emergency checkpoint newer than the request also counts. It may be suspect: it
    ends the wait all the same.
    """
    is_emergency = bool(stop.command_id) and checkpoint.reason == EMERGENCY and checkpoint.saved_at > stop.asked_at
    return is_emergency or checkpoint.step == stop.committed_step


def _awaits_agent(stop: PlannedStop) -> bool:
    """Return whether the agent has acknowledged the command or still has time to."""
    return stop.acknowledged_at is not None or stop.answer_by is not None


def on_save_deadline(run: Run, stop: PlannedStop, at: datetime) -> Decision:
    """Stop the job once the deadline for its checkpoint has passed, or the agent has not answered in time."""
    if run.current.status is JobStatus.STOPPING:
        return Decision(run)  # not Rerail's stop: relaunching would override an operator
    if at >= stop.deadline:
        return stop_now(run, "no newer checkpoint came before the deadline: stopping the job all the same")
    if stop.acknowledged_at or stop.answer_by is None or at < stop.answer_by:
        return Decision(run)
    what = f"the agent has not answered within {format_duration(stop.answer_by - stop.asked_at)}"
    if stop.is_tainted or not run.checkpoint_uri:
        return stop_now(run, f"{what}: stopping the job, there is no other checkpoint to wait for")
    run = replace(run, stop=replace(stop, answer_by=None))
    wait = f"{format_duration(stop.deadline - at)} more ({format_deadline(stop)})"
    return Decision(run, reason=f"{what}: waiting up to {wait} for a checkpoint of the script's own")


def on_agent_answer(run: Run, reported: AgentReported) -> Decision:
    """Act on the agent's answer to the current command; repeated, late and other answers change nothing."""
    report, stop = reported.report, run.stop
    if run.state is not RunState.SAVING or stop is None or not stop.command_id or report.command != stop.command_id:
        return Decision(run)
    if run.current.status is JobStatus.STOPPING:
        return Decision(run)
    if report.kind is ReportKind.CHECKPOINT:
        return _on_committed(run, stop, reported)
    if report.kind is ReportKind.REFUSED:
        why = report.reason or "it does not say why"
        return stop_now(
            run,
            f"the agent cannot save a checkpoint ({why}): stopping the job, to resume from its newest clean checkpoint",
        )
    if stop.acknowledged_at:
        return Decision(run)
    run = replace(run, stop=replace(stop, acknowledged_at=reported.at))
    return Decision(run, reason="the agent has received the request for a checkpoint: all ranks save at one step")


def _on_committed(run: Run, stop: PlannedStop, reported: AgentReported) -> Decision:
    """Stop the job if the checkpoint survives the machine or will not be resumed from; else wait for it in S3."""
    step, what = reported.report.step, _format_checkpoint(reported.report.step)
    updated = replace(stop, acknowledged_at=stop.acknowledged_at or reported.at, answer_by=None, committed_step=step)
    if reported.report.durability is Durability.REMOTE:
        return stop_now(replace(run, stop=updated), f"{what} is committed: stopping the job")
    if stop.is_tainted or not run.checkpoint_uri:
        return stop_now(run, f"{what} is committed, and no later attempt resumes from it: stopping the job")
    run = replace(run, stop=updated)
    if decision := on_checkpoints(run, updated, reported.checkpoints or ()):
        return decision
    if updated == stop:
        return Decision(run)
    return Decision(run, reason=f"{what} is committed on the machine: stopping the job once all of it is in S3")


def format_deadline(stop: PlannedStop) -> str:
    """Return until when a stop waits for a checkpoint, in words."""
    return f"until {stop.deadline:%H:%M} UTC"


def _format_checkpoint(step: int | None) -> str:
    """Return the emergency checkpoint and its step, if known, in words."""
    return "the emergency checkpoint" + (f" of step {step}" if step is not None else "")
