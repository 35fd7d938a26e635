"""Deliver notices from the bus to the topics and to receivers outside AWS."""

from typing import TYPE_CHECKING

from aws_cdk import Duration
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_kms as kms
from constructs import Construct

from rerail.model.runbooks import Runbook
from settings import NotifySettings
from stacks.options import DeploymentOptions
from stacks.parts.alarms import FunctionAlarms
from stacks.parts.bus import RerailBus
from stacks.parts.dead_letter_queue import DeadLetterQueue
from stacks.parts.functions import FunctionFactory
from stacks.parts.pagerduty import PagerDuty
from stacks.parts.permissions import SEND_MESSAGE, allow, use_key
from stacks.parts.reports_bucket import ReportsBucket
from stacks.parts.topics import Topics
from stacks.parts.webhook import Webhook

if TYPE_CHECKING:
    from stacks.parts.answers import AnswerPage

NAME = "notify"
# The targets outside AWS, beside e-mail and chat.
RECEIVERS = (PagerDuty, Webhook)
PATTERN = events.EventPattern(source=["rerail"], detail_type=["Rerail Notice"])


class NoticeDelivery(Construct):
    """The rule, the function, and what neither could deliver."""

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        functions: FunctionFactory,
        bus: RerailBus,
        topics: Topics,
        reports: ReportsBucket,
        options: DeploymentOptions,
        key: kms.IKey,
        answers: "AnswerPage | None",
    ) -> None:
        """`answers` is the page that the links of proposals lead to, None for pages without such a link."""
        super().__init__(scope, id)
        page = topics.page
        made = functions.make(
            self,
            NAME,
            settings=_settings(topics, bus, reports, options, answers),
            description="Rerail: tells people",
            timeout=Duration.seconds(30),
            memory_mb=256,
            dead_letters=DeadLetterQueue(
                self, "DeadLetters", key=key, page=page, of="the function notify", runbook=Runbook.UNDELIVERED
            ),
        )
        self.function = made.function
        allow(made.role, "sns:Publish", on=[topic.topic_arn for topic in topics.all])
        use_key(made.role, key, *SEND_MESSAGE, service="sns")
        reports.let_link(made.role)
        if answers:
            answers.let_sign(made.role)
        undelivered = DeadLetterQueue(
            self, "Undelivered", key=key, page=page, of="the rule for notices", runbook=Runbook.UNDELIVERED
        )
        target = targets.LambdaFunction(self.function, dead_letter_queue=undelivered.queue)
        rule = events.Rule(
            self,
            "Rule",
            description="Rerail: notices for people",
            event_bus=bus.bus,
            event_pattern=PATTERN,
            targets=[target],
        )
        undelivered.watch_rule(rule.rule_arn, bus=bus.bus.event_bus_name)
        FunctionAlarms(self, "Alarms", function=self.function, name=NAME, page=page)
        receivers = _list_configured(options)
        if receivers:
            bus.let_publish(made.role)
        for receiver in receivers:
            receiver(self, receiver.__name__, options=options, bus=bus, key=key, page=page)


def _list_configured(options: DeploymentOptions) -> list[type[PagerDuty] | type[Webhook]]:
    return [receiver for receiver in RECEIVERS if receiver.is_configured(options)]


def _settings(
    topics: Topics,
    bus: RerailBus,
    reports: ReportsBucket,
    options: DeploymentOptions,
    answers: "AnswerPage | None",
) -> NotifySettings:
    return NotifySettings(
        page_topic=topics.page.topic_arn,
        inform_topic=topics.inform.topic_arn,
        chat_page_topic=topics.chat_page.topic_arn if topics.chat_page else "",
        chat_inform_topic=topics.chat_inform.topic_arn if topics.chat_inform else "",
        bus=bus.bus.event_bus_name,
        targets=",".join(receiver.TARGET.name for receiver in _list_configured(options)),
        reports=reports.bucket.bucket_name,
        report_links=options.report_links,
        docs_url=options.docs_url,
        answer_url=answers.url if answers else "",
        answer_key=answers.key.key_id if answers else "",
    )
