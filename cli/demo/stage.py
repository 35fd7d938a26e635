"""The stage: a local AWS with the deployed template, a supervised job, and its undisturbed twin of the same seed."""

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from cli.demo.scenarios import Scenario
from cli.saves import Save, saves_under
from local.sagemaker.control import inject
from local.stack import LocalAws
from rerail.aws.dynamodb import DynamoRuns
from rerail.codec import plain
from rerail.detectors.detection import Detection
from rerail.metrics import definitions
from rerail.model import JobStatus, Run, TimelineEntry
from rerail.policy import Policy, parse_policy, to_toml
from rerail.relaunch import POLICY_TAG

CHECKPOINT_EVERY, KEPT_CHECKPOINTS = 25, 30
# Rows of metrics that the detectors wait before they act; on the demo's clock a row is a second.
PATIENCE_ROWS = 12
STEPS_COMPARED = 40
# How long the supervisor waits to be heard. Queue and polling keep real time, so on the fast clock it is given more.
ANSWER = timedelta(seconds=6)
DAY_S = 86400
NO_AGENT = {"RERAIL_MAILBOX": "off"}
BUCKET = "sagemaker-rerail-demo"
LOG_GROUP = "/aws/sagemaker/TrainingJobs"
TWIN = "undisturbed"
METRIC_LINE = re.compile(r"rerail step=(\d+) loss=(\S+)")


@dataclass
class Curve:
    """What one job printed: its loss by step, read from its log stream as it grows."""

    job: str
    loss: dict[int, float] = field(default_factory=dict)
    first_step: int | None = None
    last_step: int = 0
    tokens: dict[str, str] = field(default_factory=dict)

    def read(self, logs: Any) -> None:
        for message in self._new_messages(logs):
            for number, loss in METRIC_LINE.findall(message):
                self.last_step = int(number)
                self.first_step = self.first_step or self.last_step
                self.loss[self.last_step] = float(loss)

    def _new_messages(self, logs: Any) -> Iterator[str]:
        try:
            streams = logs.describe_log_streams(logGroupName=LOG_GROUP, logStreamNamePrefix=f"{self.job}/algo-1")
        except logs.exceptions.ResourceNotFoundException:
            return  # no job of this account has printed anything yet
        for stream in (row["logStreamName"] for row in streams["logStreams"]):
            place = {"logGroupName": LOG_GROUP, "logStreamName": stream, "startFromHead": True}
            seen = {"nextToken": self.tokens[stream]} if stream in self.tokens else {}
            answer = logs.get_log_events(**place, **seen)
            self.tokens[stream] = answer["nextForwardToken"]
            yield from (event["message"] for event in answer["events"])


def hasty(policy: Policy, scale: float) -> Policy:
    """The policy on the demo's clock; what counts in rows is cut, so that the detectors decide within its minutes."""
    scaled = policy.scaled(scale)
    detection = replace(
        scaled.detection,
        patience_rows=PATIENCE_ROWS,
        throughput_window_rows=PATIENCE_ROWS,
        throughput_rows=PATIENCE_ROWS // 2,
        throughput_patience_rows=PATIENCE_ROWS,
    )
    return replace(scaled, detection=detection, save=replace(scaled.save, answer=ANSWER))


def told(detection: Detection) -> dict[str, str]:
    """What a job's environment carries so that its agent has these thresholds, and keeps the demo's clock.

    The agent's rows are steps, a twelfth of a second each: on a busy machine some of them take twice as long, and a few
    take seconds.
    """
    detection = replace(
        detection,
        throughput_window_rows=STEPS_COMPARED,
        throughput_rows=STEPS_COMPARED,
        throughput_patience_rows=STEPS_COMPARED,
        throughput_drop=0.5,
        throughput_grave=1.0,
    )
    thresholds = {name: value for name, value in plain(detection).items() if name != "type"}
    return {
        "RERAIL_DETECTION": json.dumps(thresholds),
        "RERAIL_HANG_SECONDS": str(2 * detection.stall_floor.total_seconds()),
        "RERAIL_POLL_SECONDS": "1",
        "RERAIL_HEARTBEAT_SECONDS": "1",
    }


