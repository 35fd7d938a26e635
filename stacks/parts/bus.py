"""The bus `rerail` for commands and notices; accounts may add rules of their own."""

from aws_cdk import aws_events as events
from aws_cdk import aws_iam as iam
from constructs import Construct

from stacks.parts.permissions import allow

NAME = "rerail"


class RerailBus(Construct):
    """A bus of this account alone: it has no policy, so IAM decides who may put events."""

    def __init__(self, scope: Construct, id: str) -> None:
        super().__init__(scope, id)
        self.bus = events.EventBus(self, "Bus", event_bus_name=NAME, description="Rerail: commands and notices")

    def let_publish(self, role: iam.Role) -> None:
        allow(role, "events:PutEvents", on=self.bus.event_bus_arn)
