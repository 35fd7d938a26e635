"""The facts behind an incident report: the run's record, its curves, and the last log lines of its jobs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from rerail.model.checkpoints import Checkpoint
from rerail.model.policy import Policy
from rerail.model.run import Run, TimelineEntry
from rerail.model.sample import Sample


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line that a job printed."""

    at: datetime
    source: str  # name of the log stream
    text: str


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that a report is made from, at one moment."""

    run: Run
    at: datetime
    policy: Policy = field(default_factory=Policy)
    timeline: tuple[TimelineEntry, ...] = ()
    # Metric rows by attempt number, oldest first.
    series: Mapping[int, tuple[Sample, ...]] = field(default_factory=dict)
    # The last log lines before each incident, by incident number.
    lines: Mapping[int, tuple[LogLine, ...]] = field(default_factory=dict)
    checkpoints: tuple[Checkpoint, ...] = ()
    unread: tuple[str, ...] = ()  # what could not be read, with the error


class Timelines(Protocol):
    """Read access to stored runs and their timelines."""

    def load(self, run_id: str) -> Run | None:
        """Return the stored run, or None if there is no such run."""

    def timeline(self, run_id: str) -> Sequence[TimelineEntry]:
        """Return the run's decisions, oldest first."""

    def request(self, run_id: str) -> Mapping[str, Any]:
        """Return the CreateTrainingJob request that the run's attempts are made from."""


class Logs(Protocol):
    """Read access to the log lines of training jobs."""

    def tail(self, job: str, *, until: datetime, lines: int) -> Sequence[LogLine]:
        """Return the job's last lines before `until`, oldest first, of a few of its hosts.

        Raises Throttled or StateUnknown."""

    def whole(self, job: str, *, pages: int) -> tuple[Sequence[LogLine] | None, int]:
        """Return all lines of the job's first host, oldest first, and the number of pages read.

        The lines are None if they do not fit into `pages` pages. Raises Throttled or StateUnknown."""


class ReportPages(Protocol):
    """Storage of the rendered pages."""

    def keep(self, run: str, page: str) -> None:
        """Store the run's page, replacing the previous one."""


class FleetPages(Protocol):
    """Storage of the page of all runs."""

    def find_time(self) -> datetime | None:
        """Return as of when the stored page is; None if there is none."""

    def list_runs(self) -> Sequence[str]:
        """Return the runs that have a page, the one stored last first."""

    def keep_fleet(self, page: str, at: datetime) -> None:
        """Store the page of all runs as of `at`, replacing the previous one."""
