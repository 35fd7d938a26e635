"""Retry budgets: failures charge them, and only proven progress refunds them."""

from dataclasses import replace
from datetime import datetime, timedelta

from rerail.model.causes import Cause
from rerail.model.policy import Limits, Policy
from rerail.model.run import Ledger

MAX_ENTRIES = 20


def with_refund(ledger: Ledger, *, newest_step: int, at: datetime) -> Ledger:
    """Return the ledger with every charge refunded if the run got farther than ever before, else unchanged."""
    if newest_step <= (ledger.progress_step or 0):
        return ledger
    return replace(
        _with_entry(ledger, at, f"progress to step {newest_step}: all retries are available again"),
        charges={},
        charged_at={},
        without_progress=0,
        progress_step=newest_step,
        capacity_since=None,
        fallbacks=(),
    )


def with_charge(ledger: Ledger, cause: Cause, *, trained: bool, progressed: bool, at: datetime) -> Ledger:
    """Return the ledger with one more failure of this cause; capacity is charged in time since its first refusal."""
    if cause is Cause.CAPACITY:
        since = ledger.capacity_since or at
        # A launch that never got machines must not count towards a restart storm.
        return replace(
            _with_entry(ledger, at, f"no capacity since {since:%H:%M:%S}"),
            capacity_since=since,
            starts=ledger.starts[:-1],
        )
    count = ledger.charges.get(cause, 0) + 1
    return replace(
        _with_entry(ledger, at, f"{cause}: failure {count} since the last progress"),
        charges={**ledger.charges, cause: count},
        charged_at={**ledger.charged_at, cause: (*ledger.charged_at.get(cause, ()), at)},
        without_progress=ledger.without_progress + (1 if trained and not progressed else 0),
        capacity_since=None,
        fallbacks=(),
    )


def with_split(ledger: Ledger, *, at: datetime) -> Ledger:
    """Return the ledger after a failure that is answered by smaller microbatches: it costs neither retry nor start."""
    return replace(
        _with_entry(ledger, at, "oom: not charged, the batch can be split"),
        starts=ledger.starts[:-1],
        capacity_since=None,
        fallbacks=(),
    )


def without_charge(ledger: Ledger, cause: Cause, *, at: datetime) -> Ledger:
    """Return the ledger without its last charge of this cause: the stop that it was for is withdrawn."""
    return replace(
        _with_entry(ledger, at, f"{cause}: the last failure is not counted, its stop is withdrawn"),
        charges={**ledger.charges, cause: max(0, ledger.charges.get(cause, 0) - 1)},
        charged_at={**ledger.charged_at, cause: ledger.charged_at.get(cause, ())[:-1]},
        without_progress=max(0, ledger.without_progress - (cause is not Cause.DIVERGED)),
    )


def with_recent_charges(ledger: Ledger, *, window: timedelta, at: datetime) -> Ledger:
    """Return the ledger without charges older than the window; a window of 0 keeps them all."""
    recent = {cause: tuple(time for time in times if at - time < window) for cause, times in ledger.charged_at.items()}
    if not window or recent == ledger.charged_at:
        return ledger
    left = {c: n - len(ledger.charged_at.get(c, ())) + len(recent.get(c, ())) for c, n in ledger.charges.items()}
    dropped = [f"{cause}: {n - left[cause]}" for cause, n in ledger.charges.items() if left[cause] < n]
    return replace(
        _with_entry(ledger, at, f"older than the window, no longer counted: {', '.join(dropped)}"),
        charges={cause: count for cause, count in left.items() if count > 0},
        charged_at={cause: times for cause, times in recent.items() if times},
    )


def with_start(ledger: Ledger, *, at: datetime, limits: Limits) -> Ledger:
    """Return the ledger with one more launch, without launches older than the storm window."""
    recent = tuple(start for start in ledger.starts if at - start < limits.starts_window)
    return replace(ledger, starts=(*recent, at))


def with_fresh_budgets(ledger: Ledger, *, who: str, at: datetime) -> Ledger:
    """Return the ledger with no charges, after an operator released the run."""
    return replace(
        _with_entry(ledger, at, f"released by {who}: every charge forgiven"),
        charges={},
        charged_at={},
        without_progress=0,
        starts=(),
        capacity_since=None,
        fallbacks=(),
    )


def remaining_retries(ledger: Ledger, policy: Policy) -> dict[Cause, int]:
    """Return how many failures of each cause the run can still afford; unlimited causes are absent."""
    budgets = {cause: policy.retries.of(cause) for cause in Cause}
    return {c: max(0, b - ledger.charges.get(c, 0)) for c, b in budgets.items() if b is not None}


def _with_entry(ledger: Ledger, at: datetime, text: str) -> Ledger:
    """Return the ledger with one more line of history; at the limit, drop the oldest."""
    return replace(ledger, entries=(*ledger.entries, f"{at:%Y-%m-%dT%H:%M:%SZ} {text}")[-MAX_ENTRIES:])
