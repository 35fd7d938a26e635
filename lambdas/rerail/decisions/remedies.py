"""What to do about a failed attempt: ordered rules, first match wins; order is policy."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from rerail.decisions.budgets import remaining_retries
from rerail.decisions.fallback_machines import find_missing_quota, format_unsuitable, list_untried
from rerail.diagnosis.classify import Diagnosis
from rerail.model.actions import Machines
from rerail.model.causes import Cause
from rerail.model.checkpoints import Checkpoint
from rerail.model.machines import format_instance_types
from rerail.model.policy import Policy
from rerail.model.run import Run
from rerail.model.runbooks import Runbook

# Where the platform is at fault, the same error at the same step proves nothing about the next try.
PLATFORM = (Cause.INFRASTRUCTURE, Cause.HARDWARE, Cause.CAPACITY)


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed attempt as the rules see it, and what was saved, where somebody looked; the run's ledger is charged for
    it already."""

    diagnosis: Diagnosis
    last_step: int | None
    resume_step: int | None
    at: datetime
    checkpoints: tuple[Checkpoint, ...] = ()


@dataclass(frozen=True, slots=True)
class Relaunch:
    """Try again after `delay`, on fresh machines where `fresh_machines` says so; where it `moves`, on `machines`, None
    being those of the run's own request."""

    delay: timedelta
    why: str
    fresh_machines: bool = False
    moves: bool = False
    machines: Machines | None = None


@dataclass(frozen=True, slots=True)
class Hold:
    """Stop trying and ask a human; `advice` is what to do, and the runbook says more of it."""

    why: str
    advice: str
    runbook: Runbook = Runbook.BUDGET_SPENT


# From so many hangs in a row on, the machines are suspect too.
HANGS_TOLERATED = 2

Verdict = Relaunch | Hold
Rule = Callable[[Run, Failure, Policy], Verdict | None]


def remedy(run: Run, failure: Failure, policy: Policy) -> Verdict:
    """The first rule that has an answer; the last one always has."""
    for rule in RULES:
        if verdict := rule(run, failure, policy):
            return verdict
    raise AssertionError("the last rule answers every failure")


def same_error_at_the_same_step(run: Run, failure: Failure, policy: Policy) -> Verdict | None:
    """Twice the same error at the same step is a deterministic failure: a third try only costs money."""
    if hold := _same_error_after_a_restart(run, failure):
        return hold
    before = next((attempt for attempt in reversed(run.attempts[:-1]) if attempt.cause is not Cause.CAPACITY), None)
    cause = failure.diagnosis.cause
    if before is None or failure.last_step is None or cause in (*PLATFORM, Cause.DIVERGED):
        return None
    if (before.fingerprint, before.last_step) != (failure.diagnosis.fingerprint, failure.last_step):
        return None
    return Hold(
        f"the same error at step {failure.last_step} in attempts {before.number} and {run.current.number}",
        "mend the code or the data at that step, then release the run",
        Runbook.SAME_ERROR,
    )


def _same_error_after_a_restart(run: Run, failure: Failure) -> Hold | None:
    """The same, of one job's processes that were restarted in place. What diverges again is a case for other data."""
    order, cause = (run.current.orders[-1] if run.current.orders else None), failure.diagnosis.cause
    if order is None or not order.restarted_at or failure.last_step is None or cause in (*PLATFORM, Cause.DIVERGED):
        return None
    if (order.fingerprint, order.last_step) != (failure.diagnosis.fingerprint, failure.last_step):
        return None
    return Hold(
        f"the same error at step {failure.last_step} before and after a restart in place",
        "mend the code or the data at that step, then release the run",
        Runbook.SAME_ERROR,
    )


def attempts_spent(run: Run, failure: Failure, policy: Policy) -> Verdict | None:
    """A run has only so many attempts, whatever the causes."""
    had_machines = [each for each in run.attempts if each.cause is not Cause.CAPACITY and not each.drill]
    if len(had_machines) < policy.limits.attempts:
        return None
    return Hold(
        f"all {policy.limits.attempts} attempts are spent",
        "look at the timeline before you raise limits.attempts",
        Runbook.ATTEMPTS_SPENT,
    )


def restart_storm(run: Run, failure: Failure, policy: Policy) -> Verdict | None:
    """Many launches in a short time: something is wrong that relaunching does not see."""
    window = policy.limits.starts_window
    recent = [start for start in run.ledger.starts if failure.at - start < window]
    if failure.diagnosis.cause is Cause.CAPACITY or len(recent) < policy.limits.starts:
        return None
    return Hold(
        f"restart storm: {len(recent)} starts within {format_duration(window)}",
        "find out why the job dies so soon after its start, then release the run",
        Runbook.RESTART_STORM,
    )


def no_progress(run: Run, failure: Failure, policy: Policy) -> Verdict | None:
    """Attempts that train and leave no newer checkpoint burn money in place."""
    if run.ledger.without_progress < policy.limits.attempts_without_progress:
        return None
    return Hold(
        f"{run.ledger.without_progress} attempts trained and left no newer checkpoint than "
        f"{'none at all' if failure.resume_step is None else f'step {failure.resume_step}'}",
        "save checkpoints more often than the job fails, or mend what kills it",
        Runbook.NO_PROGRESS,
    )


def wait_for_capacity(run: Run, failure: Failure, policy: Policy) -> Verdict | None:
    """No machines: wait for them, within a budget of time."""
    if failure.diagnosis.cause is not Cause.CAPACITY:
        return None
    return capacity_verdict(run, policy, at=failure.at, refusal=failure.diagnosis.evidence)


