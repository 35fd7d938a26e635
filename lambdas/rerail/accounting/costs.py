"""What a run, or an incident, has cost so far: machine-seconds of its attempts times their price, in dollars.

Warm pools and storage are not counted. SageMaker bills from TrainingStartTime to TrainingEndTime."""

from collections.abc import Iterable, Mapping
from datetime import datetime

from rerail.model.policy import MaxRuntime, OnMaxRuntime, Policy
from rerail.model.prices import price
from rerail.model.run import Attempt, Run

HOUR_S = 3600.0


def billed_seconds(attempt: Attempt, at: datetime) -> float:
    """Seconds that each of the attempt's machines is billed for until then: SageMaker's figure where it gives one."""
    if attempt.billable_s is not None and attempt.ended_at:
        return float(attempt.billable_s)
    return training_seconds(attempt, at)


def training_seconds(attempt: Attempt, at: datetime) -> float:
    """Seconds of the attempt on its machines until then; what counts towards its MaxRuntimeInSeconds."""
    if attempt.training_started_at is None:
        return 0.0
    return max(0.0, ((attempt.ended_at or at) - attempt.training_started_at).total_seconds())


def attempt_dollars(attempt: Attempt, at: datetime, prices: Mapping[str, float]) -> float | None:
    """What the attempt has cost until then; None where the price of its machines is not known."""
    hourly = price(attempt.instance_type, prices)
    spent_s = billed_seconds(attempt, at)
    if not spent_s:
        return 0.0
    return None if hourly is None else spent_s / HOUR_S * hourly * attempt.instance_count


def run_dollars(run: Run, at: datetime, prices: Mapping[str, float]) -> float | None:
    """What the run has cost since a human last forgave it what it had; None where a price is not known."""
    return _sum(
        attempt_dollars(attempt, at, prices) for attempt in run.attempts if attempt.number > run.ledger.forgiven
    )


def incident_dollars(run: Run, at: datetime, prices: Mapping[str, float]) -> float | None:
    """What the attempts since the open incident began have cost; 0 where there is none."""
    incident = run.open_incident
    if incident is None:
        return 0.0
    first = max(incident.attempt, run.ledger.forgiven)
    return _sum(attempt_dollars(attempt, at, prices) for attempt in run.attempts if attempt.number > first)


def dollars_per_hour(run: Run, prices: Mapping[str, float]) -> float | None:
    """Dollars an hour of all machines of the newest attempt that had any; None where the price is not known."""
    attempt = next((attempt for attempt in reversed(run.attempts) if attempt.instance_type), None)
    each = price(attempt.instance_type, prices) if attempt else None
    return None if each is None or attempt is None else each * attempt.instance_count


def find_unpriced_type(run: Run, prices: Mapping[str, float]) -> str:
    """The first of the run's instance types whose price is not known; "" where all are."""
    types = (attempt.instance_type for attempt in run.attempts if attempt.training_started_at)
    return next((kind or "of unknown type" for kind in types if price(kind, prices) is None), "")


def runtime_left(run: Run, at: datetime, policy: Policy) -> float | None:
    """Seconds that are left of the first request's MaxRuntimeInSeconds; None where each attempt has its own."""
    own = policy.max_runtime is MaxRuntime.PER_ATTEMPT or policy.on_max_runtime is OnMaxRuntime.RELAUNCH
    if own or run.max_runtime_s is None:
        return None
    return run.max_runtime_s - sum(
        training_seconds(each, at) for each in run.attempts if each.number > run.ledger.forgiven
    )


def _sum(parts: Iterable[float | None]) -> float | None:
    total = 0.0
    for part in parts:
        if part is None:
            return None
        total += part
    return total
