"""Store the waits for runs, and answer Step Functions and SageMaker Pipelines.

The waits are items of the table of runs: `waits` with sort key `<job>#<digest of the token>`.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from typing import Any

from botocore.exceptions import ClientError, ParamValidationError

from rerail.aws.clients import client
from rerail.aws.error_codes import find_code
from rerail.aws.records import query, record
from rerail.aws.validation import validate
from rerail.model.codec import BadRecord, dumps
from rerail.orchestration.waits import Caller, CallerState, KeyWithdrawn, RunWait, WaitIsOver

PARTITION = "waits"
FAILURE_REASON_LIMIT = 256  # of SageMaker
# The outputs of a callback step that names none.
STEP_OUTPUTS = ("job", "artifacts", "report")
# What both systems answer for a token that nobody waits with.
OVER = ("TaskDoesNotExist", "TaskTimedOut", "InvalidToken", "ExecutionDoesNotExist")
NO_STEP = ("ResourceNotFound", "ResourceNotFoundException", "ConflictException")
NO_KEY = ("KmsAccessDeniedException", "KmsInvalidStateException")
# SageMaker also answers with this for outputs that it does not like: then the step fails, and its owner sees why.
REFUSED = "ValidationException"
CANCELLED, RUNNING = "ABORTED", ("RUNNING", "PENDING_REDRIVE")
# SageMaker's answer about an execution of another account, which a message may name, and for a missing permission.
DENIED = "AccessDeniedException"
STOPPED = ("Stopping", "Stopped")


class DynamoWaits:
    """The port `RunWaits` on one table."""

    def __init__(self, table: str) -> None:
        self._table = table

    def keep(self, wait: RunWait) -> None:
        client("dynamodb").put_item(TableName=self._table, Item={**_key(wait), "doc": {"S": dumps(wait)}})

    def forget(self, wait: RunWait) -> None:
        client("dynamodb").delete_item(TableName=self._table, Key=_key(wait))

    def list_waits(self) -> Iterator[RunWait | BadRecord]:
        asked: dict[str, Any] = {"KeyConditionExpression": "pk = :waits", "ConsistentRead": True}
        yield from map(_read, query(self._table, ExpressionAttributeValues={":waits": {"S": PARTITION}}, **asked))


def _read(item: Mapping[str, Any]) -> RunWait | BadRecord:
    try:
        return record(RunWait, item)
    except BadRecord as error:
        return error


class AwsCallers:
    """The port `Callers` on Step Functions and SageMaker."""

    def find_state(self, wait: RunWait) -> CallerState:
        if wait.caller is Caller.PIPELINE:
            return CallerState.WAITS  # a pipeline that was stopped sends a message, and waits on
        try:
            with _answering(wait), validate("DescribeExecution"):
                status = client("stepfunctions").describe_execution(executionArn=wait.execution)["status"]
        except WaitIsOver:
            return CallerState.OVER
        if status == CANCELLED:
            return CallerState.CANCELLED
        return CallerState.WAITS if status in RUNNING else CallerState.OVER

    def is_listed(self, wait: RunWait) -> bool:
        paginator = client("sagemaker").get_paginator("list_pipeline_execution_steps")
        with _asking_about(wait), validate("ListPipelineExecutionSteps"):
            for page in paginator.paginate(PipelineExecutionArn=wait.execution):
                waiting = [step.get("Metadata", {}) for step in page["PipelineExecutionSteps"] if "EndTime" not in step]
                if wait.token in [metadata.get("Callback", {}).get("CallbackToken") for metadata in waiting]:
                    return True
        return False

    def is_stopped(self, wait: RunWait) -> bool:
        with _asking_about(wait), validate("DescribePipelineExecution"):
            described = client("sagemaker").describe_pipeline_execution(PipelineExecutionArn=wait.execution)
            return described["PipelineExecutionStatus"] in STOPPED
        return False

    def succeed(self, wait: RunWait, output: Mapping[str, Any]) -> None:
        try:
            with _answering(wait):
                if wait.caller is Caller.STEP_FUNCTIONS:
                    client("stepfunctions").send_task_success(taskToken=wait.token, output=json.dumps(output))
                else:
                    client("sagemaker").send_pipeline_execution_step_success(
                        CallbackToken=wait.token,
                        OutputParameters=_format_parameters(output, wait.outputs),
                        ClientRequestToken=_id(wait),
                    )
        except ClientError as error:
            if find_code(error) != REFUSED:
                raise
            self.fail(wait, "Rerail.OutputRefused", error.response["Error"].get("Message", ""))

    def fail(self, wait: RunWait, error: str, cause: str) -> None:
        with _answering(wait):
            if wait.caller is Caller.STEP_FUNCTIONS:
                client("stepfunctions").send_task_failure(taskToken=wait.token, error=error, cause=cause)
            else:
                client("sagemaker").send_pipeline_execution_step_failure(
                    CallbackToken=wait.token,
                    FailureReason=f"{error}: {cause}"[:FAILURE_REASON_LIMIT],
                    ClientRequestToken=_id(wait),
                )

    def send_heartbeat(self, wait: RunWait) -> None:
        if wait.caller is Caller.STEP_FUNCTIONS:
            with _answering(wait):
                client("stepfunctions").send_task_heartbeat(taskToken=wait.token)


@contextmanager
def _asking_about(wait: RunWait) -> Iterator[None]:
    """End the block early if SageMaker or its SDK knows no such pipeline execution of this account."""
    try:
        yield
    except (ClientError, ParamValidationError) as error:
        code, (region, account) = find_code(error), (*wait.execution.split(":"), *[""] * 5)[3:5]
        # The message names the function's own account: "User: arn:aws:sts::111122223333:assumed-role/...".
        is_ours = region == client("sagemaker").meta.region_name and f":sts::{account}:" in str(error)
        if code not in ("", REFUSED, *NO_STEP) and (code != DENIED or is_ours):
            raise


@contextmanager
def _answering(wait: RunWait) -> Iterator[None]:
    """Raise WaitIsOver if the system knows no such token, or its SDK says that there can be none; or KeyWithdrawn."""
    try:
        yield
    except (ClientError, ParamValidationError) as error:
        code, is_step = find_code(error), wait.caller is Caller.PIPELINE
        is_of_token = code == REFUSED and is_step and "token" in str(error).lower()
        if not code or code in (NO_STEP if is_step else OVER) or is_of_token:
            raise WaitIsOver(str(error)) from error
        if code in NO_KEY:
            raise KeyWithdrawn(str(error)) from error
        raise


def _format_parameters(output: Mapping[str, Any], names: Collection[str]) -> list[dict[str, str]]:
    """Return the output as a callback step takes it: texts, only those of `names`, none without a value."""
    asked = {name: value for name, value in output.items() if name in (names or STEP_OUTPUTS)}
    named = {name: value for name, value in asked.items() if value not in (None, "")}
    return [{"Name": name, "Value": str(value)} for name, value in named.items()]


def _key(wait: RunWait) -> dict[str, Any]:
    return {"pk": {"S": PARTITION}, "sk": {"S": f"{wait.job}#{_id(wait)}"}}


def _id(wait: RunWait) -> str:
    """Return 32 characters that stand for the token, in keys and as the token of an idempotent call."""
    return sha256(wait.token.encode(errors="surrogatepass")).hexdigest()[:32]
