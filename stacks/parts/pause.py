"""The account's pause: one SSM parameter that `rerail pause` and `rerail resume` write."""

from aws_cdk import aws_iam as iam
from aws_cdk import aws_ssm as ssm
from constructs import Construct

from rerail.supervisor.pause import ACTIVE
from stacks.parts.permissions import allow

# Once CloudFormation updates any property of this parameter, it also writes the template's value, which lifts a pause
# that a person has set. Therefore its logical id and all its properties stay as the first version made them.
NAME = "/rerail/switch"
LOGICAL_ID = "Switch"
ALLOWED_PATTERN = "on|off"
DESCRIPTION = "Rerail: off keeps it from stopping and creating jobs"


class PauseParameter(Construct):
    """The parameter, made as not paused. A later deployment leaves its value."""

    def __init__(self, scope: Construct) -> None:
        super().__init__(scope, LOGICAL_ID)
        self._parameter = ssm.StringParameter(
            self,
            "Parameter",
            parameter_name=NAME,
            string_value=ACTIVE,
            allowed_pattern=ALLOWED_PATTERN,
            description=DESCRIPTION,
        )

    def let_read(self, role: iam.Role) -> None:
        allow(role, "ssm:GetParameter", on=self._parameter.parameter_arn)
