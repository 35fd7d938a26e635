"""The permissions that calls need, and parts of statements that AWS does not know."""

from typing import Any

import pytest

from local.needs import AwsCall, CallPlace, needs
from local.permissions import CHECKED
from tests.iam.grants import ACCOUNT, REGION
from tests.iam.reference import objections
from tests.iam.sites import sites

QUEUE = f"arn:aws:sqs:{REGION}:{ACCOUNT}:Letters"
TABLE = f"arn:aws:dynamodb:{REGION}:{ACCOUNT}:table/runs"
KEY = f"arn:aws:kms:{REGION}:{ACCOUNT}:key/Key"
ROLE = "arn:aws:iam::000000000000:role/train"
JOB = f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:training-job/gpt"


HERE = CallPlace(ACCOUNT, REGION, lambda arn: KEY if arn == QUEUE else "", lambda arn: {})


def call(service: str, operation: str, **asked: Any) -> AwsCall:
    return AwsCall(service, operation, asked)


def allow(action: str, on: Any, **condition: Any) -> dict[str, Any]:
    return {"Effect": "Allow", "Action": action, "Resource": on, **({"Condition": condition} if condition else {})}


@pytest.mark.parametrize(
    ("made", "needed"),
    [
        (
            call("sqs", "SendMessageBatch", QueueUrl=f"http://localhost/{ACCOUNT}/Letters", Entries=[]),
            {f"sqs:SendMessage {QUEUE}", f"kms:Decrypt {KEY}", f"kms:GenerateDataKey {KEY}"},
        ),
        (
            call(
                "dynamodb",
                "TransactWriteItems",
                TransactItems=[{"Put": {"TableName": "runs", "Item": {"pk": {"S": "a"}}}}],
            ),
            {f"dynamodb:PutItem {TABLE}"},
        ),
        (call("dynamodb", "Query", TableName="runs", IndexName="open"), {f"dynamodb:Query {TABLE}/index/open"}),
        (
            call(
                "sagemaker",
                "CreateTrainingJob",
                TrainingJobName="gpt",
                RoleArn="arn:aws:iam::000000000000:role/train",
                Tags=[{"Key": "rerail:run", "Value": "gpt"}],
            ),
            {
                f"sagemaker:CreateTrainingJob {JOB}",
                f"sagemaker:AddTags {JOB}",
                "iam:PassRole arn:aws:iam::000000000000:role/train",
            },
        ),
    ],
    ids=lambda value: value.operation if isinstance(value, AwsCall) else "",
)
def test_what_a_call_needs_is_more_than_an_action_of_its_name(made: AwsCall, needed: set[str]):
    assert {f"{need.action} {need.resource}" for need in needs(made, HERE)} == needed


TAGGED, WRITTEN_NEW = {"Null": {"aws:RequestTag/a": "false"}}, {"Null": {"s3:if-none-match": "true"}}


@pytest.mark.parametrize(
    ("statement", "word"),
    [
        (allow("s3:ListObjectsV2", "arn:aws:s3:::b"), "s3:ListObjectsV2: there is no such action"),
        (allow("sqs:*", QUEUE), "sqs:*: an action with a wildcard"),
        (allow("sagemaker:ListTrainingJobs", JOB), f"sagemaker:ListTrainingJobs: it takes no {JOB}"),
        (allow("sqs:SendMessage", "*"), "sqs:SendMessage: it could name its resource, and does not"),
        (allow("s3:ListBucket", QUEUE), f"s3:ListBucket: it takes no {QUEUE}"),
        (allow("iam:PassRole", ROLE), "iam:PassRole: it hands out permissions: its owner can get more permissions"),
        (allow("iam:PassRole", ROLE, StringEquals={"iam:PassedToService": "sagemaker.amazonaws.com"}), ""),
        (allow("iam:CreateRole", ROLE), "iam:CreateRole: it hands out permissions: its owner can get more permissions"),
        (
            allow("sqs:SendMessage", QUEUE, StringEquals={"sns:Protocol": "https"}),
            "sqs:SendMessage: it has no sns:Protocol to be tested by StringEquals",
        ),
        (
            allow("cloudwatch:GetMetricData", "*", **TAGGED),
            "cloudwatch:GetMetricData: it has no aws:RequestTag/a to be tested by Null",
        ),
        ({"Action": "s3:*", "Resource": "arn:aws:s3:::b/*", "Condition": WRITTEN_NEW}, ""),
        ({"Action": "s3:GetObjects", "Resource": "*"}, "s3:GetObjects: there is no such action"),
        ({"Action": "nothing:*", "Resource": "*"}, "nothing:*: there is no such action"),
        ({"Action": "sqs:*", "Resource": "arn:aws:s3:::b"}, "sqs:*: it takes no arn:aws:s3:::b"),
        ({"Action": "s3:PutObject", "Resource": "arn:aws:s3:::b"}, "s3:PutObject: it takes no arn:aws:s3:::b"),
        (
            {"Action": "s3:DeleteObject", "Resource": "*", "Condition": WRITTEN_NEW},
            "s3:DeleteObject: it has no s3:if-none-match to be tested by Null",
        ),
        ({"Action": "sts:AssumeRole", "Condition": {"Bool": {"aws:SecureTransport": "true"}}}, ""),
    ],
    ids=str,
)
def test_what_aws_would_not_know_of_a_statement_is_found(statement: dict[str, Any], word: str):
    assert "; ".join(objections(statement)) == word


def test_the_needs_of_every_call_in_the_code_are_known():
    """The calls are read from the code. An operation without a line in `needs` would be an error there."""
    found = {(site.service, site.method) for site in sites()}
    assert {("sagemaker", "create_training_job"), ("s3", "upload_part_copy"), ("logs", "get_log_events")} <= found
    assert len(found) > 30
    unknown = []
    for service, method in sorted(found):
        try:
            list(needs(call(service, "".join(map(str.title, method.split("_")))), HERE))
        except KeyError:
            continue  # it is known, and asked for its parameters
        except ValueError as error:
            unknown.append(str(error))
    assert [text for text in unknown if text.split()[-2].partition(":")[0] in CHECKED] == []
