"""A schedule of EventBridge Scheduler that calls a target each minute."""

from aws_cdk import Aws
from aws_cdk import aws_iam as iam
from aws_cdk import aws_scheduler as scheduler
from aws_cdk import aws_sqs as sqs
from constructs import Construct

# An older call is useless, because the next one follows. A minute is Scheduler's minimum age.
RETRY = scheduler.CfnSchedule.RetryPolicyProperty(maximum_event_age_in_seconds=60, maximum_retry_attempts=3)


def make_scheduler_role(scope: Construct, id: str) -> iam.Role:
    """Return a role that the schedules of this account may assume."""
    ours = {"StringEquals": {"aws:SourceAccount": Aws.ACCOUNT_ID}}
    return iam.Role(scope, id, assumed_by=iam.ServicePrincipal("scheduler.amazonaws.com", conditions=ours))


def call_each_minute(
    scope: Construct,
    target_arn: str,
    *,
    role: iam.Role,
    dead_letters: sqs.IQueue,
    description: str,
    input: str | None = None,
) -> None:
    """Call the target each minute with this input; a call that cannot be made goes to the dead letters."""
    schedule = scheduler.CfnSchedule(
        scope,
        "Schedule",
        description=description,
        schedule_expression="rate(1 minute)",
        flexible_time_window=scheduler.CfnSchedule.FlexibleTimeWindowProperty(mode="OFF"),
        target=scheduler.CfnSchedule.TargetProperty(
            arn=target_arn,
            role_arn=role.role_arn,
            input=input,
            retry_policy=RETRY,
            dead_letter_config=scheduler.CfnSchedule.DeadLetterConfigProperty(arn=dead_letters.queue_arn),
        ),
    )
    schedule.node.add_dependency(role)  # also on its policy: Scheduler checks the role when it is created
