"""Machines by instance type: how many EC2 still has, and how many the account may use at once."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from .errors import ServiceError, not_found
from .job import LocalJob

CAPACITY_VARIABLE = "SAGEMAKER_CURRENT_CAPACITY_BLOCK_EXPIRATION_TIMESTAMP"


@dataclass
class Market:
    """The machines that can be had; those of types without an entry are unlimited."""

    # Machines for new launches: a launch uses them up, the end of a job returns none.
    left: dict[str, int] = field(default_factory=dict)
    # The account's quotas.
    limits: dict[str, int] = field(default_factory=dict)
    # When the capacity of each training plan, by its ARN, begins and ends, in seconds since 1970.
    plans: dict[str, tuple[float, float]] = field(default_factory=dict)
    # The seconds in Pending before EC2 gives up.
    patience: float = 0.0

    def check_quota(self, request: dict[str, Any], jobs: Iterable[LocalJob]) -> None:
        """Raise ResourceLimitExceeded if the job exceeds the quota; count kept pools, except a pool that the job would
        use."""
        wanted = choices(request)
        if len(wanted) != 1:
            return
        kind, count = wanted[0]
        used = sum(needs for job in jobs for held, needs in _held(job) if held == kind)
        if kind in self.limits and used + count > self.limits[kind]:
            raise over_quota(kind, limit=self.limits[kind], used=used, delta=count)

    def describe_plan(self, name: str) -> dict[str, Any]:
        """Return the answer of DescribeTrainingPlan; raise ResourceNotFound."""
        arn = next((arn for arn in self.plans if arn.endswith(f":training-plan/{name}")), "")
        if not arn:
            raise not_found()
        start, end = self.plans[arn]
        status = "Active" if start <= time.time() < end else "Expired"
        span = {"StartTime": start, "EndTime": end}
        capacity = {"ReservedCapacityArn": arn.replace("training-plan", "reserved-capacity"), "Status": status, **span}
        capacity |= {"InstanceType": "ml.p4d.24xlarge", "TotalInstanceCount": 1}
        names = {"TrainingPlanArn": arn, "TrainingPlanName": name, "Status": status}
        return {**names, **span, "ReservedCapacitySummaries": [capacity]}

    def variables(self, request: dict[str, Any]) -> dict[str, str]:
        """Return what SageMaker tells a job on reserved capacity by its environment."""
        plan = request.get("ResourceConfig", {}).get("TrainingPlanArn", "")
        return {CAPACITY_VARIABLE: f"{self.plans[plan][1] * 1000:.0f}"} if plan in self.plans else {}

    def take(self, job: LocalJob) -> bool:
        """Return machines for the job, of the first of its types that has enough."""
        for kind, count in choices(job.request):
            if self.left.get(kind, count) < count:
                continue
            if kind in self.left:
                self.left[kind] -= count
            if "InstancePreferences" in job.request["ResourceConfig"]:
                job.request["ResourceConfig"] |= {"SelectedInstanceType": kind, "SelectedInstanceCount": count}
            return True
        return not choices(job.request)


def choices(request: dict[str, Any]) -> list[tuple[str, int]]:
    """Return the instance types that the job accepts, in order, with the count of each; none for a mixed cluster."""
    resources = request.get("ResourceConfig", {})
    if "InstanceType" in resources:
        return [(resources["InstanceType"], resources["InstanceCount"])]
    count = resources.get("InstanceCount")
    return [
        (preference["InstanceType"], count or preference["InstanceCount"])
        for preference in resources.get("InstancePreferences", [])
    ]


def over_quota(kind: str, *, limit: int, used: int, delta: int) -> ServiceError:
    """Return SageMaker's text for an exceeded quota."""
    return ServiceError(
        "ResourceLimitExceeded",
        f"The account-level service limit '{kind} for training job usage' is {limit} Instances, with current "
        f"utilization of {used} Instances and a request delta of {delta} Instances. "
        "Please use AWS Service Quotas to request an increase for this quota.",
    )


def _held(job: LocalJob) -> list[tuple[str, int]]:
    """Return the machines that a job has now, or that are kept warm after it."""
    resources = job.request["ResourceConfig"]
    if job.over and (job.warm_pool or {}).get("Status") != "Available":
        return []
    if "SelectedInstanceType" in resources:
        return [(resources["SelectedInstanceType"], resources["SelectedInstanceCount"])]
    return choices(job.request)[:1]
