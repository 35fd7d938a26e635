"""The recommended checkpoint interval of a run, from what its own checkpoints and failures have cost."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median

from rerail.accounting.costs import count_training_seconds
from rerail.model.causes import Cause
from rerail.model.checkpoint_intervals import combine_mtbf, find_optimal_interval
from rerail.model.checkpoints import Checkpoint
from rerail.model.formatting import format_duration
from rerail.model.policy import Policy
from rerail.model.run import Run

# Waste grows by 8 % at 1.5 times the best interval and by 25 % at twice: within this factor no change is needed.
NEAR = 1.5


@dataclass(frozen=True, slots=True)
class IntervalAdvice:
    """The recommended checkpoint interval, and what it was computed from; all times are in seconds."""

    interval_s: float
    # For how long one checkpoint interrupts training.
    stall_s: float
    # The mean time between failures.
    mtbf_s: float
    # The number of failures so far.
    failures: int
    # The run's current interval; None: unknown.
    actual_s: float | None = None
    # The interval is limited by the time until a checkpoint is complete, so a shorter one would not help.
    bound: bool = False
    # The part of that time that its upload takes, and where this is known from, in words.
    upload_s: float = 0.0
    source: str = ""


def advise_interval(
    run: Run, checkpoints: Sequence[Checkpoint], policy: Policy, *, at: datetime
) -> IntervalAdvice | None:
    """Return the recommendation from the run's own data; None if no checkpoint was measured yet."""
    stalls = [checkpoint.stall_s for checkpoint in checkpoints if checkpoint.stall_s]
    if not stalls:
        return None
    stall_s, (mtbf_s, failures) = median(stalls), estimate_mtbf(run, policy, at=at)
    interval_s = find_optimal_interval(stall_s, mtbf_s)
    upload_s = policy.advice.upload.total_seconds()
    whole_s = upload_s + max((checkpoint.write_s for checkpoint in checkpoints if checkpoint.write_s), default=0.0)
    return IntervalAdvice(
        interval_s=max(interval_s, whole_s),
        stall_s=stall_s,
        mtbf_s=mtbf_s,
        failures=failures,
        actual_s=_measure_interval(checkpoints),
        bound=whole_s > interval_s,
        upload_s=upload_s,
        source=policy.advice.source or "assumed",
    )


def estimate_mtbf(run: Run, policy: Policy, *, at: datetime) -> tuple[float, int]:
    """Return the run's mean time between failures in seconds, and its number of failures.

    The policy's figure for this number of machines is included as if it were one failure.
    """
    failures = sum(attempt.cause not in (None, Cause.CAPACITY) for attempt in run.attempts)
    failures += sum(attempt.self_repairs for attempt in run.attempts)
    trained_s = sum(count_training_seconds(attempt, at) for attempt in run.attempts)
    machines = max(1, max(attempt.instance_count for attempt in run.attempts))
    return combine_mtbf(policy.advice.machine_mtbf.total_seconds() / machines, trained_s, failures), failures


def format_advice(advice: IntervalAdvice) -> str:
    """Return the recommendation as one sentence."""
    best = _format_seconds(advice.interval_s)
    why = (
        f"a checkpoint costs {advice.stall_s:.3g} s, a failure occurs every {_format_seconds(advice.mtbf_s)} "
        f"({advice.failures} so far)"
    )
    if advice.bound:
        why += "; a shorter interval does not help, because a checkpoint takes that long to complete"
        if advice.upload_s:
            why += f", {_format_seconds(advice.upload_s)} of it for the upload to S3 ({advice.source})"
    if advice.actual_s is None:
        return f"save every {best}: {why}"
    ratio = advice.actual_s / advice.interval_s if advice.interval_s else 1.0
    now = f"the run saves every {_format_seconds(advice.actual_s)}"
    if 1 / NEAR <= ratio <= NEAR:
        return f"{now}, which is close to the optimum of {best}: {why}"
    return f"{now}; every {best} would waste less: {why}"


def _measure_interval(checkpoints: Sequence[Checkpoint]) -> float | None:
    """Return the median seconds between periodic checkpoints of the same attempt and restart, or None."""
    times = sorted((c.attempt, c.restart, c.saved_at) for c in checkpoints if c.reason in ("", "periodic"))
    pairs = zip(times, times[1:], strict=False)
    gaps = [(b[2] - a[2]).total_seconds() for a, b in pairs if a[:2] == b[:2] and b[2] > a[2]]
    return median(gaps) if gaps else None


def _format_seconds(seconds: float) -> str:
    return format_duration(timedelta(seconds=seconds))
