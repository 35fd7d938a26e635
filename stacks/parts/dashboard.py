"""The dashboard `Rerail-<region>`: first what on-call needs, then runs, time, money and the supervisor.

Metrics with a dimension (state, cause, kind) are found by a search, so that a new dimension value needs no change."""

from collections.abc import Iterable, Mapping, Sequence

from aws_cdk import Aws, Duration, Stack
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from rerail.model.runbooks import Runbook
from stacks.parts.alarms import MINUTE, NAMESPACE, HealthAlarm, place
from stacks.parts.dead_letter_queue import DeadLetterQueue

NAME = "Rerail"
WIDTH, HEIGHT, LOW = 24, 6, 3
FIVE = Duration.minutes(5)


class Dashboard(Construct):
    """The dashboard, with the most urgent widgets first."""

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        health: HealthAlarm,
        functions: Mapping[str, lambda_.IFunction],
        signals: Mapping[str, sqs.IQueue],
    ) -> None:
        """`functions` by the names that people know them by; every dead-letter queue of the stack is found by itself,
        so this comes after all that has one."""
        super().__init__(scope, id)
        dead_letters = [node for node in Stack.of(self).node.find_all() if isinstance(node, DeadLetterQueue)]
        # A dashboard belongs to all regions of an account: two deployments must not write over each other's.
        name = f"{NAME}-{Aws.REGION}"
        board = cloudwatch.Dashboard(self, "Dashboard", dashboard_name=name, default_interval=Duration.hours(12))
        board.add_widgets(_status(health), *_urgent())
        board.add_widgets(*_runs())
        board.add_widgets(*_time())
        board.add_widgets(*_money())
        board.add_widgets(*_decisions())
        board.add_widgets(*_supervisor(functions, signals, dead_letters))
        board.add_widgets(_links(self))


def _status(health: HealthAlarm) -> cloudwatch.IWidget:
    return cloudwatch.AlarmStatusWidget(title="Is Rerail well?", alarms=[health.alarm], width=6, height=LOW)


def _urgent() -> Iterable[cloudwatch.IWidget]:
    return (
        _number("Runs held", _sweep("HeldRuns")),
        _number("Open incidents", _sweep("OpenIncidents")),
        _number("Blind runs", _sweep("BlindRuns")),
        _number("Paused", _sweep("Paused")),
        _number("Open runs", _sweep("OpenRuns")),
        _number("Sweeps in 5 minutes", _sweep("SweepsCompleted", "Sum", FIVE)),
    )


def _runs() -> Iterable[cloudwatch.IWidget]:
    counts = ("WatchedRuns", "BeatingRuns", "DueRuns", "GarbledHeartbeats", "UnreadRounds")
    return (
        _graph("Runs by state", [_search("Runs", "State")], stacked=True),
        _graph("Attempts and relaunches of open runs", _sweeps("Attempts", "Relaunches", "RestartsInPlace")),
        _graph("Open incidents by cause", [_search("OpenIncidentsByCause", "Cause")], stacked=True),
        _graph("Watched, by heartbeat, due", _sweeps(*counts)),
    )


def _time() -> Iterable[cloudwatch.IWidget]:
    return (
        _graph("Goodput of open runs, %", _sweeps("GoodputShare")),
        _graph("Goodput of open runs, seconds", _sweeps("GoodputSeconds")),
        _graph("Badput of open runs by kind, seconds", [_search("BadputSeconds", "Kind")], stacked=True),
        _graph("From onset to decision, and to progress", _sweeps("MeanTimeToDecide", "MeanTimeToProgress")),
    )


def _money() -> Iterable[cloudwatch.IWidget]:
    return (
        _graph("Dollars of open runs", _sweeps("DollarsSpent")),
        _graph("Dollars lost to badput", _sweeps("DollarsLost")),
        _graph("Dollars saved against people on call", _sweeps("DollarsSaved")),
        _graph("Seconds saved against people on call", _sweeps("SecondsSaved")),
    )


