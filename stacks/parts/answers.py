"""A web page on which the receiver of a page approves or denies a proposal, by a signed link."""

import json

from aws_cdk import Duration, RemovalPolicy
from aws_cdk import aws_apigatewayv2 as api
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_logs as logs
from aws_cdk import aws_sns as sns
from aws_cdk.aws_apigatewayv2_integrations import HttpLambdaIntegration
from constructs import Construct

from rerail.notices.answer_links import PATH
from settings import AnswerSettings
from stacks.options import DeploymentOptions
from stacks.parts.alarms import FunctionAlarms
from stacks.parts.bus import RerailBus
from stacks.parts.functions import FunctionFactory
from stacks.parts.permissions import acknowledge, allow
from stacks.parts.runs_table import RunsTable

NAME = "answer"
# Requests a second for everyone together: people click, and a flood must not use up the account's concurrency.
RATE, BURST = 2, 5
# The query has the signature of the link, so it is not logged.
LOGGED = {"at": "$context.requestTime", "from": "$context.identity.sourceIp", "status": "$context.status"}


class AnswerPage(Construct):
    """The key that signs the links, the function behind them, and its address on the internet."""

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        functions: FunctionFactory,
        runs: RunsTable,
        bus: RerailBus,
        options: DeploymentOptions,
        page: sns.ITopic,
    ) -> None:
        super().__init__(scope, id)
        self.key = kms.Key(
            self,
            "Key",
            description="Rerail: signs the links that answer proposals",
            key_spec=kms.KeySpec.HMAC_256,
            key_usage=kms.KeyUsage.GENERATE_VERIFY_MAC,
            removal_policy=RemovalPolicy.DESTROY,
        )
        made = functions.make(
            self,
            NAME,
            settings=AnswerSettings(
                table=runs.table.table_name, bus=bus.bus.event_bus_name, answer_key=self.key.key_id
            ),
            description="Rerail: takes answers to proposals",
            timeout=Duration.seconds(20),
            memory_mb=256,
        )
        self.function = made.function
        runs.let_load(made.role)
        bus.let_publish(made.role)
        allow(made.role, "kms:VerifyMac", on=self.key.key_arn)
        gateway = api.HttpApi(self, "Api", description="Rerail: answers to proposals", create_default_stage=False)
        routes = gateway.add_routes(
            path=PATH,
            methods=[api.HttpMethod.GET, api.HttpMethod.POST],
            integration=HttpLambdaIntegration("Function", made.function),
        )
        for route in routes:
            acknowledge(
                route, "AwsSolutions-APIG4", reason="A link is authorized by its signature, which KMS verifies."
            )
        stage = api.HttpStage(
            self,
            "Stage",
            http_api=gateway,
            auto_deploy=True,
            throttle=api.ThrottleSettings(rate_limit=RATE, burst_limit=BURST),
        )
        log = logs.LogGroup(
            self, "AccessLog", retention=options.log_retention, removal_policy=RemovalPolicy.RETAIN_ON_UPDATE_OR_DELETE
        )
        made_stage = stage.node.default_child
        assert isinstance(made_stage, api.CfnStage)
        made_stage.access_log_settings = api.CfnStage.AccessLogSettingsProperty(
            destination_arn=log.log_group_arn, format=json.dumps(LOGGED)
        )
        self.url = stage.url
        FunctionAlarms(self, "Alarms", function=self.function, name=NAME, page=page)

    def let_sign(self, role: iam.Role) -> None:
        """Let the role sign links."""
        allow(role, "kms:GenerateMac", on=self.key.key_arn)
