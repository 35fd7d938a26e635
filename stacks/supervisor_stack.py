"""The supervisor of an account's training jobs: everything that is deployed, and how the parts are joined."""

from typing import TYPE_CHECKING, Any

import aws_cdk as cdk
from aws_cdk import aws_sns as sns
from constructs import Construct

from stacks.options import DeploymentOptions
from stacks.parts.alarm_events import AlarmEvents
from stacks.parts.alarms import HealthAlarm
from stacks.parts.bus import RerailBus
from stacks.parts.commands import CommandQueue, CommandRule
from stacks.parts.dashboard import Dashboard
from stacks.parts.data_key import DataKey
from stacks.parts.forwarded_events import ForwardedRunEvents
from stacks.parts.functions import FunctionFactory
from stacks.parts.hyperpod_events import HyperPodEvents
from stacks.parts.job_events import JobEvents
from stacks.parts.kept import Kept
from stacks.parts.mailbox import JobMailbox
from stacks.parts.notices import NoticeDelivery
from stacks.parts.orchestration import Orchestration
from stacks.parts.pause import NAME as PAUSE_PARAMETER
from stacks.parts.pause import PauseParameter
from stacks.parts.policies import PREFIX, PolicyParameters
from stacks.parts.report import ReportRenderer
from stacks.parts.reports import Reports
from stacks.parts.reports_bucket import ReportsBucket
from stacks.parts.runs_table import RunsTable
from stacks.parts.signals_queue import SignalsQueue
from stacks.parts.supervise import Supervise
from stacks.parts.sweep import ScheduledSweep
from stacks.parts.topics import Topics

if TYPE_CHECKING:
    from stacks.parts.answers import AnswerPage


