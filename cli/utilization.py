"""Read the utilization of a job's machines from the metrics that SageMaker publishes for each host."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

NAMESPACE = "/aws/sagemaker/TrainingJobs"
# In the order in which they are shown, with their words.
METRICS = {
    "GPUUtilization": "GPU",
    "GPUMemoryUtilization": "GPU memory",
    "CPUUtilization": "CPU",
    "MemoryUtilization": "memory",
    "DiskUtilization": "disk",
}
WINDOW = timedelta(minutes=10)
PERIOD_S = 60
MOST_HOSTS = 100


@dataclass(frozen=True, slots=True)
class Utilization:
    """Means over the last minutes and all hosts in percent: 100 for each GPU and each CPU core."""

    hosts: int
    percent: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        shares = ", ".join(f"{METRICS[name]} {self.percent[name]:.0f} %" for name in METRICS if name in self.percent)
        over = f" over {self.hosts} machines" if self.hosts > 1 else ""
        minutes = int(WINDOW.total_seconds() // 60)
        return f"machines: {shares} (mean of {minutes} min{over}; 100 % is one GPU or one core)"


def read_utilization(cloudwatch: Any, job: str, count: int, *, at: datetime) -> Utilization | None:
    """Return how busy the job's machines have been; None if SageMaker has published nothing. Raise what boto3 raises.

    Of more than a hundred machines the first hundred are read: one request holds 500 metrics.
    """
    named = {
        f"m{number}_{host}": (name, f"{job}/algo-{host}")
        for number, name in enumerate(METRICS)
        for host in range(1, min(count, MOST_HOSTS) + 1)
    }
    pages = cloudwatch.get_paginator("get_metric_data").paginate(
        MetricDataQueries=[_make_query(id, name, host) for id, (name, host) in named.items()],
        StartTime=at - WINDOW,
        EndTime=at,
    )
    values: dict[str, list[float]] = {}
    hosts = set()
    for page in pages:
        for series in page["MetricDataResults"]:
            if series["Values"]:
                name, host = named[series["Id"]]
                values.setdefault(name, []).extend(series["Values"])
                hosts.add(host)
    if not values:
        return None
    return Utilization(len(hosts), {name: sum(found) / len(found) for name, found in values.items()})


def _make_query(id: str, name: str, host: str) -> dict[str, Any]:
    metric = {"Namespace": NAMESPACE, "MetricName": name, "Dimensions": [{"Name": "Host", "Value": host}]}
    return {"Id": id, "MetricStat": {"Metric": metric, "Period": PERIOD_S, "Stat": "Average"}}
