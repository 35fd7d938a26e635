"""Alarms that page, each on a single metric, so that CloudWatch emulators can evaluate them too.

Each alarm pages by itself, with its meaning, the remedy and its runbook. A composite alarm would notify only of its own
state changes, so that an old problem would hide a new one.
"""

from aws_cdk import Duration, Stack
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from rerail.model.runbooks import Runbook

MINUTE = Duration.minutes(1)
# A message waits so long, and the alarm on it stays for so many minutes.
WAITING, STAYS = Duration.minutes(10), 20
NAMESPACE = "Rerail"
COMPLETED = "SweepsCompleted"
UNHEALTHY = "RerailUnhealthy"


def place(scope: Construct, runbook: Runbook) -> str:
    """Return the runbook's URL below the context's docsUrl, or its path in the repository."""
    docs = str(scope.node.try_get_context("docsUrl") or "").rstrip("/")
    return f"{docs}/runbooks/{runbook}/" if docs else f"docs/runbooks/{runbook}.md"


def page_when_above(
    scope: Construct,
    id: str,
    *,
    metric: cloudwatch.IMetric,
    page: sns.ITopic,
    text: str,
    runbook: Runbook,
    limit: int = 0,
    minutes: tuple[int, int] = (1, 1),
) -> None:
    """Page when the metric is above the limit in `minutes` (m of n), and again when it no longer is."""
    alarm = cloudwatch.Alarm(
        scope,
        id,
        metric=metric,
        alarm_description=_describe(scope, text, runbook),
        threshold=limit,
        comparison_operator=cloudwatch.ComparisonOperator.GREATER_THAN_THRESHOLD,
        datapoints_to_alarm=minutes[0],
        evaluation_periods=minutes[1],
        treat_missing_data=cloudwatch.TreatMissingData.NOT_BREACHING,
    )
    _notify(alarm, page)


class FunctionAlarms(Construct):
    """Pages when a function keeps failing or is throttled.

    A single failure does not page, because everything is retried. Lost events of asynchronous functions are not."""

    def __init__(self, scope: Construct, id: str, *, function: lambda_.Function, name: str, page: sns.ITopic) -> None:
        super().__init__(scope, id)
        page_when_above(
            self,
            "Errors",
            metric=function.metric_errors(period=MINUTE),
            page=page,
            text=f"Rerail: the function {name} failed in 3 of the last 5 minutes. See its log and its traces.",
            runbook=Runbook.FUNCTION_ERRORS,
            minutes=(3, 5),
        )
        page_when_above(
            self,
            "Throttles",
            metric=function.metric_throttles(period=MINUTE),
            page=page,
            text=f"Rerail: Lambda throttled {name} in 3 of the last 5 minutes: the account's concurrency is used up."
            " Find out which functions use it, or reserve concurrency.",
            runbook=Runbook.THROTTLES,
            minutes=(3, 5),
        )
        if function.dead_letter_queue:
            self._watch_events(function, name, page)

    def _watch_events(self, function: lambda_.Function, name: str, page: sns.ITopic) -> None:
        page_when_above(
            self,
            "EventsDropped",
            metric=function.metric("AsyncEventsDropped", period=MINUTE, statistic="Sum"),
            page=page,
            text=f"Rerail: Lambda gave up on an event for {name}: too old, or it failed at every try. It is in the"
            " function's dead-letter queue. Find out why it failed, then redrive it.",
            runbook=Runbook.EVENTS_DROPPED,
        )
        page_when_above(
            self,
            "DeadLetterErrors",
            metric=function.metric("DeadLetterErrors", period=MINUTE, statistic="Sum"),
            page=page,
            text=f"Rerail: {name} failed and its event could not be sent to the dead-letter queue: it is lost."
            " Find out why Lambda cannot send to the queue.",
            runbook=Runbook.EVENTS_DROPPED,
        )


class OldMessages(Construct):
    """Pages when a message waits too long in a queue: its function is down, throttled, late, or fails on it.

    SQS counts the age of a message only until it was received three times. So the limit must be below two visibility
    timeouts of the queue, and the alarm stays until a message that always fails is a dead letter."""

    def __init__(
        self, scope: Construct, id: str, *, queue: sqs.IQueue, page: sns.ITopic, of: str, limit: Duration = WAITING
    ) -> None:
        """`of` names message and function in "after 10 minutes ... is still waiting"."""
        super().__init__(scope, id)
        page_when_above(
            self,
            "Age",
            metric=queue.metric_approximate_age_of_oldest_message(period=MINUTE, statistic="Maximum"),
            page=page,
            text=f"Rerail: after {limit.to_minutes():g} minutes {of} is still waiting. Is the function throttled, or "
            "failing on it?",
            runbook=Runbook.STALE_SIGNALS,
            limit=int(limit.to_seconds()),
            minutes=(1, STAYS),
        )


