"""Waits survive in the table, and answers have the form of each system; its refusals mean that nobody waits."""

import json
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from botocore.exceptions import ClientError
from botocore.stub import ANY, Stubber

from rerail.aws import orchestration
from rerail.aws.clients import client
from rerail.aws.orchestration import AwsCallers, DynamoWaits
from rerail.model.codec import BadRecord
from rerail.orchestration.waits import Caller, CallerState, KeyWithdrawn, RunWait, WaitIsOver, read_message

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
ARN = "arn:aws:states:eu-west-1:123456789012:execution:TrainSupervised:gpt"
PIPELINE = "arn:aws:sagemaker:eu-west-1:123456789012:pipeline/nightly/execution/abc123"
TASK = RunWait("t" * 700, Caller.STEP_FUNCTIONS, "gpt", NOON, ARN)
STEP = RunWait("AbCdE12345", Caller.PIPELINE, "gpt", NOON)
OUTPUT = {"job": "gpt-a002", "attempts": 2, "dollars": None, "artifacts": ""}


@pytest.fixture
def states(monkeypatch):
    with Stubber(client("stepfunctions")) as stubber:
        yield stubber
        stubber.assert_no_pending_responses()


@pytest.fixture
def sagemaker(monkeypatch):
    with Stubber(client("sagemaker")) as stubber:
        yield stubber
        stubber.assert_no_pending_responses()


def test_waits_are_kept_by_job_and_token_and_forgotten(table):
    waits = DynamoWaits(table)
    other = replace(STEP, job="gpt-2", goes_on_while_held=True)
    for wait in (TASK, STEP, other, TASK):
        waits.keep(wait)
    assert sorted(waits.list_waits(), key=str) == sorted([TASK, STEP, other], key=str)
    waits.forget(TASK)
    waits.forget(TASK)
    assert sorted(waits.list_waits(), key=str) == sorted([STEP, other], key=str)


def test_a_wait_that_cannot_be_read_hides_no_other(table):
    """A wait of a later version, after a rollback: it is an error of its own."""
    DynamoWaits(table).keep(TASK)
    text = '{"schema": 2, "type": "RunWait", "caller": "airflow"}'
    client("dynamodb").put_item(TableName=table, Item={"pk": {"S": "waits"}, "sk": {"S": "a#0"}, "doc": {"S": text}})
    bad, good = DynamoWaits(table).list_waits()
    assert isinstance(bad, BadRecord) and good == TASK


def test_a_task_gets_output_failure_and_heartbeat(states):
    output = '{"job": "gpt-a002", "attempts": 2, "dollars": null, "artifacts": ""}'
    states.add_response("send_task_success", {}, {"taskToken": TASK.token, "output": output})
    states.add_response("send_task_failure", {}, {"taskToken": TASK.token, "error": "Rerail.RunHeld", "cause": "why"})
    states.add_response("send_task_heartbeat", {}, {"taskToken": TASK.token})
    callers = AwsCallers()
    callers.succeed(TASK, OUTPUT)
    callers.fail(TASK, "Rerail.RunHeld", "why")
    callers.send_heartbeat(TASK)


def test_a_callback_step_gets_texts_within_sagemakers_limits(sagemaker):
    """A repetition has the same request token; a callback step has no heartbeat and no state that could be read."""
    parameters = [{"Name": "job", "Value": "gpt-a002"}]
    expected = {
        "CallbackToken": STEP.token,
        "OutputParameters": parameters,
        "ClientRequestToken": orchestration._id(STEP),
    }
    sagemaker.add_response("send_pipeline_execution_step_success", {}, expected)
    reason = ("Rerail.RunHeld: " + "x" * 300)[:256]
    failed = {"CallbackToken": STEP.token, "FailureReason": reason, "ClientRequestToken": ANY}
    sagemaker.add_response("send_pipeline_execution_step_failure", {}, failed)
    callers = AwsCallers()
    callers.succeed(STEP, OUTPUT)
    callers.fail(STEP, "Rerail.RunHeld", "x" * 300)
    callers.send_heartbeat(STEP)
    assert callers.find_state(STEP) is CallerState.WAITS


def test_a_step_is_listed_while_it_waits(sagemaker):
    wait, asked = replace(STEP, execution=PIPELINE), {"PipelineExecutionArn": PIPELINE}
    step = {"Metadata": {"Callback": {"CallbackToken": STEP.token}}}
    for listed, expected in ([{"StepName": "Start"}, step], True), ([{**step, "EndTime": NOON}], False):
        sagemaker.add_response("list_pipeline_execution_steps", {"PipelineExecutionSteps": [], "NextToken": "2"}, asked)
        page = {"PipelineExecutionSteps": listed}
        sagemaker.add_response("list_pipeline_execution_steps", page, {**asked, "NextToken": "2"})
        assert AwsCallers().is_listed(wait) is expected
    for status in ("Executing", "Stopping", "Stopped", "Failed"):
        sagemaker.add_response("describe_pipeline_execution", {"PipelineExecutionStatus": status}, asked)
        assert AwsCallers().is_stopped(wait) is (status in ("Stopping", "Stopped"))


