"""The faults waiting to strike API calls and new jobs, filled by LocalInject."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from .errors import ServiceError
from .job import LocalJob
from .market import choices, over_quota

CAPACITY_ERROR = (
    "CapacityError: Unable to provision requested ML compute capacity. Please retry using a different ML instance type."
)
INTERNAL_ERROR = "InternalServerError: We encountered an internal error.  Please try again."


@dataclass
class Faults:
    """Counters that each call or job reduces by one."""

    refused_calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    capacity_failures: int = 0
    capacity_delays: int = 0
    # The time in Pending, in seconds.
    capacity_wait: float = 0.0
    # For each fault, the prefix of the names of the jobs that it concerns.
    only: dict[str, str] = field(default_factory=dict)

    def apply_to_call(self, operation: str, request: dict[str, Any]) -> None:
        for fault in ("describe_error", "throttle", "deny", "resource_limit"):
            if self.refused_calls[fault, operation] > 0 and self._concerns(fault, request.get("TrainingJobName", "")):
                self.refused_calls[fault, operation] -= 1
                raise _refusal(fault, request)

    def arm_call(self, fault: str, operation: str, count: int, *, only: str = "") -> None:
        self.refused_calls[fault, operation] = count
        self.only[fault] = only

    def _concerns(self, fault: str, name: str) -> bool:
        return str(name).startswith(self.only.get(fault, ""))

    def take_capacity(self, name: str) -> tuple[float, bool]:
        """Return how long a new job waits for capacity, and whether it gets it."""
        if not self._concerns("capacity", name):
            return 0.0, True
        if self.capacity_failures > 0:
            self.capacity_failures -= 1
            return self.capacity_wait, False
        if self.capacity_delays > 0:
            self.capacity_delays -= 1
            return self.capacity_wait, True
        return 0.0, True


def _refusal(fault: str, request: dict[str, Any]) -> ServiceError:
    if fault == "throttle":
        return ServiceError("ThrottlingException", "Rate exceeded")
    if fault == "deny":
        return ServiceError("AccessDeniedException", "explicit deny in a service control policy")
    if fault == "describe_error":
        message = "The request processing has failed because of an unknown error, exception or failure."
        return ServiceError("InternalFailure", message, status=500)
    # All that the account may use is in use: a limit that is too small for the job alone is set by `quota`.
    kind, count = (choices(request) or [("ml.p4d.24xlarge", 1)])[0]
    return over_quota(kind, limit=count, used=count, delta=count)


def pending_limit(job: LocalJob) -> float:
    return float(job.request["StoppingCondition"].get("MaxPendingTimeInSeconds", "inf"))