class DeadMan(Construct):
    """Pages when no sweep was completed in 5 minutes: none started, or all failed or timed out.

    Missing data means no sweep, so it is breaching. Five periods of one minute are used instead of one of five:
    CloudWatch looks a few periods further back and prefers old data over missing data."""

    def __init__(self, scope: Construct, id: str, *, page: sns.ITopic) -> None:
        super().__init__(scope, id)
        alarm = cloudwatch.Alarm(
            self,
            "NoSweep",
            metric=of_the_sweep(COMPLETED, "Sum"),
            alarm_description=_describe(
                self,
                "Rerail: no sweep was completed for 5 minutes, so runs are not watched. Is the schedule enabled, and"
                " does the function sweep succeed?",
                Runbook.NO_SWEEP,
            ),
            threshold=1,
            comparison_operator=cloudwatch.ComparisonOperator.LESS_THAN_THRESHOLD,
            evaluation_periods=5,
            datapoints_to_alarm=5,
            treat_missing_data=cloudwatch.TreatMissingData.BREACHING,
        )
        _notify(alarm, page)


class Blind(Construct):
    """Pages when the sweep completes but cannot read some runs, or the metrics of any run.

    Missing information is never a reason to stop a job; if it lasts, an operator has to look."""

    def __init__(self, scope: Construct, id: str, *, page: sns.ITopic) -> None:
        super().__init__(scope, id)
        page_when_above(
            self,
            "Runs",
            metric=of_the_sweep("BlindRuns", "Maximum"),
            page=page,
            text="Rerail: in 10 of the last 15 minutes the state of some runs could not be read. The sweep's log names"
            " them: check whether SageMaker responds, and whether their policy and record can be read.",
            runbook=Runbook.BLIND,
            minutes=(10, 15),
        )
        page_when_above(
            self,
            "Metrics",
            metric=of_the_sweep("UnreadRounds", "Maximum"),
            page=page,
            text="Rerail: in 10 of the last 15 minutes CloudWatch returned no metrics, so runs without an agent are"
            " not checked. The sweep's log has the reason.",
            runbook=Runbook.BLIND,
            minutes=(10, 15),
        )


class Undelivered(Construct):
    """Pages when a topic cannot deliver to one of its subscribers; the others may still receive the notice."""

    def __init__(self, scope: Construct, id: str, *, topic: sns.ITopic, name: str, page: sns.ITopic) -> None:
        super().__init__(scope, id)
        page_when_above(
            self,
            "Failed",
            metric=topic.metric_number_of_notifications_failed(period=MINUTE, statistic="Sum"),
            page=page,
            text=f"Rerail: the topic {name} could not deliver to one of its subscribers. Find out which one, and"
            " fix or remove it.",
            runbook=Runbook.UNDELIVERED,
        )


class HealthAlarm(Construct):
    """The composite alarm `RerailUnhealthy` over every alarm of the stack, for dashboards and status pages.

    It informs and does not page: the alarm behind it has paged already, with its runbook."""

    def __init__(self, scope: Construct, id: str, *, inform: sns.ITopic) -> None:
        super().__init__(scope, id)
        stack = Stack.of(self)
        alarms = [node for node in stack.node.find_all() if isinstance(node, cloudwatch.Alarm)]
        # By name: with the ARNs of all alarms the rule would be near its limit of 10,240 characters.
        in_alarm = [cloudwatch.AlarmRule.from_string(f'ALARM("{alarm.alarm_name}")') for alarm in alarms]
        self.alarm = cloudwatch.CompositeAlarm(
            self,
            "Unhealthy",
            composite_alarm_name=UNHEALTHY,
            alarm_rule=cloudwatch.AlarmRule.any_of(*in_alarm),
            alarm_description=_describe(
                self,
                "Rerail: at least one of Rerail's own alarms is in alarm. The reason names it; it has paged by itself"
                " and its runbook has the remedy. This alarm ends when all of them are OK.",
                Runbook.UNHEALTHY,
            ),
        )
        self.alarm.add_alarm_action(actions.SnsAction(inform))
        self.alarm.add_ok_action(actions.SnsAction(inform))


def of_the_sweep(name: str, statistic: str) -> cloudwatch.Metric:
    """Return a metric that the sweep publishes each minute."""
    return cloudwatch.Metric(
        namespace=NAMESPACE,
        metric_name=name,
        dimensions_map={"service": "sweep"},
        period=MINUTE,
        statistic=statistic,
    )


def _describe(scope: Construct, text: str, runbook: Runbook) -> str:
    return f"{text} Runbook: {place(scope, runbook)}"


def _notify(alarm: cloudwatch.Alarm, page: sns.ITopic) -> None:
    alarm.add_alarm_action(actions.SnsAction(page))
    alarm.add_ok_action(actions.SnsAction(page))
