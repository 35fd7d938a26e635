"""The demo's environment: a template deployed on a local AWS, a supervised job and its reference run, of one seed."""

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from secrets import token_hex
from types import MappingProxyType
from typing import Any

from cli.demo.other_runs import OtherRuns
from cli.demo.scenarios import OWN_TYPE, Scenario
from cli.demo.scripts import OURS, LossReader
from cli.operators import answer
from cli.place import Place
from cli.saves import StoredCheckpoint, list_checkpoints
from local.pace import FASTEST_SCALE
from local.sagemaker.control import inject
from local.stack import LocalAws
from rerail.accounting.costs import HOUR_S, sum_run_dollars
from rerail.accounting.save_interval import advise_interval, format_advice
from rerail.aws.dynamodb import DynamoRuns
from rerail.decisions.quarantine import PLACE
from rerail.model.codec import to_plain
from rerail.model.policy import Ladder, Mode, Policy, parse_policy, to_toml
from rerail.model.prices import DOLLARS_AN_HOUR
from rerail.model.run import JobStatus, Run, TimelineEntry
from rerail.model.signals import OperatorVerb
from rerail.model.signatures import VARIABLE
from rerail.model.thresholds import Thresholds
from rerail.requests.relaunch import POLICY_TAG

CHECKPOINT_EVERY, KEPT_CHECKPOINTS = 25, 30
# Rows of metrics that the detectors wait before they act; on the demo's clock a row is a second.
PATIENCE_ROWS = 12
STEPS_COMPARED = 40
# Between two looks at the run: each reads its record, jobs and logs, which costs the local AWS a tenth of a second.
REFRESH_S = 1.0
# Of steps there are hundreds here, not hundreds of thousands.
LADDER = Ladder(margin_steps=30, near_steps=100, skip_batches=60, far_skip_batches=120)
ROW = timedelta(seconds=1)
# A few seconds of a machine that has other things to do are neither a stall nor a loss of throughput.
SAVE_FLOOR, THROUGHPUT_FLOOR = timedelta(seconds=60), timedelta(seconds=5)
# How long the supervisor waits to be heard. Queue and polling keep real time, so on the fast clock it is given more.
ANSWER = timedelta(seconds=6)
# The same for an order to restart the training processes in place: they end and begin in real time.
OBEYED = timedelta(seconds=60)
SWEEP_S, DAY_S = 60, 86400
# How long the operator of the demo takes to answer, and how many relaunches the account may have in a (scaled) hour.
THINKS = timedelta(seconds=3)
RELAUNCHES = 2
ACCOUNT_WINDOW = Policy().limits.account_window
# Sooner than the policy would, so that the demo's run need not wait for half a minute.
FALLBACK_AFTER = timedelta(minutes=10)
NO_AGENT = {"RERAIL_MAILBOX": "off"}
BUCKET = "sagemaker-rerail-demo"
LOG_GROUP = "/aws/sagemaker/TrainingJobs"
REFERENCE = "undisturbed"


@dataclass
class JobOutput:
    """The lines of one job, read from its log stream as it grows: its loss and the time by step.

    `starts` are the times of its first step, and of the first step after each restart within the job.
    """

    job: str
    script: LossReader = OURS
    loss: dict[int, float] = field(default_factory=dict)
    times: dict[int, datetime] = field(default_factory=dict)
    first_step: int | None = None
    last_step: int = 0
    starts: list[datetime] = field(default_factory=list)
    tokens: dict[str, str] = field(default_factory=dict)

    def read(self, logs: Any) -> None:
        for at, message in self._new_messages(logs):
            for step, loss in self.script.parse_losses(message):
                if self.first_step is None or step <= self.last_step:
                    self.starts.append(at)
                self.first_step, self.last_step = self.first_step or step, step
                self.loss[step], self.times[step] = loss, at

    def _new_messages(self, logs: Any) -> Iterator[tuple[datetime, str]]:
        try:
            streams = logs.describe_log_streams(logGroupName=LOG_GROUP, logStreamNamePrefix=f"{self.job}/algo-1")
        except logs.exceptions.ResourceNotFoundException:
            return  # no job of this account has printed anything yet
        for stream in (row["logStreamName"] for row in streams["logStreams"]):
            place = {"logGroupName": LOG_GROUP, "logStreamName": stream, "startFromHead": True}
            seen = {"nextToken": self.tokens[stream]} if stream in self.tokens else {}
            answer = logs.get_log_events(**place, **seen)
            self.tokens[stream] = answer["nextForwardToken"]
            for event in answer["events"]:
                yield datetime.fromtimestamp(event["timestamp"] / 1000, UTC), event["message"]


