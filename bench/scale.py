"""Measure how many runs one deployment carries: `python -m bench.scale [--runs 100,1000,10000] [--jobs 1000]`.

Sweeps: the function `sweep` over fleets of several sizes, with its CPU time, its AWS calls and their price. Storm: all
jobs die at once, the functions `sweep` and `supervise` relaunch them, and CreateTrainingJob takes two calls a second.
Both run against `FakeAws`, which answers above the HTTP layer of the SDK, and on a simulated clock.
"""

import argparse
import io
import json
import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from math import log
from pathlib import Path
from typing import Any
from unittest.mock import patch

from botocore.client import BaseClient
from botocore.exceptions import ClientError
from rich.console import Console
from rich.progress import track

from bench.cost import MEMORY_GB, MINUTES, PRICES
from bench.evidence import BenchFailed, Evidence, GoalResult, Sheet, finish
from rerail.aws.dynamodb import _run_item
from rerail.aws.sagemaker import read_job
from rerail.decisions.adoption import Adopted, adopt
from rerail.decisions.decide import decide
from rerail.messages.messages import RUN_STATE_CHANGE
from rerail.model.liveness import Phase
from rerail.model.mailbox import Heartbeat, serialize
from rerail.model.metrics import make_definitions
from rerail.model.policy import Policy, parse_policy
from rerail.model.signals import ActionsDone, JobObserved
from rerail.model.signatures import sign
from rerail.requests.relaunch import rebuild
from settings import SuperviseSettings

REGION, ACCOUNT, TABLE = "eu-west-1", "123456789012", "Rerail-Runs"
KEY = "ab" * 32  # of every run, with which its agent signs
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": REGION,
    "AWS_EC2_METADATA_DISABLED": "true",
    "POWERTOOLS_METRICS_NAMESPACE": "Rerail",
    "POWERTOOLS_SERVICE_NAME": "bench",
    "POWERTOOLS_LOG_LEVEL": "CRITICAL",
    "POWERTOOLS_TRACE_DISABLED": "true",
    **SuperviseSettings(
        table=TABLE,
        bus="rerail",
        policy_prefix="/rerail/policies",
        pause_parameter="/rerail/switch",
        mailbox="mailbox",
        account=ACCOUNT,
        commands=f"arn:aws:sqs:{REGION}:{ACCOUNT}:commands",
    ).variables(),
    "RERAIL_QUEUE_URL": f"https://sqs.{REGION}.amazonaws.com/{ACCOUNT}/signals",
}
START = datetime(2026, 11, 2, 3, 0, tzinfo=UTC)
MINUTE, AGE, SAVE_EVERY_S = timedelta(minutes=1), timedelta(hours=48), 1800
# The share of a core that half a gigabyte buys in Lambda, and the assumed rate of CreateTrainingJob.
LAMBDA_CORES, CREATES_A_MINUTE, BATCH = 0.29, 120, 10
# Share of the jobs of a fleet whose status changed in the last minutes.
CHANGED = 0.01
# Priority of the policy by the share of the runs, of one hundred, that have it.
PRIORITIES = {"urgent": (10, 90), "normal": (60, 50), "low": (30, 10)}
EXPONENT_GOAL, SECONDS_GOAL, STORM_GOAL = 1.1, 60.0, 1.3
REASON = "InternalServerError: We encountered an internal error. Please try again."
REQUEST_MEMBERS = {
    *("TrainingJobName", "AlgorithmSpecification", "HyperParameters", "RoleArn", "Environment", "OutputDataConfig"),
    *("ResourceConfig", "StoppingCondition", "CheckpointConfig"),
}


