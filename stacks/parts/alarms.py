"""Alarms that page: one metric each, so that any CloudWatch (and any stand-in for it) evaluates them."""

from aws_cdk import Duration
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sqs as sqs
from constructs import Construct

MINUTE = Duration.minutes(1)


def page_when_above(
    scope: Construct,
    id: str,
    *,
    metric: cloudwatch.IMetric,
    page: sns.ITopic,
    says: str,
    limit: int = 0,
    minutes: tuple[int, int] = (1, 1),
) -> None:
    """Page when the metric is above the limit in m of n minutes, and again when it is not any more."""
    alarm = cloudwatch.Alarm(
        scope,
        id,
        metric=metric,
        alarm_description=says,
        threshold=limit,
        comparison_operator=cloudwatch.ComparisonOperator.GREATER_THAN_THRESHOLD,
        datapoints_to_alarm=minutes[0],
        evaluation_periods=minutes[1],
        treat_missing_data=cloudwatch.TreatMissingData.NOT_BREACHING,
    )
    alarm.add_alarm_action(actions.SnsAction(page))
    alarm.add_ok_action(actions.SnsAction(page))


class FunctionAlarms(Construct):
    """Pages when a function keeps failing; once is not worth waking anybody, since everything is tried again."""

    def __init__(self, scope: Construct, id: str, *, function: lambda_.Function, name: str, page: sns.ITopic) -> None:
        super().__init__(scope, id)
        page_when_above(
            self,
            "Errors",
            metric=function.metric_errors(period=MINUTE),
            page=page,
            says=f"Rerail: the function {name} failed in 3 of the last 5 minutes. See its log and its traces.",
            minutes=(3, 5),
        )
        if function.dead_letter_queue:
            page_when_above(
                self,
                "DeadLetterErrors",
                metric=function.metric("DeadLetterErrors", period=MINUTE, statistic="Sum"),
                page=page,
                says=f"Rerail: {name} failed and its event could not be kept in the dead-letter queue: it is lost.",
            )


class StaleSignals(Construct):
    """Pages when signals lie in the queue: the supervisor is down, throttled or hopelessly late."""

    def __init__(self, scope: Construct, id: str, *, queue: sqs.IQueue, page: sns.ITopic) -> None:
        super().__init__(scope, id)
        page_when_above(
            self,
            "Age",
            metric=queue.metric_approximate_age_of_oldest_message(period=MINUTE, statistic="Maximum"),
            page=page,
            says="Rerail: a signal has been waiting for 15 minutes. Is supervise throttled, or failing on it?",
            limit=15 * 60,
        )


class DeadMan(Construct):
    """Watches the watcher: pages when no sweep has run for 5 minutes. No data means no sweep, so it is breaching."""

    def __init__(self, scope: Construct, id: str, *, sweep: lambda_.Function, page: sns.ITopic) -> None:
        super().__init__(scope, id)
        alarm = cloudwatch.Alarm(
            self,
            "NoSweep",
            metric=sweep.metric_invocations(period=Duration.minutes(5), statistic="Sum"),
            alarm_description="Rerail: no sweep for 5 minutes, so runs are not watched. Is the schedule enabled?",
            threshold=1,
            comparison_operator=cloudwatch.ComparisonOperator.LESS_THAN_THRESHOLD,
            evaluation_periods=1,
            treat_missing_data=cloudwatch.TreatMissingData.BREACHING,
        )
        alarm.add_alarm_action(actions.SnsAction(page))
        alarm.add_ok_action(actions.SnsAction(page))
