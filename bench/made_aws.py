"""An AWS made up for proofs of scale: it answers the calls of `sweep` and `supervise` in their wire formats, as late as
AWS does and with its throttles, and keeps count.

It is no emulator: it knows the operations that Rerail calls, with the conditions, pages and limits that matter to it,
and refuses any other. `local/` has the one that carries the whole deployment; that one is too slow for 10,000 runs.
"""

import base64
import json
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs
from xml.sax.saxutils import escape

# Assumed, in seconds: what a call of each operation takes within a region, at the median. None is published.
LATENCY_S = {
    "DescribeTrainingJob": 0.08,
    "ListTrainingJobs": 0.15,
    "ListTags": 0.06,
    "CreateTrainingJob": 0.4,
    "StopTrainingJob": 0.1,
    "GetMetricData": 0.25,
    "GetObject": 0.025,
    "PutObject": 0.04,
    "ListObjectsV2": 0.06,
    "Query": 0.04,
    "GetItem": 0.006,
    "PutItem": 0.01,
    "BatchGetItem": 0.02,
    "BatchWriteItem": 0.02,
    "TransactWriteItems": 0.02,
    "SendMessageBatch": 0.015,
    "GetParameter": 0.02,
    "PutEvents": 0.02,
    "Invoke": 0.04,
}
# Calls a second over all callers. ListTrainingJobs: a quota that is not adjustable, by aws-solutions/deepracer-on-aws
# issue 87. CreateTrainingJob: as the goal has it. The others are assumed, lower than what is known of them.
PER_SECOND = {
    "DescribeTrainingJob": 10.0,
    "ListTrainingJobs": 2.0,
    "CreateTrainingJob": 2.0,
    "GetMetricData": 50.0,
    "GetParameter": 40.0,
}
# A bucket holds so many seconds' worth of calls.
BURST_S = {"CreateTrainingJob": 1.0}
BURST = 5.0
ITEM_BYTES, PAGE_BYTES, PAYLOAD_BYTES = 400_000, 1_000_000, 256_000
DATAPOINTS = 100_800
THROTTLED = "ThrottlingException"


@dataclass(frozen=True, slots=True)
class Answer:
    """What goes back, and after how long in seconds."""

    status: int
    body: bytes
    delay_s: float
    headers: Mapping[str, str] = field(default_factory=dict)


class Refused(Exception):
    """An error of the service, by its code."""

    def __init__(self, code: str, message: str, **more: Any) -> None:
        super().__init__(message)
        self.code, self.message, self.more = code, message, more


class Throttle:
    """A bucket of tokens, as AWS throttles: so many seconds' worth fit in, a call takes one, what is refused none."""

    def __init__(self, per_second: float, burst_s: float) -> None:
        self.per_second, self.size = per_second, max(1.0, per_second * burst_s)
        self.tokens, self.at = self.size, float("-inf")

    def admits(self, at: float) -> bool:
        """Whether one more call may go through then; asked for in the order of time."""
        self.tokens, self.at = min(self.size, self.tokens + (at - self.at) * self.per_second), at
        if self.tokens < 1.0:
            return False
        self.tokens -= 1.0
        return True