def scale_policy(policy: Policy, scale: float) -> Policy:
    """Return the policy on the demo's clock.

    Limits in rows are cut, so that the detectors decide within minutes. A row is a second of wall time at every scale,
    so a slower clock needs more of them for the same wait. Restarts in place are off, so that these scenarios recover
    by a new job.
    """
    slowdown = FASTEST_SCALE / scale
    rows = round(PATIENCE_ROWS * slowdown)
    scaled = policy.scaled(scale)
    detection = replace(
        scaled.detection,
        patience_rows=rows,
        throughput_window_rows=rows,
        throughput_rows=rows // 2,
        throughput_patience_rows=rows,
        save_floor=SAVE_FLOOR * slowdown,
        throughput_floor=THROUGHPUT_FLOOR * slowdown,
    )
    return replace(
        scaled,
        detection=detection,
        metrics=replace(scaled.metrics, period=ROW),
        save=replace(scaled.save, answer=ANSWER * slowdown),
        restart=replace(scaled.restart, in_place=False, deadline=OBEYED * slowdown),
        ladder=LADDER,
    )


def make_agent_environment(detection: Thresholds) -> dict[str, str]:
    """Return the environment that gives the job's agent these thresholds on the demo's clock.

    The agent's rows are steps of a twelfth of a second: on a busy machine some take twice as long, and a few take
    seconds.
    """
    detection = replace(
        detection,
        patience_rows=PATIENCE_ROWS,
        throughput_window_rows=STEPS_COMPARED,
        throughput_rows=STEPS_COMPARED,
        throughput_patience_rows=STEPS_COMPARED,
        throughput_drop=0.5,
        throughput_grave=1.0,
    )
    thresholds = {name: value for name, value in to_plain(detection).items() if name != "type"}
    return {
        "RERAIL_DETECTION": json.dumps(thresholds),
        "RERAIL_HANG_SECONDS": str(2 * detection.stall_floor.total_seconds()),
        "RERAIL_POLL_SECONDS": "1",
        "RERAIL_HEARTBEAT_SECONDS": "1",
    }


