"""What a job's output becomes: CloudWatch metrics, final metrics, log streams."""

import re
from datetime import UTC, datetime, timedelta

import pytest

from local.sagemaker.metrics import number_in
from tests.local.sagemaker.local_api import until

pytestmark = pytest.mark.slow

NAMESPACE = "/aws/sagemaker/TrainingJobs"
DEFINITIONS = [
    {"Name": "loss", "Regex": r"loss=(\S+)"},
    {"Name": "careless", "Regex": r"loss=([0-9.]+)"},
    {"Name": "nonfinite", "Regex": r"nonfinite=([0-9]+)"},
]


def statistics(api, metric: str, dimension: str, value: str) -> dict[str, float]:
    now = datetime.now(UTC)
    found = api.cloudwatch.get_metric_statistics(
        Namespace=NAMESPACE,
        MetricName=metric,
        Dimensions=[{"Name": dimension, "Value": value}],
        StartTime=now - timedelta(minutes=10),
        EndTime=now + timedelta(minutes=1),
        Period=3600,
        Statistics=["SampleCount", "Maximum", "Minimum"],
    )["Datapoints"]
    return {
        "count": sum(point["SampleCount"] for point in found),
        "max": max((point["Maximum"] for point in found), default=0),
        "min": min((point["Minimum"] for point in found), default=0),
    }


def test_metrics(api):
    """The first group of each regex is a value under the job's name; nan vanishes without a word."""
    lines = "loss=2.5 nonfinite=0", "loss=9.1e-05 nonfinite=0", "loss=nan nonfinite=1", "loss=-inf nonfinite=1"
    script = "; ".join(f"echo rerail step=1 {line}" for line in lines) + "; echo loss=1.5 >&2"
    job = api.create(script, AlgorithmSpecification={"MetricDefinitions": DEFINITIONS})
    described = api.ended(job)
    assert statistics(api, "loss", "TrainingJobName", job) == {"count": 3, "max": 2.5, "min": 9.1e-05}
    assert statistics(api, "careless", "TrainingJobName", job) == {"count": 3, "max": 9.1, "min": 1.5}
    assert statistics(api, "nonfinite", "TrainingJobName", job)["max"] == 1
    final = {metric["MetricName"]: metric["Value"] for metric in described["FinalMetricDataList"]}
    assert final == {"loss": 1.5, "careless": 1.5, "nonfinite": 1.0}


def test_host_metrics(api):
    """Each host reports its CPU and memory under <job>/algo-<n>."""
    job = api.create("while :; do :; done", ResourceConfig={"InstanceCount": 2})
    for host in ("algo-1", "algo-2"):
        until(lambda host=host: statistics(api, "CPUUtilization", "Host", f"{job}/{host}")["max"] > 10)
    assert 0 < statistics(api, "MemoryUtilization", "Host", f"{job}/algo-1")["max"] < 100
    api.inject("kill", TrainingJobName=job)
    api.ended(job)


def test_logs(api):
    """Both output streams of each host are lines of its log stream, in order."""
    script = "for i in 1 2 3; do echo line $i; done; echo to stderr >&2; printf 'no newline'"
    job = api.create(script, ResourceConfig={"InstanceCount": 2})
    api.ended(job)
    streams = api.logs.describe_log_streams(logGroupName=NAMESPACE, logStreamNamePrefix=f"{job}/")["logStreams"]
    names = sorted(stream["logStreamName"] for stream in streams)
    assert [re.sub(r"\d{10,}$", "EPOCH", name) for name in names] == [f"{job}/algo-1-EPOCH", f"{job}/algo-2-EPOCH"]
    events = api.logs.get_log_events(logGroupName=NAMESPACE, logStreamName=names[0], startFromHead=True)["events"]
    assert [e["message"] for e in events] == ["line 1", "line 2", "line 3", "to stderr", "no newline"]


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-3", 0.001), ("nan", None), ("inf", None), ("-Infinity", None), ("1e400", None), ("x", None)],
)
def test_number_in(text, value):
    """Only what CloudWatch would take counts as a number."""
    assert number_in(text) == value
