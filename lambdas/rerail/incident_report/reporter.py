"""Make the report page of a run, and the page of all runs, and store them where the notices link to them."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, Protocol

from rerail.detection.evaluate import RunDetections
from rerail.incident_report.facts import FleetPages, ReportPages
from rerail.incident_report.fleet import FleetRow, FleetStatus, find_noted_step, find_policy, find_sort_key, make_row
from rerail.incident_report.gather import FactGatherer
from rerail.incident_report.report import IncidentReport, make_report
from rerail.messages.messages import RUN_STATE_CHANGE
from rerail.model.codec import BadRecord
from rerail.model.errors import BadMessage, RerailError
from rerail.model.metrics import MetricQuery, Series, Statistic
from rerail.model.policy import Policy
from rerail.model.run import Run
from rerail.ports import PausedPolicies

# Ended runs that the page of all runs has, and the runs whose recent losses are read for it.
ENDED_LIMIT, CURVE_LIMIT = 20, 20
CURVE_LENGTH, CURVE_PERIOD = timedelta(hours=3), timedelta(minutes=5)
MINUTE = timedelta(minutes=1)


def run_of(body: str) -> str:
    """Return the run that the event in a message is about. Raises BadMessage, which names the malformed field."""
    try:
        run = json.loads(body)["detail"]["run"]
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"the message is not JSON: {error!s:.300}") from error
    except (KeyError, TypeError, IndexError) as error:
        raise BadMessage("field 'detail.run' is missing; the message must be a notice from the bus") from error
    if not isinstance(run, str) or not run:
        raise BadMessage(f"field 'detail.run' is {run!r:.100}; it must be the name of a run")
    return run


def find_change_time(body: str) -> datetime | None:
    """Return when the run's state changed; None if the message is a notice. Raises BadMessage for a malformed time."""
    event = json.loads(body)
    if event.get("detail-type") != RUN_STATE_CHANGE:
        return None
    try:
        return datetime.fromisoformat(event["time"]).astimezone(UTC)
    except (KeyError, TypeError, ValueError) as error:
        raise BadMessage("field 'time' is missing or malformed; the message must be an event from the bus") from error


class StoredPage(NamedTuple):
    """A stored page."""

    bytes: int
    unread: tuple[str, ...]  # what could not be read for it, with the error


@dataclass(frozen=True, slots=True)
class Reporter:
    """Makes and stores report pages through its ports."""

    gathering: FactGatherer
    draws: Callable[[IncidentReport], str]
    pages: ReportPages

    def report(self, run_id: str) -> StoredPage | None:
        """Make and store the run's page; return None if there is no such run."""
        known = self.gathering.gather(run_id)
        if known is None:
            return None
        page = self.draws(make_report(known))
        self.pages.keep(run_id, page)
        return StoredPage(len(page.encode()), known.unread)


class OpenRuns(Protocol):
    """The records of runs."""

    def load(self, run_id: str) -> Run | None:
        """Return the run, or None if it is unknown."""

    def open_runs(self) -> Iterator[tuple[str, Run | None]]:
        """Yield name and record of each open run; the record is None if another version wrote it."""


@dataclass(frozen=True, slots=True)
class FleetReporter:
    """Makes and stores the page of all runs through its ports."""

    name: str  # of the deployment
    runs: OpenRuns
    detections: RunDetections
    policies: PausedPolicies
    series: Series
    pages: FleetPages
    draws: Callable[[FleetStatus, Mapping[str, Sequence[float]]], str]
    clock: Callable[[], datetime]

    def report(self, changed_at: datetime) -> bool:
        """Make and store the page, and return True; False if it is less than a minute old, or later than the change.

        The stored page is later if it is from a minute after the change: the record is written after the decision.
        """
        at, stored_at = self.clock(), self.pages.find_time()
        if stored_at and stored_at > min(at, changed_at + 2 * MINUTE) - MINUTE:
            return False
        fleet = self._read(at)
        self.pages.keep_fleet(self.draws(fleet, self._read_losses(fleet, at)), at)
        return True

    def _read(self, at: datetime) -> FleetStatus:
        """Return the open runs, and those of the newest pages that have ended."""
        found = dict(self.runs.open_runs())
        ended = [name for name in self.pages.list_runs() if name not in found][:ENDED_LIMIT]
        runs = [run for run in (*found.values(), *map(self._load, ended)) if run]
        memories = self.detections.recall([run.id for run in runs if run.is_open])
        rows = []
        for run in runs:
            memory = memories.get(run.id)
            seen = find_noted_step(run, memory) if memory and run.is_open else None
            rows.append(make_row(run, find_policy(run, self.policies), at, seen))
        unread = tuple(sorted(name for name, run in found.items() if run is None))
        return FleetStatus(at, self.name, tuple(sorted(rows, key=find_sort_key)), None, None, unread)

    def _load(self, name: str) -> Run | None:
        """Return the run; None if it is unknown, or another version wrote its record."""
        try:
            return self.runs.load(name)
        except BadRecord:
            return None

    def _read_losses(self, fleet: FleetStatus, at: datetime) -> Mapping[str, Sequence[float]]:
        """Return the recent losses of runs whose job is in progress, oldest first; none if they cannot be read."""
        queries = {
            _make_query(row, find_policy(row.run, self.policies)): row
            for row in fleet.rows
            if row.run.current.may_be_live
        }
        asked = [query for query in queries if query.metric][:CURVE_LIMIT]
        try:
            found = self.series.read(asked, at - CURVE_LENGTH, at, CURVE_PERIOD) if asked else {}
        except RerailError:
            return {}
        return {queries[query].run.id: [value for _, value in points] for query, points in found.items()}


def _make_query(row: FleetRow, policy: Policy) -> MetricQuery:
    return MetricQuery(row.run.current.job_name, policy.metrics.loss, Statistic.AVERAGE)
