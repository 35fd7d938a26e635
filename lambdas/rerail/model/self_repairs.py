"""Restarts that SageMaker makes within a job: after spot interruptions, cluster repairs, and retries."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

# The statuses before the job trains again.
ON_THE_WAY = ("Interrupted", "Restarting", "Starting", "LaunchingMLInstances", "PreparingTrainingStack", "Pending")
# These are interruptions whatever status preceded them.
INTERRUPTION_STATUSES = ("Interrupted", "Restarting")


class SelfRepair(StrEnum):
    """The reason for which SageMaker restarted training within the same job."""

    SPOT = "spot"  # the spot market took the machines back
    CLUSTER = "cluster"  # a faulty machine was rebooted or replaced
    RETRY = "retry"  # an internal error, retried under the job's RetryStrategy


@dataclass(frozen=True, slots=True)
class SelfRepairs:
    """The number of times that SageMaker restarted a job's training, by reason."""

    counts: Mapping[SelfRepair, int] = field(default_factory=dict)
    # The total time in seconds until training continued.
    seconds: float = 0.0

    @property
    def total(self) -> int:
        """Return the number of restarts for all reasons."""
        return sum(self.counts.values())


def count_repairs(transitions: Sequence[Mapping[str, Any]], *, retries: bool) -> SelfRepairs:
    """Count the restarts in a job's secondary status transitions.

    `retries` is whether the request has a RetryStrategy. The whole history is read each time, so that restarts
    between two observations are counted too.
    """
    counts: dict[SelfRepair, int] = {}
    seconds, kind, since, before = 0.0, None, None, ""
    for transition in transitions:
        status = transition.get("Status", "")
        interrupted = status in INTERRUPTION_STATUSES or (before == "Training" and status in ON_THE_WAY)
        if interrupted and kind is None:
            kind, since = _classify_restart(transition, retries), transition.get("StartTime")
        elif kind and kind is not SelfRepair.SPOT and status in ON_THE_WAY and _is_cluster_repair(transition):
            kind = SelfRepair.CLUSTER  # reported one status later
        elif kind and status == "Training":
            counts[kind] = counts.get(kind, 0) + 1
            seconds += _seconds_between(since, transition.get("StartTime"))
            kind = None
        before = status
    if kind:
        counts[kind] = counts.get(kind, 0) + 1
    return SelfRepairs(counts, seconds)


def format_repairs(counts: Mapping[SelfRepair, int]) -> str:
    """Return the counts as text, such as "spot 2, cluster 1"."""
    return ", ".join(f"{kind} {counts[kind]}" for kind in SelfRepair if counts.get(kind))


def _classify_restart(transition: Mapping[str, Any], retries: bool) -> SelfRepair:
    if transition.get("Status") == "Interrupted":
        return SelfRepair.SPOT
    if _is_cluster_repair(transition):
        return SelfRepair.CLUSTER
    # The message "Repairing training cluster" may be missing; without a RetryStrategy nothing else restarts a job.
    return SelfRepair.RETRY if retries else SelfRepair.CLUSTER


def _is_cluster_repair(transition: Mapping[str, Any]) -> bool:
    return "repair" in transition.get("StatusMessage", "").lower()


def _seconds_between(start: datetime | None, end: datetime | None) -> float:
    return (end - start).total_seconds() if start and end else 0.0
