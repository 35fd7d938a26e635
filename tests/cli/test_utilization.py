"""Utilization of machines: the mean of SageMaker's own host metrics, and nothing where there are none."""

from datetime import UTC, datetime, timedelta

import pytest
from moto import mock_aws

from cli.utilization import NAMESPACE, WINDOW, read_utilization
from rerail.aws.clients import client

NOW = datetime.now(UTC).replace(second=0, microsecond=0)


@pytest.fixture
def cloudwatch():
    with mock_aws():
        yield client("cloudwatch")


def put(cloudwatch, name: str, host: str, *values: float, ago: timedelta = timedelta(minutes=2)) -> None:
    cloudwatch.put_metric_data(
        Namespace=NAMESPACE,
        MetricData=[
            {
                "MetricName": name,
                "Dimensions": [{"Name": "Host", "Value": host}],
                "Timestamp": NOW - ago,
                "Values": values,
            }
        ],
    )


def test_the_means_of_all_machines_are_shown_in_one_line(cloudwatch):
    """Only of this job's machines, only of the last minutes, only what was published."""
    put(cloudwatch, "GPUUtilization", "gpt/algo-1", 90)
    put(cloudwatch, "GPUUtilization", "gpt/algo-2", 30)
    put(cloudwatch, "CPUUtilization", "gpt/algo-1", 110)
    put(cloudwatch, "GPUUtilization", "other/algo-1", 1)
    put(cloudwatch, "GPUUtilization", "gpt/algo-1", 1, ago=2 * WINDOW)
    found = read_utilization(cloudwatch, "gpt", 2, at=NOW)
    assert found and found.percent == {"GPUUtilization": 60, "CPUUtilization": 110} and found.hosts == 2
    assert str(found).startswith("machines: GPU 60 %, CPU 110 % (mean of 10 min over 2 machines;")


def test_nothing_is_shown_where_nothing_was_published(cloudwatch):
    assert read_utilization(cloudwatch, "gpt", 2, at=NOW) is None
