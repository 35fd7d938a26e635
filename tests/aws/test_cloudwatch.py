"""CloudWatch's answers in the core's words: few requests, whole series or none, and never a NaN."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from botocore.stub import ANY, Stubber

from rerail.aws import cloudwatch
from rerail.aws.clients import client
from rerail.aws.cloudwatch import NAMESPACE, CloudWatchSeries
from rerail.model.errors import RerailError, StateUnknown, Throttled
from rerail.model.metrics import (
    Cursor,
    MetricNames,
    MetricQuery,
    MetricsReading,
    Statistic,
    fetch,
    make_queries,
    make_samples,
)
from rerail.model.sample import Sample

MINUTE = timedelta(minutes=1)
START = datetime(2026, 1, 31, tzinfo=UTC)
END = START + 10 * MINUTE
STEP = MetricQuery("gpt", "step", Statistic.MAXIMUM)
LOSS = MetricQuery("gpt", "loss", Statistic.AVERAGE)
NAMES = MetricNames()


def publish(metric: str, values: Sequence[float], *, minute: int, job: str = "gpt", host: str = "") -> None:
    """Values of one minute, as SageMaker's agent puts them."""
    owner = {"Name": "Host", "Value": f"{job}/{host}"} if host else {"Name": "TrainingJobName", "Value": job}
    at = START + minute * MINUTE
    data = [
        {"MetricName": metric, "Dimensions": [owner], "Timestamp": at + timedelta(seconds=number), "Value": value}
        for number, value in enumerate(values)
    ]
    client("cloudwatch").put_metric_data(Namespace=NAMESPACE, MetricData=data)


def read(*asked: MetricQuery) -> dict[MetricQuery, list[tuple[datetime, float]]]:
    found = CloudWatchSeries().read(asked, START, END, MINUTE)
    return {query: list(points) for query, points in found.items()}


def test_a_minute_is_read_by_its_statistics():
    """Average, least, greatest and how many; each at the beginning of its minute, and only of this job."""
    publish("loss", [3.0, 2.0, 4.0], minute=2)
    publish("loss", [9.0], minute=2, job="other")
    asked = [MetricQuery("gpt", "loss", statistic) for statistic in Statistic]
    at = START + 2 * MINUTE
    assert list(read(*asked).values()) == [[(at, 3.0)], [(at, 2.0)], [(at, 4.0)], [(at, 3.0)]]


def test_a_host_is_read_by_its_own_dimension():
    """`<job>/algo-1`, as SageMaker names it."""
    publish("GPUUtilization", [97.0], minute=1, host="algo-1")
    busy = MetricQuery("gpt", "GPUUtilization", Statistic.AVERAGE, "algo-1")
    assert read(busy) == {busy: [(START + MINUTE, 97.0)]}
    assert read(MetricQuery("gpt", "GPUUtilization", Statistic.AVERAGE)) != read(busy)


def test_a_silent_metric_is_an_empty_series():
    assert read(STEP) == {STEP: []}
    assert CloudWatchSeries().read([], START, END, MINUTE) == {}


def test_a_job_becomes_samples():
    """From PutMetricData to what the detectors see."""
    for minute in range(3):
        publish("step", [10.0 * minute + 5, 10.0 * minute + 10], minute=minute)
        publish("loss", [3.0, 2.0], minute=minute)
        publish("nonfinite", [0.0, float(minute == 2)], minute=minute)
    now = START + 5 * MINUTE
    series = fetch(CloudWatchSeries(), [MetricsReading(Cursor("gpt"), NAMES)], now=now)
    _, found = make_samples(series, Cursor("gpt"), NAMES, now=now)
    assert [(s.step, s.loss, s.loss_max, s.count, s.step_time_s) for s in found] == [
        (10, 2.5, 3.0, 2, None),
        (20, 2.5, 3.0, 2, 6.0),
        (30, 2.5, 3.0, 2, 6.0),
    ]
    assert [s.nonfinite for s in found] == [False, False, True]
    assert found[0] == Sample(step=10, at=START + MINUTE, loss=2.5, loss_max=3.0, count=2)


def a_result(number: int, minutes: Sequence[int], status: str = "Complete", offset: float = 0.0) -> dict[str, Any]:
    times = [START + minute * MINUTE for minute in minutes]
    return {
        "Id": f"q{number}",
        "Timestamps": times,
        "Values": [minute + offset for minute in minutes],
        "StatusCode": status,
    }


def points(*minutes: int, offset: float = 0.0) -> list[tuple[datetime, float]]:
    return [(START + minute * MINUTE, minute + offset) for minute in minutes]


def answer(api: Stubber, *results: dict[str, Any], token: str = "", after: str = "") -> None:
    request = {"MetricDataQueries": ANY, "StartTime": START, "EndTime": END, "ScanBy": "TimestampAscending"}
    page = {"MetricDataResults": list(results)} | ({"NextToken": token} if token else {})
    api.add_response("get_metric_data", page, request | ({"NextToken": after} if after else {}))


