"""How often to save: what a save costs against what a failure does, after Young and Daly."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import sqrt
from statistics import median

from rerail.accounting.costs import HOUR_S, training_seconds
from rerail.decisions.remedies import format_duration
from rerail.model.causes import Cause
from rerail.model.checkpoints import Checkpoint
from rerail.model.policy import Policy
from rerail.model.run import Run

# Waste grows by 8 % at half as long again, and by 25 % at twice: nearer than that nobody need change anything.
NEAR = 1.5


@dataclass(frozen=True, slots=True)
class Advice:
    """The interval that wastes least, in seconds, and what it was reckoned from; `actual_s` is how often the run saves,
    `bound` that saving more often would not help, since a save takes so long to be whole."""

    interval_s: float
    stall_s: float
    mtbf_s: float
    failures: int
    actual_s: float | None = None
    bound: bool = False


def optimal_interval(stall_s: float, mtbf_s: float) -> float:
    """Seconds of training between two saves, Daly's second order of Young's optimum (J. T. Daly, FGCS 22, 2006).

    `stall_s` is what one save keeps the training waiting, `mtbf_s` the mean time between failures."""
    if stall_s <= 0 or mtbf_s <= 0:
        return 0.0
    if stall_s >= 2 * mtbf_s:
        return mtbf_s
    share = stall_s / (2 * mtbf_s)
    return sqrt(2 * stall_s * mtbf_s) * (1 + sqrt(share) / 3 + share / 9) - stall_s


def advise_interval(run: Run, checkpoints: Sequence[Checkpoint], policy: Policy, *, at: datetime) -> Advice | None:
    """What this run's own saves and failures say; None where no save has been measured yet."""
    stalls = [each.stall_s for each in checkpoints if each.stall_s]
    if not stalls:
        return None
    stall_s, (mtbf_s, failures) = median(stalls), mean_time_between_failures(run, policy, at=at)
    interval_s = optimal_interval(stall_s, mtbf_s)
    whole_s = max((each.write_s for each in checkpoints if each.write_s), default=0.0)
    return Advice(max(interval_s, whole_s), stall_s, mtbf_s, failures, _actual(checkpoints), whole_s > interval_s)


def mean_time_between_failures(run: Run, policy: Policy, *, at: datetime) -> tuple[float, int]:
    """The run's mean time between failures in seconds, and how many it has had.

    Its own figure leans on the policy's for so many machines, which counts as one failure."""
    failures = sum(attempt.cause not in (None, Cause.CAPACITY) for attempt in run.attempts)
    failures += sum(attempt.self_repairs for attempt in run.attempts)
    hours = sum(training_seconds(attempt, at) for attempt in run.attempts) / HOUR_S
    machines = max(1, max(attempt.instance_count for attempt in run.attempts))
    expected_h = policy.advice.machine_mtbf.total_seconds() / HOUR_S / machines
    return (expected_h + hours) / (1 + failures) * HOUR_S, failures


def format_advice(advice: Advice) -> str:
    """One sentence, for people."""
    best = _time(advice.interval_s)
    why = (
        f"a save costs {advice.stall_s:.3g} s, a failure comes every {_time(advice.mtbf_s)} ({advice.failures} so far)"
    )
    if advice.bound:
        why += "; more often does not help, a save takes as long to be whole"
    if advice.actual_s is None:
        return f"save every {best}: {why}"
    ratio = advice.actual_s / advice.interval_s if advice.interval_s else 1.0
    now = f"the run saves every {_time(advice.actual_s)}"
    if 1 / NEAR <= ratio <= NEAR:
        return f"{now}, which is near the best, {best}: {why}"
    return f"{now}; every {best} would waste less: {why}"


def _actual(checkpoints: Sequence[Checkpoint]) -> float | None:
    """The median time between the periodic saves of one start of one attempt."""
    times = sorted((c.attempt, c.restart, c.saved_at) for c in checkpoints if c.reason in ("", "periodic"))
    pairs = zip(times, times[1:], strict=False)
    gaps = [(b[2] - a[2]).total_seconds() for a, b in pairs if a[:2] == b[:2] and b[2] > a[2]]
    return median(gaps) if gaps else None


def _time(seconds: float) -> str:
    return format_duration(timedelta(seconds=seconds))
