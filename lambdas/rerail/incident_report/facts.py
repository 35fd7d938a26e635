"""What is known of a run when its story is told: its record, its curves, and the last words of its jobs."""

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
    """One line that a job printed; `source` is its log stream."""

    at: datetime
    source: str
    text: str


@dataclass(frozen=True, slots=True)
class Facts:
    """All that a story is made of, at one moment.

    `series` are the rows of each attempt by its number, oldest first; `lines` are the last words before each incident,
    by the incident's number. `unread` says what could not be read, and why.
    """

    run: Run
    at: datetime
    policy: Policy = field(default_factory=Policy)
    timeline: tuple[TimelineEntry, ...] = ()
    series: Mapping[int, tuple[Sample, ...]] = field(default_factory=dict)
    lines: Mapping[int, tuple[LogLine, ...]] = field(default_factory=dict)
    checkpoints: tuple[Checkpoint, ...] = ()
    unread: tuple[str, ...] = ()


class Timelines(Protocol):
    """The part of the memory that a story needs."""

    def load(self, run_id: str) -> Run | None:
        """The run as last saved."""

    def timeline(self, run_id: str) -> Sequence[TimelineEntry]:
        """The run's decisions, oldest first."""

    def request(self, run_id: str) -> Mapping[str, Any]:
        """The CreateTrainingJob request that the run's attempts are made from."""


class Logs(Protocol):
    """What training jobs print."""

    def tail(self, job: str, *, until: datetime, lines: int) -> Sequence[LogLine]:
        """The job's last lines until then, of a few of its hosts, oldest first. Raises Throttled or Blind."""

    def whole(self, job: str, *, pages: int) -> tuple[Sequence[LogLine] | None, int]:
        """All that the job's first host printed, oldest first, and how many pages were read for that; None instead of
        the lines where so many pages do not hold them. Raises Throttled or Blind."""


class ReportPages(Protocol):
    """Where the pages are kept."""

    def keep(self, run: str, page: str) -> None:
        """The run's page, in place of the one before."""
