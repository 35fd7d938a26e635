"""Find the permissions that an AWS call needs: IAM actions, each with its resource and the condition keys of AWS.

Most operations are an action of the same name. Those that are not (the parts of a transaction, what a request passes on
to another service, the customer's key behind a queue or a table) are listed here. MiniStack itself knows what
S3, SNS, Lambda, CloudWatch and Step Functions need."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

PARTITION = re.compile(r"pk = (:\w+)")
Keys = tuple[tuple[str, str | tuple[str, ...]], ...]

TRANSACTED = {
    "Put": "dynamodb:PutItem",
    "Update": "dynamodb:UpdateItem",
    "Delete": "dynamodb:DeleteItem",
    "ConditionCheck": "dynamodb:ConditionCheckItem",
}
OF_JOB = ("DescribeTrainingJob", "StopTrainingJob", "UpdateTrainingJob", "DeleteTrainingJob")
OF_TAGS = ("AddTags", "DeleteTags")
OF_TABLE = ("GetItem", "PutItem", "UpdateItem", "DeleteItem", "Query", "Scan")
OF_STEP = ("SendPipelineExecutionStepSuccess", "SendPipelineExecutionStepFailure")
OF_EXECUTION = ("DescribePipelineExecution", "ListPipelineExecutionSteps")
OF_TABLES = ("BatchGetItem", "BatchWriteItem")


@dataclass(frozen=True, slots=True)
class AwsCall:
    """An operation of a service, with the parameters of the request."""

    service: str
    operation: str
    asked: Mapping[str, Any]


@dataclass(frozen=True, slots=True, order=True)
class Need:
    """One permission; `keys` are condition keys in small letters with what they would be at this call."""

    action: str
    resource: str
    keys: Keys = ()


@dataclass(frozen=True, slots=True)
class CallPlace:
    """The place of calls. `key_of` returns the ARN of the customer's key of a queue, topic or table ("" where it has
    none), `tags_of` the tags of a training job by its ARN."""

    account: str
    region: str
    key_of: Callable[[str], str]
    tags_of: Callable[[str], Mapping[str, str]]

    def arn(self, service: str, resource: str) -> str:
        """Of a resource in this account and region."""
        return f"arn:aws:{service}:{self.region}:{self.account}:{resource}"

    def with_key(self, service: str, arn: str, *actions: str) -> Iterator[Need]:
        """Yield the actions on the customer's key that the service does in the caller's name."""
        if key := self.key_of(arn):
            via = (("kms:viaservice", f"{service}.{self.region}.amazonaws.com"),)
            yield from (Need(f"kms:{action}", key, via) for action in actions)


def needs(call: AwsCall, place: CallPlace) -> Iterator[Need]:
    """Yield the needs of a call; raise ValueError for an operation that is not listed."""
    match call.service:
        case "dynamodb":
            yield from _of_dynamodb(call, place)
        case "sagemaker":
            yield from _of_sagemaker(call, place)
        case "sqs" if call.operation in ("SendMessage", "SendMessageBatch"):
            queue = place.arn("sqs", str(call.asked["QueueUrl"]).rpartition("/")[2])
            yield from sending(queue, place)
        case "events" if call.operation == "PutEvents":
            for entry in call.asked["Entries"]:
                yield Need("events:PutEvents", place.arn("events", f"event-bus/{entry.get('EventBusName', 'default')}"))
        case "kms" if call.operation in ("GenerateMac", "VerifyMac"):
            yield Need(f"kms:{call.operation}", place.arn("kms", f"key/{call.asked['KeyId']}"))
        case "ssm" if call.operation == "GetParameter":
            yield Need("ssm:GetParameter", place.arn("ssm", f"parameter{call.asked['Name']}"))
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
    elif call.operation in OF_EXECUTION:
        yield Need(f"sagemaker:{call.operation}", str(call.asked["PipelineExecutionArn"]))
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
