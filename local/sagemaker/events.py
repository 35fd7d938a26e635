"""EventBridge's "SageMaker Training Job State Change": made from a job, delivered best effort."""

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .job import LocalJob, Status
from .timing import Timing

log = logging.getLogger(__name__)

DETAIL_TYPE = "SageMaker Training Job State Change"
# The registered schema knows these members of a request; CheckpointConfig, Environment and RetryStrategy are not there.
_FROM_REQUEST = ("RoleArn", "OutputDataConfig", "ResourceConfig", "StoppingCondition")
_FROM_REQUEST_IF_GIVEN = ("InputDataConfig", "VpcConfig")

Emit = Callable[[dict[str, Any]], object]


@dataclass(frozen=True)
class EventDelivery:
    """The unreliability of the event feed: AWS promises best effort only."""

    loss_every: int = 0
    repeat: int = 0
    delay: float = 0.0
    delay_every: int = 1
    # It concerns jobs whose names begin with this.
    only: str = ""

    def loses(self, number: int) -> bool:
        return bool(self.loss_every) and number % self.loss_every == 0

    def delays(self, number: int) -> bool:
        return self.delay > 0 and number % self.delay_every == 0


class EventFeed:
    """Emit an event for each change; `delivery` decides about loss, repetition and delay."""

    def __init__(self, emit: Emit, timing: Timing) -> None:
        self.delivery = EventDelivery()
        self._emit = emit
        self._timing = timing
        self._number = 0
        self._waiting: set[asyncio.TimerHandle] = set()

    def announce(self, job: LocalJob) -> None:
        if not job.name.startswith(self.delivery.only):
            self._send(entry_for(job))
            return
        self._number += 1
        if self.delivery.loses(self._number):
            return
        entry = entry_for(job)
        for _ in range(1 + self.delivery.repeat):
            if self.delivery.delays(self._number):
                self._later(entry)
            else:
                self._send(entry)

    def publish(self, detail_type: str, detail: dict[str, Any], resources: list[str]) -> None:
        """Send an event of SageMaker that this fake has no state for."""
        self._send(
            {"Source": "aws.sagemaker", "DetailType": detail_type, "Detail": json.dumps(detail), "Resources": resources}
        )

    def close(self) -> None:
        for handle in self._waiting:
            handle.cancel()
        self._waiting.clear()

    def _later(self, entry: dict[str, Any]) -> None:
        def send() -> None:
            self._waiting.discard(handle)
            self._send(entry)

        handle = asyncio.get_running_loop().call_later(self._timing.real(self.delivery.delay), send)
        self._waiting.add(handle)

    def _send(self, entry: dict[str, Any]) -> None:
        try:
            self._emit(dict(entry))
        except Exception:  # delivery is best effort: a broken bus must not end a training job
            log.exception("The event for %s could not be emitted", entry["Resources"])


def entry_for(job: LocalJob) -> dict[str, Any]:
    return {
        "Source": "aws.sagemaker",
        "DetailType": DETAIL_TYPE,
        "Detail": json.dumps(detail_of(job)),
        "Resources": [job.arn],
        "Time": int(job.modified),
    }


def detail_of(job: LocalJob) -> dict[str, Any]:
    """Return the event's detail: times in epoch milliseconds and Tags as a map, as in captured events.

    The documentation differs.
    """
    request = job.request
    algorithm = request["AlgorithmSpecification"]
    detail = {
        "TrainingJobName": job.name,
        "TrainingJobArn": job.arn,
        "TrainingJobStatus": str(job.status),
        "SecondaryStatus": str(job.secondary),
        "FailureReason": job.failure_reason if job.status is Status.FAILED else None,
        "HyperParameters": request.get("HyperParameters", {}),
        "AlgorithmSpecification": {k: algorithm[k] for k in ("TrainingImage", "TrainingInputMode") if k in algorithm},
        **{key: request[key] for key in _FROM_REQUEST},
        **{key: request[key] for key in _FROM_REQUEST_IF_GIVEN if key in request},
        "CreationTime": _milliseconds(job.created),
        "LastModifiedTime": _milliseconds(job.modified),
        "TrainingStartTime": _milliseconds(job.training_started),
        "TrainingEndTime": _milliseconds(job.training_ended),
        "SecondaryStatusTransitions": [_transition(step) for step in job.transitions],
        "Tags": dict(job.tags),
    }
    if job.model_artifacts:
        detail["ModelArtifacts"] = {"S3ModelArtifacts": job.model_artifacts}
    return detail


def _transition(step: dict[str, Any]) -> dict[str, Any]:
    times: dict[str, Any] = {key: _milliseconds(step[key]) for key in ("StartTime", "EndTime") if key in step}
    return {"Status": step["Status"], **times, "StatusMessage": step["StatusMessage"]}


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)
