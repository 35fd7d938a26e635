"""A fleet in training in the made-up AWS, and its server: `python -m bench.made_fleet --runs 1000 --share 0.5`.

Prints the port that it listens on. GET /-/counts tells what was called since it was asked last."""

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from zlib import crc32

from bench.made_aws import Answer, MadeAws, wire_headers
from rerail.aws.dynamodb import _run_item
from rerail.aws.sagemaker import job_from
from rerail.decisions.adoption import Adopted, adopt
from rerail.decisions.decide import decide
from rerail.model.liveness import Phase
from rerail.model.mailbox import Heartbeat, write
from rerail.model.metrics import definitions
from rerail.model.policy import Policy
from rerail.model.run import Run
from rerail.model.signals import ActionsDone, JobObserved
from rerail.requests.relaunch import rebuild

TABLE, BUCKET, MAILBOX = "Rerail-Runs", "bucket", "mailbox"
PREFIX, PAUSE_PARAMETER = "/rerail/policies", "/rerail/switch"
REGION, ACCOUNT = "eu-west-1", "123456789012"
HOUR_S, MINUTE_S = 3600, 60
# A job trains for two days already, and makes a step a second; it saves each half hour.
AGE_S, SAVE_EVERY_S = 48 * HOUR_S, 1800
# Of all jobs: those whose status changed in the last quarter of an hour, as starts and restarts do.
CHANGED = 0.01


POLICIES = {"default": 'mode = "act"'}
MEMBERS = {
    *("TrainingJobName", "AlgorithmSpecification", "HyperParameters", "RoleArn", "InputDataConfig", "Environment"),
    *("OutputDataConfig", "ResourceConfig", "StoppingCondition", "CheckpointConfig"),
}


