"""All runs that a sweep came by, at once: how many are in which state, and what became of their time and money."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from rerail.accounting.goodput import Account, sum_accounts
from rerail.messages import service_metrics as measures
from rerail.messages.service_metrics import MetricValue
from rerail.model.causes import Cause
from rerail.model.run import Run, RunState


@dataclass(frozen=True, slots=True)
class Fleet:
    """`runs` by state (those that are held as long as their page stands), open `incidents` by cause, and the runs'
    accounts as one, from the beginning of each; a run that ends leaves the sums."""

    runs: Mapping[RunState, int] = field(default_factory=dict)
    incidents: Mapping[Cause, int] = field(default_factory=dict)
    attempts: int = 0
    account: Account = field(default_factory=Account)


def make_fleet(runs: Iterable[Run], accounts: Iterable[Account]) -> Fleet:
    """The runs that could be read, and the accounts of those whose policy is known."""
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
    """Parts of one fleet as the whole."""
    states: Counter[RunState] = Counter()
    causes: Counter[Cause] = Counter()
    parts = list(fleets)
    for each in parts:
        states.update(each.runs)
        causes.update(each.incidents)
    attempts = sum(each.attempts for each in parts)
    return Fleet(dict(states), dict(causes), attempts, sum_accounts(each.account for each in parts))


def list_metrics(fleet: Fleet) -> Iterator[MetricValue]:
    """What is published of it. Of what is told by state, cause or kind only what there is: each metric is paid for by
    the hours in which it was published."""
    told = fleet.account
    yield from (measures.RUNS.of(count, state) for state, count in fleet.runs.items() if count)
    yield from (measures.INCIDENTS_BY_CAUSE.of(count, cause) for cause, count in fleet.incidents.items() if count)
    yield from (measures.BADPUT.of(seconds, kind) for kind, seconds in told.badput_s.items() if seconds)
    yield measures.HELD.of(fleet.runs.get(RunState.HELD, 0))
    yield measures.INCIDENTS.of(sum(fleet.incidents.values()))
    yield measures.ATTEMPTS.of(fleet.attempts)
    yield measures.RELAUNCHES.of(told.relaunches)
    yield measures.RESTARTS.of(told.restarts)
    yield measures.GOODPUT.of(told.goodput_s)
    yield measures.SAVED_S.of(told.saved_s)
    for measure, value in (
        (measures.SHARE, None if told.share is None else 100 * told.share),
        (measures.MTTD, told.mttd_s),
        (measures.MTTR, told.mttr_s),
        (measures.DOLLARS, told.dollars),
        (measures.LOST, told.lost_dollars),
        (measures.SAVED, told.saved_dollars),
    ):
        if value is not None:  # nothing is known: no value is no zero
            yield measure.of(value)