class SupervisorStack(cdk.Stack):
    """Signals arrive in a queue, one function decides, a sweep checks all runs, and notices leave through the bus."""

    def __init__(
        self, scope: Construct, id: str, *, options: DeploymentOptions, hub_bus: str = "", **kwargs: Any
    ) -> None:
        """`hub_bus` is the stack parameter with the ARN of the bus in an organization's hub; "" without one."""
        super().__init__(scope, id, description="Rerail: keeps SageMaker training runs on their rails", **kwargs)
        PolicyParameters(self, "Policies", folder=options.policies_folder)
        pause = PauseParameter(self)
        key = DataKey(self, "Key")
        topics = Topics(self, "Topics", key=key, options=options)
        page = topics.page
        runs = RunsTable(self, "Runs", key=key)
        bus = RerailBus(self, "Bus")
        mailbox = JobMailbox(self, "Mailbox")
        functions = FunctionFactory(
            self,
            "Functions",
            log_retention=options.log_retention,
            powertools_layer_arn=options.powertools_layer_arn,
            sdk_layer=options.sdk_layer,
            subnets=options.subnets,
            security_groups=options.security_groups,
        )

        signals = SignalsQueue(self, "Signals", key=key, page=page)
        # Every training role may write reports, as many as it likes: they keep no other signal waiting.
        filed = SignalsQueue(self, "FiledReports", key=key, page=page, of="the supervisor for reports", what="a report")
        JobEvents(self, "JobEvents", signals=signals, key=key, page=page)
        # Roles may send to the other two: only what comes by this one commands.
        commands = CommandQueue(self, "CommandQueue", key=key, page=page)
        alarm_events = AlarmEvents(self, "AlarmEvents", signals=commands, key=key, page=page)
        HyperPodEvents(self, "HyperPodEvents", signals=commands, key=key, page=page)
        Reports(self, "Reports", mailbox=mailbox, signals=filed, key=key, page=page)
        command_rule = CommandRule(self, "Commands", bus=bus, signals=commands, key=key, page=page)
        supervise = Supervise(
            self,
            "Supervise",
            functions=functions,
            runs=runs,
            signals=signals,
            filed=filed,
            commands=commands,
            bus=bus,
            mailbox=mailbox,
            pause=pause,
            options=options,
            page=page,
        )
        # In an upgrade the rules send to the queue of commands before the function refuses what comes by another.
        supervise.function.node.add_dependency(alarm_events.rule, command_rule.rule)
        sweep = ScheduledSweep(
            self,
            "Sweep",
            functions=functions,
            runs=runs,
            signals=signals,
            mailbox=mailbox,
            pause=pause,
            options=options,
            key=key,
            page=page,
        )
        reports = ReportsBucket(self, "IncidentReports")
        answers = _make_answer_page(self, functions, runs, bus, options, page) if options.answer_links else None
        notices = NoticeDelivery(
            self,
            "Notices",
            functions=functions,
            bus=bus,
            topics=topics,
            reports=reports,
            options=options,
            key=key,
            answers=answers,
        )
        report = ReportRenderer(
            self,
            "Report",
            functions=functions,
            runs=runs,
            bus=bus,
            reports=reports,
            options=options,
            key=key,
            page=page,
        )
        if options.forward_run_events:
            ForwardedRunEvents(self, "Forward", bus=bus, key=key, page=page)
        if hub_bus:
            parameter = cdk.CfnParameter(self, hub_bus, description="The bus of the hub that receives run events")
            to_hub = {"to": parameter.value_as_string, "name": "the hub"}
            ForwardedRunEvents(self, "ForwardToHub", bus=bus, key=key, page=page, **to_hub)
        orchestration = (
            Orchestration(
                self,
                "Waits",
                functions=functions,
                runs=runs,
                bus=bus,
                reports=reports,
                options=options,
                key=key,
                page=page,
            )
            if options.orchestration
            else None
        )
        health = HealthAlarm(self, "Health", inform=topics.inform)  # after all that has an alarm
        Dashboard(
            self,
            "Dashboard",
            health=health,
            functions={
                "supervise": supervise.function,
                "sweep": sweep.function,
                "notify": notices.function,
                "report": report.function,
                **({"answer": answers.function} if answers else {}),
                **({"orchestrate": orchestration.function} if orchestration else {}),
            },
            signals={
                "oldest signal, s": signals.queue,
                "oldest report, s": filed.queue,
                "oldest command, s": commands.queue,
            },
        )

        outputs = {
            "TableName": runs.table.table_name,
            "SignalsQueueUrl": signals.queue.queue_url,
            "FiledReportsQueueUrl": filed.queue.queue_url,
            "CommandQueueUrl": commands.queue.queue_url,
            "BusName": bus.bus.event_bus_name,
            "PageTopicArn": topics.page.topic_arn,
            "InformTopicArn": topics.inform.topic_arn,
            "SuperviseFunctionName": supervise.function.function_name,
            "SweepFunctionName": sweep.function.function_name,
            "NotifyFunctionName": notices.function.function_name,
            "ReportFunctionName": report.function.function_name,
            "ReportsBucket": reports.bucket.bucket_name,
            "PolicyPrefix": PREFIX,
            "PauseParameter": PAUSE_PARAMETER,
            "MailboxBucket": mailbox.bucket.bucket_name,
        }
        if topics.chat_page and topics.chat_inform:
            outputs["ChatPageTopicArn"] = topics.chat_page.topic_arn
            outputs["ChatInformTopicArn"] = topics.chat_inform.topic_arn
        if answers:
            outputs["AnswerUrl"] = answers.url
        if orchestration:
            outputs["OrchestrateFunctionName"] = orchestration.function.function_name
            outputs["CallbackQueueUrl"] = orchestration.queue.queue_url
            outputs["TrainSupervisedArn"] = orchestration.machine.attr_arn
        for name, value in outputs.items():
            cdk.CfnOutput(self, name, value=value)
        Kept(self, "Kept")


def _make_answer_page(
    stack: SupervisorStack,
    functions: FunctionFactory,
    runs: RunsTable,
    bus: RerailBus,
    options: DeploymentOptions,
    page: sns.ITopic,
) -> "AnswerPage":
    """Return the page that takes answers; API Gateway's classes load slowly, so only then."""
    from stacks.parts.answers import AnswerPage

    return AnswerPage(stack, "Answers", functions=functions, runs=runs, bus=bus, options=options, page=page)