def cause_budget_spent(run: Run, failure: Failure, policy: Policy) -> Verdict | None:
    """Each cause has its own ledger."""
    cause = failure.diagnosis.cause
    budget = policy.retries.of(cause)
    if budget is None or run.ledger.charges.get(cause, 0) <= budget:
        return None
    spent = "is not retried" if budget == 0 else f"has spent its budget of {budget} without progress"
    advice = ADVICE.get(cause, "look at the evidence, then release the run")
    return Hold(f"{cause} {spent}", advice, RUNBOOKS.get(cause, Runbook.BUDGET_SPENT))


def leave_the_bad_node(run: Run, failure: Failure, policy: Policy) -> Verdict | None:
    """A warm pool would hand the same broken node back; a second hang in a row makes its machines suspect."""
    cause = failure.diagnosis.cause
    hangs_again = cause is Cause.HANG and run.ledger.charges.get(cause, 0) >= HANGS_TOLERATED
    if cause is not Cause.HARDWARE and not hangs_again:
        return None
    return Relaunch(_backoff(run, failure, policy), _spending(run, failure, policy), fresh_machines=True)


def resume(run: Run, failure: Failure, policy: Policy) -> Verdict:
    """Everything else: try again from the newest clean checkpoint."""
    return Relaunch(_backoff(run, failure, policy), _spending(run, failure, policy))


RULES: tuple[Rule, ...] = (
    same_error_at_the_same_step,
    attempts_spent,
    restart_storm,
    no_progress,
    wait_for_capacity,
    cause_budget_spent,
    leave_the_bad_node,
    resume,
)

ADVICE = {
    Cause.USER_CODE: "mend the script, then release the run",
    Cause.DATA: "mend or leave out the input that the evidence names, then release the run",
    Cause.OOM: "use a smaller batch or a larger instance, then release the run",
    Cause.HANG: "look at the ranks' stacks and the network, then release the run",
    Cause.DIVERGED: "lower the learning rate or look at the data before the onset, then release the run",
}

RUNBOOKS = {Cause.OOM: Runbook.OUT_OF_MEMORY, Cause.DIVERGED: Runbook.DIVERGED}


def capacity_verdict(run: Run, policy: Policy, *, at: datetime, refusal: str = "") -> Verdict:
    """Wait for machines, with growing pauses, until the policy's patience is at an end; after a part of it, or at once
    where a quota keeps the run from its own machines for ever, try the policy's fall-backs."""
    waited = at - (run.ledger.capacity_since or at)
    quota, others = find_missing_quota(refusal), list_untried(run, policy)
    if waited >= policy.capacity.wait:
        return Hold(
            f"no capacity for {format_duration(waited)}, as long as the policy waits",
            "choose another instance type or region, or release the run to wait again",
            Runbook.NO_CAPACITY,
        )
    given_up = f", {format_instance_types(run.current.machines)} is given up" if run.current.machines else ""
    seed = f"{run.id}:{run.version}"
    if others and (quota or waited >= policy.capacity.fallback_after):
        why = str(quota) if quota else f"no capacity for {format_duration(waited)}"
        pause = draw_delay(policy.capacity.base, seed=seed, least=0.5)
        return Relaunch(
            pause,
            f"{why}{given_up}: falling back to {format_instance_types(others[0])}",
            moves=True,
            machines=others[0],
        )
    if quota and not run.current.machines:
        return Hold(
            f"{quota}: waiting does not raise it",
            "have that quota raised in Service Quotas, or list other machines in the policy's capacity.fallbacks; "
            "then release the run",
            Runbook.NO_CAPACITY,
        )
    pause = min(policy.capacity.cap, max(policy.capacity.base, waited / 2))
    if others:  # their time has come before a long pause would be over
        pause = min(pause, max(policy.capacity.base, policy.capacity.fallback_after - waited))
    unused = format_unsuitable(run, policy) if waited >= policy.capacity.fallback_after and not others else ""
    return Relaunch(
        draw_delay(pause, seed=seed, least=0.5),
        f"no capacity for {format_duration(waited)} of at most {format_duration(policy.capacity.wait)}{given_up}"
        + (f"; fall-backs passed over: {unused}" if unused else ""),
        moves=run.current.machines is not None,
    )


def draw_delay(longest: timedelta, *, seed: str, least: float = 0.0) -> timedelta:
    """Uniform between `least` x longest and longest; the same for the same seed, so that a repetition decides alike."""
    return longest * random.Random(seed).uniform(least, 1.0)


def format_duration(duration: timedelta) -> str:
    """A duration as people say it."""
    seconds = duration.total_seconds()
    if seconds < 90:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _backoff(run: Run, failure: Failure, policy: Policy) -> timedelta:
    failures = max(1, run.ledger.charges.get(failure.diagnosis.cause, 1))
    longest = min(policy.backoff.cap, policy.backoff.base * 2 ** min(failures - 1, 20))
    return draw_delay(longest, seed=f"{run.id}:{run.current.number}")


def _spending(run: Run, failure: Failure, policy: Policy) -> str:
    cause = failure.diagnosis.cause
    budget = policy.retries.of(cause)
    if budget is None:
        return f"{cause}: bounded by progress alone"
    return f"{cause}: {remaining_retries(run.ledger, policy)[cause]} of {budget} retries left"