def test_the_request_names_metrics_statistics_and_dimensions(api):
    """Names, statistics and dimensions, with ids that CloudWatch accepts."""
    owner = [{"Name": "TrainingJobName", "Value": "gpt"}]
    metric = {"Namespace": "/aws/sagemaker/TrainingJobs", "MetricName": "loss", "Dimensions": owner}
    asked = [{"Id": "q0", "MetricStat": {"Metric": metric, "Period": 60, "Stat": "Average"}}]
    request = {"MetricDataQueries": asked, "StartTime": START, "EndTime": END, "ScanBy": "TimestampAscending"}
    api.add_response("get_metric_data", {"MetricDataResults": [a_result(0, [])]}, request)
    assert read(LOSS) == {LOSS: []}


def test_every_page_is_read(api):
    """A series may go on on the next page, and another begin there; pages are counted as the requests they are."""
    answer(api, a_result(0, [0, 1], "PartialData"), token="more")
    answer(api, a_result(0, [2]), a_result(1, [0, 2], offset=0.5), after="more")
    series = CloudWatchSeries()
    assert series.read([STEP, LOSS], START, END, MINUTE) == {STEP: points(0, 1, 2), LOSS: points(0, 2, offset=0.5)}
    assert (series.calls, series.metrics) == (2, 4)


def test_any_order_is_put_right(api):
    """Newest first, as CloudWatch answers by default, or overlapping pages: oldest first, each minute once."""
    answer(api, a_result(0, [5, 4, 3]), token="more")
    answer(api, a_result(0, [3, 2, 1]), after="more")
    assert read(STEP) == {STEP: points(1, 2, 3, 4, 5)}


@pytest.mark.parametrize("status", ["PartialData", "InternalError", "Forbidden"])
def test_half_a_series_is_none(api, status):
    answer(api, a_result(0, [0, 1], status), a_result(1, [0]))
    assert read(STEP, LOSS) == {LOSS: points(0)}


def test_a_query_without_a_result_is_left_out(api):
    answer(api, a_result(1, [0]))
    assert read(STEP, LOSS) == {LOSS: points(0)}


def test_no_nan_gets_through(api):
    """CloudWatch stores none; should one come, it is no value."""
    result = a_result(0, [0, 1, 2])
    answer(api, {**result, "Values": [float("nan"), 1.0, float("inf")]})
    assert read(STEP) == {STEP: points(1)}


@pytest.mark.parametrize(
    ("code", "error"),
    [
        *((code, Throttled) for code in cloudwatch.THROTTLING),
        ("AccessDenied", StateUnknown),
        ("InvalidNextToken", StateUnknown),
        ("InternalServiceFault", StateUnknown),
        ("ValidationError", StateUnknown),
    ],
)
def test_a_throttled_call_is_distinguished_from_a_refused_one(api, code, error):
    """Come back later, or cannot see: neither is ever an empty series."""
    api.add_client_error("get_metric_data", code, "no", http_status_code=400)
    with pytest.raises(RerailError, match="GetMetricData") as raised:
        read(STEP)
    assert type(raised.value) is error


def test_a_reading_that_breaks_off_blinds(api):
    """The first page alone would be half the truth."""
    answer(api, a_result(0, [0]), token="more")
    api.add_client_error("get_metric_data", "ThrottlingException", "Rate exceeded", http_status_code=400)
    with pytest.raises(Throttled):
        read(STEP)


def test_no_answer_blinds(silent):
    """A time-out is not silence of the job."""
    with pytest.raises(StateUnknown):
        read(STEP)


class Echo:
    """A CloudWatch that answers every query with one value, and remembers the requests."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []

    def get_paginator(self, operation: str) -> "Echo":
        assert operation == "get_metric_data"
        return self

    def paginate(self, **request: Any) -> list[dict[str, Any]]:
        self.requests.append(request)
        asked = request["MetricDataQueries"]
        return [{"MetricDataResults": [{**a_result(0, [0]), "Id": query["Id"]} for query in asked]}]


@pytest.fixture
def echo(monkeypatch) -> Echo:
    echo = Echo()
    monkeypatch.setattr(cloudwatch, "client", lambda service: echo)
    return echo


@pytest.mark.parametrize(("runs", "calls"), [(1, 1), (100, 1), (101, 2), (1000, 10)])
def test_five_hundred_series_are_one_request(echo, runs, calls):
    """1,000 runs of five series are ten requests a minute, over all runs and none left out."""
    asked = [query for number in range(runs) for query in make_queries(f"job-{number}", NAMES)]
    series = CloudWatchSeries()
    found = series.read(asked, START, START + MINUTE, MINUTE)
    assert list(found) == asked
    assert (len(echo.requests), series.calls, series.metrics) == (calls, calls, 5 * runs)
    assert max(len(request["MetricDataQueries"]) for request in echo.requests) <= 500


@pytest.mark.parametrize(
    ("minutes", "most"), [(1, 500), (180, 500), (201, 500), (202, 499), (1440, 70), (100_800, 1), (200_000, 1)]
)
def test_a_request_stays_below_its_datapoints(echo, minutes, most):
    """100,800 at most: the longer the look back, the fewer series at once."""
    asked = [MetricQuery(f"job-{number}", "loss", Statistic.AVERAGE) for number in range(600)][: 2 * most]
    CloudWatchSeries().read(asked, START, START + minutes * MINUTE, MINUTE)
    assert max(len(request["MetricDataQueries"]) for request in echo.requests) == most
