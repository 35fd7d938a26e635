"""A planned stop saves first: the agent is asked, heard and waited for, as long as it is worth it.

Without an agent the next checkpoint that the script saves of its own accord is waited for, where it is worth anything.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from rerail.decisions.decision import Decision, make_command, stop_now, without_pending
from rerail.decisions.remedies import format_duration
from rerail.model.actions import Action, Notify, PostCommand, StopJob
from rerail.model.checkpoints import EMERGENCY, Checkpoint, newest_usable
from rerail.model.mailbox import CommandKind, Durability, ReportKind
from rerail.model.policy import Policy
from rerail.model.run import JobStatus, PlannedStop, Run, RunState
from rerail.model.signals import AgentReported


def checkpoint_then_stop(run: Run, stop: PlannedStop, policy: Policy, reason: str, *tells: Notify) -> Decision:
    """Stop the job once its state is saved; at once, where nobody can be asked and nothing is worth waiting for."""
    run = replace(without_pending(run, StopJob, PostCommand), state=RunState.SAVING, stop=stop)
    if run.current.agent:
        return _asked(run, stop, policy, reason, tells)
    if stop.is_tainted or not run.checkpoint_uri:
        nowhere = "" if run.checkpoint_uri else ": the job has no checkpoints to wait for, stopping it"
        decision = stop_now(run, f"{reason}{nowhere}")
        return replace(decision, actions=(*decision.actions, *tells))
    wait = format_duration(stop.deadline - stop.asked_at)
    return Decision(run, tells, f"{reason}: waiting up to {wait} for a newer checkpoint, then stopping the job")


def _asked(run: Run, stop: PlannedStop, policy: Policy, reason: str, tells: tuple[Notify, ...]) -> Decision:
    at = stop.asked_at
    command = make_command(run, CommandKind.CHECKPOINT, at=at, deadline=stop.deadline, reason=stop.reason)
    asked = replace(stop, command_id=command.id, answer_by=min(at + policy.save.answer, stop.deadline))
    actions: tuple[Action | Notify, ...] = (PostCommand(command), *tells)
    wait = format_duration(stop.deadline - at)
    reason = f"{reason}: asking the agent to save first, then stopping the job, after {wait} at the latest"
    return Decision(replace(run, stop=asked), actions, reason)


def on_checkpoints(run: Run, stop: PlannedStop, checkpoints: Sequence[Checkpoint]) -> Decision | None:
    """Stop the job if what is waited for lies in S3 now.

    While the agent is expected to answer, only its own checkpoint will do: the script's own may be some steps older."""
    answer = next((c for c in checkpoints if c.is_whole and _answers(stop, c)), None)
    if answer:
        return stop_now(run, f"{_the_save(answer.step)} is committed: stopping the job")
    newest = newest_usable(checkpoints)
    if _expects_the_agent(stop) or newest is None or newest.saved_at <= stop.asked_at:
        return None
    return stop_now(run, f"the checkpoint of step {newest.step} is newer than the wish to stop: stopping the job")


def _answers(stop: PlannedStop, checkpoint: Checkpoint) -> bool:
    """The one that was reported, or one saved for the reason for which nobody else saves: the report may be lost.

    It may well be suspect, where the state was: then it is evidence, and the wait is over all the same."""
    asked = bool(stop.command_id) and checkpoint.reason == EMERGENCY and checkpoint.saved_at > stop.asked_at
    return asked or checkpoint.step == stop.committed_step


def _expects_the_agent(stop: PlannedStop) -> bool:
    return stop.heard_at is not None or stop.answer_by is not None


def on_save_deadline(run: Run, stop: PlannedStop, at: datetime) -> Decision:
    """Each leg of the wait has its end: the agent has to hear of it soon, and the whole of it ends at the deadline."""
    if run.current.status is JobStatus.STOPPING:
        return Decision(run)  # somebody else stops it: to call that ours would relaunch against a human
    if at >= stop.deadline:
        return stop_now(run, "no newer checkpoint came before the deadline: stopping the job all the same")
    if stop.heard_at or stop.answer_by is None or at < stop.answer_by:
        return Decision(run)
    silent = f"the agent has not answered within {format_duration(stop.answer_by - stop.asked_at)}"
    if stop.is_tainted or not run.checkpoint_uri:
        return stop_now(run, f"{silent}: stopping the job, there is no other checkpoint to wait for")
    run = replace(run, stop=replace(stop, answer_by=None))
    wait = format_duration(stop.deadline - at)
    return Decision(run, reason=f"{silent}: waiting up to {wait} more for a checkpoint of the script's own")


def on_agent_answer(run: Run, reported: AgentReported) -> Decision:
    """What the agent says to our wish; said twice, late or to another wish it changes nothing."""
    report, stop = reported.report, run.stop
    if run.state is not RunState.SAVING or stop is None or not stop.command_id or report.command != stop.command_id:
        return Decision(run)
    if run.current.status is JobStatus.STOPPING:
        return Decision(run)
    if report.told is ReportKind.CHECKPOINT:
        return _on_committed(run, stop, reported)
    if report.told is ReportKind.REFUSED:
        why = report.reason or "it does not say why"
        return stop_now(run, f"the agent cannot save ({why}): stopping the job, its newest clean checkpoint must do")
    if stop.heard_at:
        return Decision(run)
    run = replace(run, stop=replace(stop, heard_at=reported.at))
    return Decision(run, reason="the agent has heard the wish for a checkpoint: all ranks save at one step")


def _on_committed(run: Run, stop: PlannedStop, reported: AgentReported) -> Decision:
    """Where it survives the machine, or nobody will resume from it, it need not be looked for."""
    step, what = reported.report.step, _the_save(reported.report.step)
    known = replace(stop, heard_at=stop.heard_at or reported.at, answer_by=None, committed_step=step)
    if reported.report.durability is Durability.REMOTE:
        return stop_now(replace(run, stop=known), f"{what} is committed: stopping the job")
    if stop.is_tainted or not run.checkpoint_uri:
        return stop_now(run, f"{what} is committed, and nobody will resume from it: stopping the job")
    run = replace(run, stop=known)
    if decision := on_checkpoints(run, known, reported.checkpoints or ()):
        return decision
    if known == stop:
        return Decision(run)
    return Decision(run, reason=f"{what} is committed on the machine: stopping the job once all of it is in S3")


def _the_save(step: int | None) -> str:
    return "the emergency checkpoint" + (f" of step {step}" if step is not None else "")
