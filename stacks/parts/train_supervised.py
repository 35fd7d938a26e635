"""A state machine that starts a training job and waits for its run: a construct for any stack of the account."""

from collections.abc import Mapping, Sequence
from typing import Any

from aws_cdk import Duration
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_stepfunctions as sfn
from constructs import Construct

from stacks.parts.permissions import ANY_JOB, PLANS, TRAINING_JOBS, acknowledge, allow

# The waits are checked each minute: so many checks in a row must fail before a step does.
HEARTBEAT = Duration.minutes(30)
RETRIES: Mapping[str, Any] = {"IntervalSeconds": 2, "MaxAttempts": 6, "BackoffRate": 2.0}
# An error that the API's model does not list is named by its service: CreateTrainingJob's does not list throttling.
THROTTLING = ("SageMaker.ThrottlingException", "SageMaker.SageMakerException")
BUSY = ["Lambda.TooManyRequestsException", "Lambda.ServiceException", "Lambda.AWSLambdaException"]


def make_definition(function_arn: str, *, on_hold: str = "fail", heartbeat: Duration = HEARTBEAT) -> dict[str, Any]:
    """Return the definition; `on_hold` is `fail`, or `wait` until an operator has released or stopped a held run.

    The input has the CreateTrainingJob request in `Request`, with what `supervised(request)` adds to it.
    """
    return {
        "Comment": "Starts a training job, and waits for its run over all attempts.",
        "StartAt": "Start the job",
        "States": {
            "Start the job": {
                "Type": "Task",
                "Resource": "arn:aws:states:::aws-sdk:sagemaker:createTrainingJob",
                "InputPath": "$.Request",
                "ResultPath": "$.Started",
                "Retry": [{"ErrorEquals": list(THROTTLING), **RETRIES}],
                "Next": "Wait for the run",
            },
            "Wait for the run": {
                "Type": "Task",
                "Resource": "arn:aws:states:::lambda:invoke.waitForTaskToken",
                "HeartbeatSeconds": heartbeat.to_seconds(),
                "Parameters": {
                    "FunctionName": function_arn,
                    "Payload": {
                        "token.$": "$$.Task.Token",
                        "execution.$": "$$.Execution.Id",
                        "job.$": "$.Request.TrainingJobName",
                        "onHold": on_hold,
                    },
                },
                "Retry": [{"ErrorEquals": BUSY, **RETRIES}],
                "End": True,
            },
        },
    }


class TrainSupervised(Construct):
    """The state machine `TrainSupervised`; a stop of its execution stops the run."""

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        function: lambda_.IFunction,
        training_role_arns: Sequence[str],
        on_hold: str = "fail",
    ) -> None:
        """`function` is Rerail's function `orchestrate`; the roles are those that jobs may be given."""
        super().__init__(scope, id)
        if on_hold not in ("fail", "wait"):
            raise ValueError(f"on_hold {on_hold!r}: must be 'fail' or 'wait'")
        role = iam.Role(self, "Role", assumed_by=iam.ServicePrincipal("states.amazonaws.com"))
        allow(role, "lambda:InvokeFunction", on=function.function_arn)
        supervised = {"Null": {"aws:RequestTag/rerail:policy": "false"}}
        allow(role, "sagemaker:CreateTrainingJob", on=[TRAINING_JOBS, *PLANS], where=supervised, because=ANY_JOB)
        created = {"StringEquals": {"sagemaker:TaggingAction": "CreateTrainingJob"}}
        allow(role, "sagemaker:AddTags", on=TRAINING_JOBS, where={**supervised, **created}, because=ANY_JOB)
        to_sagemaker = {"StringEquals": {"iam:PassedToService": "sagemaker.amazonaws.com"}}
        because = "The context value trainingRoleArns says which roles jobs may have."
        allow(role, "iam:PassRole", on=training_role_arns, where=to_sagemaker, because=because)
        self.machine = sfn.CfnStateMachine(
            self,
            "Machine",
            state_machine_name="TrainSupervised",
            role_arn=role.role_arn,
            definition=make_definition(function.function_arn, on_hold=on_hold),
        )
        self.machine.node.add_dependency(role)
        acknowledge(
            self.machine,
            "AwsSolutions-SF1",
            reason="Requests hold environment variables; the run's timeline records what happened.",
        )
        acknowledge(self.machine, "AwsSolutions-SF2", reason="The function that answers is traced.")
