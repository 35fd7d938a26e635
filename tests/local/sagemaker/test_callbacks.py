"""The answers to callback steps: what SageMaker may refuse is refused here."""

import asyncio

import pytest

from local.sagemaker.callbacks import CallbackSteps
from local.sagemaker.errors import ServiceError


def answer(steps: CallbackSteps, *names: str) -> None:
    outputs = [{"Name": name, "Value": "value"} for name in names]
    asyncio.run(steps.succeed({"CallbackToken": "AbCdE12345", "OutputParameters": outputs}))


def test_an_output_that_the_step_does_not_declare_is_refused():
    """A refused answer leaves the step open: the next one is taken."""
    steps = CallbackSteps("arn:aws:sagemaker:us-east-1:000000000000:pipeline/local/execution/local")
    with pytest.raises(ServiceError, match="declares no output attempts, dollars"):
        answer(steps, "job", "dollars", "attempts")
    answer(steps, "job", "artifacts", "report")
    (step,) = asyncio.run(steps.list_steps({}))["PipelineExecutionSteps"]
    assert step["StepStatus"] == "Succeeded"
