"""Which permissions an AWS call needs: its IAM actions, each with the resource and the condition keys that AWS weighs.

Most operations are an action of the same name. Those that are not (a listing of S3, the parts of a transaction, what a
request passes on to another service, the customer's key behind a queue or a table) are said here one by one. An
operation that is not listed here is an error, so that every call is compared."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

PARTITION = re.compile(r"pk = (:\w+)")
Keys = tuple[tuple[str, str | tuple[str, ...]], ...]

TRANSACTED = {
    "Put": "dynamodb:PutItem",
    "Update": "dynamodb:UpdateItem",
    "Delete": "dynamodb:DeleteItem",
    "ConditionCheck": "dynamodb:ConditionCheckItem",
}
# Of S3 as its own manual has it; without the permission to list a bucket, a missing object is 403 instead of 404.
OF_OBJECT = {
    "GetObject": "s3:GetObject",
    "SignedGetObject": "s3:GetObject",  # by the holder of the link, with the permissions of its creator
    "HeadObject": "s3:GetObject",
    "PutObject": "s3:PutObject",
    "DeleteObject": "s3:DeleteObject",
    "CopyObject": "s3:PutObject",
    "CreateMultipartUpload": "s3:PutObject",
    "UploadPart": "s3:PutObject",
    "UploadPartCopy": "s3:PutObject",
    "CompleteMultipartUpload": "s3:PutObject",
    "AbortMultipartUpload": "s3:AbortMultipartUpload",
    "ListParts": "s3:ListMultipartUploadParts",
    "GetObjectTagging": "s3:GetObjectTagging",
}
OF_BUCKET = {
    "ListObjectsV2": "s3:ListBucket",
    "ListMultipartUploads": "s3:ListBucketMultipartUploads",
}
READS = ("GetObject", "HeadObject")
COPIES = ("CopyObject", "UploadPartCopy")
OF_JOB = ("DescribeTrainingJob", "StopTrainingJob", "UpdateTrainingJob", "DeleteTrainingJob")
OF_TAGS = ("AddTags", "DeleteTags")
OF_TABLE = ("GetItem", "PutItem", "UpdateItem", "DeleteItem", "Query", "Scan")
OF_TOKEN = ("SendTaskSuccess", "SendTaskFailure", "SendTaskHeartbeat")
OF_STEP = ("SendPipelineExecutionStepSuccess", "SendPipelineExecutionStepFailure")
OF_TABLES = ("BatchGetItem", "BatchWriteItem")


@dataclass(frozen=True, slots=True)
class AwsCall:
    """One that was noted: by which function, from which call site, with which parameters."""

    function: str
    service: str
    operation: str
    site: str
    asked: Mapping[str, Any] = field(hash=False, compare=False)


@dataclass(frozen=True, slots=True, order=True)
class Need:
    """One permission; `keys` are condition keys in small letters with what they would be at this call."""

    action: str
    resource: str
    keys: Keys = ()


@dataclass(frozen=True, slots=True)
class CallPlace:
    """Where calls are made: `key_of` tells the ARN of the customer's key of a queue, topic, table or bucket ("" where
    it has none), `tags_of` the tags of a training job by its ARN."""

    account: str
    region: str
    key_of: Callable[[str], str]
    tags_of: Callable[[str], Mapping[str, str]]

    def arn(self, service: str, resource: str) -> str:
        """Of a resource in this account and region."""
        return f"arn:aws:{service}:{self.region}:{self.account}:{resource}"

    def with_key(self, service: str, arn: str, *actions: str) -> Iterator[Need]:
        """What the service does with the customer's key in the caller's name."""
        if key := self.key_of(arn):
            via = (("kms:viaservice", f"{service}.{self.region}.amazonaws.com"),)
            yield from (Need(f"kms:{action}", key, via) for action in actions)


def needs(call: AwsCall, place: CallPlace) -> Iterator[Need]:
    """Yield the needs of a call; raise ValueError for an operation that is not listed."""
    match call.service:
        case "dynamodb":
            yield from _of_dynamodb(call, place)
        case "s3":
            for need in _of_s3(call, place):
                owner = (("aws:resourceaccount", place.account),) if need.action.startswith("s3:") else ()
                yield Need(need.action, need.resource, need.keys + owner)
        case "sagemaker":
            yield from _of_sagemaker(call, place)
        case "sqs" if call.operation in ("SendMessage", "SendMessageBatch"):
            queue = place.arn("sqs", str(call.asked["QueueUrl"]).rpartition("/")[2])
            yield from sending(queue, place)
        case "sns" if call.operation == "Publish":
            topic = str(call.asked["TopicArn"])
            yield Need("sns:Publish", topic)
            yield from place.with_key("sns", topic, "Decrypt", "GenerateDataKey")
        case "events" if call.operation == "PutEvents":
            for entry in call.asked["Entries"]:
                yield Need("events:PutEvents", place.arn("events", f"event-bus/{entry.get('EventBusName', 'default')}"))
        case "kms" if call.operation in ("GenerateMac", "VerifyMac"):
            yield Need(f"kms:{call.operation}", place.arn("kms", f"key/{call.asked['KeyId']}"))
        case "ssm" if call.operation == "GetParameter":
            yield Need("ssm:GetParameter", place.arn("ssm", f"parameter{call.asked['Name']}"))
        case "lambda" if call.operation == "Invoke":
            name = str(call.asked["FunctionName"])
            yield Need("lambda:InvokeFunction", name if ":" in name else place.arn("lambda", f"function:{name}"))
        case "stepfunctions" if call.operation in OF_TOKEN:
            yield Need(f"states:{call.operation}", "*")
        case "stepfunctions" if call.operation == "DescribeExecution":
            yield Need("states:DescribeExecution", str(call.asked["executionArn"]))
        case "cloudwatch" if call.operation == "GetMetricData":
            yield Need("cloudwatch:GetMetricData", "*")
        case "logs" if call.operation == "DescribeLogStreams":
            # Of a log group as IAM wants it: with `:*` at its end.
            yield Need("logs:DescribeLogStreams", place.arn("logs", f"log-group:{call.asked['logGroupName']}:*"))
        case "logs" if call.operation == "GetLogEvents":
            stream = f"log-group:{call.asked['logGroupName']}:log-stream:{call.asked['logStreamName']}"
            yield Need("logs:GetLogEvents", place.arn("logs", stream))
        case _:
            raise ValueError(f"not known which permissions {call.service}:{call.operation} needs")


def sending(queue: str, place: CallPlace) -> Iterator[Need]:
    """To put a message on a queue."""
    yield Need("sqs:SendMessage", queue)
    yield from place.with_key("sqs", queue, "Decrypt", "GenerateDataKey")


def receiving(queue: str, place: CallPlace) -> Iterator[Need]:
    """For a function that is fed from a queue, as the managed policy AWSLambdaSQSQueueExecutionRole has it."""
    yield from (Need(f"sqs:{name}", queue) for name in ("ReceiveMessage", "DeleteMessage", "GetQueueAttributes"))
    yield from place.with_key("sqs", queue, "Decrypt")


def _of_dynamodb(call: AwsCall, place: CallPlace) -> Iterator[Need]:
    if call.operation == "TransactWriteItems":
        # No action of its own: each part is authorized as what it does.
        for part in call.asked["TransactItems"]:
            ((kind, detail),) = part.items()
            item = detail.get("Item") or detail.get("Key")
            yield from _table(TRANSACTED[kind], detail["TableName"], [item["pk"]["S"]], place)
    elif call.operation in OF_TABLES:
        for table, asked in call.asked["RequestItems"].items():
            items = asked["Keys"] if call.operation == "BatchGetItem" else map(_written, asked)
            yield from _table(f"dynamodb:{call.operation}", table, [item["pk"]["S"] for item in items], place)
    elif call.operation in OF_TABLE:
        table = str(call.asked["TableName"])
        item = call.asked.get("Item") or call.asked.get("Key")
        leading = [item["pk"]["S"]] if item else _queried(call)
        name = f"{table}/index/{call.asked['IndexName']}" if "IndexName" in call.asked else table
        yield from _table(f"dynamodb:{call.operation}", name, leading, place)
    else:
        raise ValueError(f"not known which permissions dynamodb:{call.operation} needs")


def _queried(call: AwsCall) -> list[str]:
    """Return the partition that a query of the table reads; an index has leading keys of its own."""
    condition = str(call.asked.get("KeyConditionExpression", ""))
    match = PARTITION.match(condition)
    if not match or "IndexName" in call.asked:
        return []
    return [call.asked["ExpressionAttributeValues"][match[1]]["S"]]


def _written(asked: Mapping[str, Any]) -> Mapping[str, Any]:
    return asked["PutRequest"]["Item"] if "PutRequest" in asked else asked["DeleteRequest"]["Key"]  # type: ignore[no-any-return]


def _table(action: str, name: str, leading: list[str], place: CallPlace) -> Iterator[Need]:
    keys: Keys = (("dynamodb:leadingkeys", tuple(sorted(set(leading)))),) if leading else ()
    yield Need(action, place.arn("dynamodb", f"table/{name}"), keys)
    # The key of a table is only ever decrypted for who reads and writes items.
    yield from place.with_key("dynamodb", place.arn("dynamodb", f"table/{name.partition('/')[0]}"), "Decrypt")


def _of_s3(call: AwsCall, place: CallPlace) -> Iterator[Need]:
    bucket = f"arn:aws:s3:::{call.asked['Bucket']}"
    if action := OF_BUCKET.get(call.operation):
        yield Need(action, bucket)
        return
    if call.operation not in OF_OBJECT:
        raise ValueError(f"not known which permissions s3:{call.operation} needs")
    action = OF_OBJECT[call.operation]
    yield Need(action, f"{bucket}/{call.asked['Key']}")
    if call.operation in READS:
        yield Need("s3:ListBucket", bucket)
    if call.operation in COPIES:
        source = call.asked["CopySource"]
        yield Need("s3:GetObject", f"arn:aws:s3:::{source['Bucket']}/{source['Key']}")
    if call.operation == "CopyObject" and call.asked.get("TaggingDirective") != "REPLACE":
        yield Need("s3:GetObjectTagging", f"{bucket}/{call.asked['CopySource']['Key']}")
        yield Need("s3:PutObjectTagging", f"{bucket}/{call.asked['Key']}")
    if call.asked.get("Tagging"):
        yield Need("s3:PutObjectTagging", f"{bucket}/{call.asked['Key']}")
    if call.operation == "GetObject" or call.operation in COPIES:
        yield from place.with_key("s3", bucket, "Decrypt")
    if action == "s3:PutObject":
        yield from place.with_key("s3", bucket, "GenerateDataKey")


def _of_sagemaker(call: AwsCall, place: CallPlace) -> Iterator[Need]:
    if call.operation == "ListTrainingJobs":
        yield Need("sagemaker:ListTrainingJobs", "*")
    elif call.operation == "DescribeTrainingPlan":
        yield Need(
            "sagemaker:DescribeTrainingPlan", place.arn("sagemaker", f"training-plan/{call.asked['TrainingPlanName']}")
        )
    elif call.operation == "ListTags":
        yield Need("sagemaker:ListTags", str(call.asked["ResourceArn"]))
    elif call.operation in (*OF_JOB, *OF_TAGS):
        job = str(call.asked["ResourceArn"]) if call.operation in OF_TAGS else _job(call, place)
        tags = tuple((f"aws:resourcetag/{name}".lower(), value) for name, value in sorted(place.tags_of(job).items()))
        yield Need(f"sagemaker:{call.operation}", job, tags)
    elif call.operation in OF_STEP:
        yield Need(f"sagemaker:{call.operation}", place.arn("sagemaker", "pipeline/of-the-token"))
    elif call.operation == "CreateTrainingJob":
        given = {tag["Key"]: tag["Value"] for tag in call.asked.get("Tags", [])}
        keys: Keys = tuple((f"aws:requesttag/{name}".lower(), value) for name, value in sorted(given.items()))
        yield Need("sagemaker:CreateTrainingJob", _job(call, place), keys)
        if plan := call.asked.get("ResourceConfig", {}).get("TrainingPlanArn"):
            yield Need("sagemaker:CreateTrainingJob", str(plan), keys)
        if given:  # what is made with tags is authorized as AddTags too
            making = (("sagemaker:taggingaction", "CreateTrainingJob"),)
            yield Need("sagemaker:AddTags", _job(call, place), keys + making)
        yield Need("iam:PassRole", str(call.asked["RoleArn"]), (("iam:passedtoservice", "sagemaker.amazonaws.com"),))
    else:
        raise ValueError(f"not known which permissions sagemaker:{call.operation} needs")


def _job(call: AwsCall, place: CallPlace) -> str:
    return place.arn("sagemaker", f"training-job/{call.asked['TrainingJobName']}".lower())