class OnePolicy:
    """The port `Policies` with one policy, whatever it is called."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def get(self, name: str) -> Policy:
        return self.policy


def description(name: str, *, now: float, changed: bool = False, agent: bool = False) -> dict[str, Any]:
    """A job in training as DescribeTrainingJob tells it."""
    began = int(now) - AGE_S
    return {
        "TrainingJobName": name,
        "TrainingJobArn": f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:training-job/{name}",
        "TrainingJobStatus": "InProgress",
        "SecondaryStatus": "Training",
        "AlgorithmSpecification": {
            "TrainingImage": f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/training:2026-10",
            "TrainingInputMode": "FastFile",
            "MetricDefinitions": [] if agent else definitions(),
        },
        "HyperParameters": {"epochs": "1", "lr": "3e-4", "batch-size": "1024", "warmup": "2000"},
        "RoleArn": f"arn:aws:iam::{ACCOUNT}:role/Training",
        "InputDataConfig": [
            {
                "ChannelName": "train",
                "DataSource": {
                    "S3DataSource": {
                        "S3DataType": "S3Prefix",
                        "S3Uri": "s3://bucket/tokens/",
                        "S3DataDistributionType": "FullyReplicated",
                    }
                },
            }
        ],
        "OutputDataConfig": {"S3OutputPath": f"s3://{BUCKET}/out/"},
        "ResourceConfig": {"InstanceType": "ml.p4d.24xlarge", "InstanceCount": 1, "VolumeSizeInGB": 100},
        "StoppingCondition": {"MaxRuntimeInSeconds": 14 * 86400},
        "CheckpointConfig": {"S3Uri": f"s3://{BUCKET}/{name}/", "LocalPath": "/opt/ml/checkpoints"},
        "CreationTime": began - 300,
        "TrainingStartTime": began,
        "LastModifiedTime": int(now) - 120 if changed else began,
        "SecondaryStatusTransitions": [
            {"Status": "Starting", "StartTime": began - 300, "EndTime": began - 120, "StatusMessage": "Preparing"},
            {"Status": "Downloading", "StartTime": began - 120, "EndTime": began, "StatusMessage": "Downloading"},
            {"Status": "Training", "StartTime": began, "StatusMessage": "Training in progress"},
        ],
        "Environment": {"NCCL_DEBUG": "WARN"},
    }


def run_of(told: Mapping[str, Any], policy: Policy, *, at: datetime, agent: bool = False) -> Run:
    """The run that the job has become, by the decisions that led there."""
    parsed = {**told, **{name: datetime.fromtimestamp(told[name], UTC) for name in TIMES if name in told}}
    parsed["SecondaryStatusTransitions"] = [
        {**each, **{name: datetime.fromtimestamp(each[name], UTC) for name in ("StartTime", "EndTime") if name in each}}
        for each in told["SecondaryStatusTransitions"]
    ]
    job = job_from(parsed)
    enrolled = adopt(job, parsed, {"rerail:policy": "default"}, OnePolicy(policy), taken=False, at=at)
    assert isinstance(enrolled, Adopted)
    run = enrolled.run
    if agent:
        run = replace(run, attempts=(replace(run.current, agent=True),))
    for _ in range(3):
        run = decide(run, JobObserved(at, job), policy).run
        run = decide(run, ActionsDone(at, run.pending), policy).run
    return replace(run, version=3)


TIMES = ("CreationTime", "TrainingStartTime", "LastModifiedTime", "TrainingEndTime")


def noise(text: str) -> float:
    """Between 0 and 1, and always the same."""
    return crc32(text.encode()) / 2**32


def loss_at(job: str, at: float) -> float:
    """A loss that falls slowly, with some noise."""
    return 2.0 + 0.5 / (1 + at % 1e6 / 1e6) + 0.02 * (noise(f"{job}{at}") - 0.5)


class Fleet:
    """So many runs in training; `share` of them, evenly, have an agent in them, and each keeps so many saves."""

    def __init__(
        self,
        aws: MadeAws,
        runs: int,
        *,
        share: float,
        policy: Policy,
        policies: Mapping[str, str] = POLICIES,
        chosen: Callable[[int], str] = lambda number: "default",
        kept: int = 20,
    ) -> None:
        self.aws, self.kept = aws, kept
        now = aws.clock()
        at = datetime.fromtimestamp(now, UTC)
        self.began = int(now) - AGE_S
        aws.parameters = {f"{PREFIX}/{name}": text for name, text in {**POLICIES, **policies}.items()}
        aws.parameters[PAUSE_PARAMETER] = "on"
        for number in range(runs):
            name = f"llm-pretraining-{number:05d}"
            agent = int((number + 1) * share) > int(number * share)
            told = description(name, now=now, changed=noise(name) < CHANGED, agent=agent)
            aws.jobs[name] = told
            aws.tags[name] = [{"Key": "rerail:policy", "Value": chosen(number)}]
            run = replace(run_of(told, policy, at=at, agent=agent), policy=chosen(number))
            item: dict[str, Any] = _run_item(run)
            aws.put(item)
            aws.put({"pk": {"S": f"job#{name}"}, "sk": {"S": "job"}, "run": {"S": name}})
            request = rebuild(told, {"rerail:policy": chosen(number)}, members=set(told) & MEMBERS)
            text = json.dumps(request, default=str)
            aws.put({"pk": {"S": f"run#{name}"}, "sk": {"S": "request"}, "doc": {"S": text}})
        aws.objects, aws.listing, aws.series = self.object, self.saves, self.value

    def step(self, at: float) -> int:
        """A step a second since it began."""
        return max(0, int(at) - self.began)

    def object(self, key: str) -> bytes | None:
        """A heartbeat, or the manifest of a save."""
        parts = key.split("/")
        now = self.aws.clock()
        if parts[-1] == "heartbeat.json":
            at = datetime.fromtimestamp(now - 20, UTC)
            run, step = parts[-2], self.step(now - 20)
            loss = loss_at(run, now // 60)
            return write(Heartbeat(run, 1, run, at, Phase.STEP, step, moved_at=at, loss=loss, step_seconds=1))
        if parts[-1] == "manifest.json":
            step = int(parts[-2].removeprefix("step-"))
            at = datetime.fromtimestamp(self.began + step, UTC)
            told = {"schema": 1, "attempt": 1, "step": step, "saved_at": at.isoformat(), "reason": "periodic"}
            return json.dumps({**told, "files": [{"name": "model.pt", "bytes": 100}]}).encode()
        return None

    def saves(self, prefix: str) -> list[tuple[str, int, float]]:
        """The newest, a few files each."""
        last = self.step(self.aws.clock()) // SAVE_EVERY_S
        steps = [number * SAVE_EVERY_S for number in range(max(1, last - self.kept + 1), last + 1)]
        names = ["manifest.json", "model.pt", *(f"optimizer-{rank}.pt" for rank in range(self.kept // 3))]
        return [(f"{prefix}step-{step:09d}/{name}", 100, float(self.began + step)) for step in steps for name in names]

    def value(self, job: str, metric: str, statistic: str, at: float) -> float | None:
        """What CloudWatch knows of the minute that begins then."""
        if metric == "step":
            return float(self.step(at + MINUTE_S))
        if metric == "nonfinite":
            return 0.0
        if statistic == "SampleCount":
            return 6.0
        return loss_at(job, at) - (0.01 if statistic == "Minimum" else 0.0)


class Server(asyncio.Protocol):
    """HTTP/1.1 with kept connections: as much of it as botocore speaks."""

    def __init__(self, aws: MadeAws) -> None:
        self.aws, self.buffer = aws, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while self._take():
            pass

    def _take(self) -> bool:
        """One request, if it is all there."""
        head, found, rest = self.buffer.partition(b"\r\n\r\n")
        if not found:
            return False
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if headers.get("expect") == "100-continue" and len(rest) == 0:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        length = int(headers.get("content-length", 0))
        if len(rest) < length:
            return False
        body, self.buffer = rest[:length], rest[length:]
        method, path, _ = first.split(" ", 2)
        answer = self._counts() if path == "/-/counts" else self.aws.answer(method, path, headers, body)
        asyncio.get_running_loop().call_later(answer.delay_s, self._send, answer)
        return True

    def _send(self, answer: Answer) -> None:
        head = "".join(f"{name}: {value}\r\n" for name, value in wire_headers(answer, id(answer)))
        self.transport.write(f"HTTP/1.1 {answer.status} Made\r\n{head}\r\n".encode() + answer.body)

    def _counts(self) -> Answer:
        aws = self.aws
        told = {"calls": aws.calls, "units": aws.units, "refused": aws.refused, "invoked": aws.invoked}
        body = json.dumps({**told, "sent": len(aws.sent)}).encode()
        aws.calls, aws.refused, aws.invoked, aws.sent = Counter(), Counter(), [], []
        aws.units.clear()
        return Answer(200, body, 0.0)


async def serve(aws: MadeAws) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Server(aws), "127.0.0.1", 0, backlog=1000)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.made_fleet")
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--share", type=float, default=0.0, help="of the runs: those with an agent")
    options = parser.parse_args(arguments)
    aws = MadeAws(time.time)
    Fleet(aws, options.runs, share=options.share, policy=Policy())
    asyncio.run(serve(aws))
    return 0


if __name__ == "__main__":
    sys.exit(main())
