"""A small CDK app with one of each thing that the repairs of local/ are about."""

from pathlib import Path

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_lambda as functions
from aws_cdk import aws_lambda_destinations as destinations
from aws_cdk import aws_lambda_event_sources as sources
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_scheduler as scheduler
from aws_cdk import aws_scheduler_targets as scheduler_targets
from aws_cdk import aws_sqs as sqs
from aws_cdk import aws_ssm as ssm
from constructs import Construct

POWERTOOLS = "/aws/service/powertools/python/arm64/python3.13/3.37.0"


class Sample(cdk.Stack):
    """What the functions see goes to the queue `Seen`; each way of failing has a queue of its own."""

    def __init__(self, scope: Construct) -> None:
        super().__init__(scope, "Sample")
        self.outputs: dict[str, str] = {}
        self.code = functions.Code.from_asset(str(Path(__file__).parent / "lambdas"), exclude=["__pycache__", "*.pyc"])
        self.powertools = functions.LayerVersion.from_layer_version_arn(
            self, "Powertools", ssm.StringParameter.value_for_string_parameter(self, POWERTOOLS)
        )
        self.seen = self.queue("Seen")
        self.bus = events.EventBus(self, "Bus", event_bus_name="sample")
        self.table()
        self.asynchronous()
        self.queue_consumer()
        self.timed_events()
        self.schedule()
        self.bucket()
        for name, value in self.outputs.items():
            cdk.CfnOutput(self, name, value=value)

    def queue(self, name: str, **options: object) -> sqs.Queue:
        queue = sqs.Queue(self, name, **options)
        self.outputs[f"{name}Url"] = queue.queue_url
        return queue

    def function(self, name: str, handler: str = "record", **options: object) -> functions.Function:
        function = functions.Function(
            self, name, code=self.code, handler=f"probe.{handler}", runtime=functions.Runtime.PYTHON_3_13,
            architecture=functions.Architecture.ARM_64, layers=[self.powertools], timeout=cdk.Duration.seconds(10),
            environment={"SEEN": self.seen.queue_url, "NAME": name}, **options,
        )  # fmt: skip
        self.seen.grant_send_messages(function)
        self.outputs[f"{name}Name"] = function.function_name
        return function

    def rule(self, name: str, target: events.IRuleTarget, bus: events.IEventBus | None = None) -> events.Rule:
        pattern = events.EventPattern(source=["test"], detail_type=[name])
        return events.Rule(self, f"{name}Rule", event_bus=bus or self.bus, event_pattern=pattern, targets=[target])

    def table(self) -> None:
        recovery = dynamodb.PointInTimeRecoverySpecification(point_in_time_recovery_enabled=True)
        key = dynamodb.Attribute(name="pk", type=dynamodb.AttributeType.STRING)
        table = dynamodb.Table(
            self, "Table", partition_key=key, billing_mode=dynamodb.BillingMode.PAY_PER_REQUEST,
            time_to_live_attribute="expires", point_in_time_recovery_specification=recovery,
            removal_policy=cdk.RemovalPolicy.DESTROY,
        )  # fmt: skip
        opening = dynamodb.Attribute(name="open", type=dynamodb.AttributeType.STRING)
        table.add_global_secondary_index(
            index_name="open", partition_key=opening, sort_key=key,
            projection_type=dynamodb.ProjectionType.INCLUDE, non_key_attributes=["doc", "version"],
        )  # fmt: skip
        self.outputs["TableName"] = table.table_name

    def asynchronous(self) -> None:
        """Rules to functions: one that counts its tries, one with a dead-letter queue, one with a destination."""
        self.rule("Flaky", targets.LambdaFunction(self.function("Flaky", "flaky")))
        age = cdk.Duration.minutes(15)
        dead = self.function("Dead", "fail", dead_letter_queue=self.queue("DeadLetters"), max_event_age=age)
        self.rule("Dead", targets.LambdaFunction(dead))
        function = self.function(
            "Told", "fail", on_failure=destinations.SqsDestination(self.queue("Failures")), retry_attempts=1
        )
        self.rule("Told", targets.LambdaFunction(function))
        narrow = self.function("Narrow", "slow", reserved_concurrent_executions=1)
        self.rule("Narrow", targets.LambdaFunction(narrow))
        gone = self.function("Gone")
        self.rule("Gone", targets.LambdaFunction(gone, dead_letter_queue=self.queue("Undelivered")))
        errors = dead.metric_errors(period=cdk.Duration.minutes(1), statistic="Sum")
        alarm = cloudwatch.Alarm(
            self, "ErrorsAlarm", metric=errors, threshold=1, evaluation_periods=1,
            treat_missing_data=cloudwatch.TreatMissingData.NOT_BREACHING,
        )  # fmt: skip
        self.outputs["ErrorsAlarmName"] = alarm.alarm_name

    def queue_consumer(self) -> None:
        dead = self.queue("WorkDead")
        visibility = cdk.Duration.seconds(5)
        work = self.queue(
            "Work",
            visibility_timeout=visibility,
            dead_letter_queue=sqs.DeadLetterQueue(max_receive_count=2, queue=dead),
        )
        consumer = functions.Function(
            self, "Consumer", code=self.code, handler="probe.consume", runtime=functions.Runtime.PYTHON_3_13,
            timeout=cdk.Duration.seconds(5), environment={"SEEN": self.seen.queue_url, "NAME": "Consumer"},
        )  # fmt: skip
        self.seen.grant_send_messages(consumer)
        consumer.add_event_source(
            sources.SqsEventSource(work, batch_size=10, max_concurrency=2, report_batch_item_failures=True)
        )

    def timed_events(self) -> None:
        events.Rule(
            self, "Timed", event_bus=self.bus, event_pattern=events.EventPattern(detail_type=["Timed"]),
            targets=[targets.SqsQueue(self.queue("TimedEvents"))],
        )  # fmt: skip

    def schedule(self) -> None:
        target = scheduler_targets.LambdaInvoke(
            self.function("Swept"),
            input=scheduler.ScheduleTargetInput.from_object({"sweep": True}),
            dead_letter_queue=self.queue("Missed"),
        )
        every_minute = scheduler.ScheduleExpression.rate(cdk.Duration.minutes(1))
        scheduler.Schedule(self, "EveryMinute", schedule=every_minute, target=target)

    def bucket(self) -> None:
        bucket = s3.Bucket(self, "Mailbox", removal_policy=cdk.RemovalPolicy.DESTROY)
        bucket.node.default_child.add_property_override(  # type: ignore[union-attr]
            "NotificationConfiguration.EventBridgeConfiguration.EventBridgeEnabled", True
        )
        detail = {"bucket": {"name": [bucket.bucket_name]}, "object": {"key": [{"wildcard": "runs/*/reports/*.json"}]}}
        pattern = events.EventPattern(source=["aws.s3"], detail_type=["Object Created"], detail=detail)
        events.Rule(self, "MailRule", event_pattern=pattern, targets=[targets.SqsQueue(self.queue("Mail"))])
        self.outputs["MailboxName"] = bucket.bucket_name


app = cdk.App(analytics_reporting=False)
Sample(app)
app.synth()
