"""A state machine that starts a training job and waits for its run: a construct for any stack of the account."""

from collections.abc import Sequence
from typing import Any

from aws_cdk import Aws, Duration
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_stepfunctions as sfn
from constructs import Construct

from rerail.requests.states import EXECUTION, EXECUTION_VARIABLE, make_start, make_wait
from stacks.parts.permissions import ANY_JOB, PLANS, TRAINING_JOBS, acknowledge, allow

HEARTBEAT = Duration.minutes(30)


def make_definition(
    function_arn: str, *, on_hold: str = "fail", heartbeat: Duration = HEARTBEAT, partition: str = "aws"
) -> dict[str, Any]:
    """Return the definition; `on_hold` is `fail`, or `wait` until an operator has released or stopped a held run.

    The input has the CreateTrainingJob request in `Request`, with what `supervised(request)` adds to it.
    """
    wait = make_wait(
        partition,
        function_arn,
        {"job.$": "$.Request.TrainingJobName"},
        on_hold=on_hold,
        heartbeat_s=int(heartbeat.to_seconds()),
    )
    name = {"Type": "Pass", "InputPath": EXECUTION, "ResultPath": f"$.Request.Environment.{EXECUTION_VARIABLE}"}
    start = {**make_start(partition), "InputPath": "$.Request", "ResultPath": "$.Started"}
    return {
        "Comment": "Starts a training job, and waits for its run over all attempts.",
        "StartAt": "Name the execution",
        "States": {
            # Only the execution that a job names stops its run.
            "Name the execution": {**name, "Next": "Start the job"},
            "Start the job": {**start, "Next": "Wait for the run"},
            "Wait for the run": {**wait, "End": True},
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
        name: str | None = None,
    ) -> None:
        """`function` is Rerail's function `orchestrate`; the roles are those that jobs may be given.

        Without a `name`, CloudFormation makes one.
        """
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
            state_machine_name=name,
            role_arn=role.role_arn,
            definition=make_definition(function.function_arn, on_hold=on_hold, partition=Aws.PARTITION),
        )
        self.machine.node.add_dependency(role)
        acknowledge(
            self.machine,
            "AwsSolutions-SF1",
            reason="Requests hold environment variables; the run's timeline records what happened.",
        )
        acknowledge(self.machine, "AwsSolutions-SF2", reason="The function that answers is traced.")
