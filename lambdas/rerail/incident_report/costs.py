"""What the run has cost and what it saved, in sentences; the sums are goodput.py's."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from rerail.accounting.goodput import make_account
from rerail.accounting.on_call_times import CRASH, DIVERGED
from rerail.decisions.launch_checks import format_dollars
from rerail.decisions.remedies import format_duration
from rerail.incident_report.facts import Facts
from rerail.incident_report.marks import find_time_of_step

GOODPUT = "goodput"
DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class CostLine:
    """One figure: what it is, how much, and how it was reckoned."""

    name: str
    amount: str
    note: str = ""


def list_costs(known: Facts) -> Iterator[CostLine]:
    """The account of the run until now; figures that nobody knows are left out, and money says why it is unknown."""
    found = make_account(known.run, known.at, known.policy)
    unknown = "the price of its machines is not known: write it into the policy's [prices]"
    yield CostLine(
        "cost so far", _dollars(found.dollars), "machine time of all attempts" if found.dollars is not None else unknown
    )
    if found.lost_dollars:
        yield CostLine("of that lost", _dollars(found.lost_dollars), "paid for time that brought the run no farther")
    if found.share is not None:
        yield CostLine(GOODPUT, f"{found.share:.1%}", "of the time since the run began")
    lost = [step for incident in known.run.incidents if (step := incident.lost_steps)]
    if lost:
        yield CostLine("steps trained again", f"{sum(lost):,}", "between where a run was and where it was resumed")
    if (noticed_s := _noticed_s(known, found.mttd_s)) is not None:
        yield CostLine("onset to decision", format_length(noticed_s), f"mean of {found.decided}")
    if found.mttr_s is not None:
        yield CostLine(
            "onset to progress",
            format_length(found.mttr_s),
            f"mean of {found.mended}, until a newer checkpoint proved it",
        )
    if found.saved_s > 0:
        times = f"{CRASH.median:g} minutes for a crash, {DIVERGED.median:g} for a loss gone bad"
        against = f"against people on call, who are assumed to take {times}"
        money = f", {_dollars(found.saved_dollars)}" if found.saved_dollars else ""
        yield CostLine("saved, estimated", f"{format_length(found.saved_s)}{money}", against)


def _noticed_s(known: Facts, recorded_s: float | None) -> float | None:
    """The mean time from onset to decision: a record knows the onset's step, and the curve when that was."""
    if recorded_s is None:
        return None
    times = []
    for incident in known.run.incidents:
        step = incident.onset_step
        began = find_time_of_step(known, incident.attempt, step) if step is not None else None
        times.append((incident.decided_at - min(began or incident.happened_at, incident.happened_at)).total_seconds())
    return max(recorded_s, sum(times) / len(times)) if times else recorded_s


def list_time_shares(known: Facts) -> tuple[tuple[str, float], ...]:
    """Where the time went: goodput first, then each kind of badput that there was, in seconds."""
    found = make_account(known.run, known.at, known.policy)
    lost = sorted(((kind.value, s) for kind, s in found.badput_s.items() if s > 0), key=lambda each: -each[1])
    return ((GOODPUT, found.goodput_s), *lost) if found.wall_s > 0 else ()


def _dollars(amount: float | None) -> str:
    return "not known" if amount is None else format_dollars(amount)


def format_length(seconds: float) -> str:
    """A duration as people say it, however long."""
    return f"{seconds / DAY_S:.1f} days" if seconds >= 2 * DAY_S else format_duration(timedelta(seconds=seconds))
