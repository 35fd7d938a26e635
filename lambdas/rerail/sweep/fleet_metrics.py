"""Metrics of the whole fleet: runs by state, and how their time and money were spent."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from rerail.accounting.goodput import Account, sum_accounts
from rerail.messages import service_metrics
from rerail.messages.service_metrics import MetricValue
from rerail.model.causes import Cause
from rerail.model.run import Run, RunState


@dataclass(frozen=True, slots=True)
class Fleet:
    """The open runs of a sweep as one; a run that ends leaves the sums."""

    runs: Mapping[RunState, int] = field(default_factory=dict)  # by state; held runs as long as their page is open
    incidents: Mapping[Cause, int] = field(default_factory=dict)  # open ones by cause
    attempts: int = 0
    account: Account = field(default_factory=Account)  # the runs' accounts summed, each since its start


def make_fleet(runs: Iterable[Run], accounts: Iterable[Account]) -> Fleet:
    """Return the fleet of the runs that could be read, with the accounts of those whose policy could be read."""
    states: Counter[RunState] = Counter()
    causes: Counter[Cause] = Counter()
    attempts = 0
    for run in runs:
        states[run.state] += 1
        attempts += len(run.attempts)
        if run.open_incident:
            causes[run.open_incident.cause] += 1
    return Fleet(dict(states), dict(causes), attempts, sum_accounts(accounts))


def sum_fleets(fleets: Iterable[Fleet]) -> Fleet:
    """Return the parts of a fleet as one."""
    states: Counter[RunState] = Counter()
    causes: Counter[Cause] = Counter()
    parts = list(fleets)
    for part in parts:
        states.update(part.runs)
        causes.update(part.incidents)
    attempts = sum(part.attempts for part in parts)
    return Fleet(dict(states), dict(causes), attempts, sum_accounts(part.account for part in parts))


def list_metrics(fleet: Fleet) -> Iterator[MetricValue]:
    """Yield the fleet's metrics.

    Metrics by state, cause or kind are published only where they are not zero: CloudWatch bills each metric per hour
    published.
    """
    account = fleet.account
    yield from (service_metrics.RUNS.of(count, state) for state, count in fleet.runs.items() if count)
    yield from (service_metrics.INCIDENTS_BY_CAUSE.of(n, cause) for cause, n in fleet.incidents.items() if n)
    yield from (service_metrics.BADPUT.of(seconds, kind) for kind, seconds in account.badput_s.items() if seconds)
    yield service_metrics.HELD.of(fleet.runs.get(RunState.HELD, 0))
    yield service_metrics.INCIDENTS.of(sum(fleet.incidents.values()))
    yield service_metrics.ATTEMPTS.of(fleet.attempts)
    yield service_metrics.RELAUNCHES.of(account.relaunches)
    yield service_metrics.RESTARTS.of(account.restarts)
    yield service_metrics.GOODPUT.of(account.goodput_s)
    yield service_metrics.SAVED_S.of(account.saved_s)
    for measure, value in (
        (service_metrics.SHARE, None if account.share is None else 100 * account.share),
        (service_metrics.MTTD, account.mttd_s),
        (service_metrics.MTTR, account.mttr_s),
        (service_metrics.DOLLARS, account.dollars),
        (service_metrics.LOST, account.lost_dollars),
        (service_metrics.SAVED, account.saved_dollars),
    ):
        if value is not None:  # an unknown value is not zero
            yield measure.of(value)
