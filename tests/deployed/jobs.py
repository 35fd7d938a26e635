"""Training jobs for the deployed stack, and what became of their runs."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from cli import place
from cli.demo.stage import hasty
from local.sagemaker.control import inject
from local.stack import LocalAws
from rerail.aws.dynamodb import DynamoRuns
from rerail.metrics import definitions
from rerail.model import Run
from rerail.policy import parse_policy, to_toml
from rerail.relaunch import POLICY_TAG

BUCKET = "sagemaker-deployed"
ROLE = "arn:aws:iam::000000000000:role/SageMakerRole"
ROOT = Path(__file__).parents[2]
RERAIL = [sys.executable, "-m", "cli.main"]
MACHINES = {"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 30}
T = TypeVar("T")

SCRIPT = Path(__file__).parent / "counting_script.py"
LOSSES = Path(__file__).parent / "loss_script.py"
AGENT = Path(__file__).parent / "agent_script.py"


@contextmanager
def apart(state: Path, **how: Any) -> Iterator[LocalAws]:
    """An AWS beside the suite's; whatever becomes of it, clients then look at the one of before again."""
    before = os.environ.get("AWS_ENDPOINT_URL")
    try:
        with LocalAws(state, **how) as aws:
            yield aws
    finally:
        if before:
            place.use_local(before)


class Account:
    """What a test does and sees in the deployed stack."""

    def __init__(self, aws: LocalAws) -> None:
        self.aws = aws
        self.sagemaker = aws.client("sagemaker")

    def set_up(self) -> None:
        place.use_local(self.aws.endpoint_url)
        self.runs = DynamoRuns(self.aws.outputs["TableName"])
        self.aws.client("s3").create_bucket(Bucket=BUCKET)
        ssm, name = self.aws.client("ssm"), f"{self.aws.outputs['PolicyPrefix']}/default"
        policy = parse_policy(ssm.get_parameter(Name=name)["Parameter"]["Value"], name="default")
        ssm.put_parameter(Name=name, Value=to_toml(hasty(policy, 60)), Overwrite=True, Type="String")

    def listen(self, name: str, *topics: str) -> str:
        """A queue of this name that hears these topics, by the names of their outputs; its URL."""
        sqs, sns = self.aws.client("sqs"), self.aws.client("sns")
        url: str = sqs.create_queue(QueueName=name)["QueueUrl"]
        arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        for topic in topics:
            sns.subscribe(TopicArn=self.aws.outputs[topic], Protocol="sqs", Endpoint=arn)
        return url

    def submit(
        self,
        name: str,
        *,
        policy: str | None = "default",
        steps: int = 100,
        script: Path = SCRIPT,
        machines: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
        **environment: str,
    ) -> str:
        """Start a job as a researcher would, with the tag or without it, and with others."""
        asked = {**({POLICY_TAG: policy} if policy else {}), **(tags or {})}
        self.sagemaker.create_training_job(
            TrainingJobName=name,
            RoleArn=ROLE,
            AlgorithmSpecification={
                "TrainingImage": "rerail-training:test",
                "TrainingInputMode": "File",
                "ContainerEntrypoint": ["python", str(script)],
                "MetricDefinitions": definitions(),
            },
            ResourceConfig={**MACHINES, **(machines or {})},
            CheckpointConfig={"S3Uri": f"s3://{BUCKET}/{name}"},
            OutputDataConfig={"S3OutputPath": f"s3://{BUCKET}/output/"},
            StoppingCondition={"MaxRuntimeInSeconds": 86400},
            Environment={"STEPS": str(steps), **environment},
            Tags=[{"Key": key, "Value": value} for key, value in asked.items()],
        )
        return name

    def inject(self, fault: str, **fields: Any) -> None:
        inject(self.aws.endpoint_url, fault, **fields)

    def wait(self, what: str, look: Callable[[], T | None], *, within_s: float = 45.0) -> T:
        """Look again and again until there is something; the first thing that there is."""
        end = time.monotonic() + within_s
        while time.monotonic() < end:
            if found := look():
                return found
            time.sleep(0.2)
        raise AssertionError(f"{what}: not within {within_s:.0f} s\n{self.story()}")

    def run_in(self, run_id: str, *states: str, within_s: float = 45.0) -> Run:
        """The run, once it is in one of these states."""

        def look() -> Run | None:
            run = self.runs.load(run_id)
            return run if run and run.state in states else None

        return self.wait(f"{run_id} in {states}", look, within_s=within_s)

    def has_saved(self, name: str, *, steps: int) -> None:
        """Wait until a checkpoint of so many steps is in S3."""
        key = f"{name}/step-{steps:09d}/manifest.json"
        listed = lambda: self.aws.client("s3").list_objects_v2(Bucket=BUCKET, Prefix=key).get("KeyCount")  # noqa: E731
        self.wait(f"{key} in S3", listed)

    def jobs(self, prefix: str) -> list[str]:
        """Names of the jobs that begin so, oldest first."""
        answer = self.sagemaker.list_training_jobs(NameContains=prefix, SortBy="CreationTime", SortOrder="Ascending")
        return [job["TrainingJobName"] for job in answer["TrainingJobSummaries"]]

    def dead_letters(self) -> list[str]:
        """The queues that hold something which they should not."""
        sqs, left = self.aws.client("sqs"), []
        for url in sqs.list_queues().get("QueueUrls", []):
            counts = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
            if "on-call" not in url and counts["ApproximateNumberOfMessages"] != "0":
                left.append(url)
        return left

    def story(self) -> str:
        """For a failed test: every run and its decisions."""
        runs = [run for _, run in self.runs.all_runs() if run]
        return "\n".join(f"{run.id} {run.state}: {[e.reason for e in self.runs.timeline(run.id)]}" for run in runs)


def rerail(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, as an operator types it."""
    return subprocess.run([*RERAIL, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)


def messages(account: Account, queue_url: str) -> list[dict[str, Any]]:
    """What SNS put into a queue."""
    answer = account.aws.client("sqs").receive_message(QueueUrl=queue_url, MaxNumberOfMessages=10)
    return [json.loads(message["Body"]) for message in answer.get("Messages", [])]
