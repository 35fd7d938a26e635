"""The reporter of the page of all runs: what cannot be read is left out, and the page is still made."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from rerail.incident_report.fleet import FleetStatus
from rerail.incident_report.reporter import CURVE_LIMIT, ENDED_LIMIT, FleetReporter
from rerail.model.codec import BadRecord
from rerail.model.errors import PolicyError, StateUnknown
from rerail.model.metrics import MetricQuery, Points
from rerail.model.run import Run, RunState
from tests.report.conftest import attempt
from tests.report.test_fleet_page import NOW, trains


@dataclass
class Fakes:
    """All ports of the reporter at once."""

    known: dict[str, Run]
    stored: list[str] = field(default_factory=list)  # runs with a page, the newest first
    drawn: list[tuple[FleetStatus, Mapping[str, Sequence[float]]]] = field(default_factory=list)
    kept_at: datetime | None = None
    asked: list[MetricQuery] = field(default_factory=list)
    unknown: str = ""  # what cannot be read

    def open_runs(self) -> Iterator[tuple[str, Run | None]]:
        yield from ((name, run) for name, run in self.known.items() if run.is_open)
        yield "newer", None

    def load(self, name: str) -> Run | None:
        if name == "broken":
            raise BadRecord("a record of another version")
        return self.known.get(name)

    def recall(self, names: Sequence[str]) -> Mapping[str, Any]:
        return {}

    def read(self, asked: Sequence[MetricQuery], *window: object) -> Mapping[MetricQuery, Points]:
        self.asked = list(asked)
        if self.unknown == "series":
            raise StateUnknown("CloudWatch does not answer")
        return {query: [(NOW, 3.0), (NOW, 2.0)] for query in asked}

    def with_pause(self, policy: object) -> object:
        return policy

    def get(self, name: str) -> object:
        raise PolicyError(f"policy {name} has no mode 'sideways'")

    def find_time(self) -> datetime | None:
        return self.kept_at

    def list_runs(self) -> Sequence[str]:
        return self.stored

    def keep_fleet(self, page: str, at: datetime) -> None:
        self.kept_at = at

    def draw(self, fleet: FleetStatus, losses: Mapping[str, Sequence[float]]) -> str:
        self.drawn.append((fleet, losses))
        return "page"

    def report(self, changed_at: datetime = NOW) -> bool:
        ports: Any = self
        return FleetReporter("here", ports, ports, ports, ports, ports, self.draw, lambda: NOW).report(changed_at)


def test_the_page_has_open_runs_and_the_newest_ended_ones():
    ended = {
        f"e{n}": replace(trains(f"e{n}"), state=RunState.COMPLETED, attempts=(attempt(1),))
        for n in range(ENDED_LIMIT + 5)
    }
    fakes = Fakes({"a": trains("a"), **ended}, stored=["a", "broken", *ended, "gone"])
    assert fakes.report()
    fleet, losses = fakes.drawn[0]
    assert [row.run.id for row in fleet.rows] == ["a", *list(ended)[: ENDED_LIMIT - 1]]
    assert fleet.unread == ("newer",) and losses == {"a": [3.0, 2.0]}


@pytest.mark.parametrize(
    ("stored", "changed", "is_made"),
    [(-59, -30, False), (-61, -30, True), (-170, -180, True), (-110, -180, False), (-3_600, 0, True)],
)
def test_a_page_is_renewed_after_a_change_and_once_a_minute(stored, changed, is_made):
    """In seconds from now: a record may be written after the page that is from the moment of the change."""
    fakes = Fakes({"a": trains("a")}, kept_at=NOW + timedelta(seconds=stored))
    assert fakes.report(NOW + timedelta(seconds=changed)) is is_made
    assert len(fakes.drawn) == is_made


def test_curves_that_cannot_be_read_are_left_out():
    fakes = Fakes({"a": trains("a")}, unknown="series")
    assert fakes.report() and fakes.drawn[0][1] == {}


def test_curves_are_read_for_a_bounded_number_of_runs():
    fakes = Fakes({f"r{n}": trains(f"r{n}") for n in range(CURVE_LIMIT + 5)})
    assert fakes.report() and len(fakes.asked) == CURVE_LIMIT == len(fakes.drawn[0][1])
