"""What Rerail publishes about itself: every measure by name, and the only words that may tell several of one apart.

A measure has one dimension at most, and its values are the words of an enum of the core: no name of a run, a job or a
person ever becomes one, so what is published, and paid for, does not grow with the runs.
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
    """What a decision asks of the world, as a measure has it."""

    CREATE = "create"
    STOP = "stop"
    RELEASE = "release"
    COMMAND = "command"
    SET_ASIDE = "set aside"
    NOTHING = "nothing"


class MetricValue(NamedTuple):
    """One value to be published: `dimension` and `of` are empty where the measure has but one."""

    name: str
    value: float
    unit: str
    dimension: str = ""
    of: str = ""


@dataclass(frozen=True, slots=True)
class ServiceMetric:
    """Its name and unit in CloudWatch; `by` are the words that tell its values apart, in the dimension of that name."""

    name: str
    unit: str = COUNT
    dimension: str = ""
    by: type[StrEnum] | None = None

    def of(self, value: float, word: StrEnum | None = None) -> MetricValue:
        """The value, of that word; raises TypeError for a word that is none of this measure's."""
        if (type(word) if word is not None else None) is not self.by:
            raise TypeError(f"{self.name} is told by {self.by and self.by.__name__}, and not by {word!r}")
        return MetricValue(self.name, value, self.unit, self.dimension, word.value if word is not None else "")

    def __len__(self) -> int:
        """How many metrics of CloudWatch it can become."""
        return len(self.by) if self.by else 1

    @property
    def words(self) -> Iterator[str]:
        """All values that its dimension can have."""
        return (word.value for word in self.by or ())


# By the sweep, each minute: first the round itself ...
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
# ... and then all runs that it came by.
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

# By supervise, for each message.
WAKEUPS = ServiceMetric("Wakeups")
DECISIONS = ServiceMetric("Decisions")
ACTIONS = ServiceMetric("Actions", COUNT, "Action", ActionLabel)
OPENED = ServiceMetric("IncidentsOpened", COUNT, "Cause", Cause)
NOTICES = ServiceMetric("NoticesDecided", COUNT, "Severity", Severity)
DECIDED_IN = ServiceMetric("SignalToDecision", SECONDS)
SUPERVISE = (WAKEUPS, DECISIONS, ACTIONS, OPENED, NOTICES, DECIDED_IN)

# By notify, for each notice.
TOLD = tuple(ServiceMetric(f"Notices.{severity}") for severity in Severity)

# By report, for each notice too.
REPORTS = ServiceMetric("Reports")

ALL = {"sweep": SWEEP, "supervise": SUPERVISE, "notify": TOLD, "report": (REPORTS,)}