@dataclass
class Stage:
    """Everything that the demo looks at, brought up to date by `look`."""

    aws: LocalAws
    scenario: Scenario
    run_id: str
    scale: float
    run: Run | None = None
    timeline: list[TimelineEntry] = field(default_factory=list)
    curves: dict[str, Curve] = field(default_factory=dict)
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    struck_at: datetime | None = None

    def __post_init__(self) -> None:
        self._runs = DynamoRuns(self.aws.outputs["TableName"])
        self._logs = self.aws.client("logs")
        self._sagemaker = self.aws.client("sagemaker")

    def set(self) -> None:
        """The policy on the scaled clock, a bucket, the supervised job and its twin."""
        ssm, name = self.aws.client("ssm"), f"{self.aws.outputs['PolicyPrefix']}/default"
        policy = parse_policy(ssm.get_parameter(Name=name)["Parameter"]["Value"], name="default")
        policy = hasty(policy, self.scale)
        ssm.put_parameter(Name=name, Value=to_toml(policy), Overwrite=True, Type="String")
        self.aws.client("s3").create_bucket(Bucket=BUCKET)
        watched = told(policy.detection) if self.scenario.agent else NO_AGENT
        tags = [{"Key": POLICY_TAG, "Value": "default"}]
        self._submit(self.run_id, {**self.scenario.environment, **watched}, tags=tags)
        self._submit(TWIN, NO_AGENT, tags=[])

    def _submit(self, name: str, environment: dict[str, str], *, tags: list[dict[str, str]]) -> None:
        spot = self.scenario.spot
        self._sagemaker.create_training_job(
            TrainingJobName=name,
            RoleArn="arn:aws:iam::000000000000:role/DemoSageMakerRole",
            AlgorithmSpecification={
                "TrainingImage": "rerail-training:demo",
                "TrainingInputMode": "File",
                "MetricDefinitions": definitions(),
            },
            HyperParameters={
                "steps": str(self.scenario.steps),
                "checkpoint-every": str(CHECKPOINT_EVERY),
                "step-seconds": str(self.scenario.step_seconds),
                "keep": str(KEPT_CHECKPOINTS),
            },
            ResourceConfig={"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 30},
            CheckpointConfig={"S3Uri": f"s3://{BUCKET}/{name}/"},
            OutputDataConfig={"S3OutputPath": f"s3://{BUCKET}/output/"},
            StoppingCondition={"MaxRuntimeInSeconds": DAY_S, **({"MaxWaitTimeInSeconds": 2 * DAY_S} if spot else {})},
            EnableManagedSpotTraining=spot,
            Environment=environment,
            Tags=tags,
        )

    def look(self) -> None:
        """Read the run, its timeline, its jobs and what they print; strike when the time has come."""
        self.run = self._runs.load(self.run_id)
        if self.run:
            self.timeline = list(self._runs.timeline(self.run_id))
        for name in (
            [*(attempt.job_name for attempt in self.run.attempts if attempt.exists), TWIN] if self.run else [TWIN]
        ):
            self.jobs[name] = self._sagemaker.describe_training_job(TrainingJobName=name)
            self.curves.setdefault(name, Curve(name)).read(self._logs)
        self._strike()

    def _strike(self) -> None:
        first = self.curves.get(self.run_id)
        if self.scenario.strike and self.struck_at is None and first and first.last_step >= self.scenario.fault_step:
            self.struck_at = datetime.now(UTC)
            self.scenario.strike(self, self.run_id)

    def inject(self, fault: str, **fields: Any) -> None:
        inject(self.aws.endpoint_url, fault, **fields)

    def stop(self, job: str) -> None:
        self._sagemaker.stop_training_job(TrainingJobName=job)

    def saves(self) -> list[Save]:
        """What the run has saved, as it lies in S3 now."""
        return saves_under(self.aws.client("s3"), f"s3://{BUCKET}/{self.run_id}/")

    @property
    def is_over(self) -> bool:
        """The run has ended with nothing owed, and so has its twin."""
        ended = self.run is not None and self.run.state.is_end and not self.run.is_open
        return ended and JobStatus(self.jobs[TWIN]["TrainingJobStatus"]).is_terminal

    @property
    def steps_done(self) -> int:
        """The newest step of the run, over all its attempts."""
        if not self.run:
            return 0
        return max(
            (self.curves[a.job_name].last_step for a in self.run.attempts if a.job_name in self.curves), default=0
        )

    def mended_curve(self) -> dict[int, float]:
        """The run's loss by step: of a step that was trained twice, the later one counts."""
        merged: dict[int, float] = {}
        for attempt in self.run.attempts if self.run else ():
            merged |= self.curves[attempt.job_name].loss if attempt.job_name in self.curves else {}
        return merged

    def largest_difference(self) -> float | None:
        """Between the run's losses and its twin's, over all steps; None where they share no step."""
        mine, twins = self.mended_curve(), self.curves[TWIN].loss
        shared = mine.keys() & twins.keys()
        return max((abs(mine[step] - twins[step]) for step in shared), default=None)


def until_over(stage: Stage, *, within_s: float) -> Iterator[Stage]:
    """Look again and again until it is over; raises TimeoutError."""
    end = time.monotonic() + within_s
    while True:
        stage.look()
        yield stage
        if stage.is_over:
            return
        if time.monotonic() > end:
            state = stage.run.state if stage.run else "not adopted"
            raise TimeoutError(
                f"the run has not ended after {within_s:.0f} s (it is {state}); see {stage.aws.log_file}"
            )
        time.sleep(0.4)
