"""Alarms that page: one metric each, so that any CloudWatch (and any stand-in for it) evaluates them.

Each pages by itself, and says what it means, what to do and which runbook knows more: a letter that has been lying for
days must not keep a second trouble from waking anybody, and a composite alarm tells of its own changes of state alone.
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
NAMESPACE = "Rerail"
COMPLETED = "SweepsCompleted"
UNHEALTHY = "RerailUnhealthy"


def place(scope: Construct, runbook: Runbook) -> str:
    """Where the page is: at the context's docsUrl, or in the repository."""
    docs = str(scope.node.try_get_context("docsUrl") or "").rstrip("/")
    return f"{docs}/runbooks/{runbook}/" if docs else f"docs/runbooks/{runbook}.md"


def page_when_above(
    scope: Construct,
    id: str,
    *,
    metric: cloudwatch.IMetric,
    page: sns.ITopic,
    says: str,
    runbook: Runbook,
    limit: int = 0,
    minutes: tuple[int, int] = (1, 1),
) -> None:
    """Page when the metric is above the limit in m of n minutes, and again when it is not any more."""
    alarm = cloudwatch.Alarm(
        scope,
        id,
        metric=metric,
        alarm_description=_described(scope, says, runbook),
        threshold=limit,
        comparison_operator=cloudwatch.ComparisonOperator.GREATER_THAN_THRESHOLD,
        datapoints_to_alarm=minutes[0],
        evaluation_periods=minutes[1],
        treat_missing_data=cloudwatch.TreatMissingData.NOT_BREACHING,
    )
    _tell(alarm, page)


class FunctionAlarms(Construct):
    """Pages when a function keeps failing or is kept from running; once is not worth waking anybody, since everything
    is tried again. What an asynchronous function was called for, and lost, is not."""

    def __init__(self, scope: Construct, id: str, *, function: lambda_.Function, name: str, page: sns.ITopic) -> None:
        super().__init__(scope, id)
        page_when_above(
            self,
            "Errors",
            metric=function.metric_errors(period=MINUTE),
            page=page,
            says=f"Rerail: the function {name} failed in 3 of the last 5 minutes. See its log and its traces.",
            runbook=Runbook.FUNCTION_ERRORS,
            minutes=(3, 5),
        )
        page_when_above(
            self,
            "Throttles",
            metric=function.metric_throttles(period=MINUTE),
            page=page,
            says=f"Rerail: Lambda would not run {name} in 3 of the last 5 minutes: the account's concurrency is used"
            " up. Find who uses it, or reserve some.",
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
            says=f"Rerail: Lambda gave up on an event for {name}: too old, or it failed at every try. It lies in the"
            " function's dead-letter queue. See why it failed, then redrive it.",
            runbook=Runbook.EVENTS_DROPPED,
        )
        page_when_above(
            self,
            "DeadLetterErrors",
            metric=function.metric("DeadLetterErrors", period=MINUTE, statistic="Sum"),
            page=page,
            says=f"Rerail: {name} failed and its event could not be kept in the dead-letter queue: it is lost."
            " See what keeps Lambda from sending there.",
            runbook=Runbook.EVENTS_DROPPED,
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
            runbook=Runbook.STALE_SIGNALS,
            limit=15 * 60,
        )


class DeadMan(Construct):
    """Watches the watcher: pages when no sweep was completed in 5 minutes, whether none began or all failed or ran out
    of time. No data means no sweep, so it is breaching.

    Five periods of a minute instead of one of five: CloudWatch looks a few periods farther back than it is asked to,
    and believes old data before it believes in missing ones."""

    def __init__(self, scope: Construct, id: str, *, page: sns.ITopic) -> None:
        super().__init__(scope, id)
        alarm = cloudwatch.Alarm(
            self,
            "NoSweep",
            metric=of_the_sweep(COMPLETED, "Sum"),
            alarm_description=_described(
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
        _tell(alarm, page)


class Blind(Construct):
    """Pages when the sweep is made, and learns nothing: not of some runs, or of no run's metrics. That is not healthy,
    and never a reason to stop a job; where it lasts, somebody has to look."""

    def __init__(self, scope: Construct, id: str, *, page: sns.ITopic) -> None:
        super().__init__(scope, id)
        page_when_above(
            self,
            "Runs",
            metric=of_the_sweep("BlindRuns", "Maximum"),
            page=page,
            says="Rerail: for 10 of the last 15 minutes nothing could be learnt of some runs. The sweep's log names"
            " them: see whether SageMaker answers, and whether their policy and their record can be read.",
            runbook=Runbook.BLIND,
            minutes=(10, 15),
        )
        page_when_above(
            self,
            "Metrics",
            metric=of_the_sweep("UnreadRounds", "Maximum"),
            page=page,
            says="Rerail: in 10 of the last 15 minutes CloudWatch told no metrics, so runs without an agent are not"
            " judged. The sweep's log says why.",
            runbook=Runbook.BLIND,
            minutes=(10, 15),
        )


class Undelivered(Construct):
    """Says when a topic cannot reach one of its subscribers; the others may still hear it."""

    def __init__(self, scope: Construct, id: str, *, topic: sns.ITopic, name: str, page: sns.ITopic) -> None:
        super().__init__(scope, id)
        page_when_above(
            self,
            "Failed",
            metric=topic.metric_number_of_notifications_failed(period=MINUTE, statistic="Sum"),
            page=page,
            says=f"Rerail: the topic {name} could not deliver to one of its subscribers. Find which, and mend or remove"
            " it.",
            runbook=Runbook.UNDELIVERED,
        )


class Health(Construct):
    """`RerailUnhealthy`: is anything wrong with Rerail itself? One state for a dashboard, a status page, or an alarm of
    somebody's own that should keep still meanwhile.

    It is over every alarm of the stack. It informs and does not page: the alarm that it is about has paged already,
    with its name and its runbook, and nobody is woken twice for one thing."""

    def __init__(self, scope: Construct, id: str, *, inform: sns.ITopic) -> None:
        super().__init__(scope, id)
        stack = Stack.of(self)
        alarms = [each for each in stack.node.find_all() if isinstance(each, cloudwatch.Alarm)]
        in_alarm = [cloudwatch.AlarmRule.from_alarm(each, cloudwatch.AlarmState.ALARM) for each in alarms]
        self.alarm = cloudwatch.CompositeAlarm(
            self,
            "Unhealthy",
            composite_alarm_name=UNHEALTHY,
            alarm_rule=cloudwatch.AlarmRule.any_of(*in_alarm),
            alarm_description=_described(
                self,
                "Rerail: something is wrong with Rerail itself. The reason names the alarm, which has paged by itself"
                " and says what to do; this one is over when all of them are.",
                Runbook.UNHEALTHY,
            ),
        )
        self.alarm.add_alarm_action(actions.SnsAction(inform))
        self.alarm.add_ok_action(actions.SnsAction(inform))


def of_the_sweep(name: str, statistic: str) -> cloudwatch.Metric:
    """One of the measures that it prints each minute."""
    return cloudwatch.Metric(
        namespace=NAMESPACE,
        metric_name=name,
        dimensions_map={"service": "sweep"},
        period=MINUTE,
        statistic=statistic,
    )


def _described(scope: Construct, says: str, runbook: Runbook) -> str:
    return f"{says} Runbook: {place(scope, runbook)}"


def _tell(alarm: cloudwatch.Alarm, page: sns.ITopic) -> None:
    alarm.add_alarm_action(actions.SnsAction(page))
    alarm.add_ok_action(actions.SnsAction(page))
