"""What SageMaker itself has mended within a job: spot interruptions, repairs of the cluster, and retries."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

# The job is up again when it trains; these lead there.
ON_THE_WAY = ("Interrupted", "Restarting", "Starting", "LaunchingMLInstances", "PreparingTrainingStack", "Pending")
# Left for these, a job was interrupted whatever it did before.
INTERRUPTIONS = ("Interrupted", "Restarting")


class SelfRepair(StrEnum):
    """Why SageMaker started a job's training again, in the same job."""

    SPOT = "spot"  # the spot market took the machines back
    CLUSTER = "cluster"  # a machine was broken: rebooted or replaced
    RETRY = "retry"  # an internal error, and the job's RetryStrategy


@dataclass(frozen=True, slots=True)
class SelfRepairs:
    """How often SageMaker started a job's training again, by why, and the seconds until it trained again, in all."""

    counts: Mapping[SelfRepair, int] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def total(self) -> int:
        """However often, for whatever reason."""
        return sum(self.counts.values())


def count_repairs(transitions: Sequence[Mapping[str, Any]], *, retries: bool) -> SelfRepairs:
    """What the secondary statuses of a job tell; `retries` says that its request has a RetryStrategy.

    The whole history is read each time, so that what happened between two looks is counted too."""
    counts: dict[SelfRepair, int] = {}
    seconds, kind, since, before = 0.0, None, None, ""
    for each in transitions:
        status = each.get("Status", "")
        interrupted = status in INTERRUPTIONS or (before == "Training" and status in ON_THE_WAY)
        if interrupted and kind is None:
            kind, since = _kind(each, retries), each.get("StartTime")
        elif kind and kind is not SelfRepair.SPOT and status in ON_THE_WAY and _is_of_the_cluster(each):
            kind = SelfRepair.CLUSTER  # said a status later
        elif kind and status == "Training":
            counts[kind] = counts.get(kind, 0) + 1
            seconds += _between(since, each.get("StartTime"))
            kind = None
        before = status
    if kind:
        counts[kind] = counts.get(kind, 0) + 1
    return SelfRepairs(counts, seconds)


def format_repairs(counts: Mapping[SelfRepair, int]) -> str:
    """The counts as people say them: "spot 2, cluster 1"."""
    return ", ".join(f"{kind} {counts[kind]}" for kind in SelfRepair if counts.get(kind))


def _kind(transition: Mapping[str, Any], retries: bool) -> SelfRepair:
    if transition.get("Status") == "Interrupted":
        return SelfRepair.SPOT
    if _is_of_the_cluster(transition):
        return SelfRepair.CLUSTER
    # "Repairing training cluster ..." is not always said; without a RetryStrategy nothing else restarts a job.
    return SelfRepair.RETRY if retries else SelfRepair.CLUSTER


def _is_of_the_cluster(transition: Mapping[str, Any]) -> bool:
    return "repair" in transition.get("StatusMessage", "").lower()


def _between(start: datetime | None, end: datetime | None) -> float:
    return (end - start).total_seconds() if start and end else 0.0
