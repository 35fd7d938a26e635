"""The judge of permissions sees what is missing, what is too much and what AWS would not know."""

import json
from typing import Any

import pytest

from local.needs import AwsCall, CallPlace, Need, needs
from tests.iam.grants import Granted
from tests.iam.permissions import compare
from tests.iam.reference import objections, statement_objections
from tests.iam.sites import sites

ACCOUNT, REGION = "000000000000", "us-east-1"
QUEUE = f"arn:aws:sqs:{REGION}:{ACCOUNT}:Letters"
TABLE = f"arn:aws:dynamodb:{REGION}:{ACCOUNT}:table/runs"
KEY = f"arn:aws:kms:{REGION}:{ACCOUNT}:key/Key"
JOB = f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:training-job/gpt"


def here(keys: dict[str, str] | None = None, tags: dict[str, str] | None = None) -> CallPlace:
    return CallPlace(ACCOUNT, REGION, lambda arn: (keys or {}).get(arn, ""), lambda arn: tags or {})


def call(service: str, operation: str, **asked: Any) -> AwsCall:
    return AwsCall("f", service, operation, "adapter.method", asked)


def template(*statements: dict[str, Any], **resources: Any) -> dict[str, Any]:
    """One function with a role that has these statements."""
    role = {"Fn::GetAtt": ["Role", "Arn"]}
    return {
        "Resources": {
            "Role": {"Type": "AWS::IAM::Role", "Properties": {}},
            "Policy": {
                "Type": "AWS::IAM::Policy",
                "Properties": {"Roles": [{"Ref": "Role"}], "PolicyDocument": {"Statement": list(statements)}},
            },
            "Function": {
                "Type": "AWS::Lambda::Function",
                "Properties": {"Handler": "f.handler", "Role": role, "LoggingConfig": {"LogGroup": {"Ref": "Logs"}}},
            },
            "Logs": {"Type": "AWS::Logs::LogGroup", "Properties": {}},
            **resources,
        }
    }


def allow(action: str, on: Any, **condition: Any) -> dict[str, Any]:
    return {"Effect": "Allow", "Action": action, "Resource": on, **({"Condition": condition} if condition else {})}


def judged(body: dict[str, Any], *calls: AwsCall, place: CallPlace | None = None) -> Any:
    granted = Granted(body, account=ACCOUNT, region=REGION, names={})
    return compare(granted, calls, place or here())


