"""The callback steps of SageMaker Pipelines: what they were answered. There are no pipelines in this fake."""

from typing import Any

from .errors import ServiceError
from .validation import Request


class CallbackSteps:
    """Takes the first answer for each token; a repetition is accepted, another answer is a conflict."""

    def __init__(self, arn: str) -> None:
        self._arn = arn
        self._steps: dict[str, dict[str, Any]] = {}

    async def succeed(self, request: Request) -> dict[str, Any]:
        outputs = request.get("OutputParameters", [])
        return self._answer(request, {"StepStatus": "Succeeded"}, outputs)

    async def fail(self, request: Request) -> dict[str, Any]:
        return self._answer(request, {"StepStatus": "Failed", "FailureReason": request.get("FailureReason", "")}, [])

    async def list_steps(self, request: Request) -> dict[str, Any]:
        """Return the steps that were answered; there is one execution of one pipeline."""
        return {"PipelineExecutionSteps": list(self._steps.values())}

    def _answer(self, request: Request, answer: dict[str, Any], outputs: list[Any]) -> dict[str, Any]:
        token = request["CallbackToken"]
        step = {"StepName": token, **answer, "Metadata": {"Callback": {"CallbackToken": token}}}
        step["Metadata"]["Callback"]["OutputParameters"] = outputs
        if self._steps.setdefault(token, step) != step:
            raise ServiceError("ConflictException", f"The callback step with the token {token} was answered before.")
        return {"PipelineExecutionArn": self._arn}
