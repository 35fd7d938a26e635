"""The callback steps of SageMaker Pipelines: what they were answered, and which executions were stopped.

Pipelines themselves are not simulated.
"""

import time
from typing import Any

from .errors import ServiceError, invalid
from .validation import Request

# What each step declares: the outputs of the pipeline in docs/pipelines.md.
DECLARED = {"job", "artifacts", "report"}


class CallbackSteps:
    """Takes the first answer for each token; a repetition is accepted, another answer is a conflict.

    An output that no step declares is refused; whether SageMaker refuses it is not documented.
    """

    def __init__(self, arn: str) -> None:
        self._arn = arn
        self._steps: dict[str, dict[str, Any]] = {}
        self._ended: dict[str, float] = {}
        self._stopped: set[str] = set()

    async def stop(self, request: Request) -> dict[str, Any]:
        """Record that an execution is being stopped; the message to its queue is the caller's."""
        self._stopped.add(request["PipelineExecutionArn"])
        return {"PipelineExecutionArn": request["PipelineExecutionArn"]}

    async def describe(self, request: Request) -> dict[str, Any]:
        arn = request["PipelineExecutionArn"]
        status = "Stopping" if arn in self._stopped else "Executing"
        return {"PipelineExecutionArn": arn, "PipelineExecutionStatus": status}

    async def succeed(self, request: Request) -> dict[str, Any]:
        outputs = request.get("OutputParameters", [])
        unknown = sorted({output["Name"] for output in outputs} - DECLARED)
        if unknown:
            raise invalid(f"The callback step declares no output {', '.join(unknown)}.")
        return self._answer(request, {"StepStatus": "Succeeded"}, outputs)

    async def fail(self, request: Request) -> dict[str, Any]:
        return self._answer(request, {"StepStatus": "Failed", "FailureReason": request.get("FailureReason", "")}, [])

    async def list_steps(self, request: Request) -> dict[str, Any]:
        """Return the steps that were answered; there is one execution of one pipeline."""
        return {
            "PipelineExecutionSteps": [{**step, "EndTime": self._ended[name]} for name, step in self._steps.items()]
        }

    def _answer(self, request: Request, answer: dict[str, Any], outputs: list[Any]) -> dict[str, Any]:
        token = request["CallbackToken"]
        step = {"StepName": token, **answer, "Metadata": {"Callback": {"CallbackToken": token}}}
        step["Metadata"]["Callback"]["OutputParameters"] = outputs
        if self._steps.setdefault(token, step) != step:
            raise ServiceError("ConflictException", f"The callback step with the token {token} was answered before.")
        self._ended.setdefault(token, time.time())
        return {"PipelineExecutionArn": self._arn}
