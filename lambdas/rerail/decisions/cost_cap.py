"""Stop a running job whose run has cost as much as `limits.stop_dollars` allows; off by default."""

from datetime import datetime, timedelta

from rerail.accounting.costs import (
    HOUR_S,
    find_billed_share,
    find_dollars_per_hour,
    find_unpriced_type,
    sum_run_dollars,
)
from rerail.decisions.decision import Decision, make_notice, may_act, with_warnings
from rerail.decisions.emergency_checkpoint import checkpoint_then_stop
from rerail.decisions.open_pages import clear_pages
from rerail.model.actions import ClearedBy, Severity
from rerail.model.formatting import format_dollars
from rerail.model.policy import Mode, Policy
from rerail.model.run import AfterStop, PlannedStop, Run, RunState
from rerail.model.runbooks import Runbook

# From this share of the cap, people are informed when it will be reached.
FORECAST_SHARE = 0.8
CHANGED = "limits.stop_dollars was changed"


def on_cost(run: Run, at: datetime, policy: Policy) -> Decision | None:
    """Save and stop the job at the cap, after which the launch check holds the run; None if nothing is due.

    While Rerail may not stop it by itself, on-call is paged instead, and the job goes on.
    """
    cap = policy.limits.stop_dollars
    if run.state is not RunState.WATCHING or not run.current.may_be_live:
        return None
    subject = f"the cap of {format_dollars(cap)}"
    paged = {page.notice.about for page in run.pages if page.notice.runbook is Runbook.MONEY_SPENT}
    run, all_clears = clear_pages(run, paged - {subject, ""}, CHANGED)
    if all_clears:
        return Decision(run, all_clears, CHANGED)
    if not cap:
        return None
    spent, hourly = sum_run_dollars(run, at, policy.prices), find_dollars_per_hour(run, policy.prices)
    if not spent or not hourly:
        return find_missing_price(run, policy)
    may_stop = may_act(run, policy) and policy.mode is Mode.ACT
    if spent < cap:
        hourly *= find_billed_share(run, at)
        return _forecast(run, at, spent, hourly, cap, may_stop=may_stop) if spent >= FORECAST_SHARE * cap else None
    up_to = "up to " if run.cluster.spot else ""  # what a spot job is billed for is known once it has ended
    reason = f"the run has cost {up_to}{format_dollars(spent)}, of at most {format_dollars(cap)} (limits.stop_dollars)"
    if may_stop:
        stop = PlannedStop(AfterStop.RELAUNCH, reason, asked_at=at, deadline=at + policy.save.deadline)
        return checkpoint_then_stop(run, stop, policy, reason)
    key = f"cost-cap-{run.ledger.forgiven}-{cap:g}"
    if key in run.warnings:
        return None
    notice = make_notice(
        run,
        Severity.PAGE,
        "its cost has reached the cap",
        reason,
        key=key,
        runbook=Runbook.MONEY_SPENT,
        did="nothing: Rerail observes, is paused, or asks before it acts; the job goes on",
        todo=f"To save and stop it: rerail stop {run.id}\nTo let it go on: raise limits.stop_dollars",
        until=ClearedBy.RECOVERED,
        about=subject,
    )
    return Decision(with_warnings(run, key), (notice,), f"{reason}; the job goes on", finding="cost_cap")


def _forecast(run: Run, at: datetime, spent: float, hourly: float, cap: float, *, may_stop: bool) -> Decision | None:
    """Inform people once when the cap will be reached."""
    key = f"cost-forecast-{run.ledger.forgiven}-{cap:g}"
    if key in run.warnings:
        return None
    reached_at = at + timedelta(seconds=(cap - spent) / hourly * HOUR_S)
    reason = (
        f"the run has cost {format_dollars(spent)}; at {format_dollars(hourly)} an hour it reaches its cap of "
        f"{format_dollars(cap)} (limits.stop_dollars) on {reached_at:%Y-%m-%d at %H:%M} UTC"
    )
    then = "the job is saved and stopped, and the run held" if may_stop else "on-call is paged, and the job goes on"
    did, todo = f"nothing yet: at the cap {then}", "To have it train for longer: raise the cap"
    notice = make_notice(
        run, Severity.INFORM, "its cost nears the cap", reason, key=key, runbook=Runbook.MONEY_SPENT, did=did, todo=todo
    )
    return Decision(with_warnings(run, key), (notice,), reason, finding="cost_forecast")


def find_missing_price(run: Run, policy: Policy) -> Decision | None:
    """Report once that a cap on money cannot be kept because the price of the machines is unknown."""
    limits = policy.limits
    instance_type = find_unpriced_type(run, policy.prices)
    key = f"unpriced-{instance_type}"
    is_capped = limits.run_dollars or limits.incident_dollars or limits.stop_dollars
    if not is_capped or not instance_type or key in run.warnings:
        return None
    why = f"the price of a machine {instance_type} is not known: the caps on money cannot be kept"
    todo = "Name it in the policy's [prices]"
    notice = make_notice(run, Severity.INFORM, "no cap on money", why, key=key, runbook=Runbook.MONEY_SPENT, todo=todo)
    return Decision(with_warnings(run, key), (notice,), why)
