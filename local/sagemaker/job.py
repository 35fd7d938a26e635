"""The state of one training job and what DescribeTrainingJob shows of it."""

import time
from collections.abc import Callable
from enum import StrEnum
from typing import Any

# The model lists these as create-only: Describe never returns them.
_NOT_DESCRIBED = ("Tags", "SessionChainingConfig")


class Status(StrEnum):
    IN_PROGRESS = "InProgress"
    COMPLETED = "Completed"
    FAILED = "Failed"
    STOPPING = "Stopping"
    STOPPED = "Stopped"


class Secondary(StrEnum):
    STARTING = "Starting"
    PENDING = "Pending"
    DOWNLOADING = "Downloading"
    TRAINING = "Training"
    UPLOADING = "Uploading"
    STOPPING = "Stopping"
    STOPPED = "Stopped"
    MAX_RUNTIME_EXCEEDED = "MaxRuntimeExceeded"
    MAX_WAIT_TIME_EXCEEDED = "MaxWaitTimeExceeded"
    COMPLETED = "Completed"
    FAILED = "Failed"
    INTERRUPTED = "Interrupted"
    RESTARTING = "Restarting"


TERMINAL = frozenset({Status.COMPLETED, Status.FAILED, Status.STOPPED})

_MESSAGES = {
    Secondary.STARTING: "Preparing the instances for training",
    Secondary.PENDING: "Training job waiting for capacity",
    Secondary.DOWNLOADING: "Downloading input data",
    Secondary.TRAINING: "Training image download completed. Training in progress.",
    Secondary.UPLOADING: "Uploading generated training model",
    Secondary.STOPPING: "Stopping the training job",
    Secondary.STOPPED: "Training job stopped",
    Secondary.MAX_RUNTIME_EXCEEDED: "Training job runtime exceeded MaxRuntimeInSeconds provided",
    Secondary.MAX_WAIT_TIME_EXCEEDED: "Training job exceeded MaxWaitTimeInSeconds provided",
    Secondary.COMPLETED: "Training job completed",
    Secondary.FAILED: "Training job failed",
    Secondary.INTERRUPTED: "Spot instances were interrupted",
    Secondary.RESTARTING: "Restarting the training job after an internal error",
}


class LocalJob:
    """A training job. It changes only on the event loop; `changed` is called for every change of status, in order."""

    def __init__(self, request: dict[str, Any], *, arn: str, changed: Callable[["LocalJob"], None]) -> None:
        self.request = request
        self.name: str = request["TrainingJobName"]
        self.arn = arn
        self.tags = {tag["Key"]: tag["Value"] for tag in request.get("Tags", [])}
        self.status = Status.IN_PROGRESS
        self.secondary = Secondary.STARTING
        self.transitions: list[dict[str, Any]] = []
        self.created = self.modified = _now()
        self.training_started: float | None = None
        self.training_ended: float | None = None
        self.failure_reason: str | None = None
        self.model_artifacts: str | None = None
        self.final_metrics: dict[str, tuple[float, float]] = {}
        self.warm_pool: dict[str, Any] | None = None
        self._changed = changed

    @property
    def over(self) -> bool:
        return self.status in TERMINAL

    def move(self, secondary: Secondary, *, status: Status | None = None) -> None:
        """Close the last status transition, open the next and announce it."""
        self.status = status or self.status
        self.secondary = secondary
        self.modified = _now()
        if self.transitions:
            self.transitions[-1].setdefault("EndTime", self.modified)
        self.transitions.append(
            {"Status": str(secondary), "StartTime": self.modified, "StatusMessage": _MESSAGES[secondary]}
        )
        if self.over:
            self.transitions[-1]["EndTime"] = self.modified
        self._changed(self)

    def change(self, member: str, value: Any) -> None:
        """Change a part of the request while the job runs, without a transition or an event."""
        self.request[member] = value
        self.modified = _now()

    def instances_ready(self) -> None:
        self.training_started = self.training_started or _now()

    def end(self, status: Status, secondary: Secondary) -> None:
        if self.training_started and self.training_ended is None:
            self.training_ended = _now()
        self.move(secondary, status=status)

    def fail(self, reason: str) -> None:
        """FailureReason holds at most 1,024 characters (botocore's model), whatever the container wrote."""
        self.failure_reason = reason[:1024]
        self.end(Status.FAILED, Secondary.FAILED)

    def describe(self) -> dict[str, Any]:
        return {
            **_with_defaults({k: v for k, v in self.request.items() if k not in _NOT_DESCRIBED}),
            **self._state(),
            **self._times(),
        }

    def summary(self) -> dict[str, Any]:
        return {"TrainingJobName": self.name, **self._state(), **self._times()}

    def _state(self) -> dict[str, Any]:
        return {
            "TrainingJobArn": self.arn,
            "TrainingJobStatus": str(self.status),
            "SecondaryStatus": str(self.secondary),
            "SecondaryStatusTransitions": self.transitions,
            "FailureReason": self.failure_reason,
            "ModelArtifacts": {"S3ModelArtifacts": self.model_artifacts} if self.model_artifacts else None,
            "FinalMetricDataList": self._metrics() or None,
            "WarmPoolStatus": self.warm_pool,
        }

    def _times(self) -> dict[str, Any]:
        times = {
            "CreationTime": self.created,
            "LastModifiedTime": self.modified,
            "TrainingStartTime": self.training_started,
            "TrainingEndTime": self.training_ended,
        }
        if self.training_started and self.training_ended:
            seconds = max(1, round(self.training_ended - self.training_started))
            times |= {"TrainingTimeInSeconds": seconds, "BillableTimeInSeconds": seconds}
        return times

    def _metrics(self) -> list[dict[str, Any]]:
        found = sorted(self.final_metrics.items())
        return [{"MetricName": name, "Value": value, "Timestamp": when} for name, (value, when) in found]


def _now() -> float:
    return round(time.time(), 3)


def _with_defaults(request: dict[str, Any]) -> dict[str, Any]:
    """Return the request with the fields that Describe adds, an empty KmsKeyId among them."""
    return {
        "EnableNetworkIsolation": False,
        "EnableInterContainerTrafficEncryption": False,
        "EnableManagedSpotTraining": False,
        **request,
        "OutputDataConfig": {"KmsKeyId": "", "CompressionType": "GZIP", **request["OutputDataConfig"]},
    }
