"""State machines: the names of the errors that services answer with."""

import json
from typing import Any

import pytest

from local.sagemaker.control import inject
from local.stack import LocalAws
from tests.local.waiting import eventually

pytestmark = pytest.mark.slow


def find_error(aws: LocalAws, action: str, parameters: dict[str, Any]) -> str:
    """Return the error with which a task that calls SageMaker ends an execution."""
    states, name = aws.client("stepfunctions"), f"names-{action}"
    trusted = {"Effect": "Allow", "Principal": {"Service": "states.amazonaws.com"}, "Action": "sts:AssumeRole"}
    role = aws.client("iam").create_role(RoleName=name, AssumeRolePolicyDocument=json.dumps({"Statement": [trusted]}))
    task = {"Type": "Task", "Resource": f"arn:aws:states:::aws-sdk:sagemaker:{action}", "Parameters": parameters}
    machine = states.create_state_machine(
        name=name,
        definition=json.dumps({"StartAt": "Call", "States": {"Call": {**task, "End": True}}}),
        roleArn=role["Role"]["Arn"],
    )["stateMachineArn"]
    execution = states.start_execution(stateMachineArn=machine)["executionArn"]
    assert eventually(lambda: states.describe_execution(executionArn=execution)["status"] == "FAILED")
    return str(states.describe_execution(executionArn=execution)["error"])


def test_an_error_of_the_model_has_its_class(aws: LocalAws) -> None:
    error = find_error(aws, "describeTrainingJob", {"TrainingJobName": "nobody"})
    assert error == "SageMaker.ResourceNotFoundException"


def test_an_error_beyond_the_model_has_the_class_of_the_service(aws: LocalAws) -> None:
    """CreateTrainingJob, StopTrainingJob and the like list no throttling."""
    inject(aws.endpoint_url, "throttle", Operation="StopTrainingJob", Count=1)
    assert find_error(aws, "stopTrainingJob", {"TrainingJobName": "nobody"}) == "SageMaker.SageMakerException"
