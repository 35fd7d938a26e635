"""Incident reports and the page of all runs: a rule on the bus, two queues, and the function that draws the pages."""

from aws_cdk import Aws, Duration
from aws_cdk import aws_events as events
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from settings import ReportSettings
from stacks.options import DeploymentOptions
from stacks.parts.alarms import FunctionAlarms, OldMessages
from stacks.parts.bus import RerailBus
from stacks.parts.dead_letter_queue import DeadLetterQueue, send_from_rule
from stacks.parts.feed import feed
from stacks.parts.functions import FunctionFactory
from stacks.parts.permissions import allow, read_checkpoints, read_job_logs, read_policies
from stacks.parts.policies import PREFIX
from stacks.parts.queue_rule import DAY_S, RETRIES
from stacks.parts.report_layer import ReportLayer
from stacks.parts.reports_bucket import ReportsBucket
from stacks.parts.runs_table import RunsTable

NAME = "report"
# Notices for the reports, changes for the page of all runs.
PATTERN = {"source": ["rerail"], "detail-type": ["Rerail Notice", "Rerail Run State Change"]}
# Sixty attempts with their metrics, and their logs, page by page.
TIMEOUT = Duration.minutes(3)
# The page is there when the notice is read; and drawn once more when the last metrics and log lines have arrived.
LOOKS = {"AtOnce": Duration.seconds(0), "Later": Duration.minutes(3)}
TRIES, BATCH = 3, 5
WAITING = Duration.minutes(30)
# A thousand notices at once must not take the account's concurrency from those who mend. Two is Lambda's minimum.
CONCURRENCY = 2


class ReportRenderer(Construct):
    """Renders a run's report after each notice, and the page of all runs; it delays no notice and changes no job."""

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        functions: FunctionFactory,
        runs: RunsTable,
        bus: RerailBus,
        reports: ReportsBucket,
        options: DeploymentOptions,
        key: kms.IKey,
        page: sns.ITopic,
    ) -> None:
        super().__init__(scope, id)
        made = functions.make(
            self,
            NAME,
            settings=ReportSettings(
                table=runs.table.table_name,
                policy_prefix=PREFIX,
                reports=reports.bucket.bucket_name,
                account=Aws.ACCOUNT_ID,
                region=Aws.REGION,
                docs_url=options.docs_url,
                observe_only=options.observe_only,
            ),
            description="Rerail: draws incident reports",
            timeout=TIMEOUT,
            memory_mb=1024,
            layers=[ReportLayer(self, "Layer")],
        )
        self.function = made.function
        undrawn = DeadLetterQueue(self, "DeadLetters", key=key, page=page, of="the function report")
        undelivered = DeadLetterQueue(self, "Undelivered", key=key, page=page, of="the rule for reports")
        queues = {name: _queue(self, name, delay, key, undrawn) for name, delay in LOOKS.items()}
        for name, queue in queues.items():
            feed(made, queue, batch=BATCH, concurrency=CONCURRENCY)
            OldMessages(self, f"{name}Old", queue=queue, page=page, of="a notice for report", limit=WAITING)
        rule = events.CfnRule(
            self,
            "Rule",
            description="Rerail: notices for incident reports",
            event_bus_name=bus.bus.event_bus_name,
            event_pattern=PATTERN,
            targets=[_target(name, queue, undelivered) for name, queue in queues.items()],
        )
        for queue in queues.values():
            queue.add_to_resource_policy(send_from_rule(queue, rule.attr_arn))
        undelivered.accept_from_rule(rule.attr_arn, bus=bus.bus.event_bus_name)
        runs.let_look(made.role)
        runs.let_read(made.role)
        reports.let_keep(made.role)
        read_policies(made.role, PREFIX)
        read_checkpoints(made.role, options)
        _read_curves_and_logs(made.role)
        FunctionAlarms(self, "Alarms", function=self.function, name=NAME, page=page)


def _queue(scope: Construct, name: str, delay: Duration, key: kms.IKey, undrawn: DeadLetterQueue) -> sqs.Queue:
    return sqs.Queue(
        scope,
        name,
        encryption_master_key=key,
        enforce_ssl=True,
        delivery_delay=delay,
        visibility_timeout=Duration.seconds(6 * TIMEOUT.to_seconds()),
        retention_period=Duration.days(1),
        dead_letter_queue=sqs.DeadLetterQueue(queue=undrawn.queue, max_receive_count=TRIES),
    )


def _target(name: str, queue: sqs.Queue, undelivered: DeadLetterQueue) -> events.CfnRule.TargetProperty:
    return events.CfnRule.TargetProperty(
        id=name,
        arn=queue.queue_arn,
        dead_letter_config=events.CfnRule.DeadLetterConfigProperty(arn=undelivered.queue.queue_arn),
        retry_policy=events.CfnRule.RetryPolicyProperty(
            maximum_event_age_in_seconds=DAY_S, maximum_retry_attempts=RETRIES
        ),
    )


def _read_curves_and_logs(role: iam.Role) -> None:
    allow(role, "cloudwatch:GetMetricData", on="*", because="GetMetricData takes no resource.")
    read_job_logs(role)
