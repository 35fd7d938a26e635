"""The voice: notices from the bus to the topics that people listen to."""

from aws_cdk import Duration
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_kms as kms
from constructs import Construct

from settings import NotifySettings
from stacks.parts.alarms import FunctionAlarms
from stacks.parts.bus import Bus
from stacks.parts.dead_letter_queue import DeadLetterQueue
from stacks.parts.functions import Functions
from stacks.parts.permissions import SEND_MESSAGE, allow, use_key
from stacks.parts.topics import Topics

NAME = "notify"
PATTERN = events.EventPattern(source=["rerail"], detail_type=["Rerail Notice"])


class Notices(Construct):
    """The rule, the function, and what neither could deliver."""

    def __init__(
        self, scope: Construct, id: str, *, functions: Functions, bus: Bus, topics: Topics, key: kms.IKey
    ) -> None:
        super().__init__(scope, id)
        page, inform = topics.page, topics.inform
        made = functions.make(
            self,
            NAME,
            settings=NotifySettings(page_topic=page.topic_arn, inform_topic=inform.topic_arn),
            description="Rerail: tells people",
            timeout=Duration.seconds(30),
            memory_mb=256,
            dead_letters=DeadLetterQueue(self, "DeadLetters", key=key, page=page, of="the function notify"),
        )
        self.function = made.function
        allow(made.role, "sns:Publish", on=[page.topic_arn, inform.topic_arn])
        use_key(made.role, key, *SEND_MESSAGE, service="sns")
        undelivered = DeadLetterQueue(self, "Undelivered", key=key, page=page, of="the rule for notices")
        target = targets.LambdaFunction(self.function, dead_letter_queue=undelivered.queue)
        events.Rule(
            self,
            "Rule",
            description="Rerail: notices for people",
            event_bus=bus.bus,
            event_pattern=PATTERN,
            targets=[target],
        )
        FunctionAlarms(self, "Alarms", function=self.function, name=NAME, page=page)
