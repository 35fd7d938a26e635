"""The pipelines of the documentation, as SageMaker's SDKs defined them, send what the callback queue takes."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from rerail.orchestration.waits import find_problem, read_message
from tests.cli.pipelines.capture_definitions import QUEUE, digest, read_code

DEFINITIONS = Path(__file__).parent / "definitions"
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def read_definition(version: int) -> dict[str, Any]:
    captured: dict[str, Any] = json.loads((DEFINITIONS / f"v{version}.json").read_text())
    assert captured["code"] == digest(read_code(version)), "the page has changed: run capture_definitions.py"
    return dict(captured["definition"])


@pytest.mark.parametrize("version", [2, 3])
def test_the_callback_step_names_the_job_that_the_lambda_step_has_started(version):
    start, wait = read_definition(version)["Steps"]
    assert (start["Type"], wait["Type"], wait["SqsQueueUrl"]) == ("Lambda", "Callback", QUEUE)
    (output,) = start["OutputParameters"]
    assert wait["Arguments"]["job"] == {"Get": f"Steps.{start['Name']}.OutputParameters['{output['OutputName']}']"}


@pytest.mark.parametrize("version", [2, 3])
def test_its_message_is_one_that_the_queue_takes(version):
    """SageMaker resolves the arguments; the outputs are names that the answer has."""
    _, wait = read_definition(version)["Steps"]
    arguments = {name: "gpt-abc123" if name == "job" else value for name, value in wait["Arguments"].items()}
    message = {"token": "AbCdE12345", "pipelineExecutionArn": "arn", "arguments": arguments, "status": "Executing"}
    received = read_message(json.dumps(message), at=NOON)
    assert received and not find_problem(received.wait)
    assert (received.wait.job, received.wait.goes_on_while_held) == ("gpt-abc123", False)
    answered = {"run", "state", "job", "attempts", "artifacts", "dollars", "report"}
    assert {output["OutputName"] for output in wait["OutputParameters"]} <= answered


def test_both_versions_define_the_same_steps():
    assert read_definition(2)["Steps"] == read_definition(3)["Steps"]
