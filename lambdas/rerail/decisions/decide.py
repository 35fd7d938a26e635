"""Decide what to do about one signal: the entry point of all decisions."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from rerail.decisions.budgets import with_recent_charges
from rerail.decisions.checkpoint_health import without_operator_rollback
from rerail.decisions.decision import Decision, select_known
from rerail.decisions.deferrals import on_paused, with_deferrals
from rerail.decisions.file_copies import on_copied, with_copies
from rerail.decisions.on_actions import on_actions_done, on_create_refused, on_stop_throttled
from rerail.decisions.on_command import on_command
from rerail.decisions.on_failure import on_quarantine_refused
from rerail.decisions.on_finding import on_findings
from rerail.decisions.on_job import on_checkpoints_refused, on_gone, on_job
from rerail.decisions.on_policy import on_policy
from rerail.decisions.on_report import on_invalid_report, on_report
from rerail.decisions.on_tick import on_tick
from rerail.decisions.open_pages import with_pages
from rerail.decisions.reconcile import on_outdated_record
from rerail.decisions.start_check import with_save_steps_noted
from rerail.model.actions import Notify
from rerail.model.policy import Policy
from rerail.model.run import Run, make_state_change
from rerail.model.signals import (
    ActionsDone,
    AgentReported,
    CheckpointsRefused,
    CreateRefused,
    FileCopied,
    FindingsObserved,
    JobGone,
    JobObserved,
    OperatorCommand,
    OperatorVerb,
    Paused,
    PolicyRead,
    QuarantineRefused,
    RecordOutdated,
    ReportInvalid,
    Signal,
    StopThrottled,
    Tick,
)

HANDLERS: Mapping[type[Signal], Callable[[Run, Any, Policy], Decision]] = {
    JobObserved: on_job,
    JobGone: on_gone,
    Tick: on_tick,
    PolicyRead: on_policy,
    OperatorCommand: on_command,
    FindingsObserved: on_findings,
    AgentReported: on_report,
    ReportInvalid: on_invalid_report,
    ActionsDone: on_actions_done,
    CreateRefused: on_create_refused,
    Paused: on_paused,
    StopThrottled: on_stop_throttled,
    QuarantineRefused: on_quarantine_refused,
    FileCopied: on_copied,
    CheckpointsRefused: on_checkpoints_refused,
    RecordOutdated: on_outdated_record,
}


def decide(run: Run, signal: Signal, policy: Policy) -> Decision:
    """Return the new run, its actions and the reason for one signal under one policy.

    Pure: it reads no clock and does no I/O. The new run lists the actions as pending; they are carried out only once
    the run is recorded.
    """
    before, signal = run, _with_known_checkpoints(run, signal)
    ledger = with_recent_charges(run.ledger, window=policy.retries.window, at=signal.at)
    run = run if ledger is run.ledger else replace(run, ledger=ledger)
    decision = HANDLERS[type(signal)](run, signal, policy)
    for apply in PASSES:
        decision = apply(before, decision, signal, policy)
    return decision


def _with_known_checkpoints(run: Run, signal: Signal) -> Signal:
    """Return the signal with the checkpoints that the run may resume from, and their health."""
    if (
        isinstance(signal, JobObserved | FindingsObserved | AgentReported | OperatorCommand | Tick)
        and signal.checkpoints
    ):
        replaces_rollback = isinstance(signal, OperatorCommand) and signal.verb is OperatorVerb.ROLLBACK
        known = without_operator_rollback(run) if replaces_rollback else run
        return replace(signal, checkpoints=select_known(known, signal.checkpoints))
    return signal


def _with_actions_pending(before: Run, decision: Decision, signal: Signal, policy: Policy) -> Decision:
    """Record the actions as pending until they are reported as done."""
    if not decision.actions:
        return decision
    dated = (replace(item, decided_at=signal.at) if isinstance(item, Notify) else item for item in decision.actions)
    return replace(decision, run=replace(decision.run, pending=(*decision.run.pending, *dated)))


def _with_state_change(before: Run, decision: Decision, signal: Signal, policy: Policy) -> Decision:
    """Record a change of state as unpublished until its event is reported as published."""
    run = decision.run
    if run.state is before.state:
        return decision
    change = make_state_change(run, before.state, at=signal.at, version=before.version + 1, reason=decision.reason)
    return replace(decision, run=replace(run, unpublished=(*run.unpublished, change)))


# Applied to every decision, in this order: what must wait is deferred, pages are repeated or cleared, files that were
# saved are copied, the interval of checkpoints is noted, and the actions and the change of state that remain are
# recorded.
PASSES: tuple[Callable[[Run, Decision, Signal, Policy], Decision], ...] = (
    with_deferrals,
    with_pages,
    with_copies,
    with_save_steps_noted,
    _with_actions_pending,
    _with_state_change,
)
