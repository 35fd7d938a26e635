"""Alarms, metrics of functions, and logs; tests/deployed has alarms of queues and of alarms, and embedded metrics."""

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from local.stack import LocalAws
from tests.local.waiting import HANG_S, eventually, put_event

pytestmark = pytest.mark.slow

NAMESPACE = "AlarmTest"


def put(aws: LocalAws, metric: str, value: float, name: str = "one") -> None:
    datum = {"MetricName": metric, "Value": value, "Dimensions": [{"Name": "Run", "Value": name}]}
    aws.client("cloudwatch").put_metric_data(Namespace=NAMESPACE, MetricData=[datum])


def alarm(aws: LocalAws, name: str, **changes: Any) -> None:
    request = {
        "AlarmName": name,
        "Namespace": NAMESPACE,
        "MetricName": name,
        "Dimensions": [{"Name": "Run", "Value": "one"}],
        "Statistic": "Maximum",
        "Period": 10,
        "EvaluationPeriods": 1,
        "Threshold": 5.0,
        "ComparisonOperator": "GreaterThanThreshold",
        "TreatMissingData": "notBreaching",
    }
    aws.client("cloudwatch").put_metric_alarm(**request | changes)


def state(aws: LocalAws, name: str) -> str:
    [found] = aws.client("cloudwatch").describe_alarms(AlarmNames=[name])["MetricAlarms"]
    return str(found["StateValue"])


def becomes(aws: LocalAws, name: str, wanted: str, within_s: float = HANG_S) -> bool:
    return eventually(lambda: state(aws, name) == wanted, within_s)


def total(aws: LocalAws, namespace: str, metric: str, dimensions: dict[str, str], statistic: str = "Sum") -> float:
    now = datetime.now(UTC)
    points = aws.client("cloudwatch").get_metric_statistics(
        Namespace=namespace,
        MetricName=metric,
        Dimensions=[{"Name": name, "Value": value} for name, value in dimensions.items()],
        StartTime=now - timedelta(hours=1),
        EndTime=now + timedelta(minutes=1),
        Period=3600,
        Statistics=[statistic],
    )
    return float(sum(point[statistic] for point in points["Datapoints"]))


def test_alarm_follows_its_own_dimensions_and_comes_back(aws: LocalAws) -> None:
    """Another run's bad value changes nothing; its own raises the alarm, which ends by itself when the value is old."""
    alarm(aws, "Dims", Period=3, OKActions=[])
    put(aws, "Dims", 100.0, name="another")
    assert becomes(aws, "Dims", "OK")
    time.sleep(1.5)
    assert state(aws, "Dims") == "OK"
    assert eventually(lambda: put(aws, "Dims", 6.0) or state(aws, "Dims") == "ALARM")
    assert becomes(aws, "Dims", "OK")


@pytest.mark.parametrize(
    ("treatment", "expected"), [("breaching", "ALARM"), ("notBreaching", "OK"), ("missing", "INSUFFICIENT_DATA")]
)
def test_missing_data_is_treated_as_asked(aws: LocalAws, treatment: str, expected: str) -> None:
    """An alarm without any data goes where TreatMissingData says."""
    name = f"Missing-{treatment}"
    alarm(aws, name, TreatMissingData=treatment)
    assert becomes(aws, name, expected)
    time.sleep(1.2)
    assert state(aws, name) == expected


def test_periods_of_a_minute_pass_as_fast_as_schedules_do(aws: LocalAws) -> None:
    """Two minutes without data are over in four seconds: no faster than an alarm is looked at."""
    minutes = {"Period": 60, "EvaluationPeriods": 2, "DatapointsToAlarm": 2, "TreatMissingData": "breaching"}
    alarm(aws, "Minutes", **minutes, ComparisonOperator="LessThanThreshold")
    assert eventually(lambda: put(aws, "Minutes", 9.0) or state(aws, "Minutes") == "OK")
    assert becomes(aws, "Minutes", "ALARM", within_s=60)  # half of what two minutes take


def test_error_of_a_run_by_a_rule_raises_the_alarm_of_the_template(aws: LocalAws) -> None:
    """Runs that no Invoke call started are counted in AWS/Lambda, the failed ones as errors."""
    put_event(aws, "Dead", once="alarm")
    assert becomes(aws, aws.outputs["ErrorsAlarmName"], "ALARM")
    function = {"FunctionName": aws.outputs["DeadName"]}
    assert eventually(lambda: total(aws, "AWS/Lambda", "Errors", function) >= 3)
    counts = ("Invocations", "Errors")
    # A further run may be counted between the two answers.
    assert eventually(lambda: len({total(aws, "AWS/Lambda", count, function) for count in counts}) == 1)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [({}, [2.0, 1.0]), ({"ScanBy": "TimestampAscending"}, [1.0, 2.0])],
    ids=["default", "ascending"],
)
def test_metric_data_come_newest_first_unless_asked_otherwise(
    aws: LocalAws, asked: dict[str, str], expected: list[float]
) -> None:
    """GetMetricData has AWS's default order."""
    now = datetime.now(UTC)
    dimensions = [{"Name": "Run", "Value": f"order-{len(asked)}"}]
    data = [
        {
            "MetricName": "Order",
            "Value": value,
            "Timestamp": now - timedelta(minutes=5 - value),
            "Dimensions": dimensions,
        }
        for value in (1.0, 2.0)
    ]
    cloudwatch = aws.client("cloudwatch")
    cloudwatch.put_metric_data(Namespace=NAMESPACE, MetricData=data)
    metric = {"Namespace": NAMESPACE, "MetricName": "Order", "Dimensions": dimensions}
    [result] = cloudwatch.get_metric_data(
        MetricDataQueries=[{"Id": "m", "MetricStat": {"Metric": metric, "Period": 60, "Stat": "Average"}}],
        StartTime=now - timedelta(hours=1),
        EndTime=now + timedelta(minutes=1),
        **asked,
    )["MetricDataResults"]
    assert result["Values"] == expected
    assert result["Timestamps"] == sorted(result["Timestamps"], reverse=not asked)


@pytest.mark.parametrize("from_head", [True, False])
def test_a_log_begins_with_an_empty_page(aws: LocalAws, from_head: bool) -> None:
    """Its token leads to the lines, and the end is where the same token comes back."""
    logs, place = aws.client("logs"), {"logGroupName": f"pages-{from_head}", "logStreamName": "one"}
    logs.create_log_group(logGroupName=place["logGroupName"])
    logs.create_log_stream(**place)
    logs.put_log_events(**place, logEvents=[{"timestamp": int(time.time() * 1000), "message": "line"}])
    which = "nextForwardToken" if from_head else "nextBackwardToken"
    pages, token = [], {}
    for _ in range(4):
        page = logs.get_log_events(**place, **token, startFromHead=from_head)
        pages.append([event["message"] for event in page["events"]])
        if token.get("nextToken") == page[which]:
            break
        token = {"nextToken": page[which]}
    assert pages == [[], ["line"], []]
