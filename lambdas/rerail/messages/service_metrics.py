"""The CloudWatch metrics that Rerail publishes about itself, with their units and dimensions.

A metric has at most one dimension, whose values are the members of an enum of the core. Names of runs, jobs or people
are never dimension values, so the number and the cost of metrics do not grow with the number of runs.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from rerail.accounting.wall_time import Badput
from rerail.model.actions import Severity
from rerail.model.causes import Cause
from rerail.model.run import RunState

COUNT, SECONDS, NONE = "Count", "Seconds", "None"


class ActionLabel(StrEnum):
    """The kind of action, as a dimension value."""

    CREATE = "create"
    STOP = "stop"
    RELEASE = "release"
    COMMAND = "command"
    QUARANTINE = "quarantine"
    NOTHING = "nothing"


class MetricValue(NamedTuple):
    """One value to publish; `dimension` and its value `of` are empty for a metric without dimension."""

    name: str
    value: float
    unit: str
    dimension: str = ""
    of: str = ""


@dataclass(frozen=True, slots=True)
class ServiceMetric:
    """A CloudWatch metric."""

    name: str
    unit: str = COUNT
    dimension: str = ""
    # The enum of the dimension's values; None: no dimension.
    by: type[StrEnum] | None = None

    def of(self, value: float, word: StrEnum | None = None) -> MetricValue:
        """Return a value for publishing; raise TypeError if `word` is not a member of this metric's enum."""
        if (type(word) if word is not None else None) is not self.by:
            raise TypeError(f"{self.name} has the dimension {self.by and self.by.__name__}, not {word!r}")
        return MetricValue(self.name, value, self.unit, self.dimension, word.value if word is not None else "")

    def __len__(self) -> int:
        """Return how many CloudWatch metrics it can create."""
        return len(self.by) if self.by else 1

    @property
    def words(self) -> Iterator[str]:
        """Return all values of its dimension."""
        return (word.value for word in self.by or ())


# Published by the sweep each minute: about the sweep itself ...
COMPLETED = ServiceMetric("SweepsCompleted")
OPEN = ServiceMetric("OpenRuns")
DUE = ServiceMetric("DueRuns")
DISCOVERED = ServiceMetric("DiscoveredJobs")
BLIND = ServiceMetric("BlindRuns")
WATCHED = ServiceMetric("WatchedRuns")
FINDINGS = ServiceMetric("Findings")
BEATING = ServiceMetric("BeatingRuns")
GARBLED = ServiceMetric("GarbledHeartbeats")
UNREAD = ServiceMetric("UnreadRounds")
# ... and about all visited runs.
RUNS = ServiceMetric("Runs", COUNT, "State", RunState)
HELD = ServiceMetric("HeldRuns")
INCIDENTS = ServiceMetric("OpenIncidents")
INCIDENTS_BY_CAUSE = ServiceMetric("OpenIncidentsByCause", COUNT, "Cause", Cause)
ATTEMPTS = ServiceMetric("Attempts")
RELAUNCHES = ServiceMetric("Relaunches")
RESTARTS = ServiceMetric("RestartsInPlace")
GOODPUT = ServiceMetric("GoodputSeconds", SECONDS)
SHARE = ServiceMetric("GoodputShare", "Percent")
BADPUT = ServiceMetric("BadputSeconds", SECONDS, "Kind", Badput)
MTTD = ServiceMetric("MeanTimeToDecide", SECONDS)
MTTR = ServiceMetric("MeanTimeToProgress", SECONDS)
DOLLARS = ServiceMetric("DollarsSpent", NONE)
LOST = ServiceMetric("DollarsLost", NONE)
SAVED = ServiceMetric("DollarsSaved", NONE)
SAVED_S = ServiceMetric("SecondsSaved", SECONDS)
PAUSED = ServiceMetric("Paused")
SWEEP = (
    *(COMPLETED, OPEN, DUE, DISCOVERED, BLIND, WATCHED, FINDINGS, BEATING, GARBLED, UNREAD),
    *(RUNS, HELD, INCIDENTS, INCIDENTS_BY_CAUSE, ATTEMPTS, RELAUNCHES, RESTARTS, GOODPUT, SHARE, BADPUT, MTTD, MTTR),
    *(DOLLARS, LOST, SAVED, SAVED_S, PAUSED),
)

# Published by supervise for each message.
WAKEUPS = ServiceMetric("Wakeups")
DECISIONS = ServiceMetric("Decisions")
ACTIONS = ServiceMetric("Actions", COUNT, "Action", ActionLabel)
OPENED = ServiceMetric("IncidentsOpened", COUNT, "Cause", Cause)
NOTICES = ServiceMetric("NoticesDecided", COUNT, "Severity", Severity)
DECIDED_IN = ServiceMetric("SignalToDecision", SECONDS)
REJECTED = ServiceMetric("RejectedMessages")
SUPERVISE = (WAKEUPS, DECISIONS, ACTIONS, OPENED, NOTICES, DECIDED_IN, REJECTED)

# Published by notify for each notice.
SENT_NOTICES = tuple(ServiceMetric(f"Notices.{severity}") for severity in Severity)

# Published by report for each notice.
REPORTS = ServiceMetric("Reports")

ALL = {"sweep": SWEEP, "supervise": SUPERVISE, "notify": SENT_NOTICES, "report": (REPORTS,)}