@pytest.mark.parametrize(
    ("made", "needed"),
    [
        (call("s3", "ListObjectsV2", Bucket="b", Prefix="p"), {"s3:ListBucket arn:aws:s3:::b"}),
        (
            call("s3", "HeadObject", Bucket="b", Key="k"),
            {"s3:GetObject arn:aws:s3:::b/k", "s3:ListBucket arn:aws:s3:::b"},
        ),
        (
            call("s3", "CopyObject", Bucket="b", Key="to", CopySource={"Bucket": "b", "Key": "from"}),
            {
                "s3:PutObject arn:aws:s3:::b/to",
                "s3:GetObject arn:aws:s3:::b/from",
                "s3:GetObjectTagging arn:aws:s3:::b/from",
                "s3:PutObjectTagging arn:aws:s3:::b/to",
            },
        ),
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
        (
            call("dynamodb", "Query", TableName="runs", IndexName="open"),
            {f"dynamodb:Query {TABLE}/index/open"},
        ),
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
    assert {f"{need.action} {need.resource}" for need in needs(made, here({QUEUE: KEY}))} == needed


def test_an_operation_that_is_not_listed_is_reported():
    found = judged(template(), call("s3", "DeleteBucket", Bucket="b"))
    assert found.unknown == {"not known which permissions s3:DeleteBucket needs"}


def test_what_is_missing_and_what_is_too_much_are_both_found():
    body = template(allow("sqs:SendMessage", QUEUE), allow("sqs:PurgeQueue", QUEUE))
    send = call("sqs", "SendMessageBatch", QueueUrl="http://localhost/0/Letters", Entries=[])
    found = judged(body, send, call("s3", "PutObject", Bucket="b", Key="k"))
    assert [grant.action for grant in found.used] == ["sqs:SendMessage"]
    assert [grant.action for grant in found.unused] == ["sqs:PurgeQueue"]
    assert [(who, need.action) for who, need in found.denied] == [("f", "s3:PutObject")]


@pytest.mark.parametrize(("tags", "is_allowed"), [({"rerail:policy": "default"}, True), ({"other": "tag"}, False)])
def test_conditions_are_weighed(tags: dict[str, str], is_allowed: bool):
    """Here on the tags that the job has."""
    marked = {"Null": {"aws:ResourceTag/rerail:policy": "false"}}
    body = template(allow("sagemaker:StopTrainingJob", "*", **marked))
    found = judged(body, call("sagemaker", "StopTrainingJob", TrainingJobName="gpt"), place=here(tags=tags))
    assert bool(found.denied) is not is_allowed


def test_a_key_is_needed_through_the_service_that_uses_it():
    """A permission for another service's use of it is none."""
    via = {"StringEquals": {"kms:ViaService": f"sns.{REGION}.amazonaws.com"}}
    body = template(allow("sqs:SendMessage", QUEUE), allow("kms:Decrypt", KEY, **via))
    send = call("sqs", "SendMessageBatch", QueueUrl="http://localhost/0/Letters", Entries=[])
    found = judged(body, send, place=here({QUEUE: KEY}))
    assert {need.action for _, need in found.denied} == {"kms:Decrypt", "kms:GenerateDataKey"}


def test_a_refusal_in_the_resources_own_policy_wins():
    refusal = {"Effect": "Deny", "Action": "sqs:*", "Resource": "*", "Principal": {"AWS": "*"}}
    policy = {"Queues": [{"Ref": "Letters"}], "PolicyDocument": {"Statement": [refusal]}}
    body = template(
        allow("sqs:SendMessage", QUEUE),
        Letters={"Type": "AWS::SQS::Queue", "Properties": {}},
        Refusal={"Type": "AWS::SQS::QueuePolicy", "Properties": policy},
    )
    send = call("sqs", "SendMessageBatch", QueueUrl="http://localhost/0/Letters", Entries=[])
    assert [need.action for _, need in judged(body, send).denied] == ["sqs:SendMessage"]


@pytest.mark.parametrize(
    ("statement", "word"),
    [
        (allow("s3:ListObjectsV2", "arn:aws:s3:::b"), "there is no such action"),
        (allow("sqs:*", QUEUE), "an action with a wildcard"),
        (allow("sagemaker:ListTrainingJobs", JOB), "it takes no resource: only * works"),
        (allow("sqs:SendMessage", "*"), "it could name its resource, and does not"),
        (allow("s3:ListBucket", "arn:aws:sqs:us-east-1:0:q"), "it takes only arn:"),
        (allow("iam:PassRole", "arn:aws:iam::0:role/r"), "it hands out permissions"),
        (allow("iam:CreateRole", "arn:aws:iam::0:role/r"), "it hands out permissions"),
        (
            allow("sqs:SendMessage", QUEUE, StringEquals={"sns:Protocol": "https"}),
            "it has no sns:Protocol to be tested by StringEquals",
        ),
        (
            allow("cloudwatch:GetMetricData", "*", Null={"aws:RequestTag/a": "false"}),
            "it has no aws:RequestTag/a to be tested by Null",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_aws_would_not_know_is_found(statement: dict[str, Any], word: str):
    (grant,) = Granted(template(statement), account=ACCOUNT, region=REGION, names={}).grants
    (found,) = objections(grant)
    assert found.startswith(word)


@pytest.mark.parametrize(
    ("statement", "word"),
    [
        ({"Action": "s3:*", "Resource": "arn:aws:s3:::b/*", "Condition": {"Null": {"s3:if-none-match": "true"}}}, ""),
        ({"Action": "s3:GetObjects", "Resource": "*"}, "s3:GetObjects: there is no such action"),
        ({"Action": "nothing:*", "Resource": "*"}, "nothing:*: there is no such action"),
        ({"Action": "sqs:*", "Resource": "arn:aws:s3:::b"}, "sqs:*: it takes no arn:aws:s3:::b"),
        ({"Action": "s3:PutObject", "Resource": "arn:aws:s3:::b"}, "s3:PutObject: it takes no arn:aws:s3:::b"),
        (
            {"Action": "s3:DeleteObject", "Resource": "*", "Condition": {"Null": {"s3:if-none-match": "true"}}},
            "s3:DeleteObject: it has no s3:if-none-match to be tested by Null",
        ),
        ({"Action": "sts:AssumeRole", "Condition": {"Bool": {"aws:SecureTransport": "true"}}}, ""),
    ],
    ids=str,
)
def test_what_aws_would_not_know_of_a_refusal_is_found(statement: dict[str, Any], word: str):
    assert "; ".join(statement_objections(statement)) == word


def test_every_call_in_the_code_is_found_and_its_needs_are_known():
    """By reading: no list is kept. An operation without a line in `needs` would be an error there."""
    found = {(site.service, site.method) for site in sites()}
    assert {("sagemaker", "create_training_job"), ("s3", "upload_part_copy"), ("logs", "get_log_events")} <= found
    assert len(found) > 30
    unknown = []
    for service, method in sorted(found - {("s3", "generate_presigned_url"), ("dynamodb", "scan")}):
        operation = {"list_objects_v2": "ListObjectsV2"}.get(method) or "".join(map(str.title, method.split("_")))
        try:
            list(needs(call(service, operation), here()))
        except KeyError:
            continue  # it is known, and asked for its parameters
        except ValueError as error:
            unknown.append(str(error))
    assert unknown == []


def test_a_statement_is_judged_with_the_names_that_its_resources_got():
    body = template(
        allow("sqs:SendMessage", {"Fn::GetAtt": ["Letters", "Arn"]}),
        Letters={"Type": "AWS::SQS::Queue", "Properties": {}},
    )
    granted = Granted(body, account=ACCOUNT, region=REGION, names={"Letters": "http://localhost/0/Rerail-Letters-1"})
    (grant,) = granted.grants
    assert json.loads(grant.statement)["Resource"].endswith(":Rerail-Letters-1")
    assert grant.covers(Need("sqs:SendMessage", f"arn:aws:sqs:{REGION}:{ACCOUNT}:Rerail-Letters-1"), here())
    assert not grant.covers(Need("sqs:SendMessage", QUEUE), here())
