"""The goodput accounting of a run: goodput, badput by kind, costs, losses, and the savings by Rerail.

Goodput is an upper bound, because it includes what no record contains (see wall_time.py). It is more accurate the
shorter a run's startups and checkpoints are. In simulated months with full knowledge its error was within 2 % of the
time.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from rerail.accounting import costs as money
from rerail.accounting.on_call_times import estimate_unattended
from rerail.accounting.wall_time import Badput as Badput  # re-exported for the readers of accounts
from rerail.accounting.wall_time import split_wall_time
from rerail.model.policy import Policy
from rerail.model.prices import find_price
from rerail.model.run import Attempt, Incident, Run, RunState

# What "recently" means where goodput is shown: a run of weeks must not hide a bad night.
RECENT = timedelta(hours=24)


@dataclass(frozen=True, slots=True)
class Account:
    """The use of the time and money of one or several runs until a moment.

    `goodput_s` and `badput_s` add up to the wall time from the run's first job to its end. Amounts in dollars are None
    if a price is unknown.
    """

    goodput_s: float = 0.0
    badput_s: Mapping[Badput, float] = field(default_factory=lambda: dict.fromkeys(Badput, 0.0))
    # The cost of the attempts, without warm pools, and the part of it that was spent on badput.
    dollars: float | None = 0.0
    lost_dollars: float | None = 0.0
    # How much longer the resolved incidents would have taken with people on call, as assumed by on_call_times.py, and
    # the cost of the machines in that time.
    saved_s: float = 0.0
    saved_dollars: float | None = 0.0
    # Mean seconds from the onset of a problem to the decision (over `decided` incidents) and to the progress that
    # proved it resolved (over `recovered` incidents); None without incidents.
    mttd_s: float | None = None
    mttr_s: float | None = None
    decided: int = 0
    recovered: int = 0
    relaunches: int = 0
    # In-place restarts.
    restarts: int = 0

    @property
    def wall_s(self) -> float:
        """Return the wall time in seconds."""
        return self.goodput_s + sum(self.badput_s.values())

    @property
    def share(self) -> float | None:
        """Return the share of goodput in the wall time; None if that is 0."""
        return min(1.0, self.goodput_s / self.wall_s) if self.wall_s > 0 else None


def make_account(run: Run, at: datetime, policy: Policy) -> Account:
    """Return the run's account until `at`; for one record, seconds, dollars and counts never decrease over time."""
    time = split_wall_time(run, at)
    costs = [_cost_until(attempt, at, policy.prices) for attempt in run.attempts]
    orders = [order for attempt in run.attempts for order in attempt.in_place_restarts]
    account = Account(
        goodput_s=time.goodput_s,
        badput_s=time.badput_s,
        dollars=money.sum_known(costs),
        lost_dollars=_sum_wasted(run, time.wasted, costs),
        relaunches=sum(_is_past(attempt.created_at, at) for attempt in run.attempts[1:]),
        restarts=sum(_is_past(order.restarted_at, at) for order in orders),
    )
    return _with_incidents(account, run, at, policy.prices)


def find_recent_share(run: Run, at: datetime, window: timedelta = RECENT) -> float | None:
    """Return the share of goodput in the wall time of the window before `at`; None if the run did not run in it."""
    now, before = split_wall_time(run, at), split_wall_time(run, at - window)
    goodput_s = now.goodput_s - before.goodput_s
    wall_s = goodput_s + sum(now.badput_s.values()) - sum(before.badput_s.values())
    # A year of seconds as floats leaves a remainder in a window in which nothing ran.
    return min(1.0, max(0.0, goodput_s / wall_s)) if wall_s > 1e-3 else None


def find_incident_dollars(run: Run, incident: Incident, at: datetime, prices: Mapping[str, float]) -> float | None:
    """Return the cost of machine time without progress because of an incident; None if a price is unknown.

    It is the difference between two accounts: one of the record until the incident began, one until it was resolved.
    So it includes the steps that were trained again, and not the time for which nothing was billed.
    """
    before = _cut_off(run, incident.happened_at, incidents=incident.number - 1)
    ended = incident.closed_at
    after = _cut_off(run, ended, incidents=incident.number) if ended and ended < at else run
    if incident.number == run.incidents[-1].number and incident.attempt == run.current.number:
        after = replace(after, state=run.state)  # what was not saved before a hold or stop is lost by it
    spent = _sum_lost_dollars(after, min(ended or at, at), prices)
    spent_before = _sum_lost_dollars(before, min(incident.happened_at, at), prices)
    return None if spent is None or spent_before is None else max(0.0, spent - spent_before)


def _cut_off(run: Run, at: datetime, *, incidents: int) -> Run:
    """Return the record as far as it tells of what was before `at`, with the incidents up to this number."""
    attempts = [attempt for attempt in run.attempts if _is_past(attempt.created_at, at)] or [run.attempts[0]]
    restarts = [order for order in attempts[-1].in_place_restarts if order.asked_at < at]
    return replace(
        run,
        state=RunState.WATCHING,
        attempts=(*attempts[:-1], replace(attempts[-1], in_place_restarts=tuple(restarts))),
        incidents=tuple(known for known in run.incidents if known.number <= incidents),
    )


