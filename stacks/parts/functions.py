"""Make the Lambda functions, with all common defaults."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from aws_cdk import Duration, RemovalPolicy
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from aws_cdk import aws_ssm as ssm
from constructs import Construct

from settings import Settings
from stacks.parts.code import fill
from stacks.parts.dead_letter_queue import DeadLetterQueue
from stacks.parts.permissions import SEND_MESSAGE, acknowledge, allow, use_key
from stacks.parts.sdk_layer import SdkLayer

# AWS publishes the ARN of the layer in every region under this name; it is resolved at deploy time.
POWERTOOLS = "/aws/service/powertools/python/arm64/python3.13/3.37.0"
# As in AWSLambdaVPCAccessExecutionRole.
NETWORK = (
    *("ec2:CreateNetworkInterface", "ec2:DeleteNetworkInterface", "ec2:DescribeNetworkInterfaces"),
    *("ec2:DescribeSubnets", "ec2:AssignPrivateIpAddresses", "ec2:UnassignPrivateIpAddresses"),
)
EVENT_AGE = Duration.minutes(15)


class Made(NamedTuple):
    """A function with the role that it works in."""

    function: lambda_.Function
    role: iam.Role


class FunctionFactory(Construct):
    """Makes functions that share their code, the layers of Powertools and the SDK, and how long logs are kept."""

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        log_retention: logs.RetentionDays,
        powertools_layer_arn: str = "",
        sdk_layer: bool = True,
        subnets: Sequence[str] = (),
        security_groups: Sequence[str] = (),
    ) -> None:
        """`powertools_layer_arn` replaces the layer that AWS's parameter names; `sdk_layer`: they bring their SDK."""
        super().__init__(scope, id)
        self._retention = log_retention
        self._folder = tempfile.TemporaryDirectory(prefix="rerail-code-")  # read when the first function is made of it
        fill(Path(self._folder.name) / "code")
        self._code = lambda_.Code.from_asset(f"{self._folder.name}/code")
        layer_arn = powertools_layer_arn or ssm.StringParameter.value_for_string_parameter(self, POWERTOOLS)
        powertools = lambda_.LayerVersion.from_layer_version_arn(self, "Powertools", layer_arn)
        self._network = (
            lambda_.CfnFunction.VpcConfigProperty(subnet_ids=[*subnets], security_group_ids=[*security_groups])
            if subnets
            else None
        )
        self._layers = [powertools, *([SdkLayer(self, "Sdk")] if sdk_layer else [])]

    def make(
        self,
        scope: Construct,
        name: str,
        *,
        settings: Settings,
        description: str,
        timeout: Duration,
        memory_mb: int = 512,
        layers: Sequence[lambda_.ILayerVersion] = (),
        dead_letters: DeadLetterQueue | None = None,
    ) -> Made:
        """The function `<name>.handler`; with `dead_letters` where it is invoked asynchronously."""
        log_group = logs.LogGroup(
            scope, "Logs", retention=self._retention, removal_policy=RemovalPolicy.RETAIN_ON_UPDATE_OR_DELETE
        )
        role = iam.Role(scope, "Role", assumed_by=iam.ServicePrincipal("lambda.amazonaws.com"))
        log_group.grant_write(role)
        function = lambda_.Function(
            scope,
            "Function",
            description=description,
            runtime=lambda_.Runtime.PYTHON_3_13,
            architecture=lambda_.Architecture.ARM_64,
            code=self._code,
            layers=[*self._layers, *layers],
            handler=f"{name}.handler",
            environment=settings.variables() | _powertools_variables(name),
            memory_size=memory_mb,
            timeout=timeout,
            role=role,
            log_group=log_group,
            tracing=lambda_.Tracing.ACTIVE,
            dead_letter_queue=dead_letters.queue if dead_letters else None,
            max_event_age=EVENT_AGE if dead_letters else None,
            retry_attempts=2 if dead_letters else None,
        )
        if self._network:
            resource = function.node.default_child
            assert isinstance(resource, lambda_.CfnFunction)
            resource.vpc_config = self._network
            allow(
                role, *NETWORK, on="*", because="Lambda makes the function's network interfaces; AWS's policy says *."
            )
        if dead_letters and (key := dead_letters.queue.encryption_master_key):
            use_key(role, key, *SEND_MESSAGE, service="sqs")
        acknowledge(role, "AwsSolutions-IAM5[Resource::*]", reason="X-Ray's PutTraceSegments takes no resource.")
        acknowledge(
            function, "AwsSolutions-L1", reason="The runtime of the Powertools layer above; both move together."
        )
        return Made(function, role)


def _powertools_variables(name: str) -> dict[str, str]:
    return {
        "POWERTOOLS_SERVICE_NAME": name,
        "POWERTOOLS_METRICS_NAMESPACE": "Rerail",
        "POWERTOOLS_LOG_LEVEL": "INFO",
    }
