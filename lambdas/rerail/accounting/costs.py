"""The cost of a run or an incident so far in dollars: the machine-seconds of its attempts times their price.

Warm pools and storage are not included. SageMaker bills from TrainingStartTime to TrainingEndTime.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median

from rerail.model.policy import MaxRuntime, OnMaxRuntime, Policy
from rerail.model.prices import find_price
from rerail.model.run import Attempt, Run

HOUR_S = 3600.0


def count_billed_seconds(attempt: Attempt, at: datetime) -> float:
    """Return the seconds until `at` that each machine is billed for; SageMaker's figure if it is known."""
    if attempt.billable_s is not None and attempt.ended_at:
        return float(attempt.billable_s)
    return count_training_seconds(attempt, at)


def count_training_seconds(attempt: Attempt, at: datetime) -> float:
    """Return the seconds until `at` that the attempt had its machines, which count towards MaxRuntimeInSeconds."""
    if attempt.training_started_at is None:
        return 0.0
    return max(0.0, ((attempt.ended_at or at) - attempt.training_started_at).total_seconds())


def sum_attempt_dollars(attempt: Attempt, at: datetime, prices: Mapping[str, float]) -> float | None:
    """Return the cost of the attempt until `at`; None if the price of its machines is unknown."""
    hourly = find_price(attempt.instance_type, prices)
    spent_s = count_billed_seconds(attempt, at)
    if not spent_s:
        return 0.0
    return None if hourly is None else spent_s / HOUR_S * hourly * attempt.instance_count


def sum_run_dollars(run: Run, at: datetime, prices: Mapping[str, float]) -> float | None:
    """Return the cost of the run since an operator last reset it by a release; None if a price is unknown."""
    counted = [attempt for attempt in run.attempts if attempt.number > run.ledger.forgiven]
    ended = sum_known(sum_attempt_dollars(attempt, at, prices) for attempt in counted if attempt.ended_at)
    running = sum_known(sum_attempt_dollars(attempt, at, prices) for attempt in counted if not attempt.ended_at)
    return None if ended is None or running is None else ended + running * find_billed_share(run, at)


def find_billed_share(run: Run, at: datetime) -> float:
    """Return the share of its time that a running job is billed for: as the run's spot jobs before it, else 1."""
    ended = [attempt for attempt in run.attempts if attempt.ended_at and attempt.billable_s] if run.cluster.spot else []
    trained = sum(count_training_seconds(attempt, at) for attempt in ended)
    return min(1.0, sum(attempt.billable_s or 0 for attempt in ended) / trained) if trained else 1.0


def find_run_cap(policy: Policy) -> tuple[float, str]:
    """Return the dollars that a run may have cost before its next launch, and the field; 0 if there is no cap."""
    caps = {"limits.run_dollars": policy.limits.run_dollars, "limits.stop_dollars": policy.limits.stop_dollars}
    return min(((cap, field) for field, cap in caps.items() if cap), default=(0.0, ""))


def sum_incident_dollars(run: Run, at: datetime, prices: Mapping[str, float]) -> float | None:
    """Return the cost of the attempts since the open incident began; 0 without one, None if a price is unknown."""
    incident = run.open_incident
    if incident is None:
        return 0.0
    first = max(incident.attempt, run.ledger.forgiven)
    return sum_known(sum_attempt_dollars(attempt, at, prices) for attempt in run.attempts if attempt.number > first)


def find_dollars_per_hour(run: Run, prices: Mapping[str, float]) -> float | None:
    """Return the dollars per hour of the newest attempt that had machines; None if the price is unknown."""
    attempt = next((attempt for attempt in reversed(run.attempts) if attempt.instance_type), None)
    hourly = find_price(attempt.instance_type, prices) if attempt else None
    return None if hourly is None or attempt is None else hourly * attempt.instance_count


@dataclass(frozen=True, slots=True)
class StartUpEstimate:
    """The time from a job's creation to its training, and the source of the estimate."""

    duration: timedelta
    # In words.
    source: str


def estimate_relaunch_dollars(run: Run, policy: Policy) -> float | None:
    """Return what one start-up costs on all machines; None if the price is unknown."""
    rate = find_dollars_per_hour(run, policy.prices)
    return None if rate is None else rate * estimate_start_up(run, policy).duration.total_seconds() / HOUR_S


def estimate_start_up(run: Run, policy: Policy) -> StartUpEstimate:
    """Return the run's median time from creation to training, or the policy's before its first start."""
    seconds = [
        max(0.0, (attempt.training_started_at - attempt.created_at).total_seconds())
        for attempt in run.attempts
        if attempt.created_at and attempt.training_started_at
    ]
    if seconds:
        return StartUpEstimate(timedelta(seconds=median(seconds)), "measured in this run")
    return StartUpEstimate(policy.advice.startup, policy.advice.source or "assumed")


def find_unpriced_type(run: Run, prices: Mapping[str, float]) -> str:
    """Return the first of the run's instance types whose price is unknown; "" if all are known."""
    types = (attempt.instance_type for attempt in run.attempts if attempt.training_started_at)
    return next((kind or "of unknown type" for kind in types if find_price(kind, prices) is None), "")


def find_runtime_left(run: Run, at: datetime, policy: Policy) -> float | None:
    """Return the seconds left of the first request's MaxRuntimeInSeconds; None if each attempt has its own."""
    own = policy.max_runtime is MaxRuntime.PER_ATTEMPT or policy.on_max_runtime is OnMaxRuntime.RELAUNCH
    if own or run.max_runtime_s is None:
        return None
    return run.max_runtime_s - sum(
        count_training_seconds(attempt, at) for attempt in run.attempts if attempt.number > run.ledger.forgiven
    )


def sum_known(parts: Iterable[float | None]) -> float | None:
    """Return the sum; None if a part is unknown."""
    known = list(parts)
    return None if None in known else sum(part for part in known if part is not None)