def _sum_lost_dollars(run: Run, at: datetime, prices: Mapping[str, float]) -> float | None:
    """Return the cost of machine time without progress until `at`; None if a price is unknown."""
    costs = [_cost_until(attempt, at, prices) for attempt in run.attempts]
    return _sum_wasted(run, split_wall_time(run, at).wasted, costs)


def _sum_wasted(run: Run, wasted: Mapping[int, float], costs: Sequence[float | None]) -> float | None:
    """Return the wasted share of the costs of all attempts; None if one of them is unknown."""
    pairs = zip(run.attempts, costs, strict=True)
    return money.sum_known(None if cost is None else cost * wasted[attempt.number] for attempt, cost in pairs)


def sum_accounts(accounts: Iterable[Account]) -> Account:
    """Return the sum of several runs' accounts; amounts that are unknown for a run are left out."""
    badput = dict.fromkeys(Badput, 0.0)
    goodput = saved_s = dollars = lost = saved = found_s = recovery_s = 0.0
    decided = recovered = relaunches = restarts = 0
    for account in accounts:
        goodput, saved_s = goodput + account.goodput_s, saved_s + account.saved_s
        for kind, seconds in account.badput_s.items():
            badput[kind] += seconds
        dollars += account.dollars or 0.0
        lost += account.lost_dollars or 0.0
        saved += account.saved_dollars or 0.0
        found_s += (account.mttd_s or 0.0) * account.decided
        recovery_s += (account.mttr_s or 0.0) * account.recovered
        decided, recovered = decided + account.decided, recovered + account.recovered
        relaunches, restarts = relaunches + account.relaunches, restarts + account.restarts
    mttd, mttr = _mean(found_s, decided), _mean(recovery_s, recovered)
    return Account(goodput, badput, dollars, lost, saved_s, saved, mttd, mttr, decided, recovered, relaunches, restarts)


def _cost_until(attempt: Attempt, at: datetime, prices: Mapping[str, float]) -> float | None:
    """Return the cost of the attempt until `at`, in proportion to its time if it ended later."""
    begun, ended = attempt.training_started_at, attempt.ended_at
    if begun is None or at <= begun:
        return 0.0
    cost = money.sum_attempt_dollars(attempt, at, prices)
    if cost is None or ended is None or at >= ended:
        return cost
    return cost * ((at - begun) / (ended - begun))


def _with_incidents(account: Account, run: Run, at: datetime, prices: Mapping[str, float]) -> Account:
    decided = [i for i in run.incidents if i.decided_at <= at]
    recovered = [i for i in run.incidents if i.recovered and _is_past(i.closed_at, at)]
    found_s = [_seconds_between(i.happened_at, i.decided_at) for i in decided]
    recovery_s = [_seconds_between(i.happened_at, i.closed_at) for i in recovered]
    saved = [_estimate_savings(run, incident, prices) for incident in recovered]
    return replace(
        account,
        saved_s=sum(seconds for seconds, _ in saved),
        saved_dollars=money.sum_known([dollars for _, dollars in saved]),
        mttd_s=_mean(sum(found_s), len(found_s)),
        mttr_s=_mean(sum(recovery_s), len(recovery_s)),
        decided=len(decided),
        recovered=len(recovered),
    )


def _estimate_savings(run: Run, incident: Incident, prices: Mapping[str, float]) -> tuple[float, float | None]:
    """Return the seconds and the dollars of machines that Rerail saved compared with people on call.

    The result is 0 if Rerail took longer, for lack of capacity for example: people would have waited as well.
    """
    took_s = _seconds_between(incident.happened_at, _carried_out_at(run, incident))
    theirs = estimate_unattended(incident.kind)
    billed_s = theirs.share * max(0.0, theirs.billed_s - took_s)
    dollars_an_hour = _dollars_per_hour(run, incident.attempt, prices) if billed_s else 0.0
    dollars = None if dollars_an_hour is None else billed_s / money.HOUR_S * dollars_an_hour
    return theirs.share * max(0.0, theirs.seconds - took_s), dollars


def _dollars_per_hour(run: Run, number: int, prices: Mapping[str, float]) -> float | None:
    """Return the dollars per hour of all machines of an attempt; None if the price is unknown."""
    attempt = next((attempt for attempt in run.attempts if attempt.number == number), None)
    hourly = find_price(attempt.instance_type, prices) if attempt else None
    return None if attempt is None or hourly is None else hourly * attempt.instance_count


def _carried_out_at(run: Run, incident: Incident) -> datetime:
    """Return when the decision was carried out: the processes ran again, or the next job was created."""
    for attempt in run.attempts:
        if attempt.number == incident.attempt and incident.actions[:1] == ("restart",):
            again = (
                o.restarted_at
                for o in attempt.in_place_restarts
                if o.asked_at >= incident.decided_at and o.restarted_at
            )
            if first := next(again, None):
                return first
        if attempt.number > incident.attempt and attempt.created_at:
            return attempt.created_at
    return incident.decided_at


def _seconds_between(start: datetime, end: datetime | None) -> float:
    return max(0.0, (end - start).total_seconds()) if end else 0.0


def _is_past(time: datetime | None, at: datetime) -> bool:
    return time is not None and time <= at


def _mean(of_all: float, count: int) -> float | None:
    return of_all / count if count else None