@dataclass
class FakeAws:
    """The operations that `sweep` and `supervise` call, with their conditions and pages; any other is refused."""

    now: datetime = START
    items: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    index: defaultdict[str, dict[tuple[str, str], dict[str, Any]]] = field(default_factory=lambda: defaultdict(dict))
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    tags: dict[str, list[dict[str, str]]] = field(default_factory=dict)
    parameters: dict[str, str] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)
    notices: list[dict[str, Any]] = field(default_factory=list)
    invocations: list[dict[str, Any]] = field(default_factory=list)
    created: list[tuple[datetime, str]] = field(default_factory=list)
    calls: Counter[str] = field(default_factory=Counter)
    units: Counter[str] = field(default_factory=Counter)
    creates_left: int = CREATES_A_MINUTE

    def call(self, client: Any, operation: str, request: dict[str, Any]) -> dict[str, Any]:
        """Answer one API call, as `BaseClient._make_api_call` does."""
        self.calls[operation] += 1
        answer: dict[str, Any] = getattr(self, f"_{operation}")(request)
        return answer

    def put(self, item: dict[str, Any]) -> None:
        """Store an item, in the sparse index too."""
        key = _key(item)
        if old := self.items.get(key):
            self.index[old.get("open", {}).get("S", "")].pop(key, None)
        self.items[key] = item
        if "open" in item:
            self.index[item["open"]["S"]][key] = item

    def _GetItem(self, request: Mapping[str, Any]) -> dict[str, Any]:
        item = self.items.get(_key(request["Key"]))
        self._count_read([item] if item else [])
        return {"Item": item} if item else {}

    def _BatchGetItem(self, request: Mapping[str, Any]) -> dict[str, Any]:
        ((table, wanted),) = request["RequestItems"].items()
        found = [item for key in wanted["Keys"] if (item := self.items.get(_key(key)))]
        self._count_read(found)
        if "ProjectionExpression" in wanted:
            found = [{"pk": item["pk"]} for item in found]
        return {"Responses": {table: found}, "UnprocessedKeys": {}}

    def _Query(self, request: Mapping[str, Any]) -> dict[str, Any]:
        values = request["ExpressionAttributeValues"]
        if "IndexName" in request:
            found = list(self.index[next(iter(values.values()))["S"]].values())
        else:
            run, timeline = values[":run"]["S"], values[":timeline"]["S"]
            found = [item for (pk, sk), item in self.items.items() if pk == run and sk.startswith(timeline)]
        self._count_read(found)
        return {"Items": found, "Count": len(found)}

    def _PutItem(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self._check(request)
        self._write(request["Item"])
        return {}

    def _BatchWriteItem(self, request: Mapping[str, Any]) -> dict[str, Any]:
        ((_, puts),) = request["RequestItems"].items()
        for put in puts:
            self._write(put["PutRequest"]["Item"])
        return {"UnprocessedItems": {}}

    def _TransactWriteItems(self, request: Mapping[str, Any]) -> dict[str, Any]:
        puts = [part["Put"] for part in request["TransactItems"]]
        met = [self._is_met(put) for put in puts]
        if not all(met):
            reasons = [{"Code": "None" if is_met else "ConditionalCheckFailed"} for is_met in met]
            raise _error("TransactionCanceledException", CancellationReasons=reasons)
        for put in puts:
            self._write(put["Item"], times=2)
        return {}

    def _check(self, put: Mapping[str, Any]) -> None:
        if not self._is_met(put):
            raise _error("ConditionalCheckFailedException")

    def _is_met(self, put: Mapping[str, Any]) -> bool:
        old, condition = self.items.get(_key(put["Item"])), put.get("ConditionExpression")
        if condition == "attribute_not_exists(pk)":
            return old is None
        if condition == "version = :before":
            return old is not None and old["version"] == put["ExpressionAttributeValues"][":before"]
        assert condition is None, condition
        return True

    def _count_read(self, items: Sequence[Mapping[str, Any]]) -> None:
        self.units["read"] += max(1, -(-sum(map(_size, items)) // 4096))  # each half a unit

    def _write(self, item: dict[str, Any], times: int = 1) -> None:
        self.put(item)
        self.units["write"] += times * -(-_size(item) // 1024)

    def _DescribeTrainingJob(self, request: Mapping[str, Any]) -> dict[str, Any]:
        if request["TrainingJobName"] not in self.jobs:
            raise _error("ValidationException", "Requested resource not found.")
        return self.jobs[request["TrainingJobName"]]

    def _ListTrainingJobs(self, request: Mapping[str, Any]) -> dict[str, Any]:
        after, first, size = request["LastModifiedTimeAfter"], int(request.get("NextToken", 0)), request["MaxResults"]
        changed = [job for job in self.jobs.values() if job["LastModifiedTime"] > after]
        more = {"NextToken": str(first + size)} if first + size < len(changed) else {}
        return {"TrainingJobSummaries": changed[first : first + size], **more}

    def _ListTags(self, request: Mapping[str, Any]) -> dict[str, Any]:
        return {"Tags": self.tags.get(request["ResourceArn"].rpartition("/")[2], [])}

    def _CreateTrainingJob(self, request: Mapping[str, Any]) -> dict[str, Any]:
        name = request["TrainingJobName"]
        if name in self.jobs:
            raise _error("ResourceInUse", "Training job names must be unique within an AWS account and region")
        if not self.creates_left:
            raise _error("ThrottlingException", "Rate exceeded")
        self.creates_left -= 1
        self.created.append((self.now, name))
        self.tags[name] = request["Tags"]
        members = {member: value for member, value in request.items() if member != "Tags"}
        self.jobs[name] = describe_job(name, self.now - timedelta(seconds=300)) | members
        self.jobs[name]["LastModifiedTime"] = self.now
        return {"TrainingJobArn": self.jobs[name]["TrainingJobArn"]}

    def _GetMetricData(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self.units["metric_read"] += len(request["MetricDataQueries"])
        results = []
        for query in request["MetricDataQueries"]:
            stat, first = query["MetricStat"], request["StartTime"].replace(second=0, microsecond=0)
            count = int((request["EndTime"] - first) / timedelta(seconds=stat["Period"]))
            times = [first + number * timedelta(seconds=stat["Period"]) for number in range(count)]
            values = [_metric(stat["Metric"]["MetricName"], stat["Stat"], at) for at in times]
            results.append({"Id": query["Id"], "StatusCode": "Complete", "Timestamps": times, "Values": values})
        return {"MetricDataResults": results}

    def _GetObject(self, request: Mapping[str, Any]) -> dict[str, Any]:
        *_, folder, name = request["Key"].split("/")
        if name == "heartbeat.json":
            at = self.now - timedelta(seconds=20)
            step, loss = _step(at), _metric("loss", "Average", at)
            heartbeat = Heartbeat(folder, 1, folder, at, Phase.STEP, step, moved_at=at, loss=loss, step_seconds=1)
            text = sign(serialize(heartbeat), name=request["Key"], key=KEY)
        elif name == "manifest.json":
            step = int(folder.removeprefix("step-"))
            manifest = {"schema": 1, "attempt": 1, "step": step, "saved_at": (START - AGE).isoformat()}
            files = [{"name": "model.pt", "bytes": 100}]
            text = json.dumps({**manifest, "reason": "periodic", "files": files}).encode()
        else:
            raise _error("NoSuchKey")
        return {"Body": io.BytesIO(text), "LastModified": self.now, "ETag": '"1"', "ContentLength": len(text)}

    def _ListObjectsV2(self, request: Mapping[str, Any]) -> dict[str, Any]:
        last = _step(self.now) // SAVE_EVERY_S
        keys = [
            f"{request['Prefix']}step-{number * SAVE_EVERY_S:09d}/{name}"
            for number in range(max(1, last - 19), last + 1)
            for name in ("manifest.json", "model.pt", "optimizer.pt")
        ]
        contents = [{"Key": key, "Size": 100, "LastModified": START - MINUTE, "ETag": '"1"'} for key in keys]
        return {"Contents": contents, "KeyCount": len(contents), "IsTruncated": False}

    def _PutObject(self, request: Mapping[str, Any]) -> dict[str, Any]:
        return {"ETag": '"1"'}

    def _SendMessageBatch(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self.messages += [entry["MessageBody"] for entry in request["Entries"]]
        return {"Successful": [{"Id": entry["Id"], "MessageId": "1"} for entry in request["Entries"]]}

    def _GetParameter(self, request: Mapping[str, Any]) -> dict[str, Any]:
        if request["Name"] not in self.parameters:
            raise _error("ParameterNotFound")
        return {"Parameter": {"Name": request["Name"], "Value": self.parameters[request["Name"]]}}

    def _PutEvents(self, request: Mapping[str, Any]) -> dict[str, Any]:
        told = [entry for entry in request["Entries"] if entry["DetailType"] != RUN_STATE_CHANGE]
        self.notices += [json.loads(entry["Detail"]) for entry in told]
        return {"FailedEntryCount": 0, "Entries": [{"EventId": "1"} for _ in request["Entries"]]}

    def _Invoke(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self.invocations.append(json.loads(request["Payload"]))
        return {"StatusCode": 202}


@dataclass(frozen=True)
class Context:
    """The context of an invocation."""

    function_name: str = "Rerail-Sweep"
    memory_limit_in_mb: int = 512
    invoked_function_arn: str = f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:Rerail-Sweep"
    aws_request_id: str = "52fdfc07-2182-454f-963f-5f0f9a621d72"

    def get_remaining_time_in_millis(self) -> int:
        return 120_000


@dataclass(frozen=True, slots=True)
class SweepCost:
    """One sweep of a whole fleet, in one or more invocations."""

    source: str  # of the samples: metrics of CloudWatch or heartbeats of the agent
    runs: int
    cpu_s: tuple[float, ...]  # of each invocation
    calls: Counter[str]
    dollars: float
    counted: int  # open runs that the sweep reported


@dataclass(frozen=True, slots=True)
class Storm:
    """The outcome for a fleet whose jobs all died at once."""

    jobs: int
    minutes: dict[str, float]  # of the relaunch, by run
    launched_twice: int
    pages: int
    failures: int  # messages that went back to the queue


def make_fleet(aws: FakeAws, runs: int, *, agent: bool, limit: int | None = None) -> None:
    """Store this many runs in training; `limit` is the account's limit of relaunches an hour."""
    limits = "" if limit is None else f"[limits]\naccount_relaunches = {limit}\n"
    texts = {name: f'mode = "act"\npriority = {priority}\n{limits}' for name, (_, priority) in PRIORITIES.items()}
    aws.parameters = {f"/rerail/policies/{name}": text for name, text in texts.items()}
    aws.parameters["/rerail/switch"] = "on"
    policies = {name: parse_policy(text, name=name) for name, text in texts.items()}
    for number in range(runs):
        name, policy = f"llm-{number:05d}", policy_of(number)
        description = describe_job(name, START - AGE, agent=agent)
        if number < CHANGED * runs:
            description["LastModifiedTime"] = START - 2 * MINUTE
        aws.jobs[name], aws.tags[name] = description, [{"Key": "rerail:policy", "Value": policy}]
        aws.put(_make_item(description, policies[policy], policy, agent=agent))
        aws.put({"pk": {"S": f"job#{name}"}, "sk": {"S": "job"}, "run": {"S": name}})
        request = rebuild(description, {"rerail:policy": policy}, members=set(description) & REQUEST_MEMBERS)
        text = json.dumps(request, default=str)
        aws.put({"pk": {"S": f"run#{name}"}, "sk": {"S": "request"}, "doc": {"S": text}})


def policy_of(number: int) -> str:
    """Return the policy of a run by its number: the shares of PRIORITIES, mixed."""
    place = number * 37 % 100
    for name, (share, _) in PRIORITIES.items():
        if place < share:
            return name
        place -= share
    raise AssertionError("the shares are one hundred in all")


def describe_job(name: str, began: datetime, *, agent: bool = False) -> dict[str, Any]:
    """Return a job in training as DescribeTrainingJob describes it."""
    image = f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/training:2026-10"
    metrics = [] if agent else make_definitions()
    transitions = [{"Status": "Training", "StartTime": began, "StatusMessage": "Training in progress"}]
    return {
        "TrainingJobName": name,
        "TrainingJobArn": f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:training-job/{name}",
        "TrainingJobStatus": "InProgress",
        "SecondaryStatus": "Training",
        "AlgorithmSpecification": {"TrainingImage": image, "TrainingInputMode": "File", "MetricDefinitions": metrics},
        "HyperParameters": {"epochs": "1", "lr": "3e-4", "batch-size": "1024", "warmup": "2000"},
        "RoleArn": f"arn:aws:iam::{ACCOUNT}:role/Training",
        "OutputDataConfig": {"S3OutputPath": "s3://bucket/out/"},
        "ResourceConfig": {"InstanceType": "ml.p4d.24xlarge", "InstanceCount": 1, "VolumeSizeInGB": 100},
        "StoppingCondition": {"MaxRuntimeInSeconds": 14 * 86400},
        "CheckpointConfig": {"S3Uri": f"s3://bucket/{name}/", "LocalPath": "/opt/ml/checkpoints"},
        "CreationTime": began,
        "TrainingStartTime": began,
        "LastModifiedTime": began,
        "SecondaryStatusTransitions": transitions,
        "Environment": {"NCCL_DEBUG": "WARN"},
    }


def _make_item(description: Mapping[str, Any], policy: Policy, name: str, *, agent: bool) -> dict[str, Any]:
    """Return the record of the run of this job, made by the decisions that adopt it."""

    class OnePolicy:
        def get(self, name: str) -> Policy:
            return policy

    job = read_job(description)
    adopted = adopt(job, description, {"rerail:policy": name}, OnePolicy(), taken=False, at=START)
    assert isinstance(adopted, Adopted), adopted
    run = adopted.run
    if agent:
        run = replace(run, attempts=(replace(run.current, agent=True),), signing_key=KEY)
    for _ in range(3):
        run = decide(run, JobObserved(START, job), policy).run
        run = decide(run, ActionsDone(START, run.pending), policy).run
    item: dict[str, Any] = _run_item(replace(run, version=3))
    return item


class FunctionsUnderTest:
    """The two functions in this process, on the fake AWS and its clock."""

    def __init__(self, aws: FakeAws) -> None:
        import wiring

        self.aws = aws
        with patch.object(wiring, "now", lambda: self.aws.now), redirect_stdout(io.StringIO()):
            import supervise
            import sweep
            import wiring.supervise
            import wiring.sweep

            for module in (supervise, wiring.supervise, wiring.sweep):
                module.now = wiring.now  # type: ignore[attr-defined]
            wiring.supervise.make_supervisor.cache_clear()
            wiring.sweep.make_sweep.cache_clear()
            wiring.supervise.make_supervisor()
            wiring.sweep.make_sweep()
        self._sweep, self._supervise = sweep.handler, supervise.handler

    def sweep(self) -> tuple[list[float], int]:
        """Run one sweep with all its shards; return the CPU seconds of each invocation, and the open runs."""
        with redirect_stdout(io.StringIO()):
            self.aws.invocations.clear()
            times, began = [], time.process_time()
            counted = self._sweep({}, Context())["OpenRuns"]
            times.append(time.process_time() - began)
            for event in list(self.aws.invocations):
                began = time.process_time()
                self._sweep(event, Context())
                times.append(time.process_time() - began)
        return times, counted

    def supervise(self, bodies: Sequence[str]) -> list[str]:
        """Handle a batch of messages; return those that failed."""
        sent = str(int(self.aws.now.timestamp() * 1000))
        attributes = {"SentTimestamp": sent, "ApproximateFirstReceiveTimestamp": sent, "ApproximateReceiveCount": "1"}
        attributes["SenderId"] = "EVENTS"
        queue = f"arn:aws:sqs:{REGION}:{ACCOUNT}:signals"
        common = {
            "eventSource": "aws:sqs",
            "eventSourceARN": queue,
            "awsRegion": REGION,
            "messageAttributes": {},
            "attributes": attributes,
        }
        records = [{**common, "messageId": str(n), "receiptHandle": "r", "body": b} for n, b in enumerate(bodies)]
        with redirect_stdout(io.StringIO()):
            failed = self._supervise({"Records": records}, Context("Rerail-Supervise"))["batchItemFailures"]
        return [bodies[int(failure["itemIdentifier"])] for failure in failed]


def measure_sweep(runs: int, *, agent: bool) -> SweepCost:
    """Measure the third sweep of a fleet: the first two read the history, and store the reports of the shards."""
    aws = FakeAws()
    make_fleet(aws, runs, agent=agent)
    with patch.object(BaseClient, "_make_api_call", lambda client, *request: aws.call(client, *request)):
        functions = FunctionsUnderTest(aws)
        for _ in range(2):
            functions.sweep()
            aws.now += MINUTE
        aws.calls.clear()
        aws.units.clear()
        times, counted = functions.sweep()
    counts = {
        "invocation": len(times),
        "gb_second": sum(times) / LAMBDA_CORES * MEMORY_GB,
        "read": aws.units["read"] / 2,
        "write": aws.units["write"],
        "metric_read": aws.units["metric_read"],
        "get": aws.calls["GetObject"],
        "put": aws.calls["ListObjectsV2"],
        "message": aws.calls["SendMessageBatch"],
    }
    dollars = sum(count * PRICES[name].each for name, count in counts.items())
    return SweepCost("heartbeats" if agent else "metrics", runs, tuple(times), Counter(aws.calls), dollars, counted)


def measure_storm(jobs: int, *, limit: int | None, minutes: int) -> Storm:
    """Let all jobs die at once, lose every event, and sweep each minute until all are relaunched."""
    aws = FakeAws()
    make_fleet(aws, jobs, agent=False, limit=limit)
    failures, pending = 0, list[str]()
    with patch.object(BaseClient, "_make_api_call", lambda client, *request: aws.call(client, *request)):
        functions = FunctionsUnderTest(aws)
        functions.sweep()
        aws.messages.clear()
        died = aws.now = START + MINUTE
        end = {"TrainingJobStatus": "Failed", "SecondaryStatus": "Failed", "FailureReason": REASON}
        for job in aws.jobs.values():
            job |= end | {"TrainingEndTime": died, "LastModifiedTime": died}
        for _ in range(minutes):
            aws.now += MINUTE
            aws.creates_left = CREATES_A_MINUTE
            functions.sweep()
            pending += aws.messages
            aws.messages.clear()
            batches = [pending[first : first + BATCH] for first in range(0, len(pending), BATCH)]
            pending = [body for batch in batches for body in functions.supervise(batch)]
            failures += len(pending)
            if len(aws.created) >= jobs:
                break
    launches = Counter(name.rpartition("-a")[0] for _, name in aws.created)
    relaunched = {name.rpartition("-a")[0]: (at - died) / MINUTE for at, name in reversed(aws.created)}
    pages = sum(notice["severity"] == "page" for notice in aws.notices)
    return Storm(jobs, relaunched, sum(count > 1 for count in launches.values()), pages, failures)


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Return the slope of the logarithms of the values over those of the sizes, by least squares: 1 is linear."""
    points = [(log(size), log(max(value, 1e-9))) for size, value in zip(sizes, values, strict=True)]
    mean_x, mean_y = (sum(column) / len(points) for column in zip(*points, strict=True))
    rise = sum((x - mean_x) * (y - mean_y) for x, y in points)
    return float(rise / sum((x - mean_x) ** 2 for x, _ in points))


def show_sweeps(costs: Sequence[SweepCost]) -> tuple[Sheet, list[GoalResult], list[BenchFailed]]:
    """Return the table, the goals and the failures of the sweeps."""
    columns = ("samples from", "runs", "invocations", "CPU s", "of it the longest", "calls", "dollars a run-month")
    rows = tuple(
        (
            c.source,
            c.runs,
            len(c.cpu_s),
            sum(c.cpu_s),
            max(c.cpu_s),
            sum(c.calls.values()),
            c.dollars * MINUTES / c.runs,
        )
        for c in costs
    )
    goals = list(_goals_of_sweeps(costs))
    wrong = [BenchFailed(f"a sweep of {c.runs:,} runs reported {c.counted:,}") for c in costs if c.counted != c.runs]
    return Sheet("One sweep", columns, rows), goals, wrong


def _goals_of_sweeps(costs: Sequence[SweepCost]) -> Iterator[GoalResult]:
    for source in dict.fromkeys(cost.source for cost in costs):
        chosen = [cost for cost in costs if cost.source == source]
        largest, sizes = chosen[-1], [cost.runs for cost in chosen]
        seconds = max(largest.cpu_s) / LAMBDA_CORES
        what = f"the longest invocation over {largest.runs:,} runs, {source}, on {LAMBDA_CORES} of a core"
        yield GoalResult(what, f"at most {SECONDS_GOAL:g} s", f"{seconds:.1f} s", seconds <= SECONDS_GOAL)
        if len(chosen) > 1:
            slope = exponent(sizes, [sum(cost.cpu_s) for cost in chosen])
            what = f"growth of the CPU time with the runs, {source}"
            yield GoalResult(what, f"at most n^{EXPONENT_GOAL}", f"n^{slope:.2f}", slope <= EXPONENT_GOAL)


def show_storm(free: Storm, limited: Storm, *, limit: int) -> tuple[Sheet, list[GoalResult], list[BenchFailed]]:
    """Return the table, the goals and the failures of the storm."""
    rows = []
    for name, (share, priority) in PRIORITIES.items():
        times = sorted(at for run, at in free.minutes.items() if policy_of(int(run.rpartition("-")[2])) == name)
        if times:
            rows.append((name, priority, f"{share} %", len(times), times[len(times) // 2], times[-1]))
    columns = ("policy", "priority", "of the runs", "relaunched", "median minute", "last minute")
    pages = int(free.jobs > limit)  # the limit is told once, and nothing else is wrong
    bound, last = free.jobs / CREATES_A_MINUTE, max(free.minutes.values(), default=float("inf"))
    asked = f"at most {STORM_GOAL} times the bound of {bound:.1f} minutes, and the minute of the sweep"
    goals = [
        GoalResult(f"all of {free.jobs:,} relaunched", asked, f"{last:.0f} minutes", last <= STORM_GOAL * bound + 2),
        GoalResult("relaunches with the default limit", f"at most {limit}", str(len(limited.minutes)), True),
        GoalResult("pages with the default limit", f"{pages}", str(limited.pages), limited.pages == pages),
    ]
    failures = [
        BenchFailed(f"{storm.launched_twice} runs were launched twice")
        for storm in (free, limited)
        if storm.launched_twice
    ]
    if len(free.minutes) < free.jobs:
        failures.append(BenchFailed(f"{free.jobs - len(free.minutes):,} jobs were not relaunched"))
    if len(limited.minutes) > limit:
        failures.append(BenchFailed(f"{len(limited.minutes)} relaunches with a limit of {limit}"))
    return Sheet(f"{free.jobs:,} jobs die at once", columns, tuple(rows), words=1), goals, failures


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", default="100,1000,10000", help="sizes of the fleets")
    parser.add_argument("--jobs", type=int, default=1000, help="jobs that die at once")
    parser.add_argument("--evidence", type=Path, help="write the figures to this file as JSON")
    options = parser.parse_args(arguments)
    sizes = [int(word) for word in options.runs.split(",")]
    os.environ.update(ENVIRONMENT)
    console, limit = Console(), Policy().limits.account_relaunches
    plan = [(size, agent) for agent in (False, True) for size in sizes]
    costs = [measure_sweep(size, agent=agent) for size, agent in track(plan, "sweeps", console=console)]
    storms = [
        measure_storm(options.jobs, limit=limit, minutes=minutes)
        for limit, minutes in track([(0, 60), (None, 30)], "storms", console=console)
    ]
    sweeps, storm = show_sweeps(costs), show_storm(storms[0], storms[1], limit=limit)
    notes = (
        "The calls take no time here. AWS adds latency, and throttles: only CreateTrainingJob's throttle is simulated.",
        f"The rate of CreateTrainingJob ({CREATES_A_MINUTE} a minute) is an assumption. Every event is lost.",
    )
    evidence = Evidence(
        "One deployment sweeps 10,000 runs within the minute, and relaunches 1,000 as fast as SageMaker allows.",
        sheets=(sweeps[0], storm[0]),
        goals=(*sweeps[1], *storm[1]),
        notes=notes,
        failures=(*sweeps[2], *storm[2]),
    )
    return finish(evidence, options.evidence, console)


def _error(code: str, message: str = "", **more: Any) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": message}, **more}, "FakeAws")


def _key(item: Mapping[str, Any]) -> tuple[str, str]:
    return item["pk"]["S"], item["sk"]["S"]


def _size(item: Mapping[str, Any]) -> int:
    return sum(len(name) + len(next(iter(value.values()))) for name, value in item.items())


def _step(at: datetime) -> int:
    """Return the step of every job at this time: one each second."""
    return max(0, int((at - START + AGE).total_seconds()))


def _metric(name: str, statistic: str, at: datetime) -> float:
    """Return a value of a minute: a loss that falls slowly, with some noise."""
    if name == "step":
        return float(_step(at + MINUTE))
    if name == "nonfinite":
        return 0.0
    if statistic == "SampleCount":
        return 6.0
    return 2.0 + 0.5 / (1 + _step(at) / 1e6) + 0.01 * (_step(at) // 60 % 7 / 7) + 0.01 * (statistic == "Maximum")


if __name__ == "__main__":
    sys.exit(main())
