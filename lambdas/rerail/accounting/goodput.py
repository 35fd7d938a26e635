"""What became of a run's time and money: goodput, badput by kind, what was lost, and what Rerail has saved.

Goodput is an upper bound: what no record holds (see wall_time.py) lies within it, so it is the nearer the truth the
shorter a run's starts and saves are. Against simulated months of which all is known it is right to 2 % of the time.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from rerail.accounting import costs as money
from rerail.accounting.on_call_times import estimate_unattended
from rerail.accounting.wall_time import Badput as Badput  # whoever reads an account needs its words
from rerail.accounting.wall_time import split_wall_time
from rerail.model.policy import Policy
from rerail.model.prices import price
from rerail.model.run import Attempt, Incident, Run


@dataclass(frozen=True, slots=True)
class Account:
    """What became of a run's time and money until a moment, or of several runs', summed up.

    `goodput_s` and `badput_s` add up to the wall time, from the run's first job to its end. `dollars` are what the
    attempts have cost, `lost_dollars` those of them that paid for badput; warm pools are not counted. `saved_s` and
    `saved_dollars` are against people on call, as `on_call_times` assumes them: the time that they would have taken
    longer over the incidents that Rerail mended, and what the machines would have cost in it. `mttd_s` is from a
    trouble's onset to the decision, `mttr_s` to the progress that proved it mended: means in seconds, over `decided`
    and `mended` incidents. None is what cannot be told, for want of a price or of an incident.
    """

    goodput_s: float = 0.0
    badput_s: Mapping[Badput, float] = field(default_factory=lambda: dict.fromkeys(Badput, 0.0))
    dollars: float | None = 0.0
    lost_dollars: float | None = 0.0
    saved_s: float = 0.0
    saved_dollars: float | None = 0.0
    mttd_s: float | None = None
    mttr_s: float | None = None
    decided: int = 0
    mended: int = 0
    relaunches: int = 0
    restarts: int = 0

    @property
    def wall_s(self) -> float:
        """All of it."""
        return self.goodput_s + sum(self.badput_s.values())

    @property
    def share(self) -> float | None:
        """Goodput of all seconds; None before there are any."""
        return min(1.0, self.goodput_s / self.wall_s) if self.wall_s > 0 else None


def make_account(run: Run, at: datetime, policy: Policy) -> Account:
    """The run's account until then. Of one record, none of its seconds, dollars and counts is smaller later."""
    time = split_wall_time(run, at)
    costs = [_cost(attempt, at, policy.prices) for attempt in run.attempts]
    wasted = [time.wasted[each.number] for each in run.attempts]
    orders = [order for attempt in run.attempts for order in attempt.orders]
    told = Account(
        goodput_s=time.goodput_s,
        badput_s=time.badput_s,
        dollars=_sum(costs),
        lost_dollars=_sum(None if cost is None else cost * share for cost, share in zip(costs, wasted, strict=True)),
        relaunches=sum(_is_past(attempt.created_at, at) for attempt in run.attempts[1:]),
        restarts=sum(_is_past(order.restarted_at, at) for order in orders),
    )
    return _with_incidents(told, run, at, policy.prices)


def sum_accounts(accounts: Iterable[Account]) -> Account:
    """Several runs' accounts as one; what the price of one run's machines keeps from being told is left out."""
    badput = dict.fromkeys(Badput, 0.0)
    goodput = saved_s = dollars = lost = saved = found_s = mended_s = 0.0
    decided = mended = relaunches = restarts = 0
    for each in accounts:
        goodput, saved_s = goodput + each.goodput_s, saved_s + each.saved_s
        for kind, seconds in each.badput_s.items():
            badput[kind] += seconds
        dollars += each.dollars or 0.0
        lost += each.lost_dollars or 0.0
        saved += each.saved_dollars or 0.0
        found_s += (each.mttd_s or 0.0) * each.decided
        mended_s += (each.mttr_s or 0.0) * each.mended
        decided, mended = decided + each.decided, mended + each.mended
        relaunches, restarts = relaunches + each.relaunches, restarts + each.restarts
    mttd, mttr = _mean(found_s, decided), _mean(mended_s, mended)
    return Account(goodput, badput, dollars, lost, saved_s, saved, mttd, mttr, decided, mended, relaunches, restarts)


def _cost(attempt: Attempt, at: datetime, prices: Mapping[str, float]) -> float | None:
    """What the attempt has cost until then; before its end, as much of the whole as of its time."""
    begun, ended = attempt.training_started_at, attempt.ended_at
    if begun is None or at <= begun:
        return 0.0
    cost = money.attempt_dollars(attempt, at, prices)
    if cost is None or ended is None or at >= ended:
        return cost
    return cost * ((at - begun) / (ended - begun))


def _with_incidents(told: Account, run: Run, at: datetime, prices: Mapping[str, float]) -> Account:
    decided = [i for i in run.incidents if i.decided_at <= at]
    mended = [i for i in run.incidents if i.mended and _is_past(i.closed_at, at)]
    found_s = [_between(i.happened_at, i.decided_at) for i in decided]
    mended_s = [_between(i.happened_at, i.closed_at) for i in mended]
    saved = [_saved(run, incident, prices) for incident in mended]
    return replace(
        told,
        saved_s=sum(seconds for seconds, _ in saved),
        saved_dollars=_sum([dollars for _, dollars in saved]),
        mttd_s=_mean(sum(found_s), len(found_s)),
        mttr_s=_mean(sum(mended_s), len(mended_s)),
        decided=len(decided),
        mended=len(mended),
    )


def _saved(run: Run, incident: Incident, prices: Mapping[str, float]) -> tuple[float, float | None]:
    """Seconds, and dollars of machines, that people on call would have taken more than we did until the run was on its
    way again. Where that took us longer than them (no capacity, say), nothing: they would have waited as well."""
    took_s = _between(incident.happened_at, _answered(run, incident))
    theirs = estimate_unattended(incident.kind)
    billed_s = theirs.share * max(0.0, theirs.billed_s - took_s)
    dollars_an_hour = _hourly(run, incident.attempt, prices) if billed_s else 0.0
    dollars = None if dollars_an_hour is None else billed_s / money.HOUR_S * dollars_an_hour
    return theirs.share * max(0.0, theirs.seconds - took_s), dollars


def _hourly(run: Run, number: int, prices: Mapping[str, float]) -> float | None:
    """Dollars an hour of all machines of that attempt."""
    attempt = next((each for each in run.attempts if each.number == number), None)
    each = price(attempt.instance_type, prices) if attempt else None
    return None if attempt is None or each is None else each * attempt.instance_count


def _answered(run: Run, incident: Incident) -> datetime:
    """When what was decided had been done: the processes ran again, or the next job was there."""
    for attempt in run.attempts:
        if attempt.number == incident.attempt and incident.actions[:1] == ("restart",):
            again = (o.restarted_at for o in attempt.orders if o.asked_at >= incident.decided_at and o.restarted_at)
            if first := next(again, None):
                return first
        if attempt.number > incident.attempt and attempt.created_at:
            return attempt.created_at
    return incident.decided_at


def _between(start: datetime, end: datetime | None) -> float:
    return max(0.0, (end - start).total_seconds()) if end else 0.0


def _is_past(time: datetime | None, at: datetime) -> bool:
    return time is not None and time <= at


def _mean(of_all: float, count: int) -> float | None:
    return of_all / count if count else None


def _sum(parts: Iterable[float | None]) -> float | None:
    known = list(parts)
    return None if None in known else sum(part for part in known if part is not None)
