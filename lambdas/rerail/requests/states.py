"""States of Amazon States Language that start a training job and wait for its run."""

from collections.abc import Mapping
from typing import Any

RETRIES: Mapping[str, Any] = {"IntervalSeconds": 2, "MaxAttempts": 6, "BackoffRate": 2.0}
# An error that the API's model does not list is named by its service: CreateTrainingJob's does not list throttling.
THROTTLING = ("SageMaker.ThrottlingException", "SageMaker.SageMakerException")
BUSY = ("Lambda.TooManyRequestsException", "Lambda.ServiceException", "Lambda.AWSLambdaException")
EXECUTION = "$$.Execution.Id"
# The job's variable with the ARN of the execution, of Step Functions or SageMaker Pipelines, that has started it.
EXECUTION_VARIABLE = "RERAIL_EXECUTION"


def make_start(partition: str) -> dict[str, Any]:
    """Return a task that calls CreateTrainingJob, without its parameters and its successor."""
    return {
        "Type": "Task",
        "Resource": f"arn:{partition}:states:::aws-sdk:sagemaker:createTrainingJob",
        "Retry": [{"ErrorEquals": list(THROTTLING), **RETRIES}],
    }


def make_wait(
    partition: str, function: str, job: Mapping[str, Any], *, on_hold: str, heartbeat_s: int
) -> dict[str, Any]:
    """Return a task that waits until Rerail's function `orchestrate` answers, without its successor.

    `job` has the field `job`, or `job.$` with a path, and may say what its run must be; see `RunWait`. `on_hold` is
    `fail`, or `wait` until an operator has released or stopped a held run. The waits are checked each minute: all
    checks within `heartbeat_s` must fail before a step does.
    """
    return {
        "Type": "Task",
        "Resource": f"arn:{partition}:states:::lambda:invoke.waitForTaskToken",
        "HeartbeatSeconds": heartbeat_s,
        "Parameters": {
            "FunctionName": function,
            "Payload": {"token.$": "$$.Task.Token", "execution.$": EXECUTION, **job, "onHold": on_hold},
        },
        "Retry": [{"ErrorEquals": list(BUSY), **RETRIES}],
    }
