"""Launch checks: what must hold before a run's next job is created, in order.

The account's rate limit on relaunches is checked last, when the job is created, because it is not a property of one
run.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from rerail.accounting.costs import find_run_cap, find_runtime_left, sum_incident_dollars, sum_run_dollars
from rerail.decisions.decision import may_act
from rerail.model.formatting import format_dollars
from rerail.model.policy import Mode, Policy
from rerail.model.run import LaunchCheck, Run, RunState
from rerail.model.runbooks import Runbook

PAUSED_TEXT = "Rerail is paused for this account"
REPEAT_LATER = f"{PAUSED_TEXT}, or its policy pauses: repeat the command two minutes after the end (`rerail resume`)"


class Consequence(StrEnum):
    """The consequence for a launch that fails a check: it waits, the run is held, or the run ends."""

    WAIT = "wait"
    HOLD = "hold"
    END = "end"


@dataclass(frozen=True, slots=True)
class Obstacle:
    """A failed launch check."""

    check: LaunchCheck  # the failed check
    means: Consequence  # what happens to the launch
    why: str  # for people
    advice: str  # what to do
    runbook: Runbook  # the page with more detail


Check = Callable[[Run, datetime, Policy], Obstacle | None]


def find_obstacle(run: Run, at: datetime, policy: Policy) -> Obstacle | None:
    """Return the first failed check of the current attempt's launch, or None."""
    return next(filter(None, (check(run, at, policy) for check in CHECKS)), None)


def is_not_paused(run: Run, at: datetime, policy: Policy) -> Obstacle | None:
    """While Rerail is paused, no job is created; while it only observes, none but what an operator has asked for."""
    if not may_act(run, policy, approved_by=run.current.approved_by):
        return Obstacle(
            LaunchCheck.PAUSE,
            Consequence.WAIT,
            f"{run.current.job_name} waits: policy '{policy.name}', or this run's adoption, lets Rerail only observe",
            f"to launch it: `rerail hold {run.id}`, then `rerail release {run.id}`",
            Runbook.OBSERVING,
        )
    if policy.mode is not Mode.PAUSE:
        return None
    return Obstacle(
        LaunchCheck.PAUSE,
        Consequence.WAIT,
        f"{run.current.job_name} waits: {PAUSED_TEXT}, or policy '{policy.name}' pauses",
        "`rerail resume` lifts the pause of the account",
        Runbook.OBSERVING,
    )


def has_time_left(run: Run, at: datetime, policy: Policy) -> Obstacle | None:
    """The request's MaxRuntimeInSeconds is a budget for the whole run."""
    left = find_runtime_left(run, at, policy)
    if left is None or left > 0:
        return None
    ran = sum(attempt.exists for attempt in run.attempts)
    return Obstacle(
        LaunchCheck.RUN_TIME,
        Consequence.END,
        f"the run's MaxRuntimeInSeconds of {run.max_runtime_s} s is spent over {ran} attempts",
        "start the job again with a longer one, or give each attempt its own with max_runtime = 'per_attempt'",
        Runbook.TIME_SPENT,
    )


def has_run_budget_left(run: Run, at: datetime, policy: Policy) -> Obstacle | None:
    """A run's cost is capped if the policy sets a cap and the price is known."""
    cap, field = find_run_cap(policy)
    spent = sum_run_dollars(run, at, policy.prices) if cap else None
    advice = "see what it has reached, then release the run to grant it as much again"
    return _check_budget(LaunchCheck.RUN_COST, spent, cap, "the run has cost", field, advice)


def has_incident_budget_left(run: Run, at: datetime, policy: Policy) -> Obstacle | None:
    """The cost of recovering from one incident is capped if the policy sets a cap and the price is known."""
    cap = policy.limits.incident_dollars
    spent = sum_incident_dollars(run, at, policy.prices) if cap else None
    advice = "find out why relaunching does not resolve it, then release the run"
    return _check_budget(
        LaunchCheck.INCIDENT_COST, spent, cap, "this incident has cost", "limits.incident_dollars", advice
    )


def _check_budget(
    check: LaunchCheck, spent: float | None, cap: float, what: str, field: str, advice: str
) -> Obstacle | None:
    """Return an obstacle if the amount spent has reached the cap; an unknown price passes."""
    if spent is None or spent < cap:
        return None
    why = f"{what} {format_dollars(spent)}, of at most {format_dollars(cap)} ({field})"
    return Obstacle(check, Consequence.HOLD, why, advice, Runbook.MONEY_SPENT)


def is_approved(run: Run, at: datetime, policy: Policy) -> Obstacle | None:
    """Require an operator's approval of each launch in the mode `approve`."""
    if policy.mode is not Mode.APPROVE or run.current.approved_by:
        return None
    why = f"{run.current.job_name} waits for approval"
    return Obstacle(LaunchCheck.APPROVAL, Consequence.WAIT, why, f"`rerail approve {run.id}`", Runbook.APPROVAL)


# Order matters: approval comes last, so that it is requested only for launches that could go ahead.
LIMITS: tuple[Check, ...] = (has_time_left, has_run_budget_left, has_incident_budget_left)
CHECKS: tuple[Check, ...] = (is_not_paused, *LIMITS, is_approved)


def find_spent_limit(run: Run, at: datetime, policy: Policy) -> str:
    """Return why an operator's command that moves the live job is refused, and the remedy; "" if it is not."""
    spent = format_spent_limit(run, at, policy)
    return f"nothing is stopped, because {spent}, then repeat the command" if spent else ""


def format_spent_limit(run: Run, at: datetime, policy: Policy) -> str:
    """Return why no job would follow the live one if it were stopped, and the remedy; "" if one would.

    A release does not help, because the time and cost of the live job still count after it.
    """
    obstacle = next(filter(None, (check(run, at, policy) for check in LIMITS)), None)
    if obstacle is None or run.state is RunState.STOPPING:
        return ""
    remedy = "set max_runtime = 'per_attempt'" if obstacle.check is LaunchCheck.RUN_TIME else "raise the limit"
    return f"its next job would not be created: {obstacle.why}; {remedy} in policy '{policy.name}'"


def with_launch_blocked(run: Run, obstacle: Obstacle, at: datetime) -> Run:
    """Return the run with its launch deferred; each minute's tick tries again."""
    return replace(run, state=RunState.WAITING, blocked_by=obstacle.check, wake_at=run.wake_at or at)


def with_runtime_left(run: Run, at: datetime, policy: Policy) -> Run:
    """Return the run whose current attempt gets what is left of the run's time, in whole seconds.

    It is never less than the policy's least runtime.
    """
    left = find_runtime_left(run, at, policy)
    if left is None or run.current.number == 1 or run.max_runtime_s is None:
        return run
    least = min(policy.limits.least_runtime.total_seconds(), run.max_runtime_s)
    attempt = replace(run.current, max_runtime_s=int(max(left, least, 1)))
    return replace(run, attempts=(*run.attempts[:-1], attempt))
