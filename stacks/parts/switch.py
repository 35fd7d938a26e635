"""The account's kill switch: one SSM parameter, "on" or "off", that people throw with `rerail switch`."""

from aws_cdk import aws_iam as iam
from aws_cdk import aws_ssm as ssm
from constructs import Construct

from rerail.switch import ON
from stacks.parts.permissions import allow

NAME = "/rerail/switch"


class Switch(Construct):
    """The parameter, made as "on". A later deployment leaves it as somebody has thrown it: its template is the same."""

    def __init__(self, scope: Construct, id: str) -> None:
        super().__init__(scope, id)
        self._parameter = ssm.StringParameter(
            self,
            "Parameter",
            parameter_name=NAME,
            string_value=ON,
            allowed_pattern="on|off",
            description="Rerail: off keeps it from stopping and creating jobs",
        )

    def let_read(self, role: iam.Role) -> None:
        allow(role, "ssm:GetParameter", on=self._parameter.parameter_arn)