@pytest.mark.parametrize("code", ["ResourceNotFound", "ValidationException", "AccessDeniedException"])
def test_an_execution_that_a_message_has_invented_is_no_error(sagemaker, code):
    """It would fail the function each minute."""
    callers, wait = AwsCallers(), replace(STEP, execution=PIPELINE)
    for call, asked in (("list_pipeline_execution_steps", "is_listed"), ("describe_pipeline_execution", "is_stopped")):
        sagemaker.add_client_error(call, code)
        assert not getattr(callers, asked)(wait)
        sagemaker.add_client_error(call, "ThrottlingException")
        with pytest.raises(ClientError):
            getattr(callers, asked)(wait)


@pytest.mark.parametrize(
    ("execution", "is_raised"),
    [
        (PIPELINE, True),
        (PIPELINE.replace("123456789012", "210987654321"), False),
        (PIPELINE.replace("eu-west-1", "eu-west-2"), False),
        ("", False),
    ],
)
def test_a_missing_permission_for_pipelines_of_this_account_is_an_error(sagemaker, execution, is_raised):
    """Otherwise the run of a stopped pipeline would train on, and the check of all waits would pass."""
    text = "User: arn:aws:sts::123456789012:assumed-role/orchestrate/x is not authorized to perform: it"
    sagemaker.add_client_error("describe_pipeline_execution", "AccessDeniedException", text)
    with pytest.raises(ClientError) if is_raised else nullcontext():
        assert not AwsCallers().is_stopped(replace(STEP, execution=execution))


@pytest.mark.parametrize("code", ["TaskDoesNotExist", "TaskTimedOut", "InvalidToken"])
def test_a_token_that_nobody_waits_with_is_over(states, code):
    states.add_client_error("send_task_heartbeat", code)
    with pytest.raises(WaitIsOver):
        AwsCallers().send_heartbeat(TASK)


@pytest.mark.parametrize("status", ["RUNNING", "PENDING_REDRIVE", "ABORTED", "TIMED_OUT", "FAILED"])
def test_only_an_aborted_execution_was_cancelled(states, status):
    known = {"RUNNING": CallerState.WAITS, "PENDING_REDRIVE": CallerState.WAITS, "ABORTED": CallerState.CANCELLED}
    described = {"executionArn": ARN, "stateMachineArn": ARN, "status": status, "startDate": NOON}
    states.add_response("describe_execution", described, {"executionArn": ARN})
    assert AwsCallers().find_state(TASK) is known.get(status, CallerState.OVER)


def test_an_execution_that_does_not_exist_is_over_and_other_errors_are_raised(states):
    states.add_client_error("describe_execution", "ExecutionDoesNotExist")
    assert AwsCallers().find_state(TASK) is CallerState.OVER
    for code, raised in (("AccessDeniedException", ClientError), ("KmsAccessDeniedException", KeyWithdrawn)):
        states.add_client_error("describe_execution", code)
        with pytest.raises(raised, match="AccessDenied"):
            AwsCallers().find_state(TASK)


@pytest.mark.parametrize(
    ("code", "message", "raised"),
    [
        ("ResourceNotFound", "no such execution", WaitIsOver),
        ("ConflictException", "the step has an answer", WaitIsOver),
        ("ValidationException", "Callback token FgHiJ67890 is not valid", WaitIsOver),
        ("ThrottlingException", "Rate exceeded", ClientError),
    ],
)
def test_only_a_refused_token_means_that_no_step_waits(sagemaker, code, message, raised):
    sagemaker.add_client_error("send_pipeline_execution_step_success", code, message)
    with pytest.raises(raised):
        AwsCallers().succeed(STEP, OUTPUT)


@pytest.mark.threat("T36")
def test_no_message_of_a_pipeline_makes_the_function_fail_each_minute(sagemaker, table):
    """A token that cannot be valid is over; a step that did not declare its outputs fails, and its owner sees why."""
    why = "OutputParameters: attempts is not declared by the step"
    sagemaker.add_client_error("send_pipeline_execution_step_success", "ValidationException", why)
    failed = {"CallbackToken": STEP.token, "FailureReason": f"Rerail.OutputRefused: {why}", "ClientRequestToken": ANY}
    sagemaker.add_response("send_pipeline_execution_step_failure", {}, failed)
    AwsCallers().succeed(STEP, OUTPUT)
    sagemaker.deactivate()  # it would answer before the SDK looks at the token
    with pytest.raises(WaitIsOver):
        AwsCallers().succeed(replace(STEP, token="short"), OUTPUT)
    odd = replace(STEP, token="\ud800")
    DynamoWaits(table).keep(odd)
    assert list(DynamoWaits(table).list_waits()) == [odd]


def test_a_callback_step_gets_the_outputs_that_it_asks_for(sagemaker):
    message = {"token": STEP.token, "arguments": {"job": "gpt", "outputs": "job, report"}}
    wait = read_message(json.dumps(message), at=NOON).wait
    expected = {"CallbackToken": STEP.token, "OutputParameters": [{"Name": "job", "Value": "gpt-a002"}]}
    sagemaker.add_response("send_pipeline_execution_step_success", {}, {**expected, "ClientRequestToken": ANY})
    AwsCallers().succeed(wait, OUTPUT)
