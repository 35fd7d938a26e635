"""List what a run has cost and what Rerail saved; rerail.accounting.goodput computes the figures."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from rerail.accounting.goodput import RECENT, find_recent_share, make_account
from rerail.accounting.on_call_times import CRASH, DIVERGED
from rerail.incident_report.facts import Facts
from rerail.incident_report.marks import find_time_of_step
from rerail.model.formatting import format_dollars, format_duration
from rerail.model.run import Run, RunState

GOODPUT = "goodput"
DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class CostLine:
    """One figure of the cost section."""

    name: str
    amount: str
    note: str = ""  # how the amount was computed


def list_costs(known: Facts) -> Iterator[CostLine]:
    """Yield the costs of the run until now; unknown figures are left out, except the cost, with the reason."""
    account = make_account(known.run, known.at, known.policy)
    priced = "machine time of all attempts"
    unpriced = "the price of its machines is not known: write it into the policy's [prices]"
    yield CostLine("cost so far", _format_cost(account.dollars), unpriced if account.dollars is None else priced)
    if account.lost_dollars:
        yield CostLine("of that lost", _format_cost(account.lost_dollars), "paid for time without progress")
    if account.share is not None and has_goodput(known.run):
        yield CostLine(GOODPUT, f"{account.share:.1%}", "of the time since the run began")
    recent = find_recent_share(known.run, known.at)
    if recent is not None and has_goodput(known.run) and account.wall_s > RECENT.total_seconds():
        yield CostLine("goodput, last 24 h", f"{recent:.1%}", "of the last day")
    lost_steps = [steps for incident in known.run.incidents if (steps := incident.lost_steps)]
    if lost_steps:
        yield CostLine("steps lost", f"{sum(lost_steps):,}", "between the checkpoint and the last step")
    if (mttd_s := _mean_time_to_decision(known, account.mttd_s)) is not None:
        yield CostLine("onset to decision", format_length(mttd_s), f"mean of {account.decided}")
    if account.mttr_s is not None:
        yield CostLine(
            "onset to progress",
            format_length(account.mttr_s),
            f"mean of {account.recovered}, until a newer checkpoint proved the recovery",
        )
    if account.saved_s > 0:
        times = f"{CRASH.median:g} minutes for a crash, {DIVERGED.median:g} for a diverged loss"
        against = f"compared with an on-call engineer, assumed to take {times}"
        money = f", {_format_cost(account.saved_dollars)}" if account.saved_dollars else ""
        yield CostLine("saved, estimated", f"{format_length(account.saved_s)}{money}", against)


def _mean_time_to_decision(known: Facts, recorded_s: float | None) -> float | None:
    """Return the mean seconds from onset to decision, None if none is recorded.

    The run's record has the step of an onset, and the curve its time, which may be earlier than the recorded one."""
    if recorded_s is None:
        return None
    times = []
    for incident in known.run.incidents:
        step = incident.onset_step
        onset = find_time_of_step(known, incident.attempt, step) if step is not None else None
        since = min(onset or incident.happened_at, incident.happened_at)
        times.append(max(0.0, (incident.decided_at - since).total_seconds()))
    return max(recorded_s, sum(times) / len(times)) if times else recorded_s


def list_time_shares(known: Facts) -> tuple[tuple[str, float], ...]:
    """Return name and seconds of goodput, then of each kind of badput, the longest first."""
    account = make_account(known.run, known.at, known.policy)
    badput = sorted(((kind.label, s) for kind, s in account.badput_s.items() if s > 0), key=lambda share: -share[1])
    return ((GOODPUT, account.goodput_s), *badput) if account.wall_s > 0 and has_goodput(known.run) else ()


def has_goodput(run: Run) -> bool:
    """Return whether its goodput says anything: not of a held run whose jobs have reported no step."""
    steps = [step for attempt in run.attempts for step in (attempt.last_step, attempt.resumed_from_step)]
    return run.state is not RunState.HELD or any(steps)


def _format_cost(amount: float | None) -> str:
    return "not known" if amount is None else format_dollars(amount)


def format_length(seconds: float) -> str:
    """Format a duration in seconds; from two days on, in days."""
    return f"{seconds / DAY_S:.1f} days" if seconds >= 2 * DAY_S else format_duration(timedelta(seconds=seconds))
