"""Read the metrics of training jobs from CloudWatch, batched over all runs."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from math import isfinite
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from rerail.aws.clients import client
from rerail.aws.error_codes import find_code
from rerail.aws.validation import validate
from rerail.model.errors import StateUnknown, Throttled
from rerail.model.metrics import MetricQuery, Points

NAMESPACE = "/aws/sagemaker/TrainingJobs"
QUERY_LIMIT = 500  # per request
DATAPOINT_LIMIT = 100_800  # per request; more are returned in pages
READERS = 4  # parallel requests
THROTTLING = ("Throttling", "ThrottlingException", "RequestLimitExceeded", "LimitExceeded", "LimitExceededException")


@dataclass(frozen=True, slots=True)
class _Answer:
    points: Mapping[MetricQuery, Points]
    calls: int


class CloudWatchSeries:
    """The port `Series` on GetMetricData."""

    def __init__(self) -> None:
        self.calls = 0  # requests so far
        self.metrics = 0  # series in these requests, an upper bound of what is billed (see rerail.model.metrics)

    def read(
        self, asked: Sequence[MetricQuery], start: datetime, end: datetime, period: timedelta
    ) -> Mapping[MetricQuery, Points]:
        size = _batch_size(start, end, period)
        batches = [asked[first : first + size] for first in range(0, len(asked), size)]
        with ThreadPoolExecutor(READERS) as readers:
            answers = list(readers.map(partial(_read, start=start, end=end, period=period), batches))
        self.calls += sum(answer.calls for answer in answers)
        self.metrics += sum(answer.calls * len(batch) for answer, batch in zip(answers, batches, strict=True))
        return {query: points for answer in answers for query, points in answer.points.items()}


def _batch_size(start: datetime, end: datetime, period: timedelta) -> int:
    points = max(1, -((start - end) // period))
    return max(1, min(QUERY_LIMIT, DATAPOINT_LIMIT // points))


def _read(batch: Sequence[MetricQuery], *, start: datetime, end: datetime, period: timedelta) -> _Answer:
    queries = {f"q{number}": query for number, query in enumerate(batch)}
    pages = (
        client("cloudwatch")
        .get_paginator("get_metric_data")
        .paginate(
            MetricDataQueries=[_make_query(name, query, period) for name, query in queries.items()],
            StartTime=start,
            EndTime=end,
            ScanBy="TimestampAscending",
        )
    )
    values: dict[str, dict[datetime, float]] = defaultdict(dict)
    status: dict[str, str] = {}
    calls = 0
    try:
        for calls, page in enumerate(pages, start=1):  # noqa: B007
            with validate("GetMetricData"):
                for result in page["MetricDataResults"]:
                    status[result["Id"]] = result.get("StatusCode", "Complete")
                    values[result["Id"]] |= _parse_points(result)
    except (ClientError, BotoCoreError) as error:
        throttled = find_code(error) in THROTTLING
        raise (Throttled if throttled else StateUnknown)(f"GetMetricData: {error}") from error
    # A series with another status on its last page, or without one, is unknown, which differs from empty.
    complete = {queries[name]: sorted(values[name].items()) for name in queries if status.get(name) == "Complete"}
    return _Answer(complete, calls)


def _parse_points(result: Mapping[str, Any]) -> dict[datetime, float]:
    pairs = zip(result["Timestamps"], result["Values"], strict=True)
    return {at.astimezone(UTC): float(value) for at, value in pairs if isfinite(value)}


def _make_query(name: str, query: MetricQuery, period: timedelta) -> dict[str, Any]:
    owner = ("Host", f"{query.job}/{query.host}") if query.host else ("TrainingJobName", query.job)
    dimensions = [{"Name": owner[0], "Value": owner[1]}]
    metric = {"Namespace": NAMESPACE, "MetricName": query.metric, "Dimensions": dimensions}
    seconds = int(period.total_seconds())
    return {"Id": name, "MetricStat": {"Metric": metric, "Period": seconds, "Stat": query.statistic.value}}
