"""A past job, read back from the local AWS that it ran in."""

import time
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from types import SimpleNamespace

import pytest

from cli import place
from cli.backtest import jobs
from cli.logbook import Logbook
from local.stack import LocalAws
from tests.aws.places import forget_clients
from tests.backtest.command import refused, run

pytestmark = pytest.mark.slow

SCRIPT = """
import time
for step in range(10, 110, 10):
    time.sleep(0.05)
    print(f"rerail step={step} loss={1 / step:.9g} grad_norm=1.5 tokens_per_s=100", flush=True)
"""
# What looking at the local AWS changes in this process.
CHANGED = (
    *("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION", "AWS_REGION"),
    *("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_SESSION_TOKEN", "AWS_PROFILE"),
)
METRICS = {"step": r"rerail step=(\d+)", "loss": r" loss=(\S+)", "tokens_per_s": r"tokens_per_s=(\S+)"}


@pytest.fixture(scope="module")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalAws]:
    """A local AWS without our stack, in which one job has run and one printed nothing."""
    state = tmp_path_factory.mktemp("aws")
    script = state / "script.py"
    script.write_text(SCRIPT)
    silent = state / "silent.py"
    silent.write_text("print('nothing to see')\n")
    with pytest.MonkeyPatch.context() as patch, LocalAws(state, scale=60, stack=None) as aws:
        for name in CHANGED:  # set first, so that the patch puts back that there was none
            patch.setenv(name, "")
            patch.delenv(name)
        patch.setattr(place, "LOCAL_STATE", state)
        forget_clients()
        aws.client("s3").create_bucket(Bucket="output")
        _train(aws, "past", script, METRICS)
        _train(aws, "silent", silent, {})
        yield aws
    forget_clients()


def test_a_past_job_is_read_by_the_minute_and_line_by_line(aws):
    """CloudWatch keeps the maximum and the count of each minute; the log keeps every step. Streams of others are not
    the job's."""
    strange = {"logGroupName": jobs.LOG_GROUP, "logStreamName": "past/others"}
    aws.client("logs").create_log_stream(**strange)
    line = {"timestamp": int(time.time() * 1000), "message": "rerail step=999 loss=9"}
    aws.client("logs").put_log_events(**strange, logEvents=[line])
    by_minute, log = jobs.read("past", local=True)
    assert sum(one.count for one in by_minute.samples) == 10
    assert max(one.loss_max for one in by_minute.samples) == pytest.approx(0.1)
    assert by_minute.samples[-1].step == 100
    assert [one.step for one in log.samples] == list(range(10, 110, 10))
    assert {one.grad_norm for one in log.samples} == {1.5}
    assert all(one.step_time_s is not None for one in log.samples[1:])


def test_a_log_without_end_is_read_to_a_limit_that_is_named(monkeypatch):
    page = {"events": [{"timestamp": 1, "message": "rerail step=1 loss=2"}]}
    pages = SimpleNamespace(paginate=lambda **request: repeat(page))
    monkeypatch.setattr(jobs, "client", lambda service: SimpleNamespace(get_paginator=lambda call: pages))
    monkeypatch.setattr(Logbook, "list_streams", lambda self, job: ["past/algo-1-17"])
    for limit in ("MOST_PAGES", "MOST_LINES"):
        with monkeypatch.context() as patch:
            patch.setattr(jobs, limit, 3)
            assert jobs._log("past").name == "past, the first 3 lines of its log"


def test_the_command_evaluates_both(aws):
    """Two logs under the job's name."""
    result = run("job:past", "--local")
    assert result.exit_code == 0, result.output
    assert "2 logs" in result.stdout


def test_a_job_that_is_unknown_or_left_nothing_is_refused_in_one_line(aws):
    """With what to do about it."""
    assert "check its name" in refused("job:unknown", "--local")
    assert "MetricDefinitions" in refused("job:silent", "--local")


def test_no_local_aws_is_refused(aws, tmp_path: Path, monkeypatch):
    """As every other command with --local does."""
    monkeypatch.setattr(place, "LOCAL_STATE", tmp_path)
    result = run("job:past", "--local")
    assert result.exit_code == 2
    assert "no local AWS is running" in result.stderr


def _train(aws: LocalAws, name: str, script: Path, metrics: dict[str, str]) -> None:
    """Run the script as a training job to its end."""
    sagemaker = aws.client("sagemaker")
    sagemaker.create_training_job(
        TrainingJobName=name,
        RoleArn="arn:aws:iam::000000000000:role/SageMakerRole",
        AlgorithmSpecification={
            "TrainingImage": "rerail-training:test",
            "TrainingInputMode": "File",
            "ContainerEntrypoint": ["python", str(script)],
            "MetricDefinitions": [{"Name": metric, "Regex": regex} for metric, regex in metrics.items()],
        },
        ResourceConfig={"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 30},
        OutputDataConfig={"S3OutputPath": "s3://output/"},
        StoppingCondition={"MaxRuntimeInSeconds": 86400},
    )
    end = time.monotonic() + 300
    while time.monotonic() < end:
        if sagemaker.describe_training_job(TrainingJobName=name)["TrainingJobStatus"] != "InProgress":
            return
        time.sleep(0.2)
    raise AssertionError(f"{name} did not end")
