"""Forward operators' commands from the bus to the signals queue."""

from aws_cdk import aws_kms as kms
from aws_cdk import aws_sns as sns
from constructs import Construct

from stacks.parts.bus import RerailBus
from stacks.parts.queue_rule import QueueRule
from stacks.parts.signals_queue import SignalsQueue

PATTERN = {"source": ["rerail.operator"], "detail-type": ["Rerail Command"]}


class CommandRule(QueueRule):
    """The rule on the bus `rerail`; anyone with events:PutEvents on it may send commands."""

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        bus: RerailBus,
        signals: SignalsQueue,
        key: kms.IKey,
        page: sns.ITopic,
    ) -> None:
        super().__init__(
            scope,
            id,
            pattern=PATTERN,
            description="Rerail: commands of operators",
            signals=signals,
            key=key,
            page=page,
            bus=bus.bus,
        )