class MadeAws:
    """The services; `clock` tells the time in seconds since 1970, `jobs` are by name, `mail` is what S3 holds."""

    def __init__(self, clock: Callable[[], float], *, seed: int = 1) -> None:
        self.clock, self.random = clock, random.Random(seed)
        self.items: dict[tuple[str, str], dict[str, Any]] = {}
        self.index: defaultdict[str, dict[tuple[str, str], dict[str, Any]]] = defaultdict(dict)
        self.jobs: dict[str, dict[str, Any]] = {}
        self.tags: dict[str, list[dict[str, str]]] = {}
        self.parameters: dict[str, str] = {}
        self.objects: Callable[[str], bytes | None] = lambda key: None
        self.listing: Callable[[str], list[tuple[str, int, float]]] = lambda prefix: []
        self.series: Callable[[str, str, str, float], float | None] = lambda job, metric, stat, at: None
        self.posted: dict[str, bytes] = {}
        self.sent: list[str] = []
        self.told: list[dict[str, Any]] = []
        self.invoked: list[dict[str, Any]] = []
        self.calls: Counter[str] = Counter()
        self.units: defaultdict[str, float] = defaultdict(float)
        self.refused: Counter[str] = Counter()
        self.largest_item = 0
        self.on_create: Callable[[dict[str, Any]], None] = lambda request: None
        self._throttles = {name: Throttle(rate, BURST_S.get(name, BURST)) for name, rate in PER_SECOND.items()}

    def answer(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """One request, in lower-case headers."""
        target = headers.get("x-amz-target", "")
        service, _, operation = target.rpartition(".")
        if not target:
            service, operation = _rest(method, path)
        self.calls[operation] += 1
        delay_s = LATENCY_S[operation] * self.random.lognormvariate(0, 0.35)
        throttle = self._throttles.get(operation)
        if throttle and not throttle.admits(self.clock()):
            self.refused[operation] += 1
            return _error(THROTTLED, "Rate exceeded", delay_s=0.01)
        try:
            if service == "s3":
                return self._s3(operation, path, body, delay_s)
            if service == "lambda":
                return self._invoke(body, delay_s)
            asked = json.loads(body)
            told = getattr(self, f"_{operation}")(asked)
        except Refused as error:
            return _error(error.code, error.message, delay_s=delay_s, **error.more)
        return Answer(200, told if isinstance(told, bytes) else json.dumps(told).encode(), delay_s)

    def put(self, item: dict[str, Any]) -> None:
        """Into the table."""
        size = _size(item)
        if size > ITEM_BYTES:
            raise Refused("ValidationException", "Item size has exceeded the maximum allowed size")
        self.largest_item = max(self.largest_item, size)
        key = _key(item)
        if old := self.items.get(key):
            self.index[old.get("open", {}).get("S", "")].pop(key, None)
        self.items[key] = item
        if "open" in item:
            self.index[item["open"]["S"]][key] = item

    # DynamoDB

    def _GetItem(self, asked: dict[str, Any]) -> dict[str, Any]:
        item = self.items.get(_key(asked["Key"]))
        self._read(item)
        return {"Item": item} if item else {}

    def _PutItem(self, asked: dict[str, Any]) -> dict[str, Any]:
        if not self._holds(asked):
            raise Refused("ConditionalCheckFailedException", "The conditional request failed")
        self.put(asked["Item"])
        self._written(asked["Item"])
        return {}

    def _TransactWriteItems(self, asked: dict[str, Any]) -> dict[str, Any]:
        puts = [each["Put"] for each in asked["TransactItems"]]
        held = [self._holds(put) for put in puts]
        if not all(held):
            reasons = [{"Code": "None" if one else "ConditionalCheckFailed"} for one in held]
            raise Refused("TransactionCanceledException", "Transaction cancelled", CancellationReasons=reasons)
        for put in puts:
            self.put(put["Item"])
            self._written(put["Item"], times=2)
        return {}

    def _Query(self, asked: dict[str, Any]) -> dict[str, Any]:
        values = asked["ExpressionAttributeValues"]
        if "IndexName" in asked:
            rows = sorted(self.index[next(iter(values.values()))["S"]].items())
        else:
            pk, sk = values[":run"]["S"], values[":timeline"]["S"]
            rows = sorted((key, item) for key, item in self.items.items() if key[0] == pk and key[1].startswith(sk))
        start = _key(asked["ExclusiveStartKey"]) if "ExclusiveStartKey" in asked else ("", "")
        page: list[dict[str, Any]] = []
        size = 0
        for key, item in rows:
            if key <= start:
                continue
            page.append(item)
            size += _size(item)
            if size >= PAGE_BYTES:
                break
        self.units["read"] += -(-size // 4096) / 2
        told: dict[str, Any] = {"Items": page, "Count": len(page)}
        if size >= PAGE_BYTES:
            told["LastEvaluatedKey"] = {name: page[-1][name] for name in ("pk", "sk")}
        return told

    def _BatchGetItem(self, asked: dict[str, Any]) -> dict[str, Any]:
        ((table, wanted),) = asked["RequestItems"].items()
        assert len(wanted["Keys"]) <= 100
        found = [item for key in wanted["Keys"] if (item := self.items.get(_key(key)))]
        for item in found:
            self._read(item)
        if "ProjectionExpression" in wanted:
            found = [{"pk": item["pk"]} for item in found]
        return {"Responses": {table: found}, "UnprocessedKeys": {}}

    def _BatchWriteItem(self, asked: dict[str, Any]) -> dict[str, Any]:
        ((_, puts),) = asked["RequestItems"].items()
        assert len(puts) <= 25
        for each in puts:
            self.put(each["PutRequest"]["Item"])
            self._written(each["PutRequest"]["Item"])
        return {"UnprocessedItems": {}}

    def _holds(self, put: Mapping[str, Any]) -> bool:
        old, condition = self.items.get(_key(put["Item"])), put.get("ConditionExpression")
        if condition == "attribute_not_exists(pk)":
            return old is None
        if condition == "version = :before":
            return old is not None and old["version"] == put["ExpressionAttributeValues"][":before"]
        assert condition is None, condition
        return True

    def _read(self, item: Mapping[str, Any] | None) -> None:
        self.units["read"] += -(-(_size(item) if item else 1) // 4096) / 2

    def _written(self, item: Mapping[str, Any], times: int = 1) -> None:
        self.units["write"] += times * -(-_size(item) // 1024)

    # SageMaker

    def _DescribeTrainingJob(self, asked: dict[str, Any]) -> dict[str, Any]:
        if asked["TrainingJobName"] not in self.jobs:
            raise Refused("ValidationException", "Requested resource not found.")
        return self.jobs[asked["TrainingJobName"]]

    def _ListTrainingJobs(self, asked: dict[str, Any]) -> dict[str, Any]:
        after, size = float(asked.get("LastModifiedTimeAfter", 0)), int(asked.get("MaxResults", 10))
        changed = [job for job in self.jobs.values() if job["LastModifiedTime"] > after]
        start = int(asked.get("NextToken", 0))
        names = ["TrainingJobName", "TrainingJobArn", "CreationTime", "LastModifiedTime", "TrainingJobStatus"]
        names += ["SecondaryStatus"]
        page = [{name: job[name] for name in names} for job in changed[start : start + size]]
        more = {"NextToken": str(start + size)} if start + size < len(changed) else {}
        return {"TrainingJobSummaries": page, **more}

    def _ListTags(self, asked: dict[str, Any]) -> dict[str, Any]:
        return {"Tags": self.tags.get(asked["ResourceArn"].rpartition("/")[2], [])}

    def _CreateTrainingJob(self, asked: dict[str, Any]) -> dict[str, Any]:
        name = asked["TrainingJobName"]
        if name in self.jobs:
            raise Refused("ResourceInUse", "Training job names must be unique within an AWS account and region")
        self.on_create(asked)
        return {"TrainingJobArn": self.jobs[name]["TrainingJobArn"]}

    # CloudWatch, SQS, SSM, EventBridge

    def _GetMetricData(self, asked: dict[str, Any]) -> dict[str, Any]:
        queries = asked["MetricDataQueries"]
        assert len(queries) <= 500
        start, end = float(asked["StartTime"]), float(asked["EndTime"])
        self.units["metric_read"] += len(queries)
        told = []
        for query in queries:
            stat = query["MetricStat"]
            job = stat["Metric"]["Dimensions"][0]["Value"]
            times = range(int(start), int(end), stat["Period"])
            values = [(at, self.series(job, stat["Metric"]["MetricName"], stat["Stat"], at)) for at in times]
            known = [(at, value) for at, value in values if value is not None]
            told.append(
                {
                    "Id": query["Id"],
                    "StatusCode": "Complete",
                    "Timestamps": [at for at, _ in known],
                    "Values": [value for _, value in known],
                }
            )
        return {"MetricDataResults": told}

    def _SendMessageBatch(self, asked: dict[str, Any]) -> dict[str, Any]:
        self.sent += [entry["MessageBody"] for entry in asked["Entries"]]
        return {"Successful": [_accepted(entry) for entry in asked["Entries"]]}

    def _GetParameter(self, asked: dict[str, Any]) -> dict[str, Any]:
        if asked["Name"] not in self.parameters:
            raise Refused("ParameterNotFound", "")
        return {"Parameter": {"Name": asked["Name"], "Value": self.parameters[asked["Name"]]}}

    def _PutEvents(self, asked: dict[str, Any]) -> dict[str, Any]:
        self.told += [{"at": self.clock(), **json.loads(entry["Detail"])} for entry in asked["Entries"]]
        return {"FailedEntryCount": 0, "Entries": [{"EventId": "1"} for _ in asked["Entries"]]}

    # S3 and Lambda

    def _s3(self, operation: str, path: str, body: bytes, delay_s: float) -> Answer:
        place, _, query = path.partition("?")
        key = place.lstrip("/")  # with the bucket before it, or without: that is told by the host
        if operation == "ListObjectsV2":
            prefix = parse_qs(query).get("prefix", [""])[0]
            return Answer(200, _listed(self.listing(prefix)), delay_s, {"content-type": "application/xml"})
        if operation == "PutObject":
            self.posted[key] = body
            return Answer(200, b"", delay_s, {"etag": '"1"'})
        found = self.objects(key)
        if found is None:
            return Answer(404, b"<Error><Code>NoSuchKey</Code><Message>none</Message></Error>", delay_s)
        at = datetime.fromtimestamp(self.clock(), UTC)
        headers = {"last-modified": f"{at:%a, %d %b %Y %H:%M:%S} GMT", "etag": '"1"'}
        return Answer(200, found, delay_s, headers)

    def _invoke(self, body: bytes, delay_s: float) -> Answer:
        if len(body) > PAYLOAD_BYTES:
            return _error("RequestTooLargeException", "Request must be smaller", delay_s=delay_s)
        self.invoked.append(json.loads(body))
        return Answer(202, b"", delay_s)


def _rest(method: str, path: str) -> tuple[str, str]:
    """Service and operation of those that are told by method and path."""
    if path.startswith("/2015-03-31/functions/"):
        return "lambda", "Invoke"
    if method == "PUT":
        return "s3", "PutObject"
    return "s3", "ListObjectsV2" if "list-type=2" in path else "GetObject"


def _error(code: str, message: str, *, delay_s: float, **more: Any) -> Answer:
    body = json.dumps({"__type": code, "message": message, "Message": message, **more}).encode()
    return Answer(400, body, delay_s, {"x-amzn-errortype": code})


def _listed(objects: list[tuple[str, int, float]]) -> bytes:
    rows = "".join(
        f"<Contents><Key>{escape(key)}</Key><Size>{size}</Size><ETag>&quot;1&quot;</ETag>"
        f"<LastModified>{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%S.000Z}</LastModified></Contents>"
        for key, size, at in objects
    )
    count = len(objects)
    return (
        f"<ListBucketResult><KeyCount>{count}</KeyCount><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>"
    ).encode()


def _accepted(entry: Mapping[str, str]) -> dict[str, str]:
    return {"Id": entry["Id"], "MessageId": "1", "MD5OfMessageBody": ""}


def _key(item: Mapping[str, Any]) -> tuple[str, str]:
    return item["pk"]["S"], item["sk"]["S"]


def _size(item: Mapping[str, Any]) -> int:
    return sum(len(name) + _bytes(value) for name, value in item.items())


def _bytes(value: Mapping[str, Any]) -> int:
    ((kind, held),) = value.items()
    return len(base64.b64decode(held)) if kind == "B" else len(held)


def wire_headers(answer: Answer, number: int) -> Iterator[tuple[str, str]]:
    """The headers that go with an answer."""
    yield "content-length", str(len(answer.body))
    yield "x-amzn-requestid", f"made-{number}"
    if "content-type" not in answer.headers:
        yield "content-type", "application/x-amz-json-1.1"
    yield from answer.headers.items()
