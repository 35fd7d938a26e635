"""Decide on what is due at a point in time: expired proposals, deferred stops, launches, deadlines."""

from dataclasses import replace
from datetime import datetime

from rerail.decisions import warm_pools
from rerail.decisions.approvals import on_expired
from rerail.decisions.cost_cap import on_cost
from rerail.decisions.decision import Decision, format_start, stop_now
from rerail.decisions.deferrals import is_deferred_stop_due
from rerail.decisions.emergency_checkpoint import on_save_deadline
from rerail.decisions.in_place_restart import on_restart_due
from rerail.decisions.launch import choose_resume_step_again, format_machines, with_launch
from rerail.decisions.monitoring_gaps import on_unwatched
from rerail.model.actions import ReleaseWarmPool
from rerail.model.policy import Mode, Policy
from rerail.model.run import JobStatus, Run, RunState
from rerail.model.signals import Tick


def on_tick(run: Run, tick: Tick, policy: Policy) -> Decision:
    """Do what is due at this time: expired proposals, deferred stops, launches, and deadlines."""
    if decision := on_expired(run, at=tick.at, policy=policy):
        return decision
    if is_deferred_stop_due(run) and policy.mode is not Mode.PAUSE and run.current.status is not JobStatus.STOPPING:
        return stop_now(run, "the pause was lifted: stopping the job")
    run = _without_expired_releases(run, tick.at)
    if run.state is RunState.WAITING and run.wake_at and tick.at >= run.wake_at:
        pool = format_machines(run, tick.at)
        run, note = choose_resume_step_again(run, tick.checkpoints)
        run, actions = with_launch(run, tick.at, policy)
        attempt = run.current
        start = f"{format_start(run, attempt.resumed_from_step)}{note}"
        return Decision(run, actions, f"the waiting time has ended: creating {attempt.job_name} {start}{pool}")
    if run.state is RunState.SAVING and run.stop:
        return on_save_deadline(run, run.stop, tick.at)
    if run.state is RunState.RESTARTING:
        return on_restart_due(run, tick.at, policy)
    return on_cost(run, tick.at, policy) or on_unwatched(run, tick.at, policy)


def _without_expired_releases(run: Run, at: datetime) -> Run:
    """Return the run without pending releases of warm pools that have ended by themselves."""
    expired = [
        action
        for action in run.pending
        if isinstance(action, ReleaseWarmPool) and warm_pools.has_ended(run, action, at)
    ]
    return replace(run, pending=tuple(action for action in run.pending if action not in expired)) if expired else run