def _decisions() -> Iterable[cloudwatch.IWidget]:
    supervise = [_of("supervise", name, "Sum", FIVE) for name in ("Wakeups", "Decisions", "RejectedMessages")]
    found = [_of("sweep", name, "Sum", FIVE) for name in ("Findings", "DiscoveredJobs")]
    waited = [_of("supervise", "SignalToDecision", statistic, FIVE) for statistic in ("Average", "Maximum")]
    notices = [_search("NoticesDecided", "Severity", "Sum")]
    notices += [_of("notify", f"Notices.{severity}", "Sum", FIVE) for severity in ("page", "inform", "clear")]
    notices += [_of("report", "Reports", "Sum", FIVE)]
    return (
        _graph("Wake-ups, decisions, findings", [*supervise, *found]),
        _graph("Asked of the world", [_search("Actions", "Action", "Sum")], stacked=True),
        _graph("Incidents opened by cause", [_search("IncidentsOpened", "Cause", "Sum")], stacked=True),
        _graph("From signal to decision, seconds; notices", waited, right=notices),
    )


def _supervisor(
    functions: Mapping[str, lambda_.IFunction],
    signals: Mapping[str, sqs.IQueue],
    dead_letters: Sequence[DeadLetterQueue],
) -> Iterable[cloudwatch.IWidget]:
    errors = [function.metric_errors(period=FIVE, label=f"{name}: errors") for name, function in functions.items()]
    throttles = [
        function.metric_throttles(period=FIVE, label=f"{name}: throttles") for name, function in functions.items()
    ]
    durations = [
        function.metric_duration(period=FIVE, statistic="p99", label=f"{name}: p99")
        for name, function in functions.items()
    ]
    ages = [
        queue.metric_approximate_age_of_oldest_message(period=MINUTE, statistic="Maximum", label=label)
        for label, queue in signals.items()
    ]
    letters = [
        dead_letter_queue.queue.metric_approximate_number_of_messages_visible(
            period=MINUTE, statistic="Maximum", label=f"of {dead_letter_queue.of}"
        )
        for dead_letter_queue in dead_letters
    ]
    return (
        _graph("Errors and throttles", errors, right=throttles),
        _graph("Durations", durations),
        _graph("The oldest signal", ages),
        _graph("Dead letters", letters),
    )


def _links(scope: Construct) -> cloudwatch.IWidget:
    runbooks = place(scope, Runbook.UNHEALTHY)
    guide = runbooks.replace(f"runbooks/{Runbook.UNHEALTHY}", "operations")
    text = (
        f"Every number is explained in {guide}. **Rerail unwell?** {runbooks}\n\n"
        "`rerail status` lists the runs, `rerail show RUN` tells one run's story, `rerail doctor` looks at the"
        " installation, `rerail pause` keeps Rerail from stopping and launching jobs. A run's own numbers are in its"
        " report: a run's name is never a dimension here, or what is paid for would grow with the runs."
    )
    return cloudwatch.TextWidget(markdown=text, width=WIDTH, height=LOW)


def _of(function: str, name: str, statistic: str, period: Duration) -> cloudwatch.Metric:
    return cloudwatch.Metric(
        namespace=NAMESPACE,
        metric_name=name,
        dimensions_map={"service": function},
        statistic=statistic,
        period=period,
        label=f"{name} ({statistic.lower()})" if statistic == "Average" else name,
    )


def _sweep(name: str, statistic: str = "Maximum", period: Duration = MINUTE) -> cloudwatch.Metric:
    return _of("sweep", name, statistic, period)


def _sweeps(*names: str) -> list[cloudwatch.IMetric]:
    return [_sweep(name) for name in names]


def _search(name: str, dimension: str, statistic: str = "Maximum") -> cloudwatch.IMetric:
    """Every metric of that name, one for each word of the dimension."""
    schema = f"{{{NAMESPACE},{dimension},service}}"
    period = MINUTE if statistic == "Maximum" else FIVE
    found = f"SEARCH('{schema} MetricName=\"{name}\"', '{statistic}', {period.to_seconds()})"
    label = f"${{PROP('Dim.{dimension}')}}"
    return cloudwatch.MathExpression(expression=found, using_metrics={}, label=label, period=period)


def _number(title: str, metric: cloudwatch.IMetric) -> cloudwatch.IWidget:
    return cloudwatch.SingleValueWidget(title=title, metrics=[metric], width=3, height=LOW)


def _graph(
    title: str,
    left: Sequence[cloudwatch.IMetric],
    *,
    right: Sequence[cloudwatch.IMetric] = (),
    stacked: bool = False,
) -> cloudwatch.IWidget:
    return cloudwatch.GraphWidget(
        title=title,
        left=list(left),
        right=list(right),
        stacked=stacked,
        width=WIDTH // 4,
        height=HEIGHT,
        left_y_axis=cloudwatch.YAxisProps(min=0),
    )
