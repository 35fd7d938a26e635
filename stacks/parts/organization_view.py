"""The runs of an organization in its hub: a bus that members forward run events to, their log, and a dashboard.

The events are kept as they came, and EventBridge itself writes into each which account has sent it. Nothing here leads
back to the members.
"""

from aws_cdk import Aws, Duration, RemovalPolicy
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_events as events
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs
from constructs import Construct

from stacks.options import DeploymentOptions
from stacks.parts.data_key import DataKey
from stacks.parts.dead_letter_queue import DeadLetterQueue
from stacks.parts.forwarded_events import PATTERN
from stacks.parts.queue_rule import DAY_S, RETRIES
from stacks.parts.topics import let_alarms_publish, make_topic

NAME = "rerail-organization"
# EventBridge writes only to log groups that are called so.
LOG_GROUP = f"/aws/events/{NAME}"
WIDTH, HEIGHT = 24, 8
# The newest event of each run: the events have the time of their state change.
SHOWN = ("state", "step", "attempts", "dollars", "reason", "is_end")
NEWEST = ", ".join(f"latest(detail.{name}) as {name}" for name in SHOWN)
BY_RUN = f"stats {NEWEST} by account, region, detail.run as run"


class OrganizationView(Construct):
    """The bus, the log group of its events, the dashboard over them, and the alarm for events that cannot be logged."""

    def __init__(self, scope: Construct, id: str, *, organization: str, options: DeploymentOptions) -> None:
        super().__init__(scope, id)
        self.bus = events.CfnEventBus(self, "Bus", name=NAME, description="Rerail: run events of the organization")
        events.CfnEventBusPolicy(
            self,
            "Members",
            event_bus_name=self.bus.ref,
            statement_id="TheOrganizationForwards",
            statement={
                "Effect": "Allow",
                "Principal": "*",
                "Action": "events:PutEvents",
                "Resource": self.bus.attr_arn,
                "Condition": {
                    "StringEquals": {
                        "aws:PrincipalOrgID": organization,
                        "events:source": PATTERN["source"],
                        "events:detail-type": PATTERN["detail-type"],
                    }
                },
            },
        )
        self.log_group = logs.LogGroup(
            self,
            "Events",
            log_group_name=LOG_GROUP,
            retention=options.log_retention,
            removal_policy=RemovalPolicy.RETAIN_ON_UPDATE_OR_DELETE,
        )
        key = DataKey(self, "Key")
        self.page = make_topic(self, "Page", "Rerail: the hub misses run events", key, options.page_email)
        let_alarms_publish(self.page)
        dead_letters = DeadLetterQueue(self, "DeadLetters", key=key, page=self.page, of="the hub's rule for run events")
        arn = f"arn:{Aws.PARTITION}:logs:{Aws.REGION}:{Aws.ACCOUNT_ID}:log-group:{LOG_GROUP}"
        rule = events.CfnRule(
            self,
            "Rule",
            description="Rerail: run events of the organization into their log",
            event_bus_name=self.bus.ref,
            event_pattern=PATTERN,
            targets=[
                events.CfnRule.TargetProperty(
                    id="Log",
                    arn=arn,
                    dead_letter_config=events.CfnRule.DeadLetterConfigProperty(arn=dead_letters.queue.queue_arn),
                    retry_policy=events.CfnRule.RetryPolicyProperty(
                        maximum_event_age_in_seconds=DAY_S, maximum_retry_attempts=RETRIES
                    ),
                )
            ],
        )
        dead_letters.accept_from_rule(rule.attr_arn, bus=self.bus.ref)
        logs.ResourcePolicy(
            self,
            "Writer",
            resource_policy_name=NAME,
            policy_statements=[_let_write(arn, rule.attr_arn)],
        )
        rule.node.add_dependency(self.log_group)
        self._add_dashboard(rule)

    def _add_dashboard(self, rule: events.CfnRule) -> None:
        board = cloudwatch.Dashboard(
            self, "Dashboard", dashboard_name=f"Rerail-organization-{Aws.REGION}", default_interval=Duration.days(30)
        )
        board.add_widgets(self._list_runs("Runs that are held", "filter state = 'held'"))
        board.add_widgets(self._list_runs("Open runs", "filter is_end = 0"))
        board.add_widgets(self._list_runs("All runs"))
        board.add_widgets(
            cloudwatch.GraphWidget(
                title="Events that could not be logged",
                width=WIDTH,
                height=HEIGHT,
                left=[
                    cloudwatch.Metric(
                        namespace="AWS/Events",
                        metric_name="FailedInvocations",
                        dimensions_map={"EventBusName": self.bus.ref, "RuleName": rule.ref},
                        statistic="Sum",
                    )
                ],
            ),
        )

    def _list_runs(self, title: str, *chosen: str) -> cloudwatch.IWidget:
        return cloudwatch.LogQueryWidget(
            title=title,
            log_group_names=[self.log_group.log_group_name],
            query_lines=[BY_RUN, *chosen],
            view=cloudwatch.LogQueryVisualizationType.TABLE,
            width=WIDTH,
            height=HEIGHT,
        )


def _let_write(log_group: str, rule: str) -> iam.PolicyStatement:
    return iam.PolicyStatement(
        principals=[iam.ServicePrincipal("events.amazonaws.com"), iam.ServicePrincipal("delivery.logs.amazonaws.com")],
        actions=["logs:CreateLogStream", "logs:PutLogEvents"],
        resources=[f"{log_group}:*"],
        conditions={"ArnEquals": {"aws:SourceArn": rule}},
    )
