"""Read a past training job: its CloudWatch metrics by the minute, and its log stream by the line."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from cli import place
from cli.backtest.series import BadInput, LogSeries, add_step_times, make_sample
from cli.logbook import LOG_GROUP, Logbook
from cli.place import client
from rerail.model.sample import Sample

NAMESPACE = "/aws/sagemaker/TrainingJobs"
# CloudWatch's statistic for each metric; the loss has its largest value and its count as well.
STATISTICS = {
    "step": "Maximum",
    "loss": "Average",
    "loss_max": "Maximum",
    "count": "SampleCount",
    "grad_norm": "Average",
    "tokens_per_s": "Average",
    "nonfinite": "Maximum",
}
METRIC_OF = {"loss_max": "loss", "count": "loss"}
# CloudWatch keeps minutes for 15 days, five minutes for 63 days, hours for 455 days.
KEPT = ((timedelta(days=15), 60), (timedelta(days=63), 300), (timedelta(days=455), 3600))
# FilterLogEvents takes 100 streams by name.
STREAMS_A_CALL = 100
# Of a log; a page has at most 1 MB, and lines that fit are few in most.
MOST_PAGES, MOST_LINES = 2_000, 1_000_000
LINE = re.compile(r"\brerail (?=step=)")
PAIR = re.compile(r"(\w+)=(\S+)")


def read(name: str, *, local: bool) -> list[LogSeries]:
    """Return the job's metrics and its log as one series each, if they have samples; raise BadInput if neither has."""
    if not name:
        raise BadInput("job: names no job", "write job:NAME")
    if local:
        place.find(local=True)
    try:
        start, end = _times(name)
        found = [LogSeries(f"{name}, CloudWatch", _metrics(name, start, end)), _log(name)]
    except (ClientError, BotoCoreError) as error:
        where = "" if local else ", or add --local"
        raise BadInput(
            f"the job {name} cannot be read: {error}", f"check its name and your credentials{where}"
        ) from error
    found = [series for series in found if series.samples]
    if not found:
        definitions = "give the job MetricDefinitions for loss and step, or print lines like `rerail step=1 loss=2.5`"
        raise BadInput(f"the job {name} left no metric loss and no line `rerail step=... loss=...`", definitions)
    return found


def _times(name: str) -> tuple[datetime, datetime]:
    job = client("sagemaker").describe_training_job(TrainingJobName=name)
    start = job.get("TrainingStartTime") or job["CreationTime"]
    return start, job.get("TrainingEndTime") or place.now()


def _metrics(name: str, start: datetime, end: datetime) -> tuple[Sample, ...]:
    period = next((seconds for age, seconds in KEPT if place.now() - start < age), 3600)
    queries = [_query(column, name, period) for column in STATISTICS]
    columns: dict[str, dict[datetime, float]] = {column: {} for column in STATISTICS}
    pages = client("cloudwatch").get_paginator("get_metric_data")
    first, last = start.replace(second=0, microsecond=0), end + timedelta(seconds=period)
    for page in pages.paginate(MetricDataQueries=queries, StartTime=first, EndTime=last, ScanBy="TimestampAscending"):
        for result in page["MetricDataResults"]:
            moments = [at.astimezone(UTC) for at in result["Timestamps"]]
            columns[result["Id"]].update(zip(moments, result["Values"], strict=True))
    times = sorted({at for values in columns.values() for at in values})
    return add_step_times([_minute({column: values.get(at) for column, values in columns.items()}, at) for at in times])


def _query(column: str, job: str, period: int) -> dict[str, Any]:
    dimensions = [{"Name": "TrainingJobName", "Value": job}]
    metric = {"Namespace": NAMESPACE, "MetricName": METRIC_OF.get(column, column), "Dimensions": dimensions}
    return {"Id": column, "MetricStat": {"Metric": metric, "Period": period, "Stat": STATISTICS[column]}}


def _minute(values: Mapping[str, float | None], at: datetime) -> Sample:
    average = make_sample(values, at=at)
    count = max(1, int(values.get("count") or 1))
    return Sample(
        step=average.step,
        at=at,
        loss=average.loss,
        grad_norm=average.grad_norm,
        tokens_per_s=average.tokens_per_s,
        nonfinite=average.nonfinite,
        count=count,
        loss_max=values.get("loss_max"),
    )


def _log(name: str) -> LogSeries:
    """Return the metric lines of the job's hosts, oldest first; only one of them prints any."""
    logs, found = client("logs"), list[tuple[int, Sample]]()
    what = f"{name}, log"
    if streams := Logbook(logs).list_streams(name)[:STREAMS_A_CALL]:
        for number, page in enumerate(
            logs.get_paginator("filter_log_events").paginate(
                logGroupName=LOG_GROUP, logStreamNames=streams, filterPattern='"rerail step="'
            )
        ):
            if number == MOST_PAGES or len(found) >= MOST_LINES:
                what = f"{name}, the first {len(found):,} lines of its log"
                break
            found += [(event["timestamp"], line) for event in page["events"] if (line := _line(event))]
    return LogSeries(what, add_step_times([line for _, line in sorted(found, key=itemgetter(0))]))


def _line(event: Mapping[str, Any]) -> Sample | None:
    """The metric line in a log event, wherever a launcher's prefix put it."""
    if not (found := LINE.search(event["message"])):
        return None
    values = {key: _number(text) for key, text in PAIR.findall(event["message"][found.end() :])}
    return make_sample(values, at=datetime.fromtimestamp(event["timestamp"] / 1000, UTC))


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