@dataclass
class Stage:
    """The state of the demo, updated by `refresh`."""

    aws: LocalAws
    scenario: Scenario
    run_id: str
    scale: float
    run: Run | None = None
    timeline: list[TimelineEntry] = field(default_factory=list)
    curves: dict[str, JobOutput] = field(default_factory=dict)
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    answered: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.fleet = OtherRuns(self.run_id, self.scenario.other_runs)
        self._runs = DynamoRuns(self.aws.outputs["TableName"])
        self._logs = self.aws.client("logs")
        self._sagemaker = self.aws.client("sagemaker")

    def set_up(self) -> None:
        """Write the policy on the scaled clock, make a bucket, and start the supervised job and the reference run."""
        ssm, name = self.aws.client("ssm"), f"{self.aws.outputs['PolicyPrefix']}/default"
        policy = parse_policy(ssm.get_parameter(Name=name)["Parameter"]["Value"], name="default")
        policy = scale_policy(policy, self.scale)
        policy = replace(policy, restart=replace(policy.restart, in_place=self.scenario.in_place))
        if self.scenario.fallbacks:
            capacity = replace(
                policy.capacity, fallbacks=self.scenario.fallbacks, fallback_after=FALLBACK_AFTER / self.scale
            )
            policy = replace(policy, capacity=capacity)
        self._policy = policy = self._gated(policy)
        ssm.put_parameter(Name=name, Value=to_toml(policy), Overwrite=True, Type="String")
        self.aws.client("s3").create_bucket(Bucket=BUCKET)
        watched = make_agent_environment(policy.detection) if self.scenario.agent else self._alone()
        tags = [{"Key": POLICY_TAG, "Value": "default"}]
        environment = {**self.scenario.environment, **watched}
        layout = self.scenario.layout
        self._submit(self.run_id, environment, tags=tags, keep_alive=self.scenario.keep_alive, layout=layout)
        self._submit(REFERENCE, self._alone(), tags=[])
        for other in self.fleet.names:
            self._submit(other, environment, tags=tags)
        self._schedule_faults()

    def _gated(self, policy: Policy) -> Policy:
        """What the scenario's policy lets through at once: nothing without a word, or so many relaunches in a while."""
        if self.scenario.approves:
            policy = replace(policy, mode=Mode.APPROVE)
        if self.scenario.other_runs:
            policy = replace(policy, limits=replace(policy.limits, account_relaunches=RELAUNCHES))
        if self.scenario.stop_dollars:
            limits = replace(policy.limits, stop_dollars=self.scenario.stop_dollars)
            policy = replace(policy, limits=limits, prices={OWN_TYPE: DOLLARS_AN_HOUR[OWN_TYPE] * self.scale})
        return policy

    def _alone(self) -> dict[str, str]:
        """What tells a script to do without its agent, if it has one."""
        return NO_AGENT if self.scenario.knows_rerail else {}

    def _submit(
        self,
        name: str,
        environment: dict[str, str],
        *,
        tags: list[dict[str, str]],
        keep_alive: int = 0,
        layout: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        scenario, spot = self.scenario, self.scenario.spot
        machines = {"InstanceType": OWN_TYPE, "InstanceCount": 1, "VolumeSizeInGB": 30}
        kept = {"KeepAlivePeriodInSeconds": keep_alive} if keep_alive else {}
        of_script = scenario.script.make_request(
            steps=scenario.steps,
            save_every=CHECKPOINT_EVERY,
            keep=KEPT_CHECKPOINTS,
            step_seconds=scenario.step_seconds * FASTEST_SCALE / self.scale,
        )
        if not scenario.metrics:
            of_script["AlgorithmSpecification"].pop("MetricDefinitions")
        self._sagemaker.create_training_job(
            TrainingJobName=name,
            RoleArn="arn:aws:iam::000000000000:role/DemoSageMakerRole",
            AlgorithmSpecification={
                "TrainingImage": "rerail-training:demo",
                "TrainingInputMode": "File",
                **of_script["AlgorithmSpecification"],
            },
            HyperParameters={**of_script.get("HyperParameters", {}), **scenario.options, **layout},
            ResourceConfig=machines | kept,
            CheckpointConfig={"S3Uri": f"s3://{BUCKET}/{name}/"},
            OutputDataConfig={"S3OutputPath": f"s3://{BUCKET}/output/"},
            StoppingCondition={"MaxRuntimeInSeconds": DAY_S, **({"MaxWaitTimeInSeconds": 2 * DAY_S} if spot else {})},
            EnableManagedSpotTraining=spot,
            Environment={VARIABLE: token_hex(32), **of_script.get("Environment", {}), **environment},
            Tags=tags,
        )

    def refresh(self) -> None:
        """Read the run, its timeline, its jobs and what they print."""
        self.run = self._runs.load(self.run_id)
        if self.run:
            self.timeline = list(self._runs.timeline(self.run_id))
        for name in (
            [*(attempt.job_name for attempt in self.run.attempts if attempt.exists), REFERENCE]
            if self.run
            else [REFERENCE]
        ):
            self.jobs[name] = self._sagemaker.describe_training_job(TrainingJobName=name)
            self.curves.setdefault(name, JobOutput(name, self.scenario.script)).read(self._logs)
        if self.scenario.other_runs:
            self.fleet.read(self._runs)
        if self.scenario.approves:
            self._answer()

    def _answer(self) -> None:
        """Approve the proposal after a moment, as an operator would from a terminal."""
        proposal = self.run.proposal if self.run else None
        if proposal is None or proposal.id in self.answered:
            return
        if datetime.now(UTC) - proposal.asked_at >= THINKS:
            self.answered.append(proposal.id)
            here = Place("the demo", self.aws.outputs)
            answer(here, self.run_id, OperatorVerb.APPROVE, proposal.id, "seen it in the demo")

    def _schedule_faults(self) -> None:
        """Have the SageMaker fake cause the scenario's faults once every job has done the step before the fault's."""
        if self.scenario.faults is None:
            return
        inject(
            self.aws.endpoint_url,
            "at",
            TrainingJobNames=[self.run_id, *self.others],
            Step=self.scenario.fault_step - 1,
            Faults=list(self.scenario.faults(self.run_id, self.others)),
        )

    @property
    def others(self) -> list[str]:
        """The names of the other runs."""
        return self.fleet.names

    def list_quarantined_objects(self) -> list[str]:
        """Return the keys of the objects that the supervisor has moved to quarantine."""
        place = f"{PLACE}{self.run_id}/"
        pages = self.aws.client("s3").get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=place)
        return [item["Key"].removeprefix(place) for page in pages for item in page.get("Contents", [])]

    def summarize_other_runs(self) -> dict[str, Any]:
        """Return how the relaunch limit handled the other runs; nothing if the scenario has none."""
        if not self.scenario.other_runs:
            return {}
        facts, window_s = self.fleet.summarize(), ACCOUNT_WINDOW / self.scale
        times = facts["relaunched_at_s"]
        most = max(sum(at <= other < at + window_s.total_seconds() for other in times) for at in times)
        return {**facts, "limit": RELAUNCHES, "window_s": window_s.total_seconds(), "most_in_window": most}

    def sum_cost(self) -> dict[str, float]:
        """Return the run's dollars and the most that its cap allows: what a sweep and a save take may be added."""
        cap = self.scenario.stop_dollars
        if not cap or not self.run:
            return {}
        policy = self._policy
        excess_s = policy.save.deadline.total_seconds() + SWEEP_S / self.scale
        dollars = sum_run_dollars(self.run, datetime.now(UTC), policy.prices)
        return {"cap": cap, "dollars": dollars or 0.0, "most": cap + policy.prices[OWN_TYPE] / HOUR_S * excess_s}

    def advise(self) -> str:
        """Return the recommended checkpoint interval of this run, from its checkpoints and failures."""
        checkpoints = [save.checkpoint for save in self.list_checkpoints() if save.checkpoint]
        found = advise_interval(self.run, checkpoints, self._policy, at=datetime.now(UTC)) if self.run else None
        return format_advice(found) if found else ""

    def list_checkpoints(self) -> list[StoredCheckpoint]:
        """Return the run's checkpoints in S3."""
        return list_checkpoints(self.aws.client("s3"), f"s3://{BUCKET}/{self.run_id}/")

    @property
    def is_over(self) -> bool:
        """Return whether the run has ended with no action pending, and the reference run has ended."""
        ended = self.run is not None and self.run.state.is_end and not self.run.is_open
        alone = not self.scenario.other_runs or self.fleet.is_over
        return ended and alone and JobStatus(self.jobs[REFERENCE]["TrainingJobStatus"]).is_terminal

    @property
    def steps_done(self) -> int:
        """The newest step of the run, over all its attempts."""
        if not self.run:
            return 0
        return max(
            (self.curves[a.job_name].last_step for a in self.run.attempts if a.job_name in self.curves), default=0
        )

    def merge_curves(self) -> dict[int, float]:
        """Return the run's loss by step; for a step that was trained twice, the later one."""
        merged: dict[int, float] = {}
        for attempt in self.run.attempts if self.run else ():
            merged |= self.curves[attempt.job_name].loss if attempt.job_name in self.curves else {}
        return merged

    def read_losses(self) -> dict[int, float]:
        """Return the run's loss by step, as exact as its logs and checkpoints have it."""
        return {**self.merge_curves(), **self._saved_losses(self.run_id)}

    def _saved_losses(self, job: str) -> Mapping[int, float]:
        return self.scenario.script.read_saved_losses(self.aws.client("s3"), BUCKET, f"{job}/")

    def find_largest_difference(self) -> float | None:
        """Return the largest difference from the reference run's losses; None if they share no step."""
        mine, twins = self.read_losses(), {**self.curves[REFERENCE].loss, **self._saved_losses(REFERENCE)}
        shared = mine.keys() & twins.keys()
        return max((abs(mine[step] - twins[step]) for step in shared), default=None)


def poll_until_over(stage: Stage, *, within_s: float) -> Iterator[Stage]:
    """Yield the refreshed state until it is over; raise TimeoutError after `within_s` at reference speed."""
    within_s *= FASTEST_SCALE / stage.scale
    end = time.monotonic() + within_s
    while True:
        stage.refresh()
        yield stage
        if stage.is_over:
            return
        if time.monotonic() > end:
            state = stage.run.state if stage.run else "not adopted"
            raise TimeoutError(
                f"the run has not ended after {within_s:.0f} s (it is {state}); see {stage.aws.log_file}"
            )
        time.sleep(REFRESH_S)
