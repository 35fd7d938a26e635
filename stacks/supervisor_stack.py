"""The supervisor of an account's training jobs: everything that is deployed, and how the parts are joined."""

from typing import Any

import aws_cdk as cdk
from constructs import Construct

from stacks.options import Options
from stacks.parts.alarm_events import AlarmEvents
from stacks.parts.bus import Bus
from stacks.parts.commands import Commands
from stacks.parts.data_key import DataKey
from stacks.parts.functions import Functions
from stacks.parts.job_events import JobEvents
from stacks.parts.mailbox import Mailbox
from stacks.parts.notices import Notices
from stacks.parts.policies import PREFIX, Policies
from stacks.parts.reports import Reports
from stacks.parts.runs_table import RunsTable
from stacks.parts.signals_queue import SignalsQueue
from stacks.parts.supervise import Supervise
from stacks.parts.sweep import Sweep
from stacks.parts.switch import NAME as SWITCH
from stacks.parts.switch import Switch
from stacks.parts.topics import Topics


class SupervisorStack(cdk.Stack):
    """Signals come in by the queue, one function decides, a sweep asks again, notices go out by the bus."""

    def __init__(self, scope: Construct, id: str, *, options: Options, **kwargs: Any) -> None:
        super().__init__(scope, id, description="Rerail: keeps SageMaker training runs on their rails", **kwargs)
        Policies(self, "Policies", folder=options.policies_folder)
        switch = Switch(self, "Switch")
        key = DataKey(self, "Key")
        topics = Topics(self, "Topics", key=key, options=options)
        page = topics.page
        runs = RunsTable(self, "Runs", key=key)
        bus = Bus(self, "Bus")
        mailbox = Mailbox(self, "Mailbox")
        functions = Functions(self, "Functions", log_retention=options.log_retention)

        signals = SignalsQueue(self, "Signals", key=key, page=page)
        JobEvents(self, "JobEvents", signals=signals, key=key, page=page)
        AlarmEvents(self, "AlarmEvents", signals=signals, key=key, page=page)
        Reports(self, "Reports", mailbox=mailbox, signals=signals, key=key, page=page)
        Commands(self, "Commands", bus=bus, signals=signals, key=key, page=page)
        supervise = Supervise(
            self,
            "Supervise",
            functions=functions,
            runs=runs,
            signals=signals,
            bus=bus,
            mailbox=mailbox,
            switch=switch,
            options=options,
            page=page,
        )
        sweep = Sweep(
            self,
            "Sweep",
            functions=functions,
            runs=runs,
            signals=signals,
            mailbox=mailbox,
            switch=switch,
            options=options,
            key=key,
            page=page,
        )
        notices = Notices(self, "Notices", functions=functions, bus=bus, topics=topics, key=key)

        outputs = {
            "TableName": runs.table.table_name,
            "SignalsQueueUrl": signals.queue.queue_url,
            "BusName": bus.bus.event_bus_name,
            "PageTopicArn": topics.page.topic_arn,
            "InformTopicArn": topics.inform.topic_arn,
            "SuperviseFunctionName": supervise.function.function_name,
            "SweepFunctionName": sweep.function.function_name,
            "NotifyFunctionName": notices.function.function_name,
            "PolicyPrefix": PREFIX,
            "SwitchParameter": SWITCH,
            "MailboxBucket": mailbox.bucket.bucket_name,
        }
        for name, value in outputs.items():
            cdk.CfnOutput(self, name, value=value)
